"""Ranks as processes of their own, started as torchrun starts them and ended with the test."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

LIMIT_S = 300
POLL_S = 0.02


def run_world(module: str, ranks: int, *words: str | Path, nodes: int = 1, limit_s: int = LIMIT_S) -> None:
    """`python -m MODULE WORDS` on all ranks, to their end. Raises AssertionError with what they printed if one fails."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        processes = [_start(module, rank, ranks, nodes, folder, words) for rank in range(ranks)]
        try:
            ended = _wait(processes, limit_s)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        said = "\n".join(f"rank {rank}: {_said(folder, rank).read_text()}" for rank in range(ranks))
    assert ended == [0] * ranks, f"ended with {ended}\n{said}"


def _wait(processes: "list[subprocess.Popen[bytes]]", limit_s: int) -> list[int | None]:
    """Exit codes, once all have ended or one has failed; None for what runs still."""
    until = time.monotonic() + limit_s
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes) or time.monotonic() > until:
            return codes
        time.sleep(POLL_S)


def _start(
    module: str, rank: int, ranks: int, nodes: int, folder: Path, words: Sequence[str | Path]
) -> "subprocess.Popen[bytes]":
    local = ranks // nodes
    numbers = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local, "OMP_NUM_THREADS": 1}
    environment = {**os.environ, **{name: str(value) for name, value in numbers.items()}, "STORE": str(folder)}
    command = [sys.executable, "-u", "-m", module, *map(str, words)]
    with _said(folder, rank).open("wb") as said:
        return subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)


def _said(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def join(world_size: int, name: str) -> None:
    """In a rank: the process group of the first `world_size` ranks, met under `name`."""
    torch.set_num_threads(1)
    store = f"file://{os.environ['STORE']}/{name}"
    dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=world_size)


def leave() -> None:
    """Ends the rank without destructors: that of a gloo group may wait for a thread that waits for the GIL (pytorch/pytorch#56297)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
