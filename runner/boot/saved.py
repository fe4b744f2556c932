"""What the scripts of a run have saved where, and its refusal: damaged checkpoints go out of the way of the script's own search.

`shared/saved/HOST.jsonl` has a line for every save: a file a host, since not every network file system appends for several. Before a
script starts the newest checkpoint of each family is verified; a damaged one is renamed to `.NAME.refused`, so that a script which looks
for its newest finds the one before. One that cannot be read stays where it is.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from headway.runner import worker as workers
from headway.runner.boot.sidecar import Found, Verified, file_of, is_cut_off, is_own, verify
from headway.runner.boot.unseen import unseen
from headway.runner.checkpoint.posix import write_atomic
from headway.runner.lines import append_line, read_last, read_lines
from headway.runner.rundir import RunDirectory
from headway.runner.worker import Worker

FILE, DCP = "file", "dcp"
# A directory that is one checkpoint (transformers: checkpoint-500, DeepSpeed: global_step500), and not a folder of several.
_NUMBERED = re.compile(r"(checkpoint|ckpt|global_?step|step|iter|iteration|epoch)[-_=]?\d+")
# Such numbers in any name, but for accelerate's custom_checkpoint_0 and custom_checkpoint_1, which are of one checkpoint.
_STEP = re.compile(r"(?<![A-Za-z])(?<!custom_)(?:checkpoint|ckpt|global_?step|step|iter|iteration|epoch)[-_=]?(\d+)")
# Lightning's name of the newest, which it looks for by that name alone (ModelCheckpoint.CHECKPOINT_NAME_LAST).
_LIGHTNING_LAST = re.compile(r"last(-v\d+)?\.ckpt")

REGISTRY_BYTES = 1 << 26  # of a file's end are read: a line has about 200
# A file that is longer keeps so many of its newest lines, and the last one of each checkpoint that is there.
LONG_BYTES, NEWEST = 1 << 20, 1000


class DamagedFileError(Exception):
    """A file is not what was saved."""


class State(StrEnum):
    """What a checkpoint is, as far as it could be read."""

    GOOD = "good"  # read whole, and what was saved
    UNKNOWN = "unknown"  # no checksum, or no time to compare it
    UNREAD = "unread"  # by a mount that is slow or gone, or of another user: no damage
    FAILED = "failed"  # by its disk (EIO): damage once an older one can be read
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Verdict:
    state: State
    why: str = ""


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
    lines = list(_whole(line for line, _ in read_lines(file)))
    last = {line["path"]: number for number, line in enumerate(lines)}
    kept = [
        line
        for number, line in enumerate(lines)
        if number >= len(lines) - NEWEST or (last[line["path"]] == number and Path(line["path"]).exists())
    ]
    write_atomic(file, "".join(json.dumps(line) + "\n" for line in kept).encode())


# --- refusing ---------------------------------------------------------------------------------------------------------


def unit_of(path: Path) -> Path:
    """The checkpoint that a file belongs to: itself, or its directory where that is one."""
    return path.parent if _is_one(path.parent) else path


def _is_one(directory: Path, alike: Collection[Path] = ()) -> bool:
    """Whether a directory is one checkpoint: by its name or as one of `alike`, and it holds neither several nor anything that runs."""
    if not (_NUMBERED.fullmatch(directory.name) or directory in alike):
        return False
    try:
        if _holds_what_runs(directory):
            return False
        names = [entry.name for entry in directory.iterdir() if is_own(entry.name) or _NUMBERED.fullmatch(entry.name)]
    except OSError:
        return False
    return len(_steps(names)) < 2


def _steps(names: Iterable[str]) -> set[tuple[str, ...]]:
    """The different step numbers of names that have any."""
    return {steps for name in names if (steps := tuple(_STEP.findall(name)))}


def _holds_what_runs(directory: Path) -> bool:
    """Whether the working directory, the script or the run lies in a directory. Raises OSError."""
    # Before the script's first line argv is that of the boot package, and the script is its first argument.
    before = len(sys.argv) > 1 and Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent
    places = [Path.cwd(), *(Path(script).resolve().parent for script in sys.argv[1 if before else 0 :][:1])]
    if (worker := workers.current()) is not None:
        places.append(RunDirectory.of(Path(worker.run_json), worker.attempt).root)
    return any(place.is_relative_to(directory.resolve()) for place in places)


def refuse(path: Path, why: str) -> Path | None:
    """Renames a checkpoint out of every search's way and says so; None when another rank has done it. Raises OSError."""
    if _holds_what_runs(path):
        raise OSError(errno.EBUSY, "the script, its working directory or the run lies in it", str(path))
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


