"""Verifies what the scripts of a run have saved, and moves damaged checkpoints out of the way of the script's own search.

Before a script starts the newest checkpoint of each family is verified by its records. If its bytes can be neither what
was saved nor another program's later write, it is moved to `shared/refused` of the run's directory, so that a script
which looks for its newest finds the previous one. All other files stay: those that other programs wrote, unreadable
ones, unknown ones.
"""

import errno
import json
import os
import re
import shutil
import sys
import time
import zipfile
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import dirname, split, splitext
from typing import Any

from headway.runner import worker as workers
from headway.runner.boot import records
from headway.runner.boot.limitations import note_limitation
from headway.runner.boot.records import (
    BEGUN,
    DCP,
    DCP_BEGUN,
    ENDED,
    FILE,
    OWN,
    FileRecord,
    FileState,
    FileVerification,
    Identity,
    Known,
    verify,
)
from headway.runner.contract import RunDirectory, TextEnum
from headway.runner.posix import write_atomic

# torch's name for it.
METADATA = ".metadata"
# A directory that is one checkpoint (transformers: checkpoint-500, DeepSpeed: global_step500), and not a folder of
# several.
_NUMBERED = re.compile(r"(checkpoint|ckpt|global_?step|step|iter|iteration|epoch)[-_=]?\d+")
# Such numbers in any name, except accelerate's custom_checkpoint_0 and custom_checkpoint_1, which belong to one
# checkpoint.
_STEP = re.compile(r"(?<![A-Za-z])(?<!custom_)(?:checkpoint|ckpt|global_?step|step|iter|iteration|epoch)[-_=]?(\d+)")
# Megatron's name of a checkpoint.
_ITERATION = re.compile(r"iter_(\d+)")
# Lightning's name of the newest, the only name that it looks for (ModelCheckpoint.CHECKPOINT_NAME_LAST).
_LIGHTNING_LAST = re.compile(r"last(-v\d+)?\.ckpt")

# How long a file is watched for a writer.
LOOK_S = 0.25
# A file that has not changed for so long is not watched.
STILL_S = 10.0
# The newest files of a folder that are searched under new names.
RENAMED = 1000
# Names that this search reads.
WALKED = 100_000


class DamagedFileError(Exception):
    """A file differs from what was saved."""


class SavedState(TextEnum):
    """The state of a checkpoint, as far as it could be read."""

    # Read completely, and equal to what was saved.
    GOOD = "good"
    # No record of the current content, or no time to compare it.
    UNKNOWN = "unknown"
    # A disk error, a slow or missing mount, or another user's file: no damage.
    UNREAD = "unread"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class SavedVerdict:
    state: SavedState
    why: str = ""


@dataclass(frozen=True)
class Unit:
    """One checkpoint to a script: a file, or a directory with all its content. `at` is when it was saved last.

    `files` may have records. `begun` has the generation of each file's last save that did not end.
    """

    path: Path
    kind: str
    at: float
    files: tuple[Path, ...] = field(default=(), compare=False)
    begun: Mapping[Path, int] = field(default_factory=dict, compare=False)

    @property
    def family(self) -> tuple[Path, str]:
        """The family: checkpoints that replace each other, siblings of one kind."""
        return self.path.parent, self.path.suffix if self.kind == FILE else self.kind


# --- refusing ---------------------------------------------------------------------------------------------------------


def unit_of(path: Path) -> Path:
    """Return the checkpoint that a file belongs to: itself, or its directory if that is one."""
    folder = str(path.parent)
    saved_there = [name for place, name in map(split, here().by_path) if place == folder]
    return path.parent if _is_one(path.parent, saved_there) else path


def _is_one(directory: Path, saved_there: Iterable[str], alike: Collection[str] = ()) -> bool:
    """Return whether a directory is one checkpoint: by its name or as one of `alike`, if it holds neither several nor
    running code."""
    if not (_NUMBERED.fullmatch(directory.name) or str(directory) in alike):
        return False
    try:
        with os.scandir(directory) as entries:
            steps = _steps([*saved_there, *(entry.name for entry in entries if _NUMBERED.fullmatch(entry.name))])
        return len(steps) < 2 and not _holds_what_runs(directory)
    except OSError:
        return False


def _steps(names: Iterable[str]) -> set[tuple[str, ...]]:
    """Return the different step numbers of names that have any."""
    return {steps for name in names if (steps := tuple(_STEP.findall(name)))}


