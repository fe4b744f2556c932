"""Dumps torch's flight recorder when the agent asks, through the pipe that NCCL's process groups create for that purpose.

torch makes that pipe for NCCL alone, under the same name, in the place of this one: so each rank is asked in one way, whatever its backend.
"""

import _thread
import contextlib
import os
import sys
from pathlib import Path

from headway.runner.agent.flight import DUMPS, DUMPS_BEFORE, PIPES, THREAD
from headway.runner.boot.unseen import carefully, say_unseen, unseen


def answer_requests(rank: int) -> None:
    """From here on a thread waits for requests. Where there can be no pipe, nobody is asked."""
    pipes, dumps = os.environ.get(PIPES), os.environ.get(DUMPS) or os.environ.get(DUMPS_BEFORE)
    if not pipes or not dumps:
        return
    path = Path(f"{pipes}{rank}.pipe")
    try:
        path.unlink(missing_ok=True)  # of the generation before
        os.mkfifo(path)
        requests = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # with an end to write to of our own, reading never meets the end
    except OSError:
        return
    _thread.start_new_thread(_answer, (requests, Path(f"{dumps}{rank}")))  # none of those that the script can list


def _answer(requests: int, target: Path) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{_thread.get_native_id()}/comm").write_text(THREAD)
    while os.read(requests, 4096):
        carefully(write_dump, target)


def write_dump(target: Path) -> None:
    """Without stacks: those are had otherwise, and the first time torch needs 1.6 s of a core for them (2.13, 2,000 entries). Before there
    is a process group nothing is written, nor where that is not the job's: worlds that a script makes itself call their groups alike."""
    distributed, recorder = (sys.modules.get(name) for name in ("torch.distributed", "torch._C._distributed_c10d"))
    dump = getattr(recorder, "_dump_fr_trace", None)
    if distributed is None or not distributed.is_initialized():
        return
    if dump is None:
        unseen(f"torch {sys.modules['torch'].__version__} records only NCCL's collectives: a lagging rank cannot be identified")
        say_unseen()
        return
    here = {"RANK": str(distributed.get_rank()), "WORLD_SIZE": str(distributed.get_world_size())}
    if any(os.environ.get(name, text) != text for name, text in here.items()):
        return
    temporary = target.with_name(f".tmp-{target.name}.{os.getpid()}")
    temporary.write_bytes(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))
    temporary.replace(target)
