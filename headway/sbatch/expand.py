"""Expands the words of a script with the variables that it sets, as a shell would, as far as their values are known."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from msgspec import Struct, field

from headway.sbatch.syntax import Script, below, parse
from headway.sbatch.text import EMPTY, Piece, Reference, Source, Text, fields, join, text

if TYPE_CHECKING:
    from tree_sitter import Node

Value = Text | list[Text]
"""A variable's value; a list for an array."""

# How scripts find the node, the address and the port that ranks meet at.
_MEETING = re.compile(
    r"scontrol\s+show\s+host|\bhostname\b|SLURM_(JOB_)?NODELIST|\bgetent\b|\bip\s+(-\S+\s+)*a|/etc/hosts|\bshuf\b|import socket|\bss\s+-"
    r"|RANDOM|SLURMD_NODENAME|SLURM_LAUNCH_NODE"
)
_HERE = re.compile(r"\$\(\s*pwd(\s+-P)?\s*\)|`\s*pwd\s*`")
_GPUS = re.compile(r"nvidia-smi.*(-L|--list-gpus|query-gpu).*wc\s+-l|CUDA_VISIBLE_DEVICES.*(tr|awk|wc)")
_EXPANSION = re.compile(
    r"\$\{(?P<length>#)?(?P<name>[A-Za-z_]\w*|[0-9@*#?$!-])(?:\[(?P<index>.*?)\])?(?P<rest>(?:[:=?+%/#^,@-].*)?)\}", re.DOTALL
)
_ESCAPED = re.compile(r'\\(\n|["\\$`])')
_BARE_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b if 0 <= b < 64 else 0,
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
}
_ARGUMENTS = ("@", "*", *"123456789")
# Variables by which a script can ask for its folder; jobs are submitted from there.
HERE = ("PWD", "SLURM_SUBMIT_DIR")


class Variables(Struct):
    """The variables of a script at one of its statements.

    `given` are values from outside, `slurm` those that follow from the script's options to sbatch. `defaults` are the variables for
    which the script has a default value, with that value and the expression.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    slurm: Mapping[str, str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    defaults: dict[str, tuple[str, str]] = field(default_factory=dict)

    def get(self, name: str) -> Value:
        """Return the variable's value; a reference to it where only the job has it."""
        if name in self.values:
            return self.values[name]
        if name in self.given:
            return text(self.given[name])
        if name in HERE:
            return text(Reference(name, f"${name}", Source.SLURM, "."))
        if name.startswith("SLURM") or name in ("CUDA_VISIBLE_DEVICES", "HOSTNAME"):
            meets = _MEETING.search(name) is not None or name == "HOSTNAME"
            source = Source.RENDEZVOUS if meets else Source.SLURM
            return text(Reference(name, f"${{{name}}}", source, self.slurm.get(name)))
        if name == "RANDOM":
            return text(Reference(name, "$RANDOM", Source.RENDEZVOUS))
        return text(Reference(name, f"${{{name}}}", Source.ENVIRONMENT))

    @contextmanager
    def arguments(self, given: Sequence[Text]) -> Iterator[None]:
        """Set `$1`, `$@` and the others for the body of a function or another script."""
        before = {name: value for name, value in self.values.items() if name.isdigit() or name in ("@", "*", "#")}
        own: dict[str, Value] = {str(number): word for number, word in enumerate(given, 1)}
        self._replace(before, {**own, "@": list(given), "*": list(given), "#": text(str(len(given)))})
        try:
            yield
        finally:
            self._replace(own, before)

    def _replace(self, old: Mapping[str, Value], new: Mapping[str, Value]) -> None:
        for name in old:
            self.values.pop(name, None)
        self.values.update(new)

    def is_set(self, name: str) -> bool:
        return name in self.values or name in self.given or name in self.slurm or name in HERE

    def one(self, name: str) -> Text:
        """Return the value of a variable that is not an array; the first of an array's."""
        value = self.get(name)
        return value if isinstance(value, Text) else (value[0] if value else EMPTY)