def _holds_what_runs(directory: Path) -> bool:
    """Return whether the working directory, the script or the run is in the directory. Raises OSError."""
    # Before the script's first line argv is that of the boot package, and the script is its first argument.
    before = len(sys.argv) > 1 and Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent
    places = [Path.cwd(), *(Path(script).resolve().parent for script in sys.argv[1 if before else 0 :][:1])]
    if (worker := workers.current()) is not None:
        places.append(RunDirectory.of(Path(worker.run_json), worker.attempt).root)
    return any(place.is_relative_to(directory.resolve()) for place in places)


def refuse(path: Path, why: str) -> Path | None:
    """Move a checkpoint out of every search's way and report it; None when another rank has done it. Raises OSError."""
    if _holds_what_runs(path):
        raise OSError(errno.EBUSY, "it contains the script, its working directory or the run", str(path))
    try:
        target = _moved(path)
    except FileNotFoundError:
        return None
    print(f"headway: {path}: {why}; it is {target} now", file=sys.stderr, flush=True)
    if (worker := workers.current()) is not None:
        worker.say("note", kind="refused file", path=str(path), now=str(target), why=why)
    return target


def _moved(path: Path) -> Path:
    """Move it, and return the new path: in its own folder below `shared/refused`, or hidden next to its old name on
    another file system. Raises OSError."""
    if (worker := workers.current()) is not None:
        folder = _own_folder(RunDirectory.of(Path(worker.run_json), worker.attempt).refused, path.name)
        try:
            return path.rename(folder / path.name)
        except OSError as error:
            folder.rmdir()
            if error.errno != errno.EXDEV:
                raise
    target, number = path.with_name(f".{path.name}.refused"), 1
    while target.exists():
        number += 1
        target = path.with_name(f".{path.name}.refused-{number}")
    return path.rename(target)


def _own_folder(parent: Path, name: str) -> Path:
    """Create a folder for one checkpoint: two nodes may refuse files of one name at once."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(unit: Unit) -> SavedVerdict:
    """Return the state of a checkpoint, read completely by this process."""
    try:
        unit.path.stat()
        if unit.kind == OWN:
            return _judge_own(unit.path)
        return cut_off(unit) or _judge_files(unit)
    except OSError as error:
        return unread(error)


def unread(error: OSError) -> SavedVerdict:
    """Return the verdict on a checkpoint that could not be read."""
    return SavedVerdict(SavedState.UNREAD, str(error))


def _judge_own(path: Path) -> SavedVerdict:
    from headway.runner.boot.dcp import damage_of, is_ours  # noqa: PLC0415  imports torch

    if (why := damage_of(path)) is not None:
        return SavedVerdict(SavedState.DAMAGED, why)
    return SavedVerdict(SavedState.GOOD if is_ours(path) else SavedState.UNKNOWN)


def _judge_files(unit: Unit) -> SavedVerdict:
    found, known = set[FileState](), here()
    for file in files_of(unit):
        verified = verify(file, known)
        if (why := _damage(verified)) is not None:
            return SavedVerdict(SavedState.DAMAGED, why if file == unit.path else f"{file.relative_to(unit.path)}: {why}")
        found.add(verified.found)
    return SavedVerdict(SavedState.GOOD if found == {FileState.GOOD} else SavedState.UNKNOWN)


def here() -> Known:
    """Return this process's records of its run; empty outside of a run."""
    worker = workers.current()
    return Known() if worker is None else records.known(records.registry_of(worker))


def files_of(unit: Unit) -> list[Path]:
    """Return the files of a checkpoint that may have a record."""
    return [file for file in unit.files if file.exists()]


def damage_of_file(path: Path) -> str | None:
    """Return both checksums if they differ. Raises OSError."""
    return _damage(verify(path, here()))


def _damage(found: FileVerification) -> str | None:
    return f"xxh3_128 is {found.actual}, but {found.expected} was saved" if found.found is FileState.DAMAGED else None


# --- unfinished saves -------------------------------------------------------------------------------------------------


def cut_off(unit: Unit) -> SavedVerdict | None:
    """Return damage if the saving process was killed during the save and no process writes the checkpoint now. Raises OSError."""
    if unit.kind == DCP:
        return _torn(unit)
    for file, generation in unit.begun.items():
        if file.exists() and is_cut(file) and _is_left(file, generation):
            return SavedVerdict(SavedState.DAMAGED, f"{file.name} is truncated: its save did not finish")
    return None


