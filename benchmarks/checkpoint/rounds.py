"""Runs two ways of doing the same thing in turn, on all ranks at once."""

import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from benchmarks.checkpoint import ours, peer
from benchmarks.checkpoint.ours import opened
from benchmarks.checkpoint.training import Training, slowest

Pair = tuple[list[float], list[float]]


def blocked(training: Training, folder: Path, rounds: int) -> Pair:
    """Return seconds until `save` returns, and those of a copy of the same bytes into memory that was written before."""
    state, run = training.state(), opened(folder)
    shards = [t.to_local() if isinstance(t, DTensor) else t for tensors in state.values() for t in tensors.values()]
    copies = [shard.clone() for shard in shards]

    def save() -> None:
        run.save(training.steps, state, now=True)

    def copy() -> None:
        for target, source in zip(copies, shards, strict=True):
            target.copy_(source)

    def next_step() -> None:
        run.wait()
        training.steps += 1

    pair = _in_turn(save, copy, rounds, after=next_step)
    run.close()
    return pair


def durable(training: Training, folder: Path, rounds: int) -> Pair:
    """Return seconds until a save is committed and durable, ours and dcp.save's."""
    state, run = training.state(), opened(folder / "ours")
    theirs = folder / "dcp"

    def save() -> None:
        training.steps += 1
        run.save(training.steps, state, now=True)
        run.wait()

    pair = _in_turn(save, lambda: peer.save(state, theirs), rounds, after=lambda: peer.delete(theirs))
    run.close()
    return pair


def recorded(training: Training, folder: Path, rounds: int) -> Pair:
    """Return seconds of a script's dcp.save with the checksums that headway makes of its files afterwards, and of
    dcp.save alone."""
    return _saved_by_a_script(training, folder, rounds, peer.save)


def recorded_or_own(training: Training, folder: Path, rounds: int) -> Pair:
    """Return seconds of a script's dcp.save with its checksums, and of one in headway's format."""
    return _saved_by_a_script(training, folder, rounds, ours.save_own_format)


def _saved_by_a_script(training: Training, folder: Path, rounds: int, other: Callable[[peer.State, Path], None]) -> Pair:
    state, path, theirs = training.state(), folder / "recorded", folder / "other"

    def save() -> None:
        peer.save(state, path)
        ours.record(path)

    def clear() -> None:
        peer.delete(path)
        peer.delete(theirs)

    return _in_turn(save, lambda: other(state, theirs), rounds, after=clear)


def warm_load(training: Training, folder: Path, rounds: int) -> Pair:
    """Return seconds of a load of what was read before, ours with every byte verified, and dcp.load's."""
    state = training.state()
    saved = ours.Restore(folder / "ours", training.steps, state)
    peer.save(state, folder / "dcp")
    return _in_turn(saved.from_disk, lambda: peer.load(state, folder / "dcp"), rounds)


def restore(training: Training, folder: Path, rounds: int) -> Pair:
    """Return seconds of a restore from the keeper's memory, and of the same from disk that is not in the page cache;
    both verified."""
    saved = ours.Restore(folder, training.steps, training.state())

    def forget() -> None:
        if dist.get_rank() == 0:
            ours.forget(saved.directory)

    forget()
    return _in_turn(saved.from_memory, saved.from_disk, rounds, after=forget)


def _nothing() -> None:
    pass


def _in_turn(one: Callable[[], None], other: Callable[[], None], rounds: int, after: Callable[[], None] = _nothing) -> Pair:
    """Return seconds of the slowest rank; one round before is not counted. `after` puts back what both change, outside
    of the time."""
    pairs = []
    for _ in range(rounds + 1):
        pairs.append((_timed(one), _timed(other)))
        after()
    return [first for first, _ in pairs[1:]], [second for _, second in pairs[1:]]


def _timed(work: Callable[[], None]) -> float:
    dist.barrier()
    began = time.perf_counter()
    work()
    return slowest(time.perf_counter() - began)
