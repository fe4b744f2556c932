"""Stores: the launcher's own for the script's keys, one of the script's, a file, and what a second one at the same port does."""

import os
from datetime import timedelta

import facts
import torch.distributed as dist

rank = facts.rank()
elastic = dist.TCPStore(
    os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size=2, is_master=False, timeout=timedelta(seconds=60)
)
agents = dist.PrefixStore("mine", elastic)
agents.set(f"rank-{rank}", "here")
agents.wait(["rank-0", "rank-1"], timedelta(seconds=60))
found: dict[str, object] = {"agents": agents.get(f"rank-{1 - rank}").decode()}
port = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False).port if rank == 0 else 0
if rank == 0:
    own = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    agents.set("port", str(own.port))
else:
    own = dist.TCPStore("localhost", int(agents.get("port")), is_master=False)
own.set(f"own-{rank}", b"\0\1")
found["own"] = list(own.get(f"own-{1 - rank}"))
files = dist.FileStore("store", 2)
files.set(f"file-{rank}", "x")
found["files"] = files.get(f"file-{1 - rank}").decode()
dist.init_process_group("gloo", store=dist.PrefixStore("group", own), rank=rank, world_size=2)
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gloo", init_method="env://")
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=rank, world_size=2)
dist.barrier()
dist.destroy_process_group()
variables = {name: value for name, value in os.environ.items() if name.startswith("TORCHELASTIC") and "PORT" not in name}
found["agent store"] = variables.get("TORCHELASTIC_USE_AGENT_STORE")
found["restarts"] = variables.get("TORCHELASTIC_RESTART_COUNT")
facts.write(**found)
agents.set(f"end-{rank}", "")
agents.wait(["end-0", "end-1"], timedelta(seconds=60))
