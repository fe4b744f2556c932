"""The training that both sides run: an ordinary loop that saves by headway.checkpoint or by torch's async_save, or does not save.

`job.py SIDE FIRST FOLDER SEQUENCES GROUPS [--saver NAME]`, FIRST being the side that has the first turn. The two jobs are never at work
at once: each does a turn of STEPS steps, and then hands the turn to the other one. In the last turn of each group of TURNS there is a
checkpoint, where any are saved. While a job waits its ranks meet now and then, as they would in a step. After the first group, which sets
everything up, nobody has the turn until whoever started the jobs gives it.
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

from headway import checkpoint
from headway.runner.contract import Model
from headway.runner.train.model import Transformer

SIDES = ("headway", "torchrun")
NOBODY = "nobody"
STEPS, TURNS = 10, 5
EVERY = STEPS * TURNS  # steps from one checkpoint to the next
# examples/quickstart: 0.8 million parameters, sequences of 256 tokens.
MODEL = Model(vocab_size=256, layers=4, hidden=128, heads=4, kv_heads=2, ffn_hidden=352)
TOKENS = 256
_EARLY = 8  # steps of its turn are left when a checkpoint begins: it is to become durable beside them
_LOOK_S = 0.1


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
        """Until what was saved is durable on all ranks."""
        ...


class NoSaver:
    def after_step(self) -> None:
        return

    def wait(self) -> None:
        return


class HeadwaySaver:
    """docs/checkpoints.md, In your own loop."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training, self._run = training, checkpoint.open(tiers={"disk": EVERY})
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
        self._group = dist.new_group()  # a save goes on beside the steps and must not meet in between their collectives

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


def turn(training: Training, saver: Saver) -> float:
    """Seconds of a turn; a checkpoint that was begun in it is durable before it ends."""
    dist.barrier()
    began_s = time.perf_counter()
    for _ in range(STEPS):
        training.step()
        saver.after_step()
    saver.wait()
    dist.barrier()
    return time.perf_counter() - began_s


def wait_for_turn(file: Path, side: str) -> None:
    """Until rank 0 finds this side's name in the file."""
    mine = torch.zeros(1)
    while not mine:
        time.sleep(_LOOK_S)
        mine += float(dist.get_rank() == 0 and file.read_text() == side)
        dist.all_reduce(mine)


def hand_over(file: Path, side: str, to: str) -> None:
    whole = file.with_suffix(f".{side}")
    whole.write_text(to)
    whole.replace(file)


def run(side: str, first: str, folder: Path, sequences: int, groups: int, saver_name: str | None) -> None:
    dist.init_process_group("gloo")
    training, took_s = Training(sequences), list[float]()
    saver = SAVERS[saver_name](training, folder / f"checkpoints-{side}") if saver_name else NoSaver()
    other = next(name for name in SIDES if name != side)
    for number in range(TURNS * (1 + groups)):
        wait_for_turn(folder / "turn", side)
        took_s.append(turn(training, saver))
        if dist.get_rank() == 0:
            found = {"turn_s": took_s[TURNS:], "state_bytes": training.state_bytes()}
            (folder / f"{side}.json").write_text(json.dumps(found))
            is_set_up = number == TURNS - 1 and side != first
            hand_over(folder / "turn", side, NOBODY if is_set_up else other)
        dist.barrier()
    if side == first:  # its end would take from the other's last turn
        wait_for_turn(folder / "turn", side)
    # Not by way of gloo's destructor: now and then torch 2.13 misses the wake-up of the thread that it then waits for.
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("side", "first"):
        parser.add_argument(name, choices=SIDES)
    parser.add_argument("folder", type=Path)
    for name in ("sequences", "groups"):
        parser.add_argument(name, type=int)
    parser.add_argument("--saver", choices=tuple(SAVERS))
    options = parser.parse_args()
    run(options.side, options.first, options.folder, options.sequences, options.groups, options.saver)


if __name__ == "__main__":
    main()
