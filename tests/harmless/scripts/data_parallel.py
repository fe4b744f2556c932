"""DistributedDataParallel: no_sync, join with uneven inputs, a hook, a graph that leaves parameters unused, static graphs."""

import facts
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
results = {}
for name, options in {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "buckets": {"gradient_as_bucket_view": True},
}.items():
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)), **options
    )
    if name == "buckets":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        batch = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        if step % 2 == 0 and name == "plain":
            with model.no_sync():
                model(batch).sum().backward()
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    results[name] = [parameter.double().sum().item() for parameter in model.parameters()]
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
with model.join():
    for _ in range(3 + 2 * rank):
        model(torch.ones(2, 4)).sum().backward()
results["join"] = model.module.weight.grad.tolist()
facts.write(results=results)
dist.barrier()
dist.destroy_process_group()
