"""Ranks that leave at once, without Python's end, keep nobody waiting; nor does one that leaves behind a barrier."""

import os
import sys

import torch.distributed as dist

if sys.argv[1] == "at once":
    os._exit(0)
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == int(sys.argv[1]):
    os._exit(0)
print("this rank ends", flush=True)
