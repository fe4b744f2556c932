"""FSDP2 with checkpoints by dcp and a link to the newest; goes on from there, and ends with the same weights however often it is begun."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
first = 0
if Path("latest").exists():
    ours, theirs = get_state_dict(model, optimizer)
    state = {"model": ours, "optimizer": theirs, "step": 0}
    dcp.load(state, checkpoint_id="latest")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    first = state["step"]
if rank == 0:
    print("begins at", first, flush=True)
for step in range(first + 1, 11):
    batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(step * 2 + rank))
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if step % 2 == 0:
        ours, theirs = get_state_dict(model, optimizer)
        dcp.save({"model": ours, "optimizer": theirs, "step": step}, checkpoint_id=f"step-{step}")
        if rank == 0:
            Path("next").unlink(missing_ok=True)
            os.symlink(f"step-{step}", "next")
            os.replace("next", "latest")
            print("saved", step, flush=True)
        dist.barrier()
total = [parameter.full_tensor().double().sum().item() for parameter in model.parameters()]
if rank == 0:
    Path("result.json").write_text(str(total))
dist.barrier()
dist.destroy_process_group()
