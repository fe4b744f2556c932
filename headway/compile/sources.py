"""Reads documents and finds them in folders: each file is read once, and each folder is searched once."""

import os
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from headway.compile.document import CheckedDocument, check_document, check_kind, problems_left
from headway.compile.marks import is_meant, plain
from headway.compile.problems import NoPlanError, Steps, passed
from headway.jobspec.document import Document
from headway.jobspec.load import load_bytes, load_file, read_bytes
from headway.jobspec.parse import AnyParsed, is_partial, kind_of
from headway.jobspec.problem import Problem

SUFFIXES = (".yaml", ".yml")
# Folders that hold no documents of this repository, some of them with very many files.
SKIPPED = {"rendered", "node_modules", "__pycache__"}

T = TypeVar("T")


class Below(Struct, frozen=True):
    """The headway documents in a folder and below it, in order; the YAML files that are none; and folders that cannot be read."""

    documents: list[Path]
    passed_over: list[Path]
    problems: list[Problem]


class Clusters(Struct, frozen=True):
    """The Cluster documents of one folder by their names, and those files that could be some and cannot be read."""

    folder: Path
    named: Mapping[str, list[Path]]
    unreadable: list[Path]


class Sources:
    """The files of one compile. It only keeps what it has read: every answer depends on the files and on nothing else."""

    def __init__(self) -> None:
        self._contents: dict[Path, bytes | None] = {}
        self._taken: set[Path] = set()
        self._loaded: dict[Path, tuple[Document, list[Problem]]] = {}
        self._checked: dict[Path, CheckedDocument] = {}
        self._made: dict[Hashable, Any] = {}

    @property
    def documents(self) -> Mapping[str, Document]:
        """Every document that has been read so far, by its name: with its bases if it has been checked."""
        documents = [document for document, _ in self._loaded.values()] + [each.document for each in self._checked.values()]
        return {document.name: document for document in documents}

    def take(self, path: Path, content: bytes) -> None:
        """Read `content` wherever the file is named, whether it exists or not."""
        self._contents[path] = content
        self._taken.add(path)

    def has(self, path: Path) -> bool:
        """Whether there is something of that name."""
        return path in self._taken or os.path.lexists(path)

    def load(self, path: Path) -> tuple[Document, list[Problem]]:
        """The document in the file, as `load_file` reads it: without its bases, not parsed."""
        if path not in self._loaded:
            content = self._content(path)
            document, problems = load_file(path) if content is None else load_bytes(str(path), content)
            if problems:
                from headway.jobspec.line_repair import with_tried_mend  # noqa: PLC0415 (most texts are YAML)

                problems = [with_tried_mend(each, document, partial(problems_left, document.name)) for each in problems]
            self._loaded[path] = document, problems
        return self._loaded[path]

    def read(self, path: Path) -> CheckedDocument:
        """The document in the file with its bases, parsed, and checked by itself."""
        if path not in self._checked:
            self._checked[path] = check_document(path, self.load)
        return self._checked[path]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, which depends on files alone; it is made once for each `key`."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    def below(self, folder: Path) -> Below:
        """The documents in the folder and below it; hidden folders are left out."""
        found = Below([], [], [])
        for parent, folders, files in os.walk(folder, onerror=lambda error: found.problems.append(_unreadable_folder(error))):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
            paths = [Path(parent, name) for name in sorted(files)]
            own = {path for path in paths if self._is_headway(path) or _is_broken(path)}
            if own:
                # An empty file next to documents is one that was not written yet.
                own |= {path for path in paths if path not in own and self._is_empty(path)}
            found.documents.extend(sorted(own))
            found.passed_over.extend(path for path in paths if path not in own and path.suffix.lower() in SUFFIXES)
        return found

    def clusters_around(self, document: Path, name: str = "") -> Iterator[Clusters]:
        """The clusters of the document's folder, then of each parent up to the repository's root (`.git`).

        With a `name`, at least the clusters of that name, and not all others: they need not be parsed.
        """
        for found in _folders_up(document.resolve().parent):
            folder = found if document.is_absolute() else Path(os.path.relpath(found))
            yield self.once(("clusters in", folder, name), partial(self._clusters_in, folder, name))

    def clusters_beside(self, document: Path) -> Mapping[str, list[Path]]:
        """The Cluster documents of the document's repository by their names; none without a repository."""
        folders = _folders_up(document.resolve().parent)
        if not (folders[-1] / ".git").exists():
            return {}
        root = folders[-1] if document.is_absolute() else Path(os.path.relpath(folders[-1]))
        return self.once(("clusters", root), lambda: self._clusters_below(root))

    def unusable(self, folder: Path, name: str) -> list[Path]:
        """The documents of the folder that have the name of a cluster, can be read, and are bases for others or of a kind that is written
        wrong."""
        found = {path: self.load(path)[0] for path in self._yaml_in(folder) if self._is_headway(path)}
        return [
            path
            for path, document in found.items()
            if isinstance(document.data, dict)
            and (is_partial(document) or kind_of(document) is None)
            and str(document.value(("name",))) == name
        ]

    def of_kind(self, folder: Path, kind: str, name: str = "") -> list[Path]:
        """The headway documents of the folder itself that are of that kind, or mean to be and cannot be read; in order.

        With a `name`, without those whose text cannot have it: they need not be parsed.
        """
        return self.once(("kind", folder, kind, name), lambda: self._of_kind(folder, kind, name))

    def _of_kind(self, folder: Path, kind: str, name: str) -> list[Path]:
        # YAML writes a number in several ways, and any letter as an escape: such texts may have the name too.
        word = b"" if name[:1].isdigit() else name.encode()
        texts = self.once(("texts", folder, kind), lambda: self._texts(folder, kind)).items()
        return [path for path, text in texts if (word in text or b"\\" in text) and self._is_of_kind(path, text, kind)]

    def _texts(self, folder: Path, word: str) -> dict[Path, bytes]:
        """The texts of the folder's own headway documents that have the word."""
        texts = {path: plain(self._content(path) or b"") for path in self._yaml_in(folder)}
        return {path: text for path, text in texts.items() if word.encode() in text and is_meant(text)}

    def _is_of_kind(self, path: Path, text: bytes, kind: str) -> bool:
        document = self.load(path)[0]
        if document.data is not None:
            return kind_of(document) == kind
        mark = rf"""^["']?kind["']?[ \t]*:[ \t]*["']?{kind}\b"""
        return re.search(mark.encode(), text, re.MULTILINE) is not None

    def _clusters_in(self, folder: Path, name: str = "") -> Clusters:
        documents = {path: self.load(path)[0] for path in self.of_kind(folder, "Cluster", name)}
        named: dict[str, list[Path]] = {}
        for path, document in documents.items():
            if document.data is not None and not is_partial(document):
                named.setdefault(str(document.value(("name",))), []).append(path)
        return Clusters(folder, named, [path for path, document in documents.items() if document.data is None])

    def _yaml_in(self, folder: Path) -> list[Path]:
        return self.once(("YAML", folder), lambda: _yaml_files(folder))

    def _clusters_below(self, root: Path) -> Mapping[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for folder in dict.fromkeys(path.parent for path in self.below(root).documents):
            for name, paths in self._clusters_in(folder).named.items():
                found.setdefault(name, []).extend(paths)
        return found

    def _is_headway(self, path: Path) -> bool:
        """Whether the file is YAML that calls itself a headway document, or means to; readable or not as such. Runs keep specs as JSON."""
        if path.suffix.lower() not in SUFFIXES or not is_file(path):  # a pipe would be waited for
            return False
        content = self._content(path)
        return content is None or is_meant(content)

    def _is_empty(self, path: Path) -> bool:
        """Whether the file is YAML without any text."""
        if path.suffix.lower() not in SUFFIXES or not is_file(path):
            return False
        content = self._content(path)
        return content is not None and not content.strip()

    def _content(self, path: Path) -> bytes | None:
        """Return the file's content; None if it cannot be read."""
        if path not in self._contents:
            try:
                self._contents[path] = read_bytes(path)
            except (OSError, ValueError):
                self._contents[path] = None
        return self._contents[path]


def read_document(path: Path, kinds: Collection[str], sources: Sources) -> Steps[AnyParsed]:
    """The file's document, checked by itself. Of another kind than `kinds`, if there are any, or only a base for others, it is an error."""
    checked = sources.read(path)
    yield from checked.problems
    if checked.parsed is None:
        raise NoPlanError
    if kinds:
        yield from passed(check_kind(checked.parsed, kinds))
    return checked.parsed


def is_folder(path: Path) -> bool:
    """Whether there is a folder of that path."""
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises where a name is too long)


def is_file(path: Path) -> bool:
    """Whether there is a file of that path, and no folder or pipe."""
    return os.path.isfile(path)  # noqa: PTH113 (as above)


def _is_broken(path: Path) -> bool:
    """Whether the file has the name of a document and is a link to nothing."""
    return path.suffix.lower() in SUFFIXES and path.is_symlink() and not os.path.exists(path)  # noqa: PTH110 (as below)


def _unreadable_folder(error: OSError) -> Problem:
    message = f"cannot read the folder: {error.strerror}"
    return Problem("HW101", str(error.filename), (), message, "check its permissions, or name the documents in it")


def _yaml_files(folder: Path) -> list[Path]:
    """The YAML files of the folder itself, in order; no pipe, which would be waited for."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 (paths of all files take longer)
    except OSError:
        return []
    paths = [folder / name for name in names if name.lower().endswith(SUFFIXES)]
    return [path for path in paths if is_file(path)]


def _folders_up(folder: Path) -> list[Path]:
    """The folder and its parents up to the repository's root; the folder alone when it is in no repository."""
    up = [folder, *folder.parents]
    root = next((i for i, parent in enumerate(up) if (parent / ".git").exists()), 0)
    return up[: root + 1]
