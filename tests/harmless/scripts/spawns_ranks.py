"""A script that starts ranks of its own, by torch.multiprocessing and by a torchrun within."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WITHIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1); dist.all_reduce(x)
print("within", os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"], x.item(), flush=True)
dist.destroy_process_group()
"""


def work(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=2)
    x = torch.ones(1)
    dist.all_reduce(x)
    print("spawned", rank, x.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")
    mp.spawn(work, args=(29777,), nprocs=2)
    with open("within.py", "w") as file:
        file.write(WITHIN)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "within.py"],
        stderr=subprocess.DEVNULL,
    )
    print("torchrun within ended with", done.returncode, flush=True)
