"""Represents the words of a shell script, whose parts are known text or references to what only the job's own shell would know."""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum

from msgspec import Struct


class Source(Enum):
    """Where the value of a reference comes from."""

    ENVIRONMENT = "a variable that the script does not set"
    SLURM = "a variable that Slurm sets"
    RENDEZVOUS = "an address or a port for the ranks to meet"
    COMMAND = "the output of a command"


class Reference(Struct, frozen=True):
    """A part of a word with a value that is known only in the job.

    `name` is the variable that holds it, empty for a command; `written` is how the script refers to it; `value` is what it is
    according to the script's own options, where they decide it.
    """

    name: str
    written: str
    source: Source
    value: str | None = None


Part = str | Reference


class Text(Struct, frozen=True):
    """A word, or the value of a variable."""

    parts: tuple[Part, ...] = ()

    @property
    def known(self) -> str | None:
        """Return the text if all of it is known, also by the script's options."""
        values = [part if isinstance(part, str) else part.value for part in self.parts]
        return None if None in values else "".join(value for value in values if value is not None)

    @property
    def literal(self) -> str | None:
        """Return the text if the script itself has all of it."""
        return None if self.references else "".join(part for part in self.parts if isinstance(part, str))

    @property
    def references(self) -> tuple[Reference, ...]:
        return tuple(part for part in self.parts if isinstance(part, Reference))

    @property
    def shown(self) -> str:
        """Return the text as a script would have it."""
        behind = (*self.parts[1:], "")
        return "".join(
            part if isinstance(part, str) else _plain(part, isinstance(after, str) and after)
            for part, after in zip(self.parts, behind, strict=False)
        )

    def is_of(self, source: Source) -> bool:
        """Return whether a part of it comes from there."""
        return any(reference.source is source for reference in self.references)

    def removeprefix(self, prefix: str) -> "Text":
        first = self.parts[0] if self.parts else ""
        if not isinstance(first, str) or not first.startswith(prefix):
            return self
        return text(first.removeprefix(prefix), *self.parts[1:])

    def starts(self, prefix: str) -> bool:
        return bool(self.parts) and isinstance(self.parts[0], str) and self.parts[0].startswith(prefix)

    def split(self, separator: str, most: int = -1) -> list["Text"]:
        """Split its known parts at a separator; blanks at both ends are dropped for a separator of ` `."""
        found: list[list[Part]] = [[]]
        for part in self.parts:
            pieces = [part] if isinstance(part, Reference) else part.split(separator, most)
            if most >= 0 and not isinstance(part, Reference):
                most -= len(pieces) - 1
            found[-1].append(pieces[0])
            found += [[piece] for piece in pieces[1:]]
        return [text(*parts) for parts in found]

    def partition(self, separator: str) -> tuple["Text", "Text | None"]:
        """Return what is before and behind the first separator; None where there is none."""
        before, *behind = self.split(separator, 1)
        return before, behind[0] if behind else None


def _plain(part: Reference, after: str | bool) -> str:
    """Return a reference to a variable without braces, where what is behind it cannot be taken for a part of its name."""
    is_braced = part.name != "" and part.written == f"${{{part.name}}}"
    return f"${part.name}" if is_braced and not (after and re.match(r"\w", str(after))) else part.written


EMPTY = Text()


def text(*parts: Part) -> Text:
    """Return a text of the parts, adjacent known ones joined."""
    joined: list[Part] = []
    for part in parts:
        if part == "":
            continue
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return Text(tuple(joined))


def join(texts: Iterable[Text], separator: str = " ") -> Text:
    """Return one text of several."""
    parts: list[Part] = []
    for index, each in enumerate(texts):
        parts += [separator, *each.parts] if index else each.parts
    return text(*parts)


Piece = tuple[Text, bool]
"""A part of a word, and whether it is split at blanks: what an expansion outside of quotes gave."""


def fields(pieces: Sequence[Piece], quoted: bool = False) -> Iterator[Text]:
    """Yield the words that a shell makes of one word (POSIX 2.6.5); an empty one only if the word has quotes."""
    words: list[list[Part]] = [[]]
    is_open = quoted
    for piece, is_split in pieces:
        for part in piece.parts:
            if isinstance(part, Reference) or not is_split:
                words[-1].append(part)
                is_open = True
                continue
            for index, each in enumerate(re.split(r"(\s+)", part)):
                if index % 2:
                    if words[-1]:
                        words.append([])
                elif each:
                    words[-1].append(each)
                    is_open = True
    for index, word in enumerate(words):
        if word or (index == 0 and is_open and len(words) == 1):
            yield text(*word)


def as_shell(value: Text) -> str:
    """Return the text as one word of POSIX shell, with its references to variables expanded there."""
    known = value.literal
    if known is not None:
        if known.startswith("~/"):
            return f"~/{shlex.quote(known[2:])}"
        return shlex.quote(known)
    inside = "".join(re.sub(r'(["\\$`])', r"\\\1", part) if isinstance(part, str) else _reference(part) for part in value.parts)
    return f'"{inside}"'


def _reference(part: Reference) -> str:
    return f"${{{part.name}}}" if part.name and part.source is not Source.COMMAND else part.written


def names(written: str) -> frozenset[str]:
    """Return the words of a text, for tables of names."""
    return frozenset(written.split())


def needs_script(value: Text, exported: Collection[str], own: Collection[str] = ()) -> bool:
    """Return whether a shell without the script's variables would give another value; it has those that are exported.

    `own` are the variables of the script, which the text of a command may name.
    """
    for part in value.references:
        if part.source is not Source.COMMAND:
            continue
        named = {part.name} if part.name else set(re.findall(r"\$\{?([A-Za-z_]\w*)", part.written)) & set(own)
        if named - set(exported):
            return True
    return False
