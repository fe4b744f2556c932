"""One rank raises while the other waits for it; what both print, and the error file of torch's own recorder."""

import os
import sys

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    dist.init_process_group("gloo")
    print("rank", os.environ["RANK"], "has met the other", flush=True)
    dist.barrier()
    if dist.get_rank() == 1:
        raise RuntimeError("rank 1 gives up")
    __import__("time").sleep(600)


if sys.argv[1] == "early" and os.environ["RANK"] == "0":
    sys.exit(4)
main()
