"""A script with DDP that saves each step, and whose rank 1 breaks at step 10 of its first generation on request.

`replicated.py sound|faulty`: tests/runner/boot/test_compare.py starts it under headway, and as plain undisturbed ranks.
"""

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SAVED = Path("saved")


def restored(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest file, and return its step."""
    start = max((int(re.findall("[0-9]+", path.name)[0]) for path in SAVED.iterdir()), default=0)
    if start:
        state: dict[str, Any] = torch.load(SAVED / f"step-{start}.pt")
        ddp.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    return start


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(ddp.parameters())
    SAVED.mkdir(exist_ok=True)
    start = restored(ddp, optimizer)
    for step in range(start + 1, 15):
        batch = torch.randn(2, 8, generator=torch.Generator().manual_seed(100 * step + rank))
        ddp(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            torch.save({"model": ddp.state_dict(), "optimizer": optimizer.state_dict()}, SAVED / f"step-{step}.pt")
        if (rank, step, os.environ.get("HEADWAY_GENERATION"), sys.argv[1]) == (1, 10, "1", "faulty"):
            ddp.module.bias.data[2] += 0.1
    print("from", start, hashlib.sha256(ddp.module.weight.detach().numpy().tobytes()).hexdigest(), flush=True)
    if rank == 0:
        Path("ending").write_text(hashlib.sha256(ddp.module.weight.detach().numpy().tobytes()).hexdigest())
    dist.destroy_process_group()
    if "HEADWAY_GENERATION" not in os.environ:
        # As `leave` of tests/support/worlds.py, which a copy of this file does not find.
        os._exit(0)


if __name__ == "__main__":
    main()
