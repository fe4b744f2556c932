"""Runs two live jobs that take turns on this machine: `headway torchrun` with checkpoints, and plain torchrun without."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claim import MeasureError
from benchmarks.overhead.baton import Baton
from benchmarks.overhead.job import NOBODY, SIDES
from headway.runner.lines import read_lines

RANKS = 2
# torchrun's side saves like ours where the script itself saves, and the measurement is what headway adds.
SAVES_TOO = ("dcp",)
# To be ready, which costs nothing from then on.
STANDBYS_S = 180.0
_JOB = Path(__file__).with_name("job.py")
_LOOK_S = 0.25


@dataclass(frozen=True)
class Measured:
    """Seconds of each side's turns. `control_s` is the CPU that our processes other than the ranks took in all of the other's turns, and so
    took from it; `set_up_s` what they took before, once, and `standbys` whether those were ready then."""

    ours_s: tuple[float, ...]
    other_s: tuple[float, ...]
    control_s: float
    set_up_s: float
    standbys: bool
    state_bytes: int


def measure(folder: Path, first: str, sequences: int, groups: int, saver: str, limit_s: float) -> Measured:
    """Starts both jobs, of which `first` has the first turn. Raises MeasureError when a job fails, or has not ended after `limit_s`."""
    baton, until_s = Baton(folder, (*SIDES, NOBODY), make=True), time.monotonic() + limit_s
    jobs = [_start(side, first, folder, sequences, groups, saver) for side in SIDES]
    try:
        baton.give(first)
        while not baton.take(NOBODY, _LOOK_S):
            _check(jobs, until_s)
        standbys = _await_standbys(jobs, folder, until_s)
        baton.give(first)
        while any(job.poll() is None for job in jobs):
            _check(jobs, until_s)
            time.sleep(_LOOK_S)
        _check(jobs, until_s)
    finally:
        for job in jobs:
            _end(job)
        baton.close()
    ours, other = (json.loads((folder / f"{side}.json").read_text()) for side in SIDES)
    times = tuple(ours["turn_s"]), tuple(other["turn_s"])
    return Measured(*times, ours["control_s"], ours["set_up_s"], standbys, ours["state_bytes"])


def _start(side: str, first: str, folder: Path, sequences: int, groups: int, saver: str) -> subprocess.Popen[bytes]:
    words = [side, first, str(folder), str(sequences), str(groups), str(os.getpid())]
    if side == SIDES[0] or saver in SAVES_TOO:
        words.append(f"--saver={saver}")
    bin_folder = Path(sys.executable).parent
    given = {**os.environ, "OMP_NUM_THREADS": "1", "HEADWAY_RUNS": str(folder / "runs")}
    flags = ["--nnodes=1", f"--nproc-per-node={RANKS}"]
    if side == SIDES[0]:
        command = [str(bin_folder / "headway"), "torchrun", *flags, str(_JOB), *words]
    else:
        command = [str(bin_folder / "torchrun"), *flags, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(_JOB), *words]
    output = (folder / f"{side}.log").open("wb")
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, env={**given, "PYTHONPATH": str(root)}, stdout=output, stderr=output, start_new_session=True)


def _check(jobs: list[subprocess.Popen[bytes]], until_s: float) -> None:
    if any(job.returncode for job in jobs) or time.monotonic() > until_s:
        codes = [job.returncode for job in jobs]
        raise MeasureError(f"the jobs have not done their turns: exit codes {codes}, see their logs")


def _await_standbys(jobs: list[subprocess.Popen[bytes]], folder: Path, until_s: float) -> bool:
    """Return whether our job's standbys have become ready: they are made once, at low priority, and would be for
    minutes while all cores are taken."""
    enough_s = time.monotonic() + STANDBYS_S
    while time.monotonic() < enough_s:
        for job in jobs:
            job.poll()
        _check(jobs, until_s)
        journals = (folder / "runs").glob("*/shared/journal/*.jsonl")
        if any(line["kind"] == "standby" and line["ready"] for path in journals for line, _ in read_lines(path)):
            return True
        time.sleep(_LOOK_S)
    return False


def _end(job: subprocess.Popen[bytes]) -> None:
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGTERM)
        try:
            job.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
