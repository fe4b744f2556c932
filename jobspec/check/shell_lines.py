"""Checks lines of POSIX shell, of `setup`, for what no shell can read."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headway.jobspec.document import Path
from headway.jobspec.flow import flow
from headway.jobspec.problem import Problem

_SINGLE, _DOUBLE, _TICK, _OPEN = "'", '"', "`", ")"
_HERE_DOCUMENT = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][\w.-]*))")
_BEFORE_WORD = " \t\n;&|()"


def check_quotes(document: str, path: Path, lines: Sequence[str]) -> Iterator[Problem]:
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


@dataclass
class _Reader:
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
