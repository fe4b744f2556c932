"""Finds examples of a field that fit the document: the cluster of its folder, scripts next to it, its own groups and switches."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from headway.jobspec.catalog.switches import switches
from headway.jobspec.document import Document, Path

# The files of a folder that are looked at, and the part of each that has its name.
_FILES = 200
_HEAD_BYTES = 65_536
_INFINIBAND = "infiniband"


class Example(NamedTuple):
    """A value of a field; the only one that fits if it `is_the_one`."""

    value: Any
    is_the_one: bool = False


def example_in(document: Document, path: Path) -> Example | None:
    """Return the example that the document, or the folder that it is in, shows for the field at `path`; None if they show none."""
    names = tuple(segment for segment in path if isinstance(segment, str))
    found = next((find for place, find in _BY_PLACE.items() if names[-len(place) :] == place), None)
    return None if found is None else found(document, path)


def clusters_beside(document: Document) -> list[str]:
    """Return the names of the Cluster documents in the document's folder, or above it if that is called `inventory`."""
    folder = FilePath(document.name).parent
    try:
        if folder.absolute().name == "inventory":
            folder = folder.absolute().parent
        heads = [head_of(each) for each in _files(folder, (".yaml", ".yml"))]
    except OSError:
        return []
    found = [name_in(head) for head in heads if re.search(r"^kind: *Cluster\s*$", head, re.MULTILINE)]
    return [name for name in dict.fromkeys(found) if name]


def bases_beside(document: Document) -> list[str]:
    """Return the names of the other files in the document's folder that are bases: those that are `partial`, or are called so."""
    own = FilePath(document.name)
    try:
        files = [each for each in _files(own.parent, (".yaml", ".yml")) if each.name != own.name]
        return [each.name for each in files if "base" in each.name or re.search(r"^partial: *true", head_of(each), re.MULTILINE)]
    except OSError:
        return []


def script_beside(document: Document) -> str | None:
    """Return the Python file next to the document that is meant to be run: the only one, or the only one that trains."""
    try:
        names = [each.name for each in _files(FilePath(document.name).parent, (".py",))]
    except OSError:
        return None
    training = [name for name in names if re.search("train|tune|main", name)]
    return next((found[0] for found in (names, training) if len(found) == 1), None)


def gpu_groups(document: Document) -> list[str]:
    """Return the names of the groups of nodes with GPUs, or of all groups if none has any."""
    groups = document.value(("node_groups",))
    named = (
        [each for each in groups if isinstance(each, dict) and isinstance(each.get("name"), str)]
        if isinstance(groups, list)
        else []
    )
    return [each["name"] for each in named if each.get("gpu") or each.get("gpus")] or [each["name"] for each in named]


def _files(folder: FilePath, suffixes: tuple[str, ...]) -> list[FilePath]:
    found = sorted(each for each in folder.iterdir() if each.suffix in suffixes)[:_FILES]
    return [each for each in found if each.is_file()]


def head_of(file: FilePath) -> str:
    """Return the beginning of the file, in which a document has its name. Raises OSError."""
    return file.read_bytes()[:_HEAD_BYTES].decode(errors="replace")


def name_in(head: str) -> str | None:
    """Return the `name` of a document that begins so."""
    found = re.search(r"^name: *[\"']?([a-z0-9][-a-z0-9]*)", head, re.MULTILINE)
    return None if found is None else found[1]


def _cluster(document: Document, path: Path) -> Example | None:
    names = clusters_beside(document)
    return Example(names[0], len(names) == 1) if names else None


def _script(document: Document, path: Path) -> Example | None:
    name = script_beside(document)
    return None if name is None else Example(name)


def _command(document: Document, path: Path) -> Example | None:
    name = script_beside(document)
    return None if name is None else Example([name])


def _systems(document: Document, path: Path) -> Example | None:
    kind = _system(document, path)
    return None if kind is None else Example([{"kind": kind}])


def _system_kind(document: Document, path: Path) -> Example | None:
    kind = _system(document, path)
    return None if kind is None else Example(kind)


def _system(document: Document, path: Path) -> str | None:
    """Return the operating system that the fabric's switches can have, by its transport and their vendor."""
    fabric = document.value(path[:2])
    if not isinstance(fabric, dict):
        return None
    if fabric.get("transport") == _INFINIBAND:
        return "opensm"
    own = fabric.get("switches")
    model = switches().get(str(own.get("model"))) if isinstance(own, dict) else None
    return "eos" if model is not None and model.vendor == "Arista" else "sonic"


def _groups(document: Document, path: Path) -> Example | None:
    names = gpu_groups(document)
    return Example(names[:1], len(names) == 1) if names else None


def _node_names(document: Document, path: Path) -> Example | None:
    names, value = gpu_groups(document), document.value(path)
    return Example({names[0]: value}) if names and isinstance(value, str) else None


def _path_of_claim(document: Document, path: Path) -> Example | None:
    claim = document.value((*path[:-1], "claim"))
    return Example(f"/{claim}") if isinstance(claim, str) else None


def _of_kind(kind: str) -> Callable[[Document, Path], Example]:
    return lambda document, path: Example(kind)


# By the end of the field's place, without the positions in lists.
_BY_PLACE: Mapping[tuple[str, ...], Callable[[Document, Path], Example | None]] = {
    ("cluster",): _cluster,
    ("trainer", "options", "script"): _script,
    ("trainer", "options", "argv"): _command,
    ("run",): _command,
    ("switches", "os"): _systems,
    ("switches", "os", "kind"): _system_kind,
    ("storage", "groups"): _groups,
    ("options", "node_names"): _node_names,
    ("options", "mounts", "path"): _path_of_claim,
    ("trainer", "kind"): _of_kind("script"),
    ("provider", "kind"): _of_kind("onprem"),
    ("data", "kind"): _of_kind("files"),
}
