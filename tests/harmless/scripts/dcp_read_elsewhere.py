"""What dcp.save and dcp.async_save wrote is read by a process that torchrun did not start, and by torch's own tools."""

import os
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

READ = """
import sys, torch, torch.distributed.checkpoint as dcp
state = {"model": {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}}
dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
print("elsewhere", sys.argv[1], state["model"]["weight"].sum().item(), state["model"]["bias"].sum().item(), flush=True)
"""
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model(torch.ones(4)).sum().backward()
optimizer.step()
ours, theirs = get_state_dict(model, optimizer)
dcp.save({"model": ours, "optimizer": theirs, "step": 1}, checkpoint_id="saved")
dcp.async_save({"model": ours, "optimizer": theirs, "step": 2}, checkpoint_id="later").result()
dist.barrier()
if rank == 0:
    shutil.copytree("saved", "copied")
    os.rename("later", "moved")
    for name in ("saved", "copied", "moved"):
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "HEADWAY", "RANK", "MASTER", "WORLD"))}
        subprocess.run([sys.executable, "-c", READ, name], check=True, env=plain)
        subprocess.run([sys.executable, "-c", READ, name], check=True)
    dcp_to_torch_save("saved", "whole.pt")
    print("whole", sorted(torch.load("whole.pt", weights_only=False)), flush=True)
    torch_save_to_dcp("whole.pt", "again")
    print("files", {name: sorted(os.listdir(name)) for name in ("saved", "moved", "copied", "again")}, flush=True)
dist.barrier()
for name in ("saved", "moved", "copied", "again"):
    fresh = torch.nn.Linear(4, 4)
    other = torch.optim.AdamW(fresh.parameters(), lr=0.1)
    ours, theirs = get_state_dict(fresh, other)
    state = {"model": ours, "optimizer": theirs}
    dcp.load(state, checkpoint_id=name)
    set_state_dict(fresh, other, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    print("loaded", name, torch.equal(fresh.weight, model.weight), flush=True)
dist.destroy_process_group()
