"""Defines how a rank reports silent data corruption: wrong values that nothing else reports."""

from collections.abc import Collection

from headway.runner.worker import Worker

# Are named; more than that is no device's fault.
SUSPECTS = 256


class CorruptionError(Exception):
    """Two computations, or two copies, that must be equal bit by bit are not, and nothing more may be built on them."""


def say_corrupted(worker: Worker, ranks: Collection[int], found: str, sound_step: int | None) -> None:
    """Report corruption to the coordinator before CorruptionError ends this rank. All ranks call this; some may end before they do.

    `ranks` are the suspects, of which one may be to blame. Checkpoints after `sound_step` are not used again; None: those since the last
    `say_compared`.
    """
    worker.say("corrupted", ranks=sorted(ranks)[:SUSPECTS], found=found, sound_step=sound_step)


def say_compared(worker: Worker) -> None:
    """To the coordinator: what was compared now is equal, so that what was committed before was sound."""
    worker.say("compared", step=worker.step)
