"""FSDP2, tensor parallelism and a device mesh; the state, whole and in parts."""

import facts
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
model(torch.ones(2, 8)).sum().backward()
of_tensor_parallel = model[0].weight.grad.full_tensor().sum().item()
flat = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
whole = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
for layer in whole:
    fully_shard(layer, mesh=flat, mp_policy=MixedPrecisionPolicy())
fully_shard(whole, mesh=flat)
optimizer = torch.optim.AdamW(whole.parameters(), lr=0.1, foreach=True)
for step in range(3):
    whole(torch.full((2, 8), float(step + dist.get_rank()))).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
state = get_model_state_dict(whole, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
facts.write(tensor=of_tensor_parallel, state={name: value.double().sum().item() for name, value in state.items()})
dist.barrier()
dist.destroy_process_group()
