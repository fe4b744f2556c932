"""Prints what of an imported script is not in its job, line by line, and the one-word change that needs no job."""

from typing import TextIO

from headway.sbatch import NoteKind, Reading
from headway.sbatch.notes import HEADINGS


def print_reading(reading: Reading, stream: TextIO) -> None:
    """Print the notes under a heading of their kind, then the edited line."""
    for kind in NoteKind:
        own = [note for note in reading.notes if note.kind is kind]
        if own:
            print(HEADINGS[kind], *(f"  {note}" for note in own), sep="\n", end="\n\n", file=stream)
    if reading.edit is not None:
        edit = reading.edit
        print(f"Or keep the script and change its line {edit.line}; it needs no job then:", file=stream)
        print(f"- {edit.before}", f"+ {edit.after}", sep="\n", end="\n\n", file=stream)
    counts = [f"{sum(note.kind is kind for note in reading.notes)} {kind.value}" for kind in NoteKind]
    print(f"headway: lines of the script: {', '.join(counts)}", file=stream)
