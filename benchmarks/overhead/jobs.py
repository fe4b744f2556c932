"""Two live jobs that take turns on this machine: `headway torchrun` with checkpoints, and plain torchrun without."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claim import MeasureError
from benchmarks.overhead.job import SIDES

RANKS = 2
_JOB = Path(__file__).with_name("job.py")
_LOOK_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measured:
    """Seconds of each side's blocks. `control_s` is the CPU that our processes other than the ranks took in each of the other's blocks,
    and so took from it."""

    ours_s: tuple[float, ...]
    other_s: tuple[float, ...]
    control_s: tuple[float, ...]
    state_bytes: int


def measure(folder: Path, sequences: int, blocks: int, steps: int, limit_s: float) -> Measured:
    """Raises MeasureError when a job fails or both have not ended after `limit_s`."""
    (folder / "turn").write_text(SIDES[0])
    jobs = [_start(side, folder, sequences, blocks, steps) for side in SIDES]
    try:
        control_s = _watched(jobs, folder / "turn", time.monotonic() + limit_s)
    finally:
        for job in jobs:
            _end(job)
    ours, other = (json.loads((folder / f"{side}.json").read_text()) for side in SIDES)
    # The last block of the other one comes after our job's last: nothing of ours is there then but its end.
    return Measured(tuple(ours["block_s"]), tuple(other["block_s"]), tuple(control_s[1 : blocks + 1]), ours["state_bytes"])


def _start(side: str, folder: Path, sequences: int, blocks: int, steps: int) -> subprocess.Popen[bytes]:
    words = [side, str(folder), str(sequences), str(blocks), str(steps)]
    bin_folder = Path(sys.executable).parent
    given = {**os.environ, "OMP_NUM_THREADS": "1", "HEADWAY_RUNS": str(folder / "runs")}
    flags = ["--nnodes=1", f"--nproc-per-node={RANKS}"]
    if side == SIDES[0]:
        command = [str(bin_folder / "headway"), "torchrun", *flags, str(_JOB), *words, "--save"]
    else:
        command = [str(bin_folder / "torchrun"), *flags, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(_JOB), *words]
    output = (folder / f"{side}.log").open("wb")
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, env={**given, "PYTHONPATH": str(root)}, stdout=output, stderr=output, start_new_session=True)


def _watched(jobs: list[subprocess.Popen[bytes]], turn: Path, until_s: float) -> list[float]:
    """The CPU seconds of our job's processes that are no ranks, for each of the other's turns."""
    found, whose, before = list[float](), SIDES[0], dict[int, float]()
    while any(job.poll() is None for job in jobs):
        if any(job.returncode for job in jobs) or time.monotonic() > until_s:
            raise MeasureError(
                f"the jobs have not done their blocks: exit codes {[job.returncode for job in jobs]}, see their logs"
            )
        if (now := turn.read_text()) != whose:
            cpu_s = _control_cpu_s(jobs[0].pid)
            if now == SIDES[0]:
                found.append(sum(max(took_s - before.get(pid, 0.0), 0.0) for pid, took_s in cpu_s.items()))
            whose, before = now, cpu_s
        time.sleep(_LOOK_S)
    return found


def _control_cpu_s(pid: int) -> dict[int, float]:
    """CPU of a job's processes by their pids, but for those that run the script."""
    return {each: _cpu_s(each) for each in _tree(pid) if not _is_rank(each)}


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in children:
            yield from _tree(int(child))


def _is_rank(pid: int) -> bool:
    """A rank's command line names the module that runs the script, or the script; torchrun's and ours name it too, behind their flags."""
    try:
        return b"headway.runner.boot" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _end(job: subprocess.Popen[bytes]) -> None:
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGTERM)
        try:
            job.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
