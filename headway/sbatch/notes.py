"""Records what of a script is not in the job, and why: a note for each line that was not read, was replaced, or has to be checked."""

from enum import StrEnum

from msgspec import Struct, field

from headway.jobspec.credentials import starred

_LONGEST = 100


class NoteKind(StrEnum):
    """The outcome for the lines that a note is about."""

    UNREAD = "not understood"
    CHECK = "to check"
    REPLACED = "replaced"
    OMITTED = "left out"


HEADINGS = {
    NoteKind.UNREAD: "Not understood, and not in the job:",
    NoteKind.CHECK: "In the job, but to check:",
    NoteKind.REPLACED: "Not in the job, because headway does it:",
    NoteKind.OMITTED: "Left out, without an effect on the training:",
}


class Note(Struct, frozen=True):
    """Lines of a script, as the script has them, and what became of them. `file` is empty for the script itself."""

    kind: NoteKind
    line: int
    source: str
    why: str
    file: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}"

    def __str__(self) -> str:
        shown = f" `{self.source}`" if self.source else ""
        return f"{self.place}:{shown}: {self.why}" if self.line else f"{self.source}: {self.why}".removeprefix(": ")


class Notes(Struct):
    """The notes of a script, each once, in the order of its lines."""

    secrets: list[str] = field(default_factory=list)
    _found: dict[Note, None] = field(default_factory=dict)

    def add(self, kind: NoteKind, line: int, source: str, why: str, file: str = "") -> None:
        """Add a note; `source` is shortened to one line, and secrets in it become stars."""
        text = " ".join(source.replace("\\\n", " ").split())
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} ..."
        self._found.setdefault(Note(kind, line, starred(shown, self.secrets), starred(why, self.secrets), file))

    def sorted(self) -> tuple[Note, ...]:
        kinds = list(NoteKind)
        return tuple(sorted(self._found, key=lambda note: (kinds.index(note.kind), note.file, note.line)))
