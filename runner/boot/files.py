"""Hooks torch.save, torch.load, safetensors and Lightning: records each saved file, and loads no damaged file.

The original functions write the files; nothing else is added to the script's folders, and its own file functions are
not changed. In-memory files and objects that are not files are ignored.

A save only records its begin and the file's state at its end. One of the next hooked calls reads the file for its
checksum, once a later write must show in the file's time; if another write came first, there is no checksum.
"""

import atexit
import functools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import abspath, lexists
from typing import Any

from headway.runner import worker as workers
from headway.runner.boot import records, saved
from headway.runner.boot.heartbeat import in_section
from headway.runner.boot.limitations import suppress_errors
from headway.runner.boot.records import BEGUN, ENDED, FILE, Identity
from headway.runner.worker import Worker

# Writes within one tick of a file system's clock leave one time: 10 ms with the slowest of Linux's ticks, 2 s where
# times are whole seconds (FAT, ext3, Lustre).
TICK_S, WHOLE_SECONDS_S = 0.02, 2.1
# Remembered files.
VERIFIED = 10_000

# Files that were found good.
_verified: dict[Identity, None] = {}


@dataclass(frozen=True)
class _Pending:
    """A file whose checksum is not made yet, its state when its save ended, and the time (monotonic) from which a later
    write shows."""

    path: str
    kind: str
    identity: Identity
    due_s: float
    wall: float
    step: int


_pending: list[_Pending] = []
_locks = [threading.Lock()]


def _in_child() -> None:
    """Drop pending checksums in a child: the parent makes them."""
    _locks[:] = [threading.Lock()]
    _pending.clear()


os.register_at_fork(after_in_child=_in_child)


def path_of(file: Any) -> str | None:
    """Return the absolute path behind the argument of a save or load: a path, an open file, or fsspec's local one; None
    for anything else."""
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None) or getattr(file, "path", None)
    name = os.fspath(name) if isinstance(name, str | os.PathLike) else None
    return abspath(name) if isinstance(name, str) and "://" not in name else None


def _stat(path: str) -> os.stat_result | None:
    """Return the stat of a regular file; None if there is none. A small save is 200 us in all, of which Path would take
    10. Raises OSError."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def begin(file: Any) -> None:
    """Record that a file is about to be written, so that an interrupted write is recognized. Not for open files, which
    may hold more than one object."""
    if (worker := workers.current()) is None:
        return
    due, lines = _due(), list[dict[str, Any]]()
    path = path_of(file) if isinstance(file, str | os.PathLike) else None
    if path is not None and (_stat(path) is not None or not lexists(path)):
        lines.append(records.line(worker, BEGUN, path, time.time()))
        due = [each for each in due if each.path != path]
        if _pending:
            _drop(path)
    _keep(worker, due, lines)


def _drop(path: str) -> None:
    with _locks[0]:
        _pending[:] = [each for each in _pending if each.path != path]


def ended(file: Any) -> None:
    """Record the file's state after a save."""
    if (worker := workers.current()) is not None and (path := path_of(file)) is not None:
        expect(worker, path, FILE)


def expect(worker: Worker, path: str, kind: str) -> None:
    """Record that this process has just saved `path`, whose checksum is made later. Raises OSError."""
    if (found := _stat(path)) is None:
        return
    identity = Identity.of(found)
    wait_s = TICK_S if identity.mtime_ns % 10**9 else WHOLE_SECONDS_S
    with _locks[0]:
        _pending.append(_Pending(path, kind, identity, time.monotonic() + wait_s, time.time(), worker.step))


def settle(wait_s: float = 0.0) -> None:
    """Make the checksums that are due, after waiting up to `wait_s` for those that are not."""
    if not _pending or (worker := workers.current()) is None:
        return
    if wait_s > 0:
        with _locks[0]:
            last_s = max((each.due_s for each in _pending), default=0.0)
        time.sleep(min(max(last_s - time.monotonic(), 0.0), wait_s))
    _keep(worker, _due(), [])


def _due() -> list[_Pending]:
    if not _pending:
        return []
    now_s = time.monotonic()
    with _locks[0]:
        due = [each for each in _pending if each.due_s <= now_s]
        if due:
            _pending[:] = [each for each in _pending if each.due_s > now_s]
    return due


def _keep(worker: Worker, due: Sequence[_Pending], lines: list[dict[str, Any]]) -> None:
    """Read the files and write their records, and these lines. Raises OSError."""
    if due:
        with in_section("save"):
            lines = [*_records(worker, due), *lines]
    records.append(worker, lines)


