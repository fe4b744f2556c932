"""Dumps torch's flight recorder when the agent asks, through the pipe that NCCL's process groups create for that purpose.

torch creates that pipe for NCCL alone, under the same name, and replaces this one: so the agent asks each rank in one
way, whatever its backend.
"""

import _thread
import contextlib
import os
import sys
from pathlib import Path

from headway.runner.agent.flight import DUMPS, DUMPS_BEFORE, PIPES, THREAD
from headway.runner.boot.limitations import note_limitation, report_limitations, suppress_errors


def answer_requests(rank: int) -> None:
    """Start a thread that waits for requests. Without a pipe, there are none."""
    pipes, dumps = os.environ.get(PIPES), os.environ.get(DUMPS) or os.environ.get(DUMPS_BEFORE)
    if not pipes or not dumps:
        return
    path = Path(f"{pipes}{rank}.pipe")
    try:
        # Of the previous generation.
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        # With a write end of its own, reading never reaches the end of file.
        requests = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    # Not one of the threads that the script can list.
    _thread.start_new_thread(_answer, (requests, Path(f"{dumps}{rank}")))


def _answer(requests: int, target: Path) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{_thread.get_native_id()}/comm").write_text(THREAD)
    while os.read(requests, 4096):
        suppress_errors(write_dump, target)


def write_dump(target: Path) -> None:
    """Write a dump without stacks: those are available otherwise, and the first time torch needs 1.6 s of a core for
    them (2.13, 2,000 entries).

    Nothing is written before there is a process group, nor if it is not the job's: groups of worlds that a script
    creates have the same names.
    """
    distributed, recorder = (sys.modules.get(name) for name in ("torch.distributed", "torch._C._distributed_c10d"))
    dump = getattr(recorder, "_dump_fr_trace", None)
    if distributed is None or not distributed.is_initialized():
        return
    if dump is None:
        note_limitation(
            f"torch {sys.modules['torch'].__version__} records only NCCL's collectives: a lagging rank cannot be identified"
        )
        report_limitations()
        return
    here = {"RANK": str(distributed.get_rank()), "WORLD_SIZE": str(distributed.get_world_size())}
    if any(os.environ.get(name, text) != text for name, text in here.items()):
        return
    temporary = target.with_name(f".tmp-{target.name}.{os.getpid()}")
    temporary.write_bytes(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))
    temporary.replace(target)
