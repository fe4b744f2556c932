"""An ordinary script in the manner of PyTorch's examples: its own loop, DCP checkpoints every few steps, its own resume.

It knows nothing of headway. Run it with torchrun or with `headway torchrun`.
"""

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points and the sum of their squares."""

    def __len__(self) -> int:
        return 2048

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x, x.pow(2).sum().reshape(1)


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that was finished: DCP writes .metadata last."""
    done = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(done, key=lambda path: int(path.name.split("-")[1]), default=None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--crash-at", type=int, default=None, help="rank 1 kills itself at this step, the first time only")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = 0
    if (found := newest(args.checkpoints)) is not None:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=found)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = int(found.name.split("-")[1])
        print(f"resumed from step {step}", flush=True)

    sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]] = DistributedSampler(Squares(), shuffle=True)
    loader = DataLoader(Squares(), batch_size=32, sampler=sampler)
    while step < args.steps:
        sampler.set_epoch(step // len(loader))
        for index, (x, y) in enumerate(loader):
            if index < step % len(loader):
                continue
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.save_every == 0:
                model_state, optimizer_state = get_state_dict(model, optimizer)
                dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=args.checkpoints / f"step-{step}")
            if step == args.crash_at and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), 9)
            if step == args.steps:
                break
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
    if dist.get_rank() == 0:
        print(f"finished step {step} loss {loss.item():.6f} parameters {digest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
