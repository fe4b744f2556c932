"""Defines the heartbeat page: the words of each rank, and the sections of a worker."""

import types
from collections.abc import Mapping

SECTIONS = (
    "start",
    "rendezvous",
    "restore",
    "data",
    "compute",
    "save",
    "finish",
    "script",
    "compile",
    "collective",
    "evaluation",
)
_WORDS = ("pid", "generation", "step", "section", "monotonic_ns", "save_request", "pulse", "own_ns", "members")
# Two cache lines, so that no two ranks write to one.
_PLACES = 16
_BYTES_PER_RANK = 8 * _PLACES
HEARTBEAT: Mapping[str, int] = types.MappingProxyType({word: place for place, word in enumerate(_WORDS)})


class HeartbeatPage:
    """Two cache lines of signed 64-bit words per local rank, written by the worker and read by other processes.

    Reading needs neither the worker's interpreter nor a socket, so it works while a thread holds the GIL. `step` counts
    completed optimizer steps; `pulse` counts heartbeats of any kind (a batch, a backward pass, a change of section), each
    of which sets `monotonic_ns`; `own_ns` is the time that the rank has spent outside of waits for other ranks since it
    started, 0 if that is not measured. The agent writes `save_request` and `members` (`Members.word`). Every word is
    aligned, so a single store is atomic; words of one line may be of different moments.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._words = buffer.cast("q")

    @staticmethod
    def bytes_for(ranks: int) -> int:
        return ranks * _BYTES_PER_RANK

    def read(self, local_rank: int) -> dict[str, int]:
        base = local_rank * _PLACES
        return {name: self._words[base + i] for i, name in enumerate(_WORDS)}

    def line(self, local_rank: int) -> memoryview:
        """Return the rank's words for a writer that cannot afford `write`: signed 64-bit, at the indexes of HEARTBEAT."""
        base = local_rank * _PLACES
        return self._words[base : base + len(_WORDS)]

    def write(self, local_rank: int, **words: int) -> None:
        base = local_rank * _PLACES
        for name, value in words.items():
            self._words[base + _WORDS.index(name)] = value
