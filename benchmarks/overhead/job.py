"""The training that both sides run: an ordinary script with torch.distributed.checkpoint, or the same loop without checkpoints.

`job.py SIDE FOLDER SEQUENCES BLOCKS STEPS [--save]`. The two jobs are never at work at once: each does a block of STEPS steps when it is
its turn, and then hands the turn to the other one. While it waits its ranks meet now and then, as they would in a step.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from headway.runner.contract import Model
from headway.runner.train.model import Transformer

SIDES = ("headway", "torchrun")
# examples/quickstart: 0.8 million parameters, sequences of 256 tokens.
MODEL = Model(vocab_size=256, layers=4, hidden=128, heads=4, kv_heads=2, ffn_hidden=352)
TOKENS = 256
_LOOK_S = 0.05


class Training:
    """One rank of the job."""

    def __init__(self, sequences: int) -> None:
        torch.manual_seed(0)
        self._group = dist.new_group()  # a save goes on beside the steps and must not meet in between their collectives
        self.model = DistributedDataParallel(Transformer(MODEL))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        data = TensorDataset(torch.randint(0, MODEL.vocab_size, (64 * sequences, TOKENS + 1)))
        self._loader = DataLoader(data, batch_size=sequences)
        self._batches = iter(self._loader)
        self.steps, self.saving = 0, list[Any]()  # the future of the newest save

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

    def save(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state, path = {"model": model, "optimizer": optimizer}, folder / f"step-{self.steps}"
        self.saving = [dcp.async_save(state, checkpoint_id=path, process_group=self._group)]  # type: ignore[attr-defined]

    def state_bytes(self) -> int:
        slots = [value for slot in self.optimizer.state.values() for value in slot.values()]
        return sum(tensor.nbytes for tensor in [*self.model.parameters(), *slots])


def block(training: Training, steps: int, checkpoints: Path | None) -> float:
    """Seconds of a block; the checkpoint in its middle is durable before the block ends."""
    dist.barrier()
    began_s = time.perf_counter()
    for number in range(steps):
        training.step()
        if checkpoints is not None and number == steps // 2:
            training.save(checkpoints)
    for saving in training.saving:
        saving.result()
    dist.barrier()
    return time.perf_counter() - began_s


def wait_for_turn(turn: Path, side: str) -> None:
    """Until rank 0 finds this side's name in the file."""
    mine = torch.zeros(1)
    while not mine:
        time.sleep(_LOOK_S)
        mine += float(dist.get_rank() == 0 and turn.read_text() == side)
        dist.all_reduce(mine)


def hand_over(turn: Path, side: str) -> None:
    other = turn.with_suffix(f".{side}")
    other.write_text(next(name for name in SIDES if name != side))
    other.replace(turn)


def run(side: str, folder: Path, sequences: int, blocks: int, steps: int, save: bool) -> None:
    """The first block sets everything up and is not written down."""
    dist.init_process_group("gloo")
    training, took_s = Training(sequences), list[float]()
    checkpoints = folder / "checkpoints" if save else None
    for _ in range(blocks + 1):
        wait_for_turn(folder / "turn", side)
        took_s.append(block(training, steps, checkpoints))
        if dist.get_rank() == 0:
            found = {"block_s": took_s[1:], "state_bytes": training.state_bytes()}
            (folder / f"{side}.json").write_text(json.dumps(found))
            hand_over(folder / "turn", side)
        dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("folder", type=Path)
    for name in ("sequences", "blocks", "steps"):
        parser.add_argument(name, type=int)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    run(options.side, options.folder, options.sequences, options.blocks, options.steps, options.save)


if __name__ == "__main__":
    main()
