"""A folder or a job's name for its cluster as the files that hold headway documents."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".yaml", ".yml")
# Folders that hold no documents of this repository, some of them with very many files.
SKIPPED = {"rendered", "node_modules", "__pycache__"}
_MARK = re.compile(rb"""^["']?apiVersion["']?[ \t]*:[ \t]*["']?headway/""", re.MULTILINE)
# Without an apiVersion of somebody else's, one of our kinds, or our version under a misspelt key, is a document with a mistake.
_FOREIGN = re.compile(rb"""^["']?apiVersion["']?[ \t]*:""", re.MULTILINE)
_MEANT = re.compile(
    rb"""^["']?(kind["']?[ \t]*:[ \t]*["']?(TrainingJob|Cluster)\b|[\w-]+["']?[ \t]*:[ \t]*["']?headway/v)""", re.MULTILINE
)


def documents_below(folder: Path) -> Iterator[Path]:
    """The headway documents in the folder and below it, in order; hidden folders are left out."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        yield from (Path(parent, name) for name in sorted(files) if _is_headway(Path(parent, name)))


def documents_around(document: Path) -> Iterator[list[Path]]:
    """The headway documents of the document's folder, then of each parent up to the repository's root (`.git`)."""
    for folder in _folders_up(document.resolve().parent):
        paths = sorted(path for path in folder.iterdir() if _is_headway(path))
        yield [Path(os.path.relpath(path)) if not document.is_absolute() else path for path in paths]


def _folders_up(folder: Path) -> list[Path]:
    """The folder and its parents up to the repository's root; the folder alone when it is in no repository."""
    up = [folder, *folder.parents]
    root = next((i for i, parent in enumerate(up) if (parent / ".git").exists()), 0)
    return up[: root + 1]


def _is_headway(path: Path) -> bool:
    """Whether the file is YAML that calls itself a headway document, or means to; readable or not as such."""
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return _MARK.search(text) is not None or (_FOREIGN.search(text) is None and _MEANT.search(text) is not None)