def _records(worker: Worker, due: Sequence[_Pending]) -> Iterator[dict[str, Any]]:
    known = records.known(records.registry_of(worker))
    for each in due:
        if (record := _record(each)) is not None:
            known.add(record)
            yield records.line(worker, each.kind, wall=each.wall, step=each.step, **record.facts())
        elif each.kind == FILE:
            # Its save is complete, so missing bytes are no sign that the save was interrupted.
            yield records.line(worker, ENDED, each.path, each.wall)


def _record(pending: _Pending) -> records.FileRecord | None:
    """Return the record; None if the file is gone, replaced or unreadable."""
    try:
        return records.record_of(pending.path, pending.identity)
    except OSError:
        return None


def verify_before_use(file: Any) -> None:
    """Raise DamagedFileError, with both checksums, for a file that differs from what was saved, after moving it."""
    if workers.current() is None or (name := path_of(file)) is None or (found := _stat(name)) is None:
        return
    settle()
    identity, path = Identity.of(found), Path(name)
    if identity in _verified or saved.here().of(identity) is None:
        return
    if (why := saved.damage_of_file(path)) is not None:
        raise saved.DamagedFileError(f"{path}: {why}; {_refused(saved.unit_of(path), why)} and is not loaded")
    if len(_verified) >= VERIFIED:
        _verified.clear()
    _verified[identity] = None


def _refused(unit: Path, why: str) -> str:
    """Return what has happened to a damaged checkpoint."""
    try:
        saved.refuse(unit, why)
    except OSError as error:
        return f"it could not be moved ({error})"
    return "it was moved"


def saving(original: Callable[..., Any], place: int, name: str) -> Callable[..., Any]:
    """Return `original` with its saves recorded; it saves to its argument `name`, the one at `place`."""

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        with in_section("save"):
            file = args[place] if len(args) > place else kwargs.get(name)
            suppress_errors(begin, file)
            done = original(*args, **kwargs)
            suppress_errors(ended, file)
            return done

    return save


def loading(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return `original` with its loads verified; it loads from its first argument, `name`."""

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        with in_section("restore"):
            _verify(args[0] if args else kwargs.get(name))
            return original(*args, **kwargs)

    return load


class _Loading(type):
    """Replaces a class that allows no subclass and no attribute: its instances are those of `__wrapped__`, and
    count as this class's too."""

    __wrapped__: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._load(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__wrapped__)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or issubclass(subclass, cls.__wrapped__)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.__wrapped__, name)


def loading_class(original: type, name: str) -> type:
    """Return the class with its loads verified, like `loading`; the result is a class too: scripts use it in isinstance
    and annotations."""
    facts = {"__doc__": original.__doc__, "__module__": original.__module__, "__wrapped__": original}
    return _Loading(original.__name__, (), {**facts, "_load": staticmethod(loading(original, name))})


def _verify(file: Any) -> None:
    """Verify like verify_before_use; other errors there (a failing disk) are left to the original function."""
    error = suppress_errors(_damage, file)
    if error is not None:
        raise error


def _damage(file: Any) -> saved.DamagedFileError | None:
    try:
        verify_before_use(file)
    except saved.DamagedFileError as error:
        return error
    return None


# --- the modules ------------------------------------------------------------------------------------------------------


def hook_serialization(module: Any) -> None:
    """Hook torch.serialization, and torch's own names for it."""
    import torch  # noqa: PLC0415  it is being imported

    for name, changed in (("save", saving(module.save, 1, "f")), ("load", loading(module.load, "f"))):
        original = getattr(module, name)
        setattr(module, name, changed)
        if getattr(torch, name, None) is original:
            setattr(torch, name, changed)


def hook_safetensors(module: Any) -> None:
    """Hook safetensors: `safe_open` for readers."""
    module.safe_open = loading_class(module.safe_open, "filename")


def hook_safetensors_torch(module: Any) -> None:
    """Hook safetensors.torch: its functions call these two by their names in the module, even if the functions were
    imported earlier."""
    module.serialize_file = saving(module.serialize_file, 1, "filename")
    if not isinstance(module.safe_open, _Loading):
        module.safe_open = loading_class(module.safe_open, "filename")


def hook_lightning(module: Any) -> None:
    """Hook lightning.fabric.utilities.cloud_io: it saves through memory and a file of fsspec's."""
    module._atomic_save = saving(module._atomic_save, 1, "filepath")


def hook_optimizer(module: Any) -> None:
    """Hook torch.optim.optimizer: after a step there is time for checksums, so a save is at most a few steps old when
    its process is killed."""

    def stepped(*_: Any) -> None:
        if _pending:
            suppress_errors(settle)

    module.register_optimizer_step_post_hook(stepped)


@atexit.register
def _at_exit() -> None:
    worker = workers.current()
    if worker is not None and not worker.forked():
        suppress_errors(settle, TICK_S)
