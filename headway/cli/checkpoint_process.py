"""Runs the runner's checkpoint reader as a process: words in, one JSON object per line out."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from headway.infra.submit.libraries import lacking_to_read

Line = dict[str, Any]


class LibraryError(Exception):
    """The runner's libraries are not installed; the message names them and the command that installs them."""


class ReaderProcess:
    """A started reader. Iterate over its lines to their end, then ask for its exit code."""

    def __init__(self, words: Sequence[str]) -> None:
        """Raises LibraryError."""
        if lacking := lacking_to_read():
            raise LibraryError(lacking)
        command = [sys.executable, "-P", "-m", "headway.runner.checkpoint", *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __iter__(self) -> Iterator[Line]:
        assert self._process.stdout is not None  # noqa: S101  a pipe was asked for
        for text in self._process.stdout:
            yield json.loads(text)

    def code(self) -> int:
        """How the reader ended; 1 where a signal ended it."""
        code = self._process.wait()
        if code < 0:
            print(f"error: the reader was killed by signal {-code}", file=sys.stderr)
        return code if code >= 0 else 1
