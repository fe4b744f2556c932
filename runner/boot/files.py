"""Hooks of torch.save, torch.load, safetensors and Lightning: a checksum beside each file saved, and no damaged file loaded.

What is saved is written by the original functions, and not changed. Files in memory, and such as are no files, are left alone.
"""

import functools
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.runner import worker as workers
from headway.runner.boot import saved
from headway.runner.boot.sidecar import file_of, is_own, mark_begun, sidecar_of, sweep, write_sidecar
from headway.runner.boot.signs import in_section
from headway.runner.boot.unseen import carefully

SWEEP_S = 600.0  # a listing of a folder in which every rank saves costs each rank as much as all of them have saved

_verified: dict[Path, tuple[int, int]] = {}  # length and time of what was found good
_swept: dict[Path, float] = {}  # when this process first saved to a folder, or swept it last


def path_of(file: Any) -> Path | None:
    """The path behind what a save or load was given: a path, an open file, or fsspec's local one; None for anything else."""
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None) or getattr(file, "path", None)
    if isinstance(name, bytes) or not isinstance(name, str | os.PathLike):
        return None
    path = Path(os.fspath(name))
    return path if path.is_file() else None


def begin(file: Any) -> None:
    """Before a file is written: who is killed on the way leaves no checksum of other bytes, and what is cut off is known for it."""
    if (worker := workers.current()) is None:
        return
    path = Path(file) if isinstance(file, str | os.PathLike) and not isinstance(os.fspath(file), bytes) else None
    if path is not None and path.parent.is_dir() and (path.is_file() or not path.exists()):
        mark_begun(path, os.environ.get("TORCHELASTIC_RUN_ID"), worker.generation, worker.step)
        saved.record(path, saved.FILE)
    elif (path := path_of(file)) is not None:  # an open file may hold more than one object
        sidecar_of(path).unlink(missing_ok=True)


def keep_checksum(file: Any) -> None:
    """Puts the checksum beside what has just been saved to `file`, and notes it for the run."""
    worker = workers.current()
    if worker is None:
        return
    if callable(flush := getattr(file, "flush", None)):
        flush()
    if (path := path_of(file)) is None:
        return
    write_sidecar(path, os.environ.get("TORCHELASTIC_RUN_ID"), worker.generation, worker.step)
    saved.record(path, saved.FILE)
    now = time.monotonic()
    if now - _swept.setdefault(path.parent, now) > SWEEP_S:
        _swept[path.parent] = now
        sweep(path.parent)


def verify_before_use(file: Any) -> None:
    """Raises DamagedFileError, with both checksums, for a file that is not what was saved, after renaming it."""
    path = path_of(file)
    if path is None or not sidecar_of(path).exists():
        return
    stat = path.stat()
    if _verified.get(path) == (stat.st_size, stat.st_mtime_ns):
        return
    if (why := saved.damage_of_file(path)) is not None:
        raise saved.DamagedFileError(f"{path}: {why}; {_refused(path, why)} and is not loaded")
    _verified[path] = stat.st_size, stat.st_mtime_ns


def _refused(path: Path, why: str) -> str:
    """What has become of a damaged file."""
    try:
        saved.refuse(saved.unit_of(path), why)
    except OSError as error:
        return f"it could not be renamed ({error})"
    return "it was renamed"


def saving(original: Callable[..., Any], place: int, name: str) -> Callable[..., Any]:
    """`original`, which saves to its argument `name`, the one at `place`."""

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        with in_section("save"):
            file = args[place] if len(args) > place else kwargs.get(name)
            carefully(begin, file)
            done = original(*args, **kwargs)
            carefully(keep_checksum, file)
            return done

    return save