def judge(unit: Unit) -> Verdict:
    """What a checkpoint is, read whole by this process."""
    try:
        unit.path.stat()
        return _judge_dcp(unit.path) if unit.kind == DCP else _judge_files(unit)
    except OSError as error:
        return unread(error)


def unread(error: OSError) -> Verdict:
    """Of a checkpoint that could not be read."""
    return Verdict(State.FAILED if error.errno == errno.EIO else State.UNREAD, str(error))


def _judge_dcp(path: Path) -> Verdict:
    from headway.runner.boot.dcp import damage_of, is_ours  # noqa: PLC0415  imports torch

    if (why := damage_of(path)) is not None:
        return Verdict(State.DAMAGED, why)
    return Verdict(State.GOOD if is_ours(path) else State.UNKNOWN)


def _judge_files(unit: Unit) -> Verdict:
    if (verdict := cut_off(unit)) is not None:
        return verdict
    found = set[Found]()
    for file in files_of(unit):
        verified = verify(file)
        if (why := _damage(verified)) is not None:
            return Verdict(State.DAMAGED, why if file == unit.path else f"{file.relative_to(unit.path)}: {why}")
        found.add(verified.found)
    return Verdict(State.GOOD if found == {Found.GOOD} else State.UNKNOWN)


def cut_off(unit: Unit) -> Verdict | None:
    """Damaged, where whoever saved it was killed on the way. Raises OSError."""
    cut = next((file for file in files_of(unit) if is_cut_off(file)), None) if unit.kind == FILE else None
    return None if cut is None else Verdict(State.DAMAGED, f"{cut.name} is cut off: its save did not end")


def files_of(unit: Unit) -> list[Path]:
    """The files of a checkpoint that have a checksum, or may have one."""
    files = sorted(map(file_of, unit.path.rglob(".*.xxh3"))) if unit.path.is_dir() else [unit.path]
    return [file for file in files if file.exists()]


def damage_of_file(path: Path) -> str | None:
    """Both checksums where they differ. Raises OSError."""
    return _damage(verify(path))


def _damage(found: Verified) -> str | None:
    return f"xxh3_128 is {found.actual}, and {found.expected} was saved" if found.found is Found.DAMAGED else None


# --- before the script ------------------------------------------------------------------------------------------------


def units(registry: Path, host: str | None) -> list[Unit]:
    """The checkpoints that were saved and are there, the newest first; with `host`, those that were saved there."""
    saved: dict[Path, _Saved] = {}
    for file in registry.glob("*.jsonl") if host is None else [_of_host(registry, host)]:
        for line in _whole(read_last(file, REGISTRY_BYTES)):
            path, kind, wall = Path(line["path"]), line["kind"], line["wall"]
            before = saved.get(path, _Saved(kind, wall, wall))
            newer = wall >= before.last
            saved[path] = _Saved(kind if newer else before.kind, min(before.first, wall), max(before.last, wall))
    alike = set(_alike({path: when for path, when in saved.items() if when.kind == FILE}))
    ones = {directory for directory in {path.parent for path in saved} if _is_one(directory, alike)}
    newest: dict[Path, Unit] = {}
    for path, when in saved.items():
        unit = path.parent if when.kind == FILE and path.parent in ones else path
        if _may_be_there(unit) and (unit not in newest or newest[unit].at < when.last):
            newest[unit] = Unit(unit, when.kind, when.last)
    return sorted(newest.values(), key=lambda unit: unit.at, reverse=True)


@dataclass(frozen=True)
class _Saved:
    """How a path was saved last, and when first and last."""

    kind: str
    first: float
    last: float


