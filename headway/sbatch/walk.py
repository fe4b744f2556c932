"""Goes through the statements of a script: sets its variables, and finds set-up lines, exports and commands that may be the training."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from headway.sbatch.commands import ENDS_SCRIPT, PRINTS, SETS_UP, SHELL, is_portable, is_rendezvous_command, setup_line
from headway.sbatch.containers import folders_of
from headway.sbatch.expand import HERE, Expander, Variables
from headway.sbatch.launch import RUNNERS, Launch, launch_of
from headway.sbatch.notes import NoteKind, Notes
from headway.sbatch.syntax import Script, below, parse
from headway.sbatch.text import EMPTY, Reference, Source, Text, needs_script, text

if TYPE_CHECKING:
    from tree_sitter import Node

_DEEPEST = 8
# Commands that print, and with a command behind them start that.
_RUN_ANOTHER = ("env", "numactl")
_HARMLESS = ("sleep", "true", ":")
_ENDINGS = (*ENDS_SCRIPT, "return")
_STARTS = re.compile(r"\b(torchrun|torch\.distributed|accelerate|deepspeed|srun|python3?|apptainer|singularity)\b")
FIRST_TURN = "a loop: the job has its first turn; `sweep` makes a run of each value"
_LOG = "headway keeps the output of each rank in the run's directory: `headway logs RUN --rank R`"


class Loop(Struct, frozen=True):
    """A `for` loop over values that the script shows, with a command that may be the training."""

    line: int
    source: str
    turns: int


class Found(Struct):
    """The findings of a walk through a script. `exports` and `setup` are in the order of the script, each with its line.

    `turns` are the turns of the loops that are read, in the order of `loops`; the first of further ones.
    """

    turns: Sequence[int] = ()
    loops: list[Loop] = field(default_factory=list)

    launches: list[Launch] = field(default_factory=list)
    exports: dict[str, tuple[Text, int]] = field(default_factory=dict)
    setup: list[tuple[str, int, bool]] = field(default_factory=list)
    """Line of shell, where it is from, and whether it runs where the ranks run, inside the container."""


class Walker:
    """Walks through one script; `find_file` returns the text of a script that bash runs, if it is there."""

    def __init__(
        self,
        script: Script,
        variables: Variables,
        notes: Notes,
        found: Found,
        find_file: Callable[[str], str | None],
        depth: int = 0,
    ) -> None:
        self.script, self.variables, self.notes, self.found = script, variables, notes, found
        self._find_file, self._depth = find_file, depth
        self._expander = Expander(script, variables)
        self._functions: dict[str, Node] = {}
        self._called: set[str] = set()
        self._outer: Launch | None = None
        self.ended = False

    def walk(self, outer: Launch | None = None) -> None:
        """Go through the whole script; `outer` is what a shell that runs it was started with."""
        self._outer = outer
        self._all(self.script.root)
        for name, body in self._functions.items():
            if name not in self._called:
                self._note(NoteKind.OMITTED, body, f"nothing calls the function `{name}`")

    def _all(self, node: "Node") -> None:
        for child in node.named_children:
            if self.ended:
                if child.type != "comment":
                    self._note(NoteKind.OMITTED, child, "it is behind the end of the script")
                continue
            self._one(child)

    def _one(self, node: "Node") -> None:
        handler = getattr(self, f"_on_{node.type}", None)
        if handler is not None:
            handler(node)
        elif node.type not in ("comment", "heredoc_body", "heredoc_redirect", "file_redirect"):
            self._unread(node, "this statement is not read")

    # --- variables ----------------------------------------------------------------------------------------------------

    def _on_variable_assignment(self, node: "Node", exported: bool = False) -> None:
        name_node = node.child_by_field_name("name")
        value_node = node.child_by_field_name("value")
        if name_node is None:
            return
        if name_node.type == "subscript":
            self._unread(node, "an item of an array is set")
            return
        name = self.script.text(name_node)
        if value_node is not None and value_node.type == "array":
            items = self._expander.array(value_node)
            before = self.variables.values.get(name)
            appends = "+=" in self.script.text(node).partition("(")[0]
            items = [self._named(node, name, item) for item in items]
            self.variables.values[name] = [*(before if isinstance(before, list) else []), *items] if appends else items
            return
        value = EMPTY if value_node is None else self._expander.value(value_node)
        if "+=" in self.script.text(node)[: len(name) + 2]:
            value = text(*self.variables.one(name).parts, *value.parts)
        self._set(node, name, value, exported)

    def _set(self, node: "Node", name: str, value: Text, exported: bool) -> None:
        named = self._named(node, name, value, exported)
        self.variables.values[name] = named
        if exported or name in self.found.exports:
            # `setup` runs a command on each node.
            kept = value if value.is_of(Source.COMMAND) else named
            if needs_script(kept, self.found.exports, self.variables.values):
                self._unread(node, "it needs a value that is known only when the script runs")
            else:
                self._export(name, kept, node)

    def _named(self, node: "Node", name: str, value: Text, exported: bool = False) -> Text:
        """Note a value that comes from a command, and let the variable itself stand for it if it is nothing else."""
        commands = [part for part in value.references if not part.name]
        if any(part.source is Source.RENDEZVOUS for part in commands):
            self._meets(node)
        elif not exported and any(part.source is Source.COMMAND for part in commands):
            self._unread(node, "the value is known only when the script runs")
        if len(value.parts) == 1 and commands:
            return text(Reference(name, f"${{{name}}}", commands[0].source))
        return value

    def _export(self, name: str, value: Text, node: "Node") -> None:
        self.found.exports.pop(name, None)
        self.found.exports[name] = (value, self.script.line(node))

    def _meets(self, node: "Node") -> None:
        why = "the ranks find each other: headway chooses the address and the port"
        self._note(NoteKind.REPLACED, node, why)

    def _on_variable_assignments(self, node: "Node") -> None:
        self._all(node)

    def _on_declaration_command(self, node: "Node") -> None:
        words = self.script.text(node).split(None, 2)
        exports = words[0] == "export" or (words[0] in ("declare", "typeset") and len(words) > 1 and "x" in words[1])
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._on_variable_assignment(child, exports)
            elif child.type == "variable_name" and exports:
                name = self.script.text(child)
                if self.variables.is_set(name):
                    self._export(name, self.variables.one(name), node)
                else:
                    self._note(NoteKind.OMITTED, node, "ranks inherit the variables of the submission")

    def _on_unset_command(self, node: "Node") -> None:
        for child in node.named_children:
            name = self.script.text(child)
            self.variables.values.pop(name, None)
            self.found.exports.pop(name, None)
        self._note(NoteKind.CHECK, node, "ranks inherit the variables of the submission: unset it there too")

    # --- commands -----------------------------------------------------------------------------------------------------

    def _on_command(self, node: "Node") -> None:
        own: dict[str, Text] = {}
        words: list[Text] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if name is not None:
                    own[self.script.text(name)] = EMPTY if value is None else self._expander.value(value)
            elif child.type not in ("file_redirect", "heredoc_redirect", "herestring_redirect"):
                words += self._expander.words(child)
            else:
                self._redirect(child)
        if words:
            self._run(node, words, own)

    def _run(self, node: "Node", words: list[Text], own: Mapping[str, Text]) -> None:
        name = (words[0].literal or "").rpartition("/")[2]
        if name in self._functions:
            self._called.add(name)
            body = self._functions.pop(name)
            with self.variables.arguments(words[1:]):
                self._all(body)
            self._functions[name] = body
        elif name in {"cd", "pushd"}:
            self._enter(node, words)
        elif name in ENDS_SCRIPT:
            self.ended = self._depth == 0
        elif name == "trap":
            why = "headway asks the ranks to save when Slurm stops the job, and requeues it"
            self._note(NoteKind.REPLACED, node, why)
        elif name == "scontrol" and len(words) > 1 and words[1].literal in ("requeue", "update"):
            self._note(NoteKind.REPLACED, node, "headway requeues the job, without the nodes that failed")
        elif name in SHELL:
            self._note(NoteKind.OMITTED, node, "it only concerns the script itself")
        elif _prints(name, self.script.text(node)):
            self._note(NoteKind.OMITTED, node, "it only prints")
        elif name in SETS_UP and not (name in RUNNERS and "run" in [word.literal for word in words]):
            self._set_up(node, words)
        else:
            self._launch(node, words, own)

    def _enter(self, node: "Node", words: list[Text]) -> None:
        place = words[1] if len(words) > 1 else text("~")
        is_here = all(reference.name in HERE for reference in place.references) and place.known in (".", "./")
        if is_here or (self._outer is not None and place.known in folders_of(self._outer)):
            self._note(NoteKind.REPLACED, node, "ranks start in the folder of the submission")
        else:
            self._unread(node, f"ranks start in the folder of the submission: submit the job from `{place.shown}`")

    def _set_up(self, node: "Node", words: list[Text]) -> None:
        name = (words[0].literal or "").rpartition("/")[2]
        line = setup_line(name, words)
        if line is None:
            self._unread(node, "this line of set-up is not read")
            return
        if any(word.is_of(Source.RENDEZVOUS) or needs_script(word, self.found.exports) for word in words):
            self._unread(node, "it needs a value that is known only when the script runs")
            return
        if name in ("source", ".") and not is_portable(words[1].shown):
            self._note(NoteKind.CHECK, node, "`setup` runs in sh: the file must be POSIX shell")
        on_host = name in ("module", "ml") and self._outer is None
        self.found.setup.append((line, self.script.line(node), not on_host and self._outer is not None))

    def _launch(self, node: "Node", words: list[Text], own: Mapping[str, Text]) -> None:
        line = self.script.line(node)
        if is_rendezvous_command(words):
            self._meets(node)
            return
        launch = launch_of(words, line, self._continued(line))
        launch.environment.update(own)
        launch.used.update(self.script.text(each) for each in below(node, "variable_name"))
        if launch.inner is not None:
            self._inside(launch, launch.inner, line)
            return
        if launch.file is not None and (content := self._file(launch.file)) is not None:
            self._follow(launch, launch.file, content)
            return
        program = launch.name
        if program in PRINTS and not launch.is_python:
            self._note(NoteKind.OMITTED, node, "it only prints")
            return
        if program in SETS_UP and launch.launcher == "srun" and not launch.is_python:
            self._unread(node, "a command on the nodes before the training: put it into `setup` if each node needs it")
            return
        if program.endswith(".sh") and not launch.is_python and (content := self._file(launch.program[0])) is not None:
            launch.arguments = launch.program[1:]
            self._follow(launch, launch.program[0], content)
            return
        self.found.launches.append(launch)

    def _continued(self, line: int) -> Launch | None:
        """Return the launchers of the shell around this command, for the command itself."""
        if self._outer is None:
            return None
        outer = self._outer
        copied = Launch(line, outer.launcher, outer.srun, outer.options, outer.container, outer.container_options, outer.image)
        copied.environment, copied.notes, copied.used = dict(outer.environment), list(outer.notes), set(outer.used)
        return copied

    def _inside(self, launch: Launch, inner: Text, line: int) -> None:
        """Read the text behind `bash -c`. A value that only the outer shell has stays a variable."""
        launch.inner = None
        source = "".join(part if isinstance(part, str) else part.written for part in inner.parts)
        if self._depth >= _DEEPEST:
            self.notes.add(NoteKind.UNREAD, line, source, "shells in shells in shells")
            return
        script = parse(source, line, is_inside=True, file=self.script.file)
        self._child(script).walk(launch)

    def _follow(self, launch: Launch, file: Text, content: str) -> None:
        launch.file, launch.program, launch.is_python = None, [], True
        if self._depth < _DEEPEST:
            with self.variables.arguments(launch.arguments):
                self._child(parse(content, file=file.shown)).walk(launch)

    def _child(self, script: Script) -> "Walker":
        return Walker(script, self.variables, self.notes, self.found, self._find_file, self._depth + 1)

    def _file(self, name: Text) -> str | None:
        known = "".join(part if isinstance(part, str) else (part.value or part.written) for part in name.parts)
        return self._find_file(known)

    # --- compound statements ------------------------------------------------------------------------------------------

    def _on_program(self, node: "Node") -> None:
        self._all(node)

    _on_compound_statement = _on_subshell = _on_do_group = _on_program

    def _on_redirected_statement(self, node: "Node") -> None:
        body = node.child_by_field_name("body")
        if body is not None and self._read_document(node, body):
            return
        writes = [child for child in node.named_children if child.type == "file_redirect" and self._writes(child)]
        heredoc = any(child.type == "heredoc_redirect" for child in node.named_children)
        if body is not None and writes and (heredoc or self._only_prints(body)) and not _STARTS.search(self.script.text(body)):
            self._unread(node, "it writes a file when the job starts: keep the file next to the job")
            return
        for child in node.named_children:
            if child.type == "file_redirect":
                self._redirect(child)
        if body is not None:
            self._one(body)

    def _read_document(self, node: "Node", body: "Node") -> bool:
        """Read `read -r -d '' NAME <<EOF`, by which scripts give a variable several lines."""
        words = self.script.text(body).split()
        redirect = next((child for child in node.named_children if child.type == "heredoc_redirect"), None)
        if words[0] != "read" or redirect is None or not re.fullmatch(r"[A-Za-z_]\w*", words[-1]):
            return False
        inside = next(below(redirect, "heredoc_body"), None)
        start = next(below(redirect, "heredoc_start"), None)
        if inside is None or start is None:
            return False
        is_quoted = self.script.text(start)[:1] in "'\"\\"
        value = text(self.script.text(inside)) if is_quoted else self._expander.between(inside)
        self.variables.values[words[-1]] = value
        return True

    def _writes(self, redirect: "Node") -> bool:
        target = self.script.text(redirect)
        return ">" in target and "/dev/" not in target and ">&" not in target

    def _redirect(self, redirect: "Node") -> None:
        if self._writes(redirect):
            self._note(NoteKind.REPLACED, redirect, _LOG)

    def _on_pipeline(self, node: "Node") -> None:
        """Read the first command; `tee` and the like only keep its output."""
        first, *others = node.named_children
        if self._only_prints(node) or not all(self._is_filter(each) for each in others):
            kind = NoteKind.OMITTED if self._only_prints(node) else NoteKind.UNREAD
            self._note(kind, node, "it only prints" if kind is NoteKind.OMITTED else "a pipeline")
            return
        for other in others:
            self._note(NoteKind.REPLACED, other, _LOG)
        self._one(first)

    def _is_filter(self, node: "Node") -> bool:
        name = next((self.script.text(each) for each in below(node, "command_name")), "")
        return name in ("tee", "ts", "grep", "sed", "awk", "cat")

    def _on_list(self, node: "Node") -> None:
        """Read `A && B` and `A || B`."""
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((self.script.text(child) for child in node.children if not child.is_named), "&&")
        if left.type == "test_command":
            self._if(node, self._test(left), right if operator == "&&" else None, right if operator == "||" else None)
            return
        self._one(left)
        if operator == "&&" or not self._ends(right):
            self._one(right)

    def _ends(self, node: "Node") -> bool:
        commands = self._commands(node)
        return bool(commands) and all(name in _ENDINGS or _prints(name, command) for name, command in commands)

    def _commands(self, node: "Node") -> list[tuple[str, str]]:
        """Return the name of each command in the node, and its text."""
        return [(self.script.text(each), self.script.text(each.parent or each)) for each in below(node, "command_name")]

    def _on_test_command(self, node: "Node") -> None:
        self._note(NoteKind.OMITTED, node, "a test without a consequence")

    def _on_negated_command(self, node: "Node") -> None:
        self._all(node)

    def _on_if_statement(self, node: "Node") -> None:
        condition = node.child_by_field_name("condition")
        alternatives = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
        body = [child for child in node.named_children if child != condition and child not in alternatives]
        holds = self._test(condition) if condition is not None else None
        if holds is None and self._only_prints(node):
            self._note(NoteKind.OMITTED, node, "it only prints")
        elif holds is None:
            self._undecided(node, body)
        else:
            self._note(NoteKind.OMITTED, node, "the script itself decides it: the job has what it does then")
            if holds:
                self._each(body)
            else:
                self._otherwise(node, alternatives)

    def _otherwise(self, node: "Node", alternatives: "list[Node]") -> None:
        for each in alternatives:
            if each.type == "else_clause":
                self._each(each.named_children)
                return
            condition, *body = each.named_children
            holds = self._test(condition)
            if holds is None:
                self._undecided(node, body)
                return
            if holds:
                self._each(body)
                return

    def _each(self, nodes: "list[Node]") -> None:
        for each in nodes:
            if not self.ended:
                self._one(each)

    def _if(self, node: "Node", holds: bool | None, then: "Node | None", otherwise: "Node | None") -> None:
        if holds is None:
            self._undecided(node, [each for each in (then, otherwise) if each is not None])
            return
        self._note(NoteKind.OMITTED, node, "the script itself decides it: the job has what it does then")
        chosen = then if holds else otherwise
        if chosen is not None:
            self._one(chosen)

    def _undecided(self, node: "Node", body: "list[Node]") -> None:
        """Note a statement whose condition is not known. Its first branch is read if the training may be in it."""
        if self._only_ends(body):
            self._note(NoteKind.OMITTED, node, "it only ends the script")
            return
        if any(self._has_start(each) for each in body):
            self._unread(node, "whether it runs is decided when the script runs; the job has its first branch")
            self._each(body)
            return
        self._unread(node, "whether it runs is decided when the script runs")
        self._forget(node)

    def _has_start(self, node: "Node") -> bool:
        commands = (self.script.text(each) for each in below(node, "command"))
        called = (self._functions.get(self.script.text(each)) for each in below(node, "command_name"))
        bodies = (self.script.text(body) for body in called if body is not None)
        return any(_STARTS.search(command) for command in (*commands, *bodies))

    def _only_ends(self, body: "list[Node]") -> bool:
        return bool(body) and all(self._ends(each) for each in body)

    def _forget(self, node: "Node") -> None:
        for each in below(node, "variable_assignment"):
            name = each.child_by_field_name("name")
            if name is not None and name.type == "variable_name":
                known = self.script.text(name)
                self.variables.values[known] = text(Reference(known, f"${{{known}}}", Source.COMMAND))

    def _on_for_statement(self, node: "Node") -> None:
        if self._only_prints(node):
            self._note(NoteKind.OMITTED, node, "it only prints")
            return
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        words = [
            word
            for child in node.named_children
            if child not in (variable, body) and child.type != "comment"
            for word in self._expander.words(child)
        ]
        if variable is None or body is None or not self._has_start(body):
            self._unread(node, "a loop")
            self._forget(node)
            return
        turn = 0
        if len(words) > 1 and all(word.known is not None for word in words):
            place = len(self.found.loops)
            turn = self.found.turns[place] if place < len(self.found.turns) else 0
            source = self.script.text(node).splitlines()[0]
            self.found.loops.append(Loop(self.script.line(node), source, len(words)))
        else:
            self._unread(node, FIRST_TURN)
        self.variables.values[self.script.text(variable)] = words[min(turn, len(words) - 1)] if words else EMPTY
        self._one(body)

    def _on_while_statement(self, node: "Node") -> None:
        if self._only_prints(node):
            self._note(NoteKind.OMITTED, node, "it only prints")
            return
        body = node.child_by_field_name("body")
        if body is not None and self._has_start(body):
            self._unread(node, "a loop: the job has its first turn; headway restarts the ranks after a failure itself")
            self._one(body)
            return
        self._unread(node, "a loop")
        self._forget(node)

    def _on_c_style_for_statement(self, node: "Node") -> None:
        self._on_while_statement(node)

    def _on_case_statement(self, node: "Node") -> None:
        value = node.child_by_field_name("value")
        known = self._expander.value(value).known if value is not None else None
        items = [child for child in node.named_children if child.type == "case_item"]
        if known is None:
            self._unread(node, "which case it is, is decided when the script runs")
            self._forget(node)
            return
        self._note(NoteKind.OMITTED, node, "the script itself decides it: the job has what it does then")
        for item in items:
            patterns = item.children_by_field_name("value")
            if any(self._matches(pattern, known) for pattern in patterns):
                self._each([child for child in item.named_children if child not in patterns])
                return

    def _matches(self, pattern: "Node", known: str) -> bool:
        written = self.script.text(pattern)
        return written == "*" or self._expander.value(pattern).known == known

    def _on_function_definition(self, node: "Node") -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[self.script.text(name)] = body

    def _on_ERROR(self, node: "Node") -> None:  # noqa: N802 (the grammar's name)
        self._unread(node, "this is not shell")

    # --- tests --------------------------------------------------------------------------------------------------------

    def _test(self, node: "Node") -> bool | None:
        """Return whether a test holds; None if that is known only when the script runs."""
        inner = node.named_children[0] if node.type == "test_command" and len(node.named_children) == 1 else None
        if inner is None:
            return None
        return self._holds(inner)

    def _holds(self, node: "Node") -> bool | None:
        if node.type == "parenthesized_expression" and len(node.named_children) == 1:
            return self._holds(node.named_children[0])
        operator = node.child_by_field_name("operator")
        sign = self.script.text(operator) if operator is not None else ""
        if node.type == "unary_expression":
            operand = node.named_children[-1]
            if sign == "!":
                holds = self._holds(operand)
                return None if holds is None else not holds
            known = self._known(operand)
            if sign not in ("-z", "-n") or known is None:
                return None
            return (known == "") is (sign == "-z")
        if node.type == "binary_expression":
            return self._compared(node, sign)
        return None

    def _known(self, node: "Node") -> str | None:
        value = self._expander.value(node)
        if value.parts and all(reference.source is Source.SLURM for reference in value.references):
            return value.known or "known in the job"
        return value.known

    def _compared(self, node: "Node", sign: str) -> bool | None:
        left, right = node.named_children[0], node.named_children[-1]
        if sign in ("&&", "||"):
            holds = [self._holds(left), self._holds(right)]
            if None in holds:
                return None
            return all(holds) if sign == "&&" else any(holds)
        one, two = self._expander.value(left).known, self._expander.value(right).known
        if one is None or two is None:
            return None
        if sign in ("=", "==", "!="):
            return (one == two) is (sign != "!=")
        numbers = {"-eq": "==", "-ne": "!=", "-lt": "<", "-gt": ">", "-le": "<=", "-ge": ">="}
        if sign in numbers and one.isdigit() and two.isdigit():
            return self._expander.number(f"{one} {numbers[sign]} {two}") == 1
        return None

    # --- notes --------------------------------------------------------------------------------------------------------

    def _only_prints(self, node: "Node") -> bool:
        commands = self._commands(node)
        sets = any(True for _ in below(node, "variable_assignment", "declaration_command"))
        prints = all(_prints(name, command) or name in _HARMLESS for name, command in commands)
        return bool(commands) and not sets and prints

    def _unread(self, node: "Node", why: str) -> None:
        self._note(NoteKind.UNREAD, node, why)

    def _note(self, kind: NoteKind, node: "Node", why: str) -> None:
        self.notes.add(kind, self.script.line(node), self.script.text(node), why, self.script.file)


def _prints(name: str, command: str) -> bool:
    """Return whether the command only prints."""
    return name in PRINTS and not (name in _RUN_ANOTHER and _STARTS.search(command) is not None)