def is_cut(path: Path) -> bool:
    """Return whether the file cannot be complete: empty, an archive without its directory (torch.save writes that
    last), or shorter than its safetensors header requires. Raises OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if head.startswith(b"PK\3\4"):
            return not zipfile.is_zipfile(path)
        if path.suffix != ".safetensors":
            return size == 0
        length = int.from_bytes(head, "little")
        return size < 8 + length or size < 8 + length + _end(file.read(length))


def _end(header: bytes) -> float:
    """Return the end of a safetensors file's data, after its header (huggingface/safetensors: README.md, Format);
    infinity for an invalid header."""
    try:
        entries = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        return max((entry["data_offsets"][1] for entry in entries), default=0)
    except (ValueError, AttributeError, TypeError, LookupError):
        return float("inf")


def _is_left(path: Path, generation: int) -> bool:
    """Return whether the file is as that generation's save left it: nothing has written it later or writes it now.
    Raises OSError."""
    before = path.stat()
    if (worker := workers.current()) is not None and generation < worker.generation:
        journal = RunDirectory.of(Path(worker.run_json), worker.attempt).journal(generation)
        if journal.exists() and before.st_mtime > journal.stat().st_mtime + STILL_S:
            return False
    if abs(time.time() - before.st_mtime) < STILL_S:
        time.sleep(LOOK_S)
    return Identity.of(path.stat()) == Identity.of(before)


def _torn(unit: Unit) -> SavedVerdict | None:
    """Return the verdict on a dcp checkpoint that was being overwritten: its `.metadata` is as committed, and other
    files differ. Raises OSError."""
    if not unit.begun:
        return None
    known = here()
    committed = [known.by_path.get(str(file)) for file in unit.files]
    if None in committed or not all(file.exists() for file in unit.files):
        return None
    as_it_was = {file: _is_as_it_was(file, record, known) for file, record in zip(unit.files, committed, strict=True) if record}
    changed = [file for file, same in as_it_was.items() if not same]
    if not changed or not as_it_was[unit.path / METADATA] or not all(_is_left(file, unit.begun[unit.path]) for file in changed):
        return None
    if cut := [file.name for file in changed if is_cut(file)]:
        return SavedVerdict(SavedState.DAMAGED, f"{cut[0]} is truncated: a save over the checkpoint did not finish")
    if len(changed) < len(unit.files) - 1:
        return SavedVerdict(
            SavedState.DAMAGED,
            f"{changed[0].name} is from a different save than the rest: a save over the checkpoint did not finish",
        )
    return None


def _is_as_it_was(path: Path, record: FileRecord, known: Known) -> bool:
    """Return whether a file is what it was when it was committed, whatever its times are now. Raises OSError."""
    stat = path.stat()
    if Identity.of(stat) == record.identity:
        return True
    return stat.st_size == record.identity.bytes and records.checksum(path, stat.st_size) == record.xxh3_128


# --- before the script ------------------------------------------------------------------------------------------------


@dataclass
class _Saved:
    """The last save of a path, with the times of the first and the last. `begun`: the generation of an unfinished save."""

    kind: str
    first: float
    last: float
    begun: int | None = None
    identity: Identity | None = None
    # Of the files of a dcp checkpoint.
    names: tuple[str, ...] = ()


def units(registry: Path, host: str | None) -> list[Unit]:
    """Return the saved checkpoints, the newest first, whether they still exist or not; with `host`, only those saved
    there. Renamed ones have their current name."""
    files, directories, before = dict[str, _Saved](), dict[str, _Saved](), list[tuple[str, _Saved]]()
    for line in sorted(records.read(registry, host), key=lambda line: float(line["wall"])):
        if line.get("kind") in (BEGUN, FILE):
            _note(files, line, FILE, line["kind"] == BEGUN, before)
        elif line.get("kind") == ENDED and (entry := files.get(line["path"])) is not None:
            entry.begun = None
        elif line.get("kind") in (DCP_BEGUN, DCP, OWN):
            _note(directories, line, OWN if line["kind"] == OWN else DCP, line["kind"] == DCP_BEGUN, [])
    _rename(files, before)
    # The script ignores an uncommitted one too, which has no .metadata.
    found = [_dcp_unit(path, when) for path, when in directories.items() if when.names or when.kind == OWN]
    found += _file_units(files)
    return sorted(found, key=lambda unit: unit.at, reverse=True)


def _note(saved: dict[str, _Saved], line: Mapping[str, Any], kind: str, begins: bool, before: list[tuple[str, _Saved]]) -> None:
    """Apply a line. `before` gets earlier files of the same path, which may have been renamed since."""
    path, wall = line["path"], float(line["wall"])
    entry = saved.setdefault(path, _Saved(kind, wall, wall))
    if not begins and entry.identity is not None and entry.identity.inode != line["inode"]:
        before.append((path, entry))
        entry = saved[path] = _Saved(kind, wall, wall)
    entry.last = max(entry.last, wall)
    if begins:
        entry.begun = int(line.get("generation") or 0)
        return
    entry.kind, entry.begun = kind, None
    if kind == FILE:
        entry.identity = FileRecord.of_line(line).identity
    elif isinstance(names := line.get("names"), list):
        entry.names = tuple(map(str, names))


def _dcp_unit(path: str, when: _Saved) -> Unit:
    directory = Path(path)
    files = tuple(directory / name for name in (METADATA, *when.names)) if when.names else ()
    return Unit(directory, when.kind, when.last, files, {} if when.begun is None else {directory: when.begun})


def _file_units(files: Mapping[str, _Saved]) -> Iterator[Unit]:
    alike = set(_alike(files))
    of_folder = defaultdict[str, list[str]](list)
    for path in files:
        of_folder[dirname(path)].append(path)
    for folder, paths in of_folder.items():
        if _is_one(Path(folder), [split(path)[1] for path in paths], alike):
            yield _file_unit(folder, paths, files)
        else:
            yield from (_file_unit(path, [path], files) for path in paths)


def _file_unit(unit: str, paths: Sequence[str], files: Mapping[str, _Saved]) -> Unit:
    begun = {Path(path): number for path in paths if (number := files[path].begun) is not None}
    return Unit(Path(unit), FILE, max(files[path].last for path in paths), tuple(map(Path, paths)), begun)


def _alike(files: Mapping[str, _Saved]) -> Iterator[str]:
    """Yield directories that are one checkpoint each: files of the same name were saved in several of one parent, in
    one after the other."""
    names, times = defaultdict[str, set[str]](set), dict[str, tuple[float, float]]()
    alike = defaultdict[tuple[str, str], set[str]](set)
    for path, when in files.items():
        folder, name = split(path)
        first, last = times.get(folder, (when.first, when.last))
        times[folder] = min(first, when.first), max(last, when.last)
        names[folder].add(name)
        alike[dirname(folder), name].add(folder)
    for folders in alike.values():
        alone = _in_turn({folder: times[folder] for folder in folders}) if len(folders) > 1 else []
        yield from (folder for folder in alone if len(_steps(names[folder])) < 2)


def _in_turn(times: Mapping[str, tuple[float, float]]) -> set[str]:
    """Return the directories that were written while none of the others was."""
    alone, longest = set(times), None
    for folder in sorted(times, key=times.__getitem__):
        if longest is not None and times[folder][0] <= times[longest][1]:
            alone -= {folder, longest}
        if longest is None or times[folder][1] > times[longest][1]:
            longest = folder
    return alone


# --- renamed since ----------------------------------------------------------------------------------------------------


def _rename(files: dict[str, _Saved], before: Iterable[tuple[str, _Saved]]) -> None:
    """Give files their current names: many saves are renamed into place, or their folder is.

    A folder is searched only if its newest file is missing under its saved name, and no sibling of a missing folder was
    saved later: files that were deleted in turn are not searched.
    """
    kinds = defaultdict[tuple[str, str], list[tuple[str, _Saved]]](list)
    for path, entry in [*before, *files.items()]:
        kinds[dirname(path), splitext(path)[1]].append((path, entry))
    there, inodes = set[tuple[str, str]](), dict[tuple[str, int], dict[int, str]]()
    for (folder, suffix), saved in sorted(kinds.items(), key=lambda kind: max(entry.last for _, entry in kind[1]), reverse=True):
        newest, _ = max(saved, key=lambda each: each[1].last)
        if _is_there(newest):
            there.add((dirname(folder), suffix))
            continue
        place = _nearest(folder)
        if place[0] != folder and (dirname(folder), suffix) in there:
            continue
        if place not in inodes:
            inodes[place] = _inodes(*place)
        for path, entry in sorted(saved, key=lambda each: each[1].last)[-RENAMED:]:
            name = None if entry.identity is None else inodes[place].get(entry.identity.inode)
            if name is None or name == path or entry.identity != _identity(name):
                continue
            if files.get(path) is entry:
                del files[path]
            if name not in files or files[name].last <= entry.last:
                files[name] = entry


def _is_there(path: str) -> bool:
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # Judging it reports the read error.
        return True
    return True


def _identity(path: str) -> Identity | None:
    try:
        return Identity.of(Path(path).stat())
    except OSError:
        return None


def _nearest(folder: str) -> tuple[str, int]:
    """Return the nearest existing ancestor, and its distance in levels."""
    depth = 0
    while not Path(folder).is_dir() and (above := dirname(folder)) != folder:
        folder, depth = above, depth + 1
    return folder, depth


def _inodes(top: str, depth: int) -> dict[int, str]:
    """Return the paths of files down to so many levels below a folder, by inode, within WALKED names."""
    found, folders, left = dict[int, str](), deque([(top, depth)]), WALKED
    while folders and left > 0:
        folder, levels = folders.popleft()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        if levels > 0:
                            folders.append((entry.path, levels - 1))
                    else:
                        found[entry.inode()] = entry.path
        except OSError:
            continue
    return found


# --- the newest of each family ----------------------------------------------------------------------------------------


def _each_alone(units: Sequence[Unit]) -> list[SavedVerdict]:
    return [judge(unit) for unit in units]


def verify_newest(found: Iterable[Unit], judged: Callable[[Sequence[Unit]], Sequence[SavedVerdict]] = _each_alone) -> list[Unit]:
    """Verify the newest existing checkpoint of each family; while it is damaged or unreadable, the previous one. Return
    the good ones.

    `judged` returns a verdict for each of some checkpoints.
    """
    left = defaultdict[tuple[Path, str], deque[Unit]](deque)
    for unit in found:
        left[unit.family].append(unit)
    good, refused = list[Unit](), list[Unit]()
    while newest := [unit for unit in map(_next, left.values()) if unit is not None]:
        for unit, verdict in zip(newest, judged(newest), strict=True):
            if verdict.state is SavedState.DAMAGED:
                refused += _refused(unit, verdict.why)
                continue
            if verdict.state is SavedState.UNREAD:
                _say(f"{unit.path}: it cannot be read and is not verified: {verdict.why}")
                continue
            good.append(unit)
            left[unit.family].clear()
            for other in refused:
                if other.family == unit.family:
                    _put_in_place(unit, other.path)
    return good


def _next(units: deque[Unit]) -> Unit | None:
    """Return the newest one that exists."""
    while units:
        unit = units.popleft()
        if _is_there(str(unit.path)):
            return unit
    return None


def _refused(unit: Unit, why: str) -> list[Unit]:
    """Return the checkpoint, unless another rank has refused it or it cannot be moved, which is reported."""
    try:
        return [] if refuse(unit.path, why) is None else [unit]
    except OSError as error:
        _say(f"{unit.path}: {why}; it is not moved: {error}")
        return []


def _say(what: str) -> None:
    print(f"headway: {what}", file=sys.stderr, flush=True)
    note_limitation(what)


def _put_in_place(good: Unit, refused: Path) -> None:
    """Let what names the newest checkpoint name the good one: a file that points to the refused one, or Lightning's `last`."""
    _point_to(good.path, refused)
    if not _LIGHTNING_LAST.fullmatch(refused.name) or good.path.suffix != refused.suffix:
        return
    temporary = refused.with_name(f".tmp-{refused.name}.{os.getpid()}")
    try:
        shutil.copy2(good.path, temporary)
        temporary.replace(refused)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        _say(f"{refused.name} is not a copy of {good.path.name}: {error}")
        return
    print(f"headway: {refused.name} is a copy of {good.path.name} now", file=sys.stderr, flush=True)


def _point_to(good: Path, refused: Path) -> None:
    """Correct the file next to a refused directory by which its framework finds the newest: DeepSpeed's `latest` has its name
    (deepspeed/runtime/engine.py), Megatron's `latest_checkpointed_iteration.txt` its number (megatron/training/checkpointing.py)."""
    pointed = {"latest": (refused.name, good.name)}
    numbers = tuple(match[1] if (match := _ITERATION.fullmatch(path.name)) else None for path in (refused, good))
    if numbers[0] is not None and numbers[1] is not None:
        pointed["latest_checkpointed_iteration.txt"] = (str(int(numbers[0])), str(int(numbers[1])))
    for name, (old, new) in pointed.items():
        pointer = refused.with_name(name)
        try:
            if pointer.is_file() and pointer.read_text().strip() == old:
                write_atomic(pointer, new.encode())
                print(f"headway: {pointer} names {good.name} now", file=sys.stderr, flush=True)
        except (OSError, UnicodeDecodeError) as error:
            _say(f"{pointer} names {refused.name}, which was refused: {error}")
