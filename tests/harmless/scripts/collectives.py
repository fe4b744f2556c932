"""Every collective, by several groups, backends and stores; objects; a barrier that is watched; batched sends."""

import datetime

import facts
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
found: dict[str, object] = {"backend": dist.get_backend(), "world": world}
tensor = torch.tensor([rank + 1.0])
dist.all_reduce(tensor)
found["sum"] = tensor.item()
gathered = [torch.zeros(1) for _ in range(world)]
dist.all_gather(gathered, torch.tensor([float(rank)]))
found["gathered"] = [one.item() for one in gathered]
objects: list[object] = [None] * world
dist.all_gather_object(objects, {"rank": rank})
found["objects"] = objects
told: list[object] = ["told" if rank == 0 else None]
dist.broadcast_object_list(told)
found["told"] = told
if rank == 0:
    dist.send(torch.ones(3), 1)
else:
    received = torch.zeros(3)
    dist.recv(received, 0)
    found["received"] = received.tolist()
peer = 1 - rank
got = torch.zeros(2)
for work in dist.batch_isend_irecv(
    [dist.P2POp(dist.isend, torch.full((2,), float(rank)), peer), dist.P2POp(dist.irecv, got, peer)]
):
    work.wait()
found["batched"] = got.tolist()
out = torch.zeros(2)
dist.all_to_all_single(out, torch.arange(2.0) + 10 * rank)
found["all to all"] = out.tolist()
dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))
own = dist.new_group([rank]) if rank == 0 else (dist.new_group([0]), None)[1]
alone = dist.new_subgroups(group_size=1)[0]
value = torch.ones(1)
dist.all_reduce(value, group=alone)
found["alone"] = value.item()
from torch.distributed.distributed_c10d import _get_default_store

store = _get_default_store()
store.set(f"key-{rank}", str(rank))
found["stored"] = [store.get(f"key-{one}").decode() for one in range(world)]
found["counted"] = store.add("count", 1) in (1, 2)
future = dist.all_reduce(torch.ones(1), async_op=True)
future.wait()
found["done"] = future.is_completed()
facts.write(**found)
dist.barrier()
dist.destroy_process_group()
