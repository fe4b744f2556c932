"""Implements the store on a POSIX file system: crash-safe exclusive creation, durable files and renames."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Prefix of names that do not count.
TEMPORARY = ".tmp-"


def fsync_directory(path: Path) -> None:
    """Make names in `path` durable: ext4 and XFS keep a rename only once its directory is synced (fsync(2))."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durable(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Create or overwrite `path` in place and wait until the bytes are on disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` atomically: a reader sees the old bytes or the new ones, also after a crash."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}.{secrets.token_hex(6)}")
    try:
        write_durable(temporary, data, mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


@contextmanager
def appearing(directory: Path) -> Iterator[Path]:
    """Yield a directory to write into. It gets its name when the block ends, and is removed if the block fails."""
    temporary = directory.with_name(f".tmp-{directory.name}")
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_directory(temporary)
    temporary.rename(directory)
    fsync_directory(directory.parent)


def create_exclusive(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Create `path` with `data`, atomically and durably. Returns False if the name is taken; that name is durable too.

    link() and not O_EXCL: an exclusive open publishes the name before its bytes, so a crash would leave an empty record
    forever. A taken name may be our own, made by a link() whose answer was lost (link(2), over NFS), and not be synced
    yet.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}.{secrets.token_hex(6)}")
    try:
        write_durable(temporary, data, mode)
        os.link(temporary, path)
        created = True
    except FileExistsError:
        created = False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_directory(path.parent)
    return created
