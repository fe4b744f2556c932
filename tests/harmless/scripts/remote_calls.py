"""RPC between ranks, remote references, and distributed autograd."""

import os

import facts
import torch
from torch.distributed import autograd
from torch.distributed import rpc

rank = facts.rank()
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
peer = f"worker{1 - rank}"
found = {"added": rpc.rpc_sync(peer, torch.add, args=(torch.ones(2), rank)).tolist()}
reference = rpc.remote(peer, torch.mul, args=(torch.ones(2), 3))
found["remote"] = reference.to_here().tolist()
with autograd.context() as context:
    one = torch.ones(2, requires_grad=True)
    loss = rpc.rpc_sync(peer, torch.mul, args=(one, 2.0)).sum()
    autograd.backward(context, [loss])
    found["gradient"] = autograd.get_gradients(context)[one].tolist()
rpc.shutdown()
facts.write(environment=sorted(name for name in os.environ if name.startswith("MASTER")), **found)