class Expander:
    """Expands the nodes of one script."""

    def __init__(self, script: Script, variables: Variables) -> None:
        self.script, self.variables = script, variables

    def words(self, node: "Node") -> list[Text]:
        """Return the words that a shell makes of the node."""
        array = self._whole_array(node)
        if array is not None:
            return array
        return list(fields(tuple(self._pieces(node)), quoted='"' in self.script.text(node) or "'" in self.script.text(node)))

    def value(self, node: "Node") -> Text:
        """Return the node as one word, without splitting, as an assignment takes it."""
        array = self._whole_array(node)
        return join(array) if array is not None else text(*(part for piece, _ in self._pieces(node) for part in piece.parts))

    def array(self, node: "Node") -> list[Text]:
        """Return the items of `(...)`."""
        return [word for child in node.named_children if child.type != "comment" for word in self.words(child)]

    def _whole_array(self, node: "Node") -> list[Text] | None:
        """Return the items of `"${A[@]}"` as a word of its own, and of `${A[*]}`."""
        found = re.fullmatch(r'"?\$(?:\{([A-Za-z_]\w*)\[[@*]\]\}|\{?([@*])\}?)"?', self._code(node))
        if found is None or (found[2] and found[2] not in self.variables.values):
            return None
        value = self.variables.get(found[1] or found[2])
        items = value if isinstance(value, list) else [value]
        if self._code(node).startswith('"'):
            return items
        return [word for item in items for word in fields([(item, True)])]

    def _pieces(self, node: "Node") -> Iterator[Piece]:
        handler = getattr(self, f"_in_{node.type}", None)
        if handler is not None:
            yield from handler(node)
        else:
            yield text(_BARE_ESCAPED.sub(lambda found: "" if found[1] == "\n" else found[1], self.script.text(node))), False

    def _in_raw_string(self, node: "Node") -> Iterator[Piece]:
        yield text(self.script.text(node)[1:-1]), False

    def _in_ansi_c_string(self, node: "Node") -> Iterator[Piece]:
        yield text(self.script.text(node)[2:-1].replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'")), False

    def _in_string(self, node: "Node") -> Iterator[Piece]:
        yield from ((piece, False) for piece in self._between(node, node.start_byte + 1, node.end_byte - 1))

    def between(self, node: "Node") -> Text:
        """Return the text of a node as between double quotes, for a here-document."""
        return text(*(part for piece in self._between(node, node.start_byte, node.end_byte) for part in piece.parts))

    def _between(self, node: "Node", at: int, end: int) -> Iterator[Text]:
        # The grammar leaves blanks next to expansions out of its nodes, or counts them to the expansion.
        for child in node.named_children:
            if child.type in ("string_content", "heredoc_content"):
                continue
            start = child.start_byte + len(self.script.text(child).encode()) - len(self._code(child).encode())
            yield self._quoted(at, start)
            yield from (piece for piece, _ in self._pieces(child))
            at = child.end_byte
        yield self._quoted(at, end)

    def _code(self, node: "Node") -> str:
        """Return the node's text without the blanks before it, which the grammar counts to an expansion between quotes."""
        return re.sub(r"^(?:\s|\\\n)+", "", self.script.text(node))

    def _quoted(self, start: int, end: int) -> Text:
        raw = self.script.content[start:end].decode(errors="replace")
        return text(_ESCAPED.sub(lambda found: "" if found[1] == "\n" else found[1], raw))

    def _in_concatenation(self, node: "Node") -> Iterator[Piece]:
        for child in node.children:
            yield from self._pieces(child)

    def _in_command_name(self, node: "Node") -> Iterator[Piece]:
        for child in node.named_children:
            yield from self._pieces(child)

    def _in_simple_expansion(self, node: "Node") -> Iterator[Piece]:
        name = self._code(node)[1:]
        if re.fullmatch(r"[A-Za-z_]\w*", name) or name in self.variables.values:
            value = self.variables.get(name)
            yield (join(value) if isinstance(value, list) and name in ("@", "*") else self.variables.one(name)), True
        else:
            yield text(Reference(name if name in _ARGUMENTS else "", f"${name}", Source.COMMAND)), True

    def _in_expansion(self, node: "Node") -> Iterator[Piece]:
        yield self._parameter(self._code(node)), True

    def _parameter(self, written: str) -> Text:
        unknown = text(Reference("", written, Source.COMMAND))
        found = _EXPANSION.fullmatch(written)
        if found is None:
            return unknown
        name, index, rest = found["name"], found["index"], found["rest"]
        value = self.variables.get(name)
        if found["length"]:
            return text(str(len(value))) if isinstance(value, list) and index in ("@", "*") else unknown
        if index in ("@", "*"):
            one = join(value) if isinstance(value, list) else value
        elif index is not None:
            one = self._item(value, index) or unknown
        else:
            one = self.variables.one(name)
        return self._modified(name, one, rest) or unknown if rest else one

    def _item(self, value: Value, index: str) -> Text | None:
        number = self.number(index)
        if isinstance(value, list) and any(item.is_of(Source.RENDEZVOUS) for item in value):
            return next(item for item in value if item.is_of(Source.RENDEZVOUS))
        if isinstance(value, Text):
            return value if number == 0 or value.is_of(Source.RENDEZVOUS) else None
        return value[number] if number is not None and -len(value) <= number < len(value) else None

    def _modified(self, name: str, value: Text, rest: str) -> Text | None:
        """Return the value with an operator such as `:-default` applied; None for an operator that is not read."""
        if found := re.match(r":?[-=]", rest):
            default = self._inside(rest[found.end() :])
            is_open = value.is_of(Source.ENVIRONMENT) or (value.is_of(Source.SLURM) and value.known is None)
            if not is_open and (value.parts or not rest.startswith(":")):
                return value
            if value.parts and value.is_of(Source.ENVIRONMENT):
                self.variables.defaults[name] = (default.shown, f"${{{name}{rest}}}")
            return default if not value.is_of(Source.SLURM) else value
        if re.match(r":?\?", rest):
            return value
        if rest.startswith(":+"):
            return (
                self._inside(rest[2:]) if value.known else EMPTY if value.known == "" or not self.variables.is_set(name) else None
            )
        known = value.literal
        if known is None:
            return value if value.is_of(Source.RENDEZVOUS) else None
        return _trimmed(known, rest)

    def _inside(self, source: str) -> Text:
        """Expand a piece of text of the script, as between double quotes."""
        if len(source) > 1 and source[0] == source[-1] == "'":
            return text(source[1:-1])
        if len(source) > 1 and source[0] == source[-1] == '"':
            source = source[1:-1]
        inner = parse(f'x="{source}"')
        value = next(below(inner.root, "string"), None)
        return text(source) if value is None else Expander(inner, self.variables).value(value)

    def _in_command_substitution(self, node: "Node") -> Iterator[Piece]:
        written = self._code(node)
        if _HERE.fullmatch(written):
            yield self.variables.one("PWD"), True
        elif (known := self._run(node)) is not None:
            yield known, True
        elif _GPUS.search(written):
            yield (
                text(Reference("SLURM_GPUS_ON_NODE", written, Source.SLURM, self.variables.slurm.get("SLURM_GPUS_ON_NODE"))),
                True,
            )
        else:
            yield text(Reference("", written, Source.RENDEZVOUS if self._is_meeting(node) else Source.COMMAND)), True

    def _run(self, node: "Node") -> Text | None:
        """Return the output of a command that only works on text; None for another one."""
        commands = [child for child in node.named_children if child.type == "command"]
        if len(node.named_children) != 1 or not commands:
            return None
        words = [word for child in commands[0].named_children for word in self.words(child)]
        name = words[0].literal if words else None
        if name == "echo" and len(words) > 1 and not words[1].starts("-"):
            return join(words[1:])
        known = [word.known for word in words[1:]]
        if None in known or not known:
            return None
        given = [each for each in known if each is not None]
        if name == "expr":
            number = self.number(" ".join(given)) if all(re.fullmatch(r"[\d+*/%()-]+", each) for each in given) else None
            of_slurm = any(word.is_of(Source.SLURM) for word in words)
            shown = self._code(node)
            return None if number is None else text(Reference("", shown, Source.SLURM, str(number)) if of_slurm else str(number))
        if name in ("basename", "dirname") and words[1].literal is not None:
            path = PurePosixPath(given[0])
            return text(str(path.parent) if name == "dirname" else path.name.removesuffix(given[1] if len(given) > 1 else ""))
        return None

    def _is_meeting(self, node: "Node") -> bool:
        """Whether the text, or a variable in it, has to do with where ranks meet."""
        if _MEETING.search(self.script.text(node)):
            return True
        names = (self.script.text(each) for each in below(node, "variable_name"))
        return any(self.variables.one(name).is_of(Source.RENDEZVOUS) for name in names)

    def _in_arithmetic_expansion(self, node: "Node") -> Iterator[Piece]:
        written = self._code(node)
        number = self._computed(node.named_children[0]) if len(node.named_children) == 1 else None
        of_slurm = any(self.variables.one(self.script.text(each)).is_of(Source.SLURM) for each in below(node, "variable_name"))
        if number is not None and of_slurm:
            yield text(Reference("", written, Source.SLURM, str(number))), True
        elif number is not None:
            yield text(str(number)), True
        else:
            is_port = self._is_meeting(node) or "SLURM_JOB_ID" in written or "SLURM_JOBID" in written
            yield text(Reference("", written, Source.RENDEZVOUS if is_port else Source.COMMAND)), True

    def number(self, source: str) -> int | None:
        """Return the value of an arithmetic expression; None if it is not known."""
        inner = parse(f"x=$(({source}))")
        found = next(below(inner.root, "arithmetic_expansion"), None)
        if found is None or len(found.named_children) != 1:
            return None
        return Expander(inner, self.variables)._computed(found.named_children[0])

    def _computed(self, node: "Node") -> int | None:
        if node.type == "parenthesized_expression" and len(node.named_children) == 1:
            return self._computed(node.named_children[0])
        if node.type == "binary_expression" and len(node.named_children) == 2:
            operator = next((self.script.text(child) for child in node.children if not child.is_named), "")
            left, right = map(self._computed, node.named_children)
            if left is None or right is None or operator not in _OPERATORS or (operator in "/%" and right == 0):
                return None
            return _OPERATORS[operator](left, right)
        known = self.variables.one(self.script.text(node)).known if node.type == "variable_name" else self.value(node).known
        return int(known) if known is not None and re.fullmatch(r"-?[0-9]{1,18}", known) else None


def _trimmed(known: str, rest: str) -> Text | None:
    """Return the text without what `%`, `%%`, `#` or `##` remove, for a pattern of plain text with one `*` at an end; with `/a/b`, and
    in lower or upper case."""
    if found := re.fullmatch(r"(%%?)([^*?\[\]]*)\*", rest):
        at = known.find(found[2]) if found[1] == "%%" else known.rfind(found[2])
        return text(known if at < 0 else known[:at])
    if found := re.fullmatch(r"(##?)\*([^*?\[\]]+)", rest):
        at = known.rfind(found[2]) if found[1] == "##" else known.find(found[2])
        return text(known if at < 0 else known[at + len(found[2]) :])
    if found := re.fullmatch(r"%%?([^*?\[\]]+)", rest):
        return text(known.removesuffix(found[1]))
    if found := re.fullmatch(r"##?([^*?\[\]]+)", rest):
        return text(known.removeprefix(found[1]))
    if found := re.fullmatch(r"(//?)([^*?\[\]/#%]+)/([^/$]*)", rest):
        return text(known.replace(found[2], found[3], -1 if found[1] == "//" else 1))
    return text(known.lower()) if rest == ",," else text(known.upper()) if rest == "^^" else None
