"""What the scripts of a run have saved where, and its refusal: damaged checkpoints go out of the way of the script's own search.

`shared/saved/HOST.jsonl` has a line for every save: a file a host, since not every network file system appends for several. Before a
script starts the newest checkpoint of each family is verified; a damaged one is renamed to `.NAME.refused`, so that a script which looks
for its newest finds the one before.
"""

import errno
import json
import os
import re
import shutil
import socket
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.runner import worker as workers
from headway.runner.boot.sidecar import Found, file_of, verify
from headway.runner.checkpoint.posix import write_atomic
from headway.runner.lines import append_line, read_last, read_lines
from headway.runner.rundir import RunDirectory
from headway.runner.worker import Worker

FILE, DCP = "file", "dcp"
# A directory that is one checkpoint (transformers: checkpoint-500, DeepSpeed: global_step500), and not a folder of several.
_NUMBERED = re.compile(r"(checkpoint|ckpt|global_?step|step|iter|iteration|epoch)[-_=]?\d+")
# Lightning's name of the newest, which it looks for by that name alone (ModelCheckpoint.CHECKPOINT_NAME_LAST).
_LIGHTNING_LAST = re.compile(r"last(-v\d+)?\.ckpt")

REGISTRY_BYTES = 1 << 26  # of a file's end are read: a line has about 200
# A file that is longer keeps so many of its newest lines, and the last one of each checkpoint that is there.
LONG_BYTES, NEWEST = 1 << 20, 1000


class DamagedFileError(Exception):
    """A file is not what was saved."""


@dataclass(frozen=True)
class Unit:
    """What is one checkpoint to a script: a file, or a directory with all that lies in it. `at` is when it was saved last."""

    path: Path
    kind: str
    at: float

    @property
    def family(self) -> tuple[Path, str]:
        """Checkpoints that replace each other: siblings of one kind."""
        return self.path.parent, self.path.suffix if self.kind == FILE else self.kind


def registry_of(worker: Worker) -> Path:
    """The folder with what the run's scripts have saved."""
    return RunDirectory.of(Path(worker.run_json), worker.attempt).saved


def record(path: Path, kind: str) -> None:
    """This process has saved `path`. Raises OSError."""
    if (worker := workers.current()) is not None:
        file = _of_host(registry_of(worker), socket.gethostname())
        file.parent.mkdir(parents=True, exist_ok=True)
        append_line(file, {"path": str(path.absolute()), "kind": kind, "wall": time.time()})


def _of_host(registry: Path, host: str) -> Path:
    return registry / f"{host}.jsonl"


def shorten(registry: Path) -> None:
    """This host's file, while nobody saves. Raises OSError."""
    file = _of_host(registry, socket.gethostname())
    if not file.exists() or file.stat().st_size <= LONG_BYTES:
        return
    lines = [line for line, _ in read_lines(file)]
    last = {line["path"]: number for number, line in enumerate(lines)}
    kept = [
        line
        for number, line in enumerate(lines)
        if number >= len(lines) - NEWEST or (last[line["path"]] == number and Path(line["path"]).exists())
    ]
    write_atomic(file, "".join(json.dumps(line) + "\n" for line in kept).encode())


# --- refusing ---------------------------------------------------------------------------------------------------------


def unit_of(path: Path, directories: Iterable[Path] = ()) -> Path:
    """The checkpoint that a file belongs to: itself, or its directory where that has a checkpoint's name or is one of `directories`."""
    return path.parent if _NUMBERED.fullmatch(path.parent.name) or path.parent in set(directories) else path


def refuse(path: Path, why: str) -> Path | None:
    """Renames a checkpoint out of every search's way and says so; None when another rank has done it."""
    target = path.with_name(f".{path.name}.refused")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f".{path.name}.refused-{number}")
    try:
        path.rename(target)
    except FileNotFoundError:
        return None
    print(f"headway: {path}: {why}; it is {target.name} now", file=sys.stderr, flush=True)
    if (worker := workers.current()) is not None:
        worker.say("note", kind="refused file", path=str(path), now=str(target), why=why)
    return target


