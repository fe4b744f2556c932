"""Runs two single-threaded ranks on this machine, in which headway and its peer take turns."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.checkpoint import _async_process_executor
from torch.multiprocessing.spawn import start_processes

from benchmarks.checkpoint import ours, peer, rounds
from benchmarks.checkpoint.inflation import Way, Window, windows
from benchmarks.checkpoint.training import Training

RANKS = 2
_RESULT = "result.json"

Measure = Callable[[Training, Path, int], Any]


def pair(measure: Measure, count: int) -> rounds.Pair:
    """Return seconds of both sides of one of `rounds`, in so many rounds."""
    one, other = _measured(measure, count)
    return one, other


def behind(count: int) -> dict[str, list[Window]]:
    """Windows of each way of saving during training, headway's among them."""
    return {way: [Window(**window) for window in each] for way, each in _measured(_behind, count).items()}


def _measured(measure: Measure, count: int) -> Any:
    """Return what the first rank found; starts the ranks and waits for them."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as path:
        start_processes(_rank, args=(server.port, path, measure, count), nprocs=RANKS)  # type: ignore[no-untyped-call]
        return json.loads((Path(path) / _RESULT).read_text())


def _rank(rank: int, port: int, path: str, measure: Measure, count: int) -> None:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    os.environ.update({name: str(value) for name, value in numbers.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=RANKS)
    found = measure(Training(), Path(path), count)
    if rank == 0:
        (Path(path) / _RESULT).write_text(json.dumps(found))
    dist.barrier()
    # A gloo group's destructor may wait for a thread that waits for the GIL (pytorch/pytorch#56297).
    os._exit(0)


def _behind(training: Training, folder: Path, count: int) -> dict[str, list[dict[str, Any]]]:
    with _ways(folder) as ways:
        return {way: [asdict(window) for window in each] for way, each in windows(training, ways, count).items()}


@contextlib.contextmanager
def _ways(folder: Path) -> Iterator[list[Way]]:
    """headway and every configuration of the peer, whose daemon is ended when the block is left."""
    group, mine = dist.new_group(backend="gloo"), ours.Behind(folder / "headway")
    theirs = [peer.DcpAsync(options, folder / f"dcp-{number}", group) for number, options in enumerate(peer.every_options())]
    try:
        yield [mine, *theirs]
    finally:
        mine.close()
        # Its destructor ends the daemon.
        _async_process_executor._CHECKPOINT_PROCESS = None
