"""Runs a rank whose state differs from the others': its own tensors, a parameter that is used late, a save that it skips."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headway import checkpoint
from headway.runner.checkpoint.ranks import AbsentError
from tests.support.worlds import POLL_S, join, leave


def own(directory: Path, tiers: dict[str, int], rank: int) -> None:
    """All ranks are alike when the run begins; from the first save on each has its own."""

    def blank() -> dict[str, torch.Tensor]:
        return {
            "generator": torch.Generator().get_state(),
            "statistics": torch.zeros(2048),
            "queue": torch.zeros(8, 65536),
            "shared": torch.zeros(600_000),
        }

    state = blank()
    with checkpoint.open(directory, tiers=tiers) as run:
        assert run.load(dict(state)) == 0
        for step in (1, 2):
            torch.manual_seed(10 * step + rank)
            state = {"generator": torch.get_rng_state(), "statistics": torch.randn(2048), "queue": torch.randn(8, 65536)}
            state["shared"] = torch.arange(600_000) * float(step)
            run.save(step, state)
    again = blank()
    assert checkpoint.open(directory).load(again) == 2
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())


class Late(nn.Module):
    """Each rank uses its own layers, and one of them only from some step on."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.used = nn.ModuleList(nn.Linear(40, 40) for _ in range(2))
        self.late = nn.ModuleList(nn.Linear(40, 40) for _ in range(2))
        self.rank = rank

    def forward(self, x: torch.Tensor, late: bool) -> torch.Tensor:
        y: torch.Tensor = self.used[self.rank](x)
        return y + self.late[self.rank](x) if late else y


def late(directory: Path, tiers: dict[str, int], rank: int) -> None:
    torch.manual_seed(0)
    model = Late(rank)
    optimizer = torch.optim.AdamW(model.parameters())
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    with checkpoint.open(directory, tiers=tiers) as run:
        run.load(state)
        for step in range(1, 5):
            model(torch.ones(40), rank == 0 or step >= 3).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.save(step, state)
    found = Late(rank)
    with checkpoint.open(directory) as run:
        assert run.load({"model": found, "optimizer": torch.optim.AdamW(found.parameters())}) == 4
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name


def skip(directory: Path, tiers: dict[str, int], rank: int) -> None:
    """Rank 1 takes part in the first save only."""
    run = checkpoint.open(directory, tiers=tiers)
    run.load({"a": torch.zeros(2)})
    run.save(1, {"a": torch.ones(2)})
    run.wait()
    if rank == 1:
        leave_when_all_have_seen(directory)
    said = set[str]()
    for step in (2, 3):
        try:
            run.save(step, {"a": torch.ones(2)})
        except AbsentError as error:
            said.add(str(error))
    (text,) = said
    assert text.startswith("step 2 is not saved: rank 1 has not joined"), text
    run.close()
    (directory / f"seen-{rank}").touch()


def leave_when_all_have_seen(directory: Path) -> None:
    """An exit would be noticed at once."""
    while not all((directory / f"seen-{rank}").exists() for rank in (0, 2)):
        time.sleep(POLL_S)
    leave()


def broken(directory: Path, tiers: dict[str, int], rank: int) -> None:
    """Rank 1 cannot describe its state at step 2."""
    run = checkpoint.open(directory, tiers=tiers)
    run.load({"a": torch.zeros(5000)})
    for step in (1, 2, 3):
        state: dict[str, Any] = {"a": torch.full((5000,), float(step))}
        if rank == 1 and step == 2:
            # Two values have one path.
            state |= {"b/c": torch.ones(2), "b": {"c": torch.ones(2)}}
        try:
            run.save(step, state)
        except checkpoint.StateError:
            assert (rank, step) == (1, 2)
    run.close()
    assert sorted(path.name for path in (directory / "shared/checkpoints").glob("step-*")) == [
        f"step-{step:09d}.g000001" for step in (1, 3)
    ]


def main() -> None:
    what, directory, tiers = sys.argv[1:]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join(world_size, what)
    globals()[what](Path(directory), dict.fromkeys(tiers.split(","), 1), rank)
    leave()


if __name__ == "__main__":
    main()
