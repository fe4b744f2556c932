"""Runs the training of both sides: an ordinary loop that saves with headway.checkpoint, with torch's async_save, or not at all.

`job.py SIDE FIRST FOLDER SEQUENCES GROUPS STARTER [--saver NAME]`: FIRST is the side that has the first turn, STARTER the process that
started both jobs. They are never at work at once: each does a turn, and then hands the turn to the other one. A group is SINGLE turns of
one step and one turn of LONG steps, with a checkpoint in it, where any are saved. Turns are as short as they can be, for a machine that
others share becomes faster and slower by 10 %, for seconds and for minutes. While a job waits its ranks meet now and then, as they would
in a step. After the first group, which sets everything up, no job has the turn until the starter gives it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.overhead.baton import Baton
from benchmarks.overhead.control import Control, between_s
from headway import checkpoint
from headway.runner.contract import Model
from headway.runner.train.model import Transformer

SIDES = ("headway", "torchrun")
NOBODY = "nobody"
SINGLE, LONG = 40, 10
# Steps from one checkpoint to the next.
EVERY = SINGLE + LONG
GROUP = (*[1] * SINGLE, LONG)
SET_UP = (LONG,) * (EVERY // LONG)
# examples/quickstart: 0.8 million parameters, sequences of 256 tokens.
MODEL = Model(vocab_size=256, layers=4, hidden=128, heads=4, kv_heads=2, ffn_hidden=352)
TOKENS = 256
# Steps of its turn that are left when a checkpoint begins: it must become durable in parallel with them.
_EARLY = 8
_MEET_S = 0.5


class Training:
    """One rank of the job."""

    def __init__(self, sequences: int) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Transformer(MODEL))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        data = TensorDataset(torch.randint(0, MODEL.vocab_size, (64 * sequences, TOKENS + 1)))
        self._loader = DataLoader(data, batch_size=sequences)
        self._batches = iter(self._loader)
        self.steps = 0

    def step(self) -> None:
        try:
            (tokens,) = next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            (tokens,) = next(self._batches)
        logits = self.model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def state_bytes(self) -> int:
        slots = [value for slot in self.optimizer.state.values() for value in slot.values()]
        return sum(tensor.nbytes for tensor in [*self.model.parameters(), *slots])


class Saver(Protocol):
    """How the loop saves."""

    def after_step(self) -> None: ...

    def wait(self) -> None:
        """Wait until the save is durable on all ranks."""
        ...


class NoSaver:
    def after_step(self) -> None:
        return

    def wait(self) -> None:
        return


class HeadwaySaver:
    """docs/checkpoints.md, In your own loop."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training, self._run = training, checkpoint.open(tiers={"shared": EVERY})
        self._state = {"model": training.model, "optimizer": training.optimizer}
        self._run.load(self._state)

    def after_step(self) -> None:
        self._run.save(self._training.steps + _EARLY, self._state)

    def wait(self) -> None:
        self._run.wait()


class DcpSaver:
    """torch's own way, unchanged."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training, self._folder, self._saving = training, folder, list[Any]()
        # A save runs in parallel with the steps and must not meet their collectives.
        self._group = dist.new_group()

    def after_step(self) -> None:
        if (self._training.steps + _EARLY) % EVERY:
            return
        model, optimizer = get_state_dict(self._training.model, self._training.optimizer)
        state, path = {"model": model, "optimizer": optimizer}, self._folder / f"step-{self._training.steps}"
        self._saving = [dcp.async_save(state, checkpoint_id=path, process_group=self._group)]  # type: ignore[attr-defined]

    def wait(self) -> None:
        for saving in self._saving:
            saving.result()
        self._saving = []


SAVERS: dict[str, Callable[[Training, Path], Saver]] = {"headway": HeadwaySaver, "dcp": DcpSaver}


def turn(training: Training, saver: Saver, steps: int) -> float:
    """Return seconds of a turn; a checkpoint that was begun in it is durable before it ends."""
    dist.barrier()
    began_s = time.perf_counter()
    for _ in range(steps):
        training.step()
        saver.after_step()
    saver.wait()
    dist.barrier()
    return time.perf_counter() - began_s


class Turns:
    """This side's turns, and the CPU that its processes other than the ranks take in the other's."""

    def __init__(self, side: str, folder: Path, starter: int) -> None:
        self._side, self._baton = side, Baton(folder, (*SIDES, NOBODY))
        pids = torch.zeros(dist.get_world_size(), dtype=torch.long)
        pids[dist.get_rank()] = os.getpid()
        dist.all_reduce(pids)
        self._control = Control(starter, pids.tolist()) if dist.get_rank() == 0 else None
        self._before = dict[int, float]()
        self.control_s = 0.0

    def wait(self) -> None:
        """Wait until rank 0 has the baton."""
        mine = torch.zeros(1)
        while not mine:
            mine += float(self._control is not None and self._baton.take(self._side, _MEET_S))
            dist.all_reduce(mine)
        if self._control is not None:
            self.control_s += between_s(self._before, self._control.cpu_s())

    def begin(self) -> float:
        """Return what CPU was taken before the first turn that counts, of which the other's may be over; from here on
        it is counted."""
        taken_s, self.control_s = self.control_s, 0.0
        return sum(self._before.values()) + taken_s

    def hand_over(self, to: str) -> None:
        dist.barrier()
        if self._control is not None:
            self._before = self._control.cpu_s()
            self._baton.give(to)


def run(side: str, first: str, folder: Path, sequences: int, groups: int, saver_name: str | None, starter: int) -> None:
    dist.init_process_group("gloo")
    training, took_s, set_up_s = Training(sequences), list[float](), 0.0
    saver = SAVERS[saver_name](training, folder / f"checkpoints-{side}") if saver_name else NoSaver()
    turns = Turns(side, folder, starter)
    other = next(name for name in SIDES if name != side)
    for number, steps in enumerate((*SET_UP, *GROUP * groups)):
        turns.wait()
        if number == len(SET_UP):
            set_up_s = turns.begin()
        took_s.append(turn(training, saver, steps))
        is_set_up = number == len(SET_UP) - 1 and side != first
        turns.hand_over(NOBODY if is_set_up else other)
    # Its end would take from the other's last turn.
    if side == first:
        turns.wait()
    if dist.get_rank() == 0:
        found = {
            "turn_s": took_s[len(SET_UP) :],
            "control_s": turns.control_s,
            "set_up_s": set_up_s,
            "state_bytes": training.state_bytes(),
        }
        (folder / f"{side}.json").write_text(json.dumps(found))
    # Not by way of gloo's destructor: now and then torch 2.13 misses the wake-up of the thread that it then waits for.
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("side", "first"):
        parser.add_argument(name, choices=SIDES)
    parser.add_argument("folder", type=Path)
    for name in ("sequences", "groups"):
        parser.add_argument(name, type=int)
    parser.add_argument("starter", type=int)
    parser.add_argument("--saver", choices=tuple(SAVERS))
    options = parser.parse_args()
    run(options.side, options.first, options.folder, options.sequences, options.groups, options.saver, options.starter)


if __name__ == "__main__":
    main()
