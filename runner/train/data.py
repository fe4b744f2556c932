"""Reads the samples of a run: of files as bytes, one token per byte, of Python's standard library, or of corpora of tokens."""

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from headway.runner.contract import Data
from headway.runner.train.sampler import sample_at

NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"})


class DataError(Exception):
    """The job's data has no tokens, or other ones than it should."""


class Window(NamedTuple):
    """A sample. `tokens`: (length + 1,) int64; inputs are [:-1], targets [1:].

    `starts`: (length,) int64, for each input the place at which its document begins, 0 for one that began earlier; None
    if documents are not kept apart.
    """

    tokens: torch.Tensor
    starts: torch.Tensor | None = None


class SampleSource(Protocol):
    """The endless sequence of a run's samples, and a fingerprint: a run that resumes on other data would not be the same run."""

    @property
    def fingerprint(self) -> str: ...
    def at(self, place: int, length: int, seed: int) -> Window:
        """Return the sample of `length` tokens at the place, in the order that the seed makes."""
        ...


@dataclass(frozen=True)
class Corpus:
    """All tokens, (n,) uint8, and their fingerprint."""

    tokens: npt.NDArray[np.uint8]
    fingerprint: str

    def windows(self, length: int) -> int:
        """Return how many samples of `length` tokens there are, each with the token that follows. Raises DataError when
        there is none."""
        found = (len(self.tokens) - 1) // length
        if found <= 0:
            raise DataError(f"{len(self.tokens)} tokens are too few for one sample of {length} and the token that follows")
        return found

    def sample(self, index: int, length: int) -> torch.Tensor:
        """Return sample `index`: (length + 1,) int64; inputs are [:-1], targets [1:]."""
        window = self.tokens[index * length : (index + 1) * length + 1]
        return torch.from_numpy(window.astype(np.int64))

    def at(self, place: int, length: int, seed: int) -> Window:
        """Return the sample at the place of the endless sequence."""
        return Window(self.sample(sample_at(place, self.windows(length), seed), length))


def open_corpus(data: Data) -> Corpus:
    """Read the job's data. Raises DataError when there is none."""
    limit = data.options.get("limit_bytes")
    match data.kind:
        case "python-stdlib":
            files = list(_standard_library(sysconfig.get_path("stdlib")))
        case "files":
            files = sorted({path for pattern in data.options["paths"] for path in _matching(pattern)})
        case kind:
            raise DataError(f"data kind {kind!r} is unknown to the builtin trainer")
    raw = _read(files, limit)
    if not raw:
        raise DataError(f"no bytes in {len(files)} files of data kind {data.kind!r}")
    return Corpus(np.frombuffer(raw, np.uint8), xxhash.xxh3_128_hexdigest(raw))


def _standard_library(folder: str) -> Iterator[Path]:
    """Yield the sources of the standard library in the order of their paths, without site-packages, which may have
    10,000 files."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name in NOT_LIBRARY:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _standard_library(entry.path)
        elif entry.name.endswith(".py"):
            yield Path(entry.path)


def _matching(pattern: str) -> list[Path]:
    """Return the files that a pattern matches, from the working directory or from the root. Raises DataError when there
    is none."""
    path = Path(pattern)
    found = [file for file in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if file.is_file()]
    if not found:
        raise DataError(f"`{pattern}` matches no file; looked in `{Path(path.anchor or '.').resolve()}`")
    return found


def _read(files: list[Path], limit: int | None) -> bytes:
    taken, size = [], 0
    for path in files:
        if limit is not None and size >= limit:
            break
        if path.is_file():
            taken.append(path.read_bytes())
            size += len(taken[-1])
    return b"".join(taken)[:limit]
