"""Runs the same training as a replica group of torchft 0.2.0: `FOLDER STEPS`, with the interpreter that torchft is installed for."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from torchft import (  # type: ignore[import-not-found]
    DistributedDataParallel,
    Manager,
    Optimizer,
    ProcessGroupGloo,
)

from benchmarks.recovery.train import STEP_S, WIDTH, network


def main() -> None:
    """Lines of `step, pid, monotonic seconds`, one for each step that torchft has committed, go to FOLDER/steps-<replica group>."""
    folder, steps, group = Path(sys.argv[1]), int(sys.argv[2]), os.environ["REPLICA_GROUP_ID"]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "RANK": "0", "WORLD_SIZE": "1"}
    torch.manual_seed(0)
    inner = network()
    adamw = torch.optim.AdamW(inner.parameters(), lr=1e-3)

    def state_dict() -> dict[str, Any]:
        return {"model": inner.state_dict(), "optimizer": adamw.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        inner.load_state_dict(state["model"])
        adamw.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"group_{group}",
        timeout=timedelta(seconds=30),
    )
    model, optimizer = DistributedDataParallel(manager, inner), Optimizer(manager, adamw)
    batch = torch.ones(1, WIDTH)
    with (folder / f"steps-{group}").open("a", buffering=1) as trace:
        while manager.current_step() < steps and not (folder / "stop").exists():
            before = manager.current_step()
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            if manager.current_step() > before:
                trace.write(f"{manager.current_step()} {os.getpid()} {time.monotonic()}\n")
            time.sleep(STEP_S)
    manager.shutdown()


if __name__ == "__main__":
    main()
