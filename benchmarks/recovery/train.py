"""Runs an ordinary data-parallel script: saves its whole state once, loads it after a restart, and logs when steps end.

It knows nothing of headway and runs under any launcher that sets torchrun's environment.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# 1.05 million parameters: 12.6 MB with AdamW's moments, about the quickstart's.
WIDTH, LAYERS = 512, 4
STEP_S = 0.05
SAVED_AT = 5


def network() -> nn.Module:
    """Return the model of both sides of the comparison."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def main() -> None:
    """`FOLDER STEPS`: lines of `step, pid, monotonic seconds` go to FOLDER/steps-<rank>."""
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saved, step = folder / "state.pt", 0
    # The same for all ranks: none saves before all have taken steps.
    fresh = not saved.exists()
    if not fresh:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    batch = torch.ones(1, WIDTH)
    with (folder / f"steps-{dist.get_rank()}").open("a", buffering=1) as trace:
        while step < steps and not (folder / "stop").exists():
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            trace.write(f"{step} {os.getpid()} {time.monotonic()}\n")
            if step == SAVED_AT and fresh:
                if dist.get_rank() == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, folder / "state.part")
                    (folder / "state.part").rename(saved)
                dist.barrier()
            time.sleep(STEP_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
