"""A folder or a job's name for its cluster as the files that hold headway documents."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.jobspec.document import Document
from headway.jobspec.load import load_bytes, load_file, read_bytes
from headway.jobspec.parse import is_partial, kind_of
from headway.jobspec.problem import Problem

SUFFIXES = (".yaml", ".yml")
# Folders that hold no documents of this repository, some of them with very many files.
SKIPPED = {"rendered", "node_modules", "__pycache__"}
_MARK = re.compile(rb"""^["']?apiVersion["']?[ \t]*:[ \t]*["']?headway/""", re.MULTILINE)
# Without an apiVersion of somebody else's, one of our kinds, or our version under a misspelt key, is a document with a mistake.
_FOREIGN = re.compile(rb"""^["']?apiVersion["']?[ \t]*:""", re.MULTILINE)
_MEANT = re.compile(
    rb"""^["']?(kind["']?[ \t]*:[ \t]*["']?(TrainingJob|Cluster|Inventory)\b|[\w-]+["']?[ \t]*:[ \t]*["']?headway/v)""",
    re.MULTILINE,
)
_CLUSTER = re.compile(r"""^["']?kind["']?[ \t]*:[ \t]*["']?Cluster\b""", re.MULTILINE)


@dataclass(frozen=True)
class Clusters:
    """The Cluster documents of one folder by their names, and those files that could be some and cannot be read."""

    named: Mapping[str, list[Path]]
    unreadable: list[Path]


class Sources:
    """The files of one call: each is read once, and each folder is searched once."""

    def __init__(self) -> None:
        self._contents: dict[Path, bytes | None] = {}
        self._loaded: dict[Path, tuple[Document, list[Problem]]] = {}
        self._clusters: dict[tuple[Path, bool], Clusters] = {}

    def load(self, path: Path) -> tuple[Document, list[Problem]]:
        """The document in the file, as `load_file` reads it."""
        if path not in self._loaded:
            content = self._contents.get(path)
            self._loaded[path] = load_file(path) if content is None else load_bytes(str(path), content)
        return self._loaded[path]

    def documents_below(self, folder: Path) -> Iterator[Path]:
        """The headway documents in the folder and below it, in order; hidden folders are left out."""
        for parent, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
            yield from (path for path in (Path(parent, name) for name in sorted(files)) if self._is_headway(path))

    def clusters_around(self, document: Path) -> Iterator[Clusters]:
        """The clusters of the document's folder, then of each parent up to the repository's root (`.git`)."""
        for folder in _folders_up(document.resolve().parent):
            place = folder, document.is_absolute()
            if place not in self._clusters:
                self._clusters[place] = self._clusters_in(*place)
            yield self._clusters[place]

    def _clusters_in(self, folder: Path, absolute: bool) -> Clusters:
        named: dict[str, list[Path]] = {}
        unreadable: list[Path] = []
        for path in _files(folder if absolute else Path(os.path.relpath(folder))):
            if self._is_headway(path):
                document = self.load(path)[0]
                if document.data is None and (not document.text or _CLUSTER.search(document.text)):
                    unreadable.append(path)
                if kind_of(document) == "Cluster" and not is_partial(document):
                    named.setdefault(str(document.value(("name",))), []).append(path)
        return Clusters(named, unreadable)

    def _is_headway(self, path: Path) -> bool:
        """Whether the file is YAML that calls itself a headway document, or means to; readable or not as such."""
        if path.suffix not in SUFFIXES:
            return False
        if path not in self._contents:
            self._contents[path] = _headway_text(path)
        return self._contents[path] is not None


def is_folder(path: Path) -> bool:
    """Whether there is a folder of that path."""
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises where a name is too long)


def documents_in(folder: Path) -> list[Path]:
    """The headway documents of the folder itself, in order; none where it cannot be listed."""
    return [path for path in _files(folder) if path.suffix in SUFFIXES and _headway_text(path) is not None]


def _headway_text(path: Path) -> bytes | None:
    """What is in the file, if it is a headway document; a pipe would be waited for."""
    try:
        text = read_bytes(path) if path.is_file() else b""
    except OSError:
        return None
    return text if _MARK.search(text) or (_MEANT.search(text) and not _FOREIGN.search(text)) else None


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _folders_up(folder: Path) -> list[Path]:
    """The folder and its parents up to the repository's root; the folder alone when it is in no repository."""
    up = [folder, *folder.parents]
    root = next((i for i, parent in enumerate(up) if (parent / ".git").exists()), 0)
    return up[: root + 1]