def damage(unit: Unit) -> str | None:
    """What is wrong with a checkpoint; None if nothing is. Raises FileNotFoundError for one that is gone."""
    if unit.kind == DCP:
        from headway.runner.boot.dcp import damage_of  # noqa: PLC0415  imports torch

        return damage_of(unit.path)
    for file in files_of(unit):
        if (why := damage_of_file(file)) is not None:
            return why if file == unit.path else f"{file.relative_to(unit.path)}: {why}"
    return None


def files_of(unit: Unit) -> list[Path]:
    """The files of a checkpoint that have a checksum, or may have one."""
    files = sorted(map(file_of, unit.path.rglob(".*.xxh3"))) if unit.path.is_dir() else [unit.path]
    return [file for file in files if file.exists()]


def damage_found(unit: Unit) -> str | None:
    """As `damage`; only what the disk cannot read is damage, a mount that is slow or gone is not."""
    try:
        return damage(unit)
    except OSError as error:
        return str(error) if error.errno == errno.EIO else None


def damage_of_file(path: Path) -> str | None:
    """Both checksums where they differ. Raises OSError."""
    found = verify(path)
    return f"xxh3_128 is {found.actual}, and {found.expected} was saved" if found.found is Found.DAMAGED else None


# --- before the script ------------------------------------------------------------------------------------------------


def units(registry: Path, host: str | None) -> list[Unit]:
    """The checkpoints that were saved and are there, the newest first; with `host`, those that were saved there."""
    saved: dict[Path, tuple[str, float]] = {}
    for file in registry.glob("*.jsonl") if host is None else [_of_host(registry, host)]:
        for line in read_last(file, REGISTRY_BYTES):
            path, wall = Path(line["path"]), line["wall"]
            if path not in saved or saved[path][1] <= wall:
                saved[path] = line["kind"], wall
    newest: dict[Path, Unit] = {}
    directories = set(_directories(path for path, (kind, _) in saved.items() if kind == FILE))
    for path, (kind, wall) in saved.items():
        unit = unit_of(path, directories) if kind == FILE else path
        if unit.exists() and (unit not in newest or newest[unit].at < wall):
            newest[unit] = Unit(unit, kind, wall)
    return sorted(newest.values(), key=lambda unit: unit.at, reverse=True)


def _directories(files: Iterable[Path]) -> Iterator[Path]:
    """Directories that are one checkpoint each: files of the same name were saved in several of one parent."""
    alike = defaultdict[tuple[Path, str], set[Path]](set)
    for file in files:
        alike[file.parent.parent, file.name].add(file.parent)
    return (directory for directories in alike.values() if len(directories) > 1 for directory in directories)


def _each_alone(units: Sequence[Unit]) -> list[str | None]:
    return [damage_found(unit) for unit in units]


def verify_newest(found: Iterable[Unit], judged: Callable[[Sequence[Unit]], Sequence[str | None]] = _each_alone) -> list[Unit]:
    """Verifies the newest checkpoint of each family, and where it is damaged the one before, until one is good; returns the good ones.
    `judged` says what is wrong with each of some checkpoints."""
    left = defaultdict[tuple[Path, str], deque[Unit]](deque)
    for unit in found:
        left[unit.family].append(unit)
    good, refused = list[Unit](), list[Unit]()
    while newest := [units.popleft() for units in left.values() if units]:
        for unit, why in zip(newest, judged(newest), strict=True):
            if why is not None:
                if refuse(unit.path, why) is not None:
                    refused.append(unit)
                continue
            good.append(unit)
            left[unit.family].clear()
            for other in refused:
                if other.family == unit.family:
                    _put_in_place(unit, other.path)
    return good


def _put_in_place(good: Unit, refused: Path) -> None:
    """Lightning resumes from the file named `last`: the newest that is good takes that name."""
    if _LIGHTNING_LAST.fullmatch(refused.name) and good.path.suffix == refused.suffix:
        temporary = refused.with_name(f".tmp-{refused.name}.{os.getpid()}")
        shutil.copy2(good.path, temporary)
        temporary.replace(refused)
        print(f"headway: {refused.name} is a copy of {good.path.name} now", file=sys.stderr, flush=True)
