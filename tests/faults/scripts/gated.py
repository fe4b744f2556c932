"""A script with DDP and its own DCP checkpoints, whose data arrive when a test releases them; it does not use headway.

gated.py FOLDER STEPS GATE...: before step GATE it waits until FOLDER/gate-<GATE> exists; it saves every 10 steps.
"""

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

EVERY = 10


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), x.pow(2).sum(1, keepdim=True))


def ending(model: nn.Module, step: int) -> str:
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
    return f"finished step {step} parameters {digest}"


def main() -> None:
    folder, last, *gates = Path(sys.argv[1]), *(int(word) for word in sys.argv[2:])
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = 0
    if found := [path.parent for path in folder.glob("step-*/.metadata")]:
        newest = max(found, key=lambda path: int(path.name.split("-")[1]))
        state: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(state, checkpoint_id=newest)  # type: ignore[attr-defined]
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = int(newest.name.split("-")[1])
        print(f"resumed from step {step}", flush=True)
    while step < last:
        step += 1
        while step in gates and not (folder / f"gate-{step}").exists():
            time.sleep(0.01)
        optimizer.zero_grad()
        loss_of(model, batch(step, dist.get_rank())).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % EVERY == 0:
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            dcp.save(state, checkpoint_id=folder / f"step-{step}")  # type: ignore[attr-defined]
    if dist.get_rank() == 0:
        print(ending(model, step), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
