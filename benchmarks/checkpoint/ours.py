"""Runs headway's checkpoints for the benchmark: saved behind training, saved and waited for, loaded, restored from memory."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.checkpoint import state_dict_saver

from benchmarks.checkpoint.peer import State
from headway import checkpoint
from headway.runner.boot.dcp import ScriptWriter
from headway.runner.boot.records import Identity, record_of
from headway.runner.checkpoint.authority import of_directory
from headway.runner.checkpoint.commit import memory_manifest
from headway.runner.checkpoint.keeper.link import KeeperLink
from headway.runner.checkpoint.layout import RankState as Saved
from headway.runner.checkpoint.load import Loader
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.restore import open_base
from headway.runner.checkpoint.setup import connector, saver_of
from headway.runner.checkpoint.stateful import flatten
from headway.runner.contract import Base, Checkpoint, Tier

TIERS = {"memory": 1, "shared": 1}


def opened(folder: Path) -> checkpoint.Session:
    return checkpoint.open(folder, tiers=TIERS, keep=2)


class Behind:
    """A save to memory and disk during training."""

    name = "headway"

    def __init__(self, folder: Path) -> None:
        self._run, self._step, self._durable = opened(folder), 0, False

    def start(self, step: int, state: State) -> None:
        """Begin to save; return when the copy is made."""
        self._step, self._durable = step, False
        self._run.save(step, state, now=True)

    def before_optimizer(self) -> None:
        pass

    def durable(self) -> bool:
        """Return whether the step is committed on disk."""
        for outcome in self._run.outcomes():
            if outcome.error is not None:
                raise OSError(outcome.error)
            self._durable |= (outcome.step, outcome.tier) == (self._step, "shared")
        return self._durable

    def finish(self) -> None:
        self._run.wait()

    def close(self) -> None:
        self._run.close()


class Restore:
    """One saved state, to be loaded from the keeper's memory or from disk, verified, by the same code."""

    def __init__(self, folder: Path, step: int, state: State) -> None:
        self._ranks = Ranks.of_default_group().apart()
        tiers = Checkpoint(tiers=tuple(Tier(kind, every_steps=1) for kind in TIERS))
        authority = of_directory(folder, self._ranks, None)
        self._place = authority.place
        self._connect: Callable[[], KeeperLink] = connector(lambda: self._place, tiers, self._ranks)
        self._tensors = {name: value for name, value in flatten(state) if isinstance(value, torch.Tensor)}
        saver = saver_of(self._place, authority.chain, self._ranks, tiers, self._connect)
        saver.save(step, Saved(self._tensors, {}), set(TIERS))
        saver.wait()
        self.directory = self._place.root / self._place.checkpoint(step).directory
        self._disk = Base(
            step, self._place.generation, xxhash.xxh3_128_hexdigest((self.directory / "manifest.json").read_bytes())
        )
        self._memory = self._held(step)

    def _held(self, step: int) -> Base:
        """Return the base that follows from what the keepers say that they hold."""
        link = self._connect()
        (mine,) = {h.part_xxh3_128 for h in link.held() if (h.rank, h.step) == (self._ranks.rank, step)}
        link.close()
        parts = [raw.hex() for raw in self._ranks.gather(bytes.fromhex(mine))]
        manifest = memory_manifest(self._place.run, self._place.checkpoint(step), self._place.mesh, parts)
        return Base(step, self._place.generation, xxhash.xxh3_128_hexdigest(manifest), "memory")

    def from_memory(self) -> None:
        self._load(self._memory)

    def from_disk(self) -> None:
        self._load(self._disk)

    def _load(self, base: Base) -> None:
        reader = open_base(self._place, base, self._ranks, self._connect)
        with torch.no_grad():
            Loader(reader, self._tensors, self._ranks).load()


def record(directory: Path) -> None:
    """Read this rank's files of dcp.save for their records, as after a script's save."""
    for path in directory.glob(f"__{dist.get_rank()}_*"):
        if record_of(str(path), Identity.of(path.stat())) is None:
            raise OSError(f"{path} was written meanwhile")


def save_own_format(state: State, path: Path) -> None:
    """dcp.save of a script that has chosen headway's format."""
    state_dict_saver.save(dict(state), storage_writer=ScriptWriter(path))


def forget(directory: Path) -> None:
    """Remove the directory's files from the page cache; what is on disk already can be dropped (posix_fadvise(2))."""
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