def loading(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`original`, which loads from its first argument, `name`."""

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        with in_section("restore"):
            _verify(args[0] if args else kwargs.get(name))
            return original(*args, **kwargs)

    return load


class _Loading(type):
    """Of a class that takes no subclass and no attribute: what it makes is `__wrapped__`'s own, and counts as this class's too."""

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
    """As `loading`, of a class, and one itself: scripts check for it and annotate with it."""
    facts = {"__doc__": original.__doc__, "__module__": original.__module__, "__wrapped__": original}
    return _Loading(original.__name__, (), {**facts, "_load": staticmethod(loading(original, name))})


def _verify(file: Any) -> None:
    """As verify_before_use; what else goes wrong there (a disk that fails) is the original's to find."""
    error = carefully(_damage, file)
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
    """torch.serialization, and torch's own names for it where they are bound."""
    import torch  # noqa: PLC0415  it is being imported

    for name, changed in (("save", saving(module.save, 1, "f")), ("load", loading(module.load, "f"))):
        original = getattr(module, name)
        setattr(module, name, changed)
        if getattr(torch, name, None) is original:
            setattr(torch, name, changed)


def hook_safetensors(module: Any) -> None:
    """safetensors: `safe_open` for readers."""
    module.safe_open = loading_class(module.safe_open, "filename")


def hook_safetensors_torch(module: Any) -> None:
    """safetensors.torch: its functions call these two by their names in the module, whoever has imported the functions."""
    module.serialize_file = saving(module.serialize_file, 1, "filename")
    if not isinstance(module.safe_open, _Loading):
        module.safe_open = loading_class(module.safe_open, "filename")


def hook_lightning(module: Any) -> None:
    """lightning.fabric.utilities.cloud_io: saves through memory and a file of fsspec's."""
    module._atomic_save = saving(module._atomic_save, 1, "filepath")


def hook_renames() -> None:
    """os.rename, os.replace, os.rmdir and os.listdir: a sidecar goes where its file goes, and keeps no directory from being deleted.

    A script that takes the largest number of a listing finds neither sidecars nor what was refused (torchtitan and accelerate list so).
    """
    for name in ("rename", "replace"):
        setattr(os, name, _renaming(getattr(os, name)))
    os.rmdir = _removing(os.rmdir)
    os.listdir = _listing(os.listdir)


def _renaming(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def rename(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        plain = not args and not kwargs and isinstance(source, str | os.PathLike) and isinstance(target, str | os.PathLike)
        if plain:
            carefully(_drop_before, Path(source), Path(target))
        original(source, target, *args, **kwargs)
        if plain:
            carefully(_follow, Path(source), Path(target), original)

    return rename


def _drop_before(source: Path, target: Path) -> None:
    """Before a file is renamed over another: who is killed on the way leaves no checksum of other bytes. A rename that fails then leaves
    the file without one."""
    if workers.current() is None or is_own(source.name) or is_own(target.name):
        return
    if source.is_file() and target.is_file() and not source.samefile(target):
        sidecar_of(target).unlink(missing_ok=True)


def _follow(source: Path, target: Path, rename: Callable[..., None]) -> None:
    """Behind a rename: the sidecar of a file, and the note of what now has another name."""
    if workers.current() is None or is_own(source.name) or is_own(target.name):
        return
    if target.is_file():
        if (before := sidecar_of(source)).exists():
            rename(before, sidecar_of(target))
            saved.record(target, saved.FILE)
        else:
            sidecar_of(target).unlink(missing_ok=True)  # of the file that was there before
    elif target.is_dir():
        for sidecar in target.glob(".*.xxh3"):
            saved.record(file_of(sidecar), saved.FILE)


def _removing(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def rmdir(path: Any, *args: Any, **kwargs: Any) -> None:
        if not args and not kwargs and workers.current() is not None:
            carefully(_clear, path)
        original(path, *args, **kwargs)

    return rmdir


def _clear(path: Any) -> None:
    """Deletes what headway has put into a directory in which nothing else is left."""
    with os.scandir(os.fsdecode(path)) as entries:
        left = list(entries)
    if not all(is_own(entry.name) for entry in left):
        return
    for entry in left:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink(missing_ok=True)


def _listing(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(original)
    def listdir(*args: Any, **kwargs: Any) -> list[Any]:
        found = original(*args, **kwargs)
        if workers.current() is None:
            return found
        return [name for name in found if not (isinstance(name, str) and is_own(name))]

    return listdir
