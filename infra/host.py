"""Compares the wanted and the found state of a host: plain records and pure functions."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from headway.infra.reach import Reach

MANIFEST = "/etc/headway/managed.json"
OWN_FOLDER = str(PurePosixPath(MANIFEST).parent)
MANIFEST_SCHEMA = "headway.managed/1"
UNIT_FOLDER = PurePosixPath("/etc/systemd/system")

# The possible states of a path, besides a file. A file is `MODE OWNER:GROUP SHA256`.
ABSENT, FOLDER, OTHER = "absent", "folder", "no file"
# Results of `systemctl is-enabled` for a unit that starts as it should.
ENABLED = frozenset({"enabled", "static", "alias", "indirect", "generated"})
FAILED = "failed"


class ForeignFileError(Exception):
    """A host has files that are not headway's where headway's belong; nothing was written there."""


class HostFile(Struct, frozen=True):
    """A file owned by root."""

    text: str
    mode: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def print(self) -> str:
        """Return what a look at the host reports of this file."""
        return f"{self.mode:04o} 0:0 {self.sha256}"


class HostState(Struct, frozen=True):
    """The wanted state of a cluster's host: files by absolute path, and which of them are systemd units to be enabled."""

    cluster: str
    reach: Reach
    files: Mapping[str, HostFile]
    units: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.reach.name


class HostManifest(Struct, frozen=True):
    """The files and units that headway has installed, recorded on the host itself. `restart`: units that still must be restarted;
    `finished`: nothing is pending.

    `folders` are those that headway created, the outer ones first.
    """

    cluster: str
    files: Mapping[str, str]
    folders: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    finished: bool = True
    schema: str = MANIFEST_SCHEMA


class HostView(Struct, frozen=True):
    """The result of a look at a host: each path, each unit, and the manifest; `live` where systemd runs."""

    paths: Mapping[str, str]
    units: Mapping[str, str]
    manifest: HostManifest | None
    live: bool

    @property
    def finished(self) -> bool:
        """Whether the last change was completed."""
        return self.manifest is not None and self.manifest.finished


class FileChange(Struct, frozen=True, order=True):
    """A path or a unit, and its problem: `missing`, `changed`, `extra`, `mode`, `not enabled`, `failed`, `unfinished`."""

    subject: str
    what: str


def is_file(found: str) -> bool:
    """Return whether a look at a path found a regular file."""
    return len(found.split()) == 3


def changes(wanted: HostState, view: HostView) -> list[FileChange]:
    """Return the changes that the host needs, by path."""
    manifest = view.manifest
    ours = manifest.files if manifest is not None else {}
    extra = [FileChange(path, "extra") for path in ours if path not in wanted.files and view.paths.get(path) != ABSENT]
    files = [
        FileChange(path, what)
        for path, file in wanted.files.items()
        if (what := _difference(file.print, view.paths.get(path, ABSENT))) is not None
    ]
    words = {unit: view.units.get(unit) for unit in wanted.units}
    units = [FileChange(unit, FAILED if word == FAILED else "not enabled") for unit, word in words.items() if word not in ENABLED]
    found = sorted(extra + files + units)
    if not found and (not view.finished or set(ours) != set(wanted.files)):
        return [FileChange(MANIFEST, "unfinished")]
    return found


def _difference(wanted: str, found: str) -> str | None:
    if found == ABSENT:
        return "missing"
    if found == wanted:
        return None
    return "mode" if is_file(found) and _content(found) == _content(wanted) else "changed"


def check_ours(wanted: HostState, view: HostView) -> None:
    """Raise ForeignError if the host is another cluster's, or if a wanted path holds content that is neither ours nor wanted."""
    manifest = view.manifest
    if manifest is not None and manifest.cluster != wanted.cluster:
        raise ForeignFileError(
            f"{wanted.reach}: this host belongs to the cluster `{manifest.cluster}` ({MANIFEST}); run `headway down` for that cluster first"
        )
    ours = manifest.files if manifest is not None else {}
    foreign = [
        path
        for path, file in sorted(wanted.files.items())
        if (found := view.paths[path]) in {FOLDER, OTHER} or (path not in ours and _is_foreign(file, found))
    ]
    if foreign:
        raise ForeignFileError(
            f"{wanted.reach}: {', '.join(foreign)} {'is' if len(foreign) == 1 else 'are'} already there and not "
            f"headway's; move away the files that you do not need"
        )


def _is_foreign(file: HostFile, found: str) -> bool:
    return found != ABSENT and _content(found) != file.sha256


def _content(found: str) -> str:
    """Return the SHA-256 of a file that a look found."""
    return found.rpartition(" ")[2]


def intent(wanted: HostState, view: HostView) -> HostManifest:
    """Return the manifest to write before the first change: whatever happens then, the host records what may be ours."""
    old = view.manifest or HostManifest(wanted.cluster, {})
    # headway's own folder exists before the manifest that could record its creator.
    made = [folder for folder in folders_of(wanted) if view.paths[folder] == ABSENT or folder == OWN_FOLDER]
    return HostManifest(
        cluster=wanted.cluster,
        files={**old.files, **{path: file.sha256 for path, file in wanted.files.items()}},
        folders=tuple(sorted({*old.folders, *made})),
        units=tuple(sorted({*old.units, *wanted.units})),
        restart=tuple(sorted({*old.restart, *_touched(wanted, view)})),
        finished=False,
    )


def _touched(wanted: HostState, view: HostView) -> Iterator[str]:
    """Yield units that failed, and those whose own file changes, or one that it names."""
    changed = {path for path, file in wanted.files.items() if view.paths[path] != file.print}
    for unit in wanted.units:
        path = str(UNIT_FOLDER / unit)
        text = wanted.files[path].text
        if view.units.get(unit) == FAILED or path in changed or any(other in text for other in changed):
            yield unit


def settled(wanted: HostState, begun: HostManifest) -> HostManifest:
    """Return the final manifest. Folders that are not needed any more are gone if they were empty."""
    return replace(
        begun,
        files={path: file.sha256 for path, file in wanted.files.items()},
        folders=tuple(folder for folder in begun.folders if folder in folders_of(wanted)),
        units=tuple(sorted(wanted.units)),
        restart=(),
        finished=True,
    )


def folders_of(wanted: HostState) -> list[str]:
    """Return every folder above the files and the manifest, the outer ones first."""
    parents = {str(parent) for path in (*wanted.files, MANIFEST) for parent in PurePosixPath(path).parents}
    return sorted(parents - {"/"})


def manifest_text(manifest: HostManifest) -> str:
    """Return the manifest's text on the host, readable for people too."""
    return json.dumps(to_builtins(manifest), indent=2, sort_keys=True) + "\n"


def read_manifest(text: str) -> HostManifest:
    """Parse a manifest. Raises ValueError for a text that is not one of this version."""
    try:
        data = json.loads(text)
        if data["schema"] != MANIFEST_SCHEMA:
            raise ValueError(f"its schema is `{data['schema']}`, but this headway reads `{MANIFEST_SCHEMA}`")
        return manifest_from(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a manifest: {error!r}") from error


def manifest_from(data: Mapping[str, Any]) -> HostManifest:
    """Return the manifest from JSON data. Raises KeyError or TypeError for invalid data."""
    return HostManifest(
        cluster=data["cluster"],
        files=dict(data["files"]),
        folders=tuple(data["folders"]),
        units=tuple(data["units"]),
        restart=tuple(data["restart"]),
        finished=data["finished"],
    )