def _whole(lines: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The lines of a registry that say all that it takes."""
    for line in lines:
        if isinstance(line.get("path"), str) and line.get("kind") in (FILE, DCP) and isinstance(line.get("wall"), int | float):
            yield line


def _may_be_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # what cannot be read is said when it is judged


def _alike(files: Mapping[Path, _Saved]) -> Iterator[Path]:
    """Directories that are one checkpoint each: files of the same name were saved in several of one parent, in one after the other."""
    names, times = defaultdict[Path, set[str]](set), dict[Path, tuple[float, float]]()
    alike = defaultdict[tuple[Path, str], set[Path]](set)
    for file, when in files.items():
        first, last = times.get(file.parent, (when.first, when.last))
        times[file.parent] = min(first, when.first), max(last, when.last)
        names[file.parent].add(file.name)
        alike[file.parent.parent, file.name].add(file.parent)
    for directories in alike.values():
        alone = _in_turn({directory: times[directory] for directory in directories}) if len(directories) > 1 else []
        yield from (directory for directory in alone if len(_steps(names[directory])) < 2)


def _in_turn(times: Mapping[Path, tuple[float, float]]) -> set[Path]:
    """The directories that were written while none of the others was."""
    alone, longest = set(times), None
    for directory in sorted(times, key=times.__getitem__):
        if longest is not None and times[directory][0] <= times[longest][1]:
            alone -= {directory, longest}
        if longest is None or times[directory][1] > times[longest][1]:
            longest = directory
    return alone


def _each_alone(units: Sequence[Unit]) -> list[Verdict]:
    return [judge(unit) for unit in units]


def verify_newest(found: Iterable[Unit], judged: Callable[[Sequence[Unit]], Sequence[Verdict]] = _each_alone) -> list[Unit]:
    """Verifies the newest checkpoint of each family, and where it is damaged or cannot be read the one before, until one is good; returns
    the good ones. `judged` says what each of some checkpoints is. What a disk cannot read is refused once an older one was read."""
    left = defaultdict[tuple[Path, str], deque[Unit]](deque)
    for unit in found:
        left[unit.family].append(unit)
    good, refused, failed = list[Unit](), list[Unit](), list[tuple[Unit, str]]()
    while newest := [units.popleft() for units in left.values() if units]:
        for unit, verdict in zip(newest, judged(newest), strict=True):
            if verdict.state is State.DAMAGED:
                refused += _refused(unit, verdict.why)
                continue
            if verdict.state in (State.UNREAD, State.FAILED):
                _say(f"{unit.path}: it cannot be read and is not verified: {verdict.why}")
                failed += [(unit, verdict.why)] if verdict.state is State.FAILED else []
                continue
            good.append(unit)
            left[unit.family].clear()
            if verdict.state is State.GOOD:
                for other, why in failed:
                    refused += _refused(other, why) if other.family == unit.family else []
            for other in refused:
                if other.family == unit.family:
                    _put_in_place(unit, other.path)
    return good


def _refused(unit: Unit, why: str) -> list[Unit]:
    """The checkpoint, unless another rank has refused it or it cannot be renamed, which is said."""
    try:
        return [] if refuse(unit.path, why) is None else [unit]
    except OSError as error:
        _say(f"{unit.path}: {why}; it is not renamed: {error}")
        return []


def _say(what: str) -> None:
    print(f"headway: {what}", file=sys.stderr, flush=True)
    unseen(what)


def _put_in_place(good: Unit, refused: Path) -> None:
    """Lightning resumes from the file named `last`: the newest that is good takes that name."""
    if not _LIGHTNING_LAST.fullmatch(refused.name) or good.path.suffix != refused.suffix:
        return
    temporary = refused.with_name(f".tmp-{refused.name}.{os.getpid()}")
    try:
        shutil.copy2(good.path, temporary)
        temporary.replace(refused)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        _say(f"{refused.name} is no copy of {good.path.name}: {error}")
        return
    print(f"headway: {refused.name} is a copy of {good.path.name} now", file=sys.stderr, flush=True)
