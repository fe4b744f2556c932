"""Runs ranks as processes, in the environment that torchrun gives them, and ends them with the test.

They are forked from one process that has imported torch: these tests begin after the imports, which cost more than most of them.
`tests.support.commands` forks `headway` from the same process.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

LIMIT_S = 300
POLL_S = 0.02
# Imports of most programs in tests/support/ranks; DTensor imports the compiler for its settings.
PRELOADED = [
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.tensor.parallel",
    "headway.checkpoint",
    "headway.runner.train.main",
    "tests.support.worlds",
    # What tests.support.commands forks.
    "headway.cli.verbs.run",
    "headway.runner.torchrun.launcher",
    "tests.support.commands",
]


def run_world(module: str, ranks: int, *words: str | Path, nodes: int = 1, limit_s: int = LIMIT_S) -> None:
    """Run `python -m MODULE WORDS` on all ranks to their end. Raises AssertionError with their output if one fails."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        processes = [_start(module, rank, ranks, nodes, folder, words) for rank in range(ranks)]
        try:
            ended = _wait(processes, limit_s)
        finally:
            for process in processes:
                process.kill()
                process.join()
        said = "\n".join(f"rank {rank}: {_said(folder, rank).read_text()}" for rank in range(ranks))
    assert ended == [0] * ranks, f"ended with {ended}\n{said}"


def _wait(processes: Sequence[ForkServerProcess], limit_s: int) -> list[int | None]:
    """Exit codes, once all have ended or one has failed; None for running ones."""
    until = time.monotonic() + limit_s
    while True:
        codes = [process.exitcode for process in processes]
        if None not in codes or any(codes) or time.monotonic() > until:
            return codes
        time.sleep(POLL_S)


def _start(module: str, rank: int, ranks: int, nodes: int, folder: Path, words: Sequence[str | Path]) -> ForkServerProcess:
    local = ranks // nodes
    numbers = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local, "OMP_NUM_THREADS": 1}
    environment = {**os.environ, **{name: str(value) for name, value in numbers.items()}, "STORE": str(folder)}
    argv = [module, *map(str, words)]
    process = server().Process(target=_be_rank, args=(argv, environment, Path.cwd(), _said(folder, rank)))
    process.start()
    return process


def server() -> multiprocessing.context.ForkServerContext:
    """Return the process that forks ranks and commands: it starts with the first of them, and ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        # A pool of threads would not survive the fork.
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


def _be_rank(argv: list[str], environment: Mapping[str, str], folder: Path, said: Path) -> None:
    """Runs in the forked process."""
    with said.open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = list(argv)
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


def _said(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def join(world_size: int, name: str) -> None:
    """Runs in a rank: the process group of the first `world_size` ranks, which meet under `name`."""
    torch.set_num_threads(1)
    store = f"file://{os.environ['STORE']}/{name}"
    dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=world_size)


def leave() -> None:
    """End the rank without the exit of its interpreter, during which a thread of gloo's may wait for the GIL.

    A process that joins this thread then waits forever (pytorch/pytorch#56297), or Python ends it in a function that no exception may leave
    (python/cpython#87135), and C++ aborts the process: `tests.support.gloo.ABORTED`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
