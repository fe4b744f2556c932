"""An ordinary script for FSDP2: a mesh of replicas and shards, gradient accumulation, DCP checkpoints, and its own resume.

It knows nothing of headway; torchrun starts it as well.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

WIDTH = 8


def batch(seed: int, step: int, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and the sums of their squares. Which points follows from step and place alone, on whichever rank they are."""
    generators = (torch.Generator().manual_seed(hash((seed, step, place))) for place in range(first, first + count))
    x = torch.stack([torch.randn(WIDTH, generator=generator) for generator in generators])
    return x, x.pow(2).sum(dim=1, keepdim=True)


def micro_batches(args: argparse.Namespace, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's share of a step, as many samples at a time as fit."""
    share = args.global_batch // dist.get_world_size()
    for first in range(dist.get_rank() * share, (dist.get_rank() + 1) * share, args.micro_batch):
        yield batch(args.seed, step, first, args.micro_batch)


def build(args: argparse.Namespace, mesh: DeviceMesh) -> nn.Sequential:
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))
    fully_shard(model, mesh=mesh)
    return model


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that was finished: DCP writes .metadata last."""
    done = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(done, key=lambda path: int(path.name.split("-")[1]), default=None)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=path)


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """The step that the newest checkpoint goes on from; 0 when there is none."""
    if (found := newest(folder)) is None:
        return 0
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=found)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    print(f"resumed from {found.name}")
    return int(found.name.split("-")[1])


def train_step(args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> torch.Tensor:
    """One optimizer step. Returns the mean loss of this rank's share."""
    rounds = args.global_batch // dist.get_world_size() // args.micro_batch
    total = torch.zeros(())
    optimizer.zero_grad()
    for x, y in micro_batches(args, step):
        loss = nn.functional.mse_loss(model(x), y) / rounds
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


def norm(model: nn.Module) -> float:
    """Euclidean norm of all parameters, the same number on every rank."""
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return float(torch.linalg.vector_norm(torch.cat([p.detach().flatten() for p in whole])))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("seed", "steps", "dp-replicate", "dp-shard", "global-batch", "micro-batch", "save-every"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder; each run has its own in it")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (args.dp_replicate, args.dp_shard), mesh_dim_names=("replicate", "shard"))
    model = build(args, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    folder = args.checkpoints / os.environ["TORCHELASTIC_RUN_ID"] / "own"
    loss = torch.zeros(())
    for step in range(resume(model, optimizer, folder) + 1, args.steps + 1):
        loss = train_step(args, model, optimizer, step)
        if step % args.save_every == 0:
            save(model, optimizer, folder / f"step-{step}")
    length = norm(model)
    if dist.get_rank() == 0:
        print(f"finished step {args.steps} loss {loss.item():.6f} norm {length:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
