"""Unpacks archives of programs that no package provides, once per machine."""

import os
import tarfile
import tempfile
from pathlib import Path

ARCHIVES = Path(__file__).parents[3] / "shared/tools"


def unpacked(name: str) -> Path:
    """The folder with the contents of the archive `name`.tar.xz; raises FileNotFoundError without it."""
    packed = ARCHIVES / f"{name}.tar.xz"
    if not packed.exists():
        raise FileNotFoundError(f"`{packed}` not found")
    cache = Path(tempfile.gettempdir()) / f"headway-tests-{os.geteuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.geteuid():
        raise PermissionError(f"`{cache}` belongs to another user; remove it")
    folder = cache / f"{name}-{packed.stat().st_size}"
    if not folder.exists():
        _unpack(packed, folder)
    return folder


def _unpack(packed: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as unfinished:
        content = Path(unfinished) / "content"
        with tarfile.open(packed, "r:xz") as archive:
            archive.extractall(content, filter="data")
        try:
            content.rename(folder)
        except OSError:
            # another session was faster
            if not folder.exists():
                raise
