"""Checks lines of POSIX shell, of `setup`, for what no shell can read, or only bash."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from headway.jobspec.document import Path
from headway.jobspec.flow import flow
from headway.jobspec.problem import JOB, Problem, Severity

_SINGLE, _DOUBLE, _TICK, _OPEN = "'", '"', "`", ")"
_HERE_DOCUMENT = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][\w.-]*))")
_BEFORE_WORD = " \t\n;&|()"
# Words that begin a compound command, and the words that end it (POSIX.1-2024, 2.10); what follows the others is a command again.
_ENDS = {"if": "fi", "do": "done", "case": "esac"}
_BEFORE_COMMAND = frozenset(("if", "then", "elif", "else", "do", "while", "until", "!", "{"))
_TOKEN = re.compile(r"(?P<operator>[;&|()\n]+)|[^\s;&|()]+")
# Text in quotes, what a backslash quotes, and comments.
_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<![^\s;&|()])#[^\n]*", re.DOTALL)
_BLANK_ASSIGNMENT = re.compile(r"\s*(?:(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s+=|export\s+(?P<exported>[A-Za-z_]\w*)=\s)\s*\S")
_ARRAY = re.compile(r"(?<![^\s;&|])[A-Za-z_]\w*\+?=\(")
_BASH_TEST = re.compile(r"(?<![^\s;&|(!])\[\[\s")
_LAUNCHERS = ("torchrun", "deepspeed", "mpirun")


def check_shell(document: str, path: Path, lines: Sequence[str]) -> Iterator[Problem]:
    """Report what no shell can read, and warn about what only bash can, and about lines without the effect that they seem to have.

    The text of a here-document is no shell, so that of lines with one only the quotes are checked.
    """
    quotes, script = list(_check_quotes(document, path, lines)), "\n".join(lines)
    yield from quotes
    if quotes or not lines or "<<" in script:
        return
    bare = _without_quotes(script)
    # An item of the list may have several lines.
    items = [index for index, item in enumerate(lines) for _ in item.split("\n")]
    if (unended := _unended(bare)) is not None:
        word, number = unended
        yield _without_end(document, path, word, items[number], lines)
    for index, line, code in zip(items, script.split("\n"), bare.split("\n"), strict=True):
        yield from _check_line(document, (*path, index), line, code)


def _check_line(document: str, path: Path, line: str, bare: str) -> Iterator[Problem]:
    """Check one line; `bare` is what is not in quotes of it."""
    words = bare.split()
    if found := _BLANK_ASSIGNMENT.match(bare):
        written = re.sub(r"\s*=\s*", "=", line, count=1)
        message = f"a shell takes `{found['name'] or found['exported']}` for a word of its own: blanks around `=` set no variable"
        yield Problem("HW210", document, path, message, f"write `{written}`", fix=flow(written))
    elif _ARRAY.search(bare):
        message = "arrays are bash's: `sh` of Debian and Ubuntu ends with a syntax error"
        yield Problem("HW210", document, path, message, "use a variable with blanks between the words", Severity.WARNING)
    elif _BASH_TEST.search(bare):
        message = "`[[` is bash's: `sh` of Debian and Ubuntu does not have it"
        written = line.replace("[[", "[").replace("]]", "]").replace(" == ", " = ")
        is_same = "&&" not in bare.partition("]]")[0] and "=~" not in bare
        hint = f"write `{written}`" if is_same else "write it with `[`, or with `case`"
        yield Problem("HW210", document, path, message, hint, Severity.WARNING, fix=flow(written) if is_same else None)
    elif line.startswith("#SBATCH") and not bare.strip():
        where = "`scheduler.slurm`" if document == JOB else "`scheduler.options`"
        message = "the line is a comment here: Slurm reads `#SBATCH` at the top of the batch script only"
        yield Problem("HW210", document, path, message, f"leave it out, and set the option under {where}", Severity.WARNING)
    elif words and (words[0] in _LAUNCHERS or words[:2] == ["accelerate", "launch"]):
        message = f"`{words[0]}` would train on each node before the job does: `setup` is done before headway starts the ranks"
        hint = "leave it out, and name the training script in `run`"
        yield Problem("HW210", document, path, message, hint, Severity.WARNING)


def _unended(bare: str) -> tuple[str, int] | None:
    """Return the last `if`, `do` or `case` that nothing ends, and the number of its line; None if all end. `bare` has no quotes."""
    begun: list[tuple[str, int]] = []
    is_command, number = True, 0
    for token in _TOKEN.finditer(bare):
        word = token[0]
        if token["operator"]:
            number += word.count("\n")
            is_command = True
            continue
        if is_command and word in _ENDS:
            begun.append((word, number))
        elif is_command and word in _ENDS.values() and (not begun or _ENDS[begun.pop()[0]] != word):
            # Only a shell knows what is wrong here.
            return None
        is_command = is_command and word in _BEFORE_COMMAND
    return begun[-1] if begun else None


def _without_end(document: str, path: Path, word: str, index: int, lines: Sequence[str]) -> Problem:
    message = f"`{word}` has no `{_ENDS[word]}`, so that no shell can read the lines"
    hint, fix = f"end it with `{_ENDS[word]}`", None
    if index == len(lines) - 1 and "\n" not in lines[index]:
        whole = f"{lines[index].rstrip('; ')}; {_ENDS[word]}"
        hint, fix = f"write `{whole}`", flow(whole)
    return Problem("HW210", document, (*path, index), message, hint, fix=fix)


def _without_quotes(script: str) -> str:
    """Return the script with `_` in place of what is in quotes, and without comments; its lines stay."""
    return _QUOTED.sub(
        lambda found: "\n" * found[0].count("\n") if found[0][0] == "#" else "_" + "\n" * found[0].count("\n"), script
    )


def _check_quotes(document: str, path: Path, lines: Sequence[str]) -> Iterator[Problem]:
    """Report the quote that no line closes. The lines are one script: a quote or a here-document may continue in the next one."""
    if unclosed("\n".join(lines)) is None:
        return
    for index, line in enumerate(lines):
        place = unclosed(line)
        if place is not None:
            quote, whole = line[place], f"{line}{line[place]}"
            message = f"the quote `{quote}` is not closed, so that no shell can read the line"
            yield Problem("HW210", document, (*path, index), message, f"close it: `{whole}`", fix=flow(whole))
            return


def unclosed(script: str) -> int | None:
    """Return the place of a quote that the script does not close; None where it may be right."""
    reader, at = _Reader(script), 0
    while at < len(script):
        at += reader.read(at)
    # The `)` of a pattern of `case` closes nothing.
    if any(kind == _OPEN for kind, _ in reader.around) and re.search(r"\bcase\b", script):
        return None
    return next((place for kind, place in reader.around if kind != _OPEN), None)


class _Reader(Struct):
    """Reads a script from left to right. `around` are the open quotes and brackets, `awaited` the here-documents that begin on the next
    line: the word that ends each, and whether tabs may precede it."""

    script: str
    around: list[tuple[str, int]] = field(default_factory=list)
    awaited: list[tuple[str, bool]] = field(default_factory=list)

    def read(self, at: int) -> int:
        """Read what begins at the place, and return its length."""
        return self._in_quotes_too(at) or (1 if self._inside() == _DOUBLE else self._outside(at) or self._here(at) or 1)

    def _inside(self) -> str:
        return self.around[-1][0] if self.around else ""

    def _in_quotes_too(self, at: int) -> int:
        character = self.script[at]
        if character == "\\":
            return 2
        if self.script.startswith("$((", at) and (end := self.script.find("))", at)) > 0:
            return end + 2 - at
        if self.script.startswith("$(", at):
            self.around.append((_OPEN, at))
            return 2
        if character not in (_TICK, _DOUBLE):
            return 0
        if self._inside() == character:
            self.around.pop()
        else:
            self.around.append((character, at))
        return 1

    def _outside(self, at: int) -> int:
        character = self.script[at]
        if character == _SINGLE:
            # With a `$` before it, `\'` closes nothing.
            pattern = r"'(?:\\.|[^'\\])*'" if self.script[at - 1 : at] == "$" else r"'[^']*'"
            found = re.compile(pattern, re.DOTALL).match(self.script, at)
            if found is None:
                self.around.append((_SINGLE, at))
                return len(self.script)
            return found.end() - at
        if character == "#" and (at == 0 or self.script[at - 1] in _BEFORE_WORD):
            end = self.script.find("\n", at)
            return end - at if end > 0 else len(self.script)
        if character == "(":
            self.around.append((_OPEN, at))
        elif character == ")" and self._inside() == _OPEN:
            self.around.pop()
        return 1 if character in "()" else 0

    def _here(self, at: int) -> int:
        """Read the beginning of a here-document, or the text of those that the line has begun."""
        if self.script.startswith("<<<", at):
            return 3
        if found := _HERE_DOCUMENT.match(self.script, at):
            self.awaited.append((found[2] or found[3] or found[4], bool(found[1])))
            return found.end() - at
        if self.script[at] != "\n":
            return 0
        place = at
        for word, is_indented in self.awaited:
            tabs = "\t*" if is_indented else ""
            text = re.compile(rf"\n(?:.*\n)*?{tabs}{re.escape(word)}(?=\n|\Z)").match(self.script, place)
            if text is None:
                return len(self.script)
            place = text.end()
        self.awaited.clear()
        return place - at
