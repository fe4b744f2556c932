"""An unmodified training script for a GPU: DDP over NCCL, batch norm, mixed precision, checkpoints by torch.save.

train.py FOLDER [--crash-at N] [--spin-at N]: it dies at, or hangs forever in a kernel of, step N of its first start.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY = 40, 10


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    moments = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*model.state_dict().values(), *moments]
    return hashlib.sha256(b"".join(each.cpu().numpy().tobytes() for each in tensors)).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--crash-at", type=int, default=0)
    parser.add_argument("--spin-at", type=int, default=0)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    net = nn.Sequential(nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 64)).cuda()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, file = 0, options.folder / "last.pt"
    if file.exists():
        state = torch.load(file)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"resumed from step {step}", flush=True)
    is_first_start = step == 0
    while step < STEPS:
        step += 1
        x = torch.randn(128, 64, generator=torch.Generator().manual_seed(step)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_first_start and step == options.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if is_first_start and step == options.spin_at:
            torch.cuda._sleep(1 << 62)  # type: ignore[no-untyped-call]
            dist.all_reduce(torch.ones(1, device="cuda"))
            torch.cuda.synchronize()
        if step % EVERY == 0:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, file.with_suffix(".tmp"))
            file.with_suffix(".tmp").replace(file)
    print(f"finished step {step} state {digest(net, optimizer)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
