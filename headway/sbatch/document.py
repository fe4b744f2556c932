"""Writes a job that was read from a script as a YAML document, with what was not read in comments."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.jobspec.flow import flow
from headway.sbatch.notes import HEADINGS, Note, NoteKind

_ORDER = (
    "apiVersion",
    "kind",
    "name",
    "cluster",
    "nodes",
    "gpus",
    "scheduler",
    "code",
    "run",
    "trainer",
    "layout",
    "optimizer",
    "seed",
    "resilience",
    "limits",
    "environment",
    "secrets",
    "setup",
    "mounts",
    "sweep",
)
# Below these each value has a line of its own.
_DEEP = ("scheduler", "trainer", "resilience", "limits", "environment", "code", "sweep")
_WIDTH = 128


def document(job: Mapping[str, Any], file: str, notes: Sequence[Note], unpinned: str | None = None) -> str:
    """Return the job's document; at its end are the notes on what is not in it and on what has to be checked."""
    is_whole = not any(note.kind in (NoteKind.UNREAD, NoteKind.CHECK) for note in notes)
    behind = "" if is_whole else " What was not understood, and what to check, is at its end."
    lines = [f"# Read from {file} by `headway import sbatch`.{behind}"]
    for key in sorted(job, key=_ORDER.index):
        lines += _field(key, job[key])
        if key == "cluster" and unpinned is not None:
            lines += ["# code:", f"#   image: {unpinned}  # not as it is: see the end"]
    for kind in (NoteKind.UNREAD, NoteKind.CHECK):
        own = [note for note in notes if note.kind is kind]
        if own:
            lines += ["", f"# {HEADINGS[kind]}", *(f"#   {note}" for note in own)]
    return "\n".join(lines) + "\n"


def _field(key: str, value: Any, indent: str = "") -> Iterator[str]:
    name = flow(key)
    if isinstance(value, Mapping) and value and (indent or key in _DEEP):
        yield f"{indent}{name}:"
        for inner, item in value.items():
            yield from _field(inner, item, f"{indent}  ")
    elif isinstance(value, list) and key in ("run", "argv", "setup", "mounts", "points"):
        yield f"{indent}{name}:"
        yield from (f"{indent}  - {flow(item)}" for item in value)
    else:
        line = f"{indent}{name}: {flow(value)}"
        if len(line) > _WIDTH and isinstance(value, list):
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {flow(item)}" for item in value)
        else:
            yield line
