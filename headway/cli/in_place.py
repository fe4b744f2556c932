"""Replaces a file that people maintain, in place."""

import stat
from pathlib import Path

from headway.infra.tree import write_file


class PinError(Exception):
    """The decision cannot be written into the file; the message gives the reason and the remedy."""


def write_in_place(path: Path, text: str) -> None:
    """Writes the file where a link to it leads, whole or not at all, and leaves it its permissions. Raises PinError."""
    try:
        file = path.resolve()
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else None
        write_file(file, text)
        if mode is not None:
            file.chmod(mode)
    except OSError as error:
        raise PinError(f"{path} cannot be written: {error.strerror}; use another path, or free space there") from error
