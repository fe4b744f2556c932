"""Provides a temporary folder that is removed when its creator ends, also by SIGKILL."""

import subprocess
import tempfile
from pathlib import Path

# waits for the end of its input, which the kernel closes with its creator; a dying process may still write, hence the loop
SWEEP = 'read -r; for _ in {1..200}; do rm -rf -- "$0" && exit 0; sleep 0.05; done; exit 1'


class Scratch:
    """A folder with mode 0755 (munged refuses a socket under a folder that others cannot enter)."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self.path.chmod(0o755)
        self._sweeper = subprocess.Popen(
            ["bash", "-c", SWEEP, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def remove(self) -> None:
        """Return when the folder has been removed; raises OSError if that fails."""
        if self._sweeper.stdin is not None:
            self._sweeper.stdin.close()
        if self._sweeper.wait(timeout=30) != 0:
            raise OSError(f"`{self.path}` could not be removed; something still writes to it")
