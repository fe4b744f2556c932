"""Lets one of several processes work at a time, and starts the next one at once when it gets the baton."""

import os
import select
from collections.abc import Sequence
from pathlib import Path


class Baton:
    """A named pipe for each name; a byte in it is the baton. It is kept as long as the pipes' creator lives."""

    def __init__(self, folder: Path, names: Sequence[str], make: bool = False) -> None:
        pipes = {name: folder / f"turn-{name}" for name in names}
        if make:
            for path in pipes.values():
                os.mkfifo(path)
        self._pipes = {name: os.open(path, os.O_RDWR | os.O_NONBLOCK) for name, path in pipes.items()}

    def take(self, name: str, within_s: float) -> bool:
        """Return whether it has been given to this name, or was in that time."""
        pipe = self._pipes[name]
        if not select.select([pipe], [], [], within_s)[0]:
            return False
        os.read(pipe, 1)
        return True

    def give(self, name: str) -> None:
        os.write(self._pipes[name], b".")

    def close(self) -> None:
        for pipe in self._pipes.values():
            os.close(pipe)
