"""Prints how long one of two replica groups waits when the other is killed and when it returns, next to torchft's.

The goal is half of the gap of torchft as it is shipped, whose lighthouse finds a death by a heartbeat that is missing for 5 s. torchft
with a heartbeat of 0.5 s is measured too and shown with each claim, as information: that heartbeat is the whole of its gap, whereas ours
has the step of twice the length in which the survivor computes the other's share of the batch, which torchft omits.

python -m benchmarks.replica_recovery [--json] [--rounds N]
"""

import argparse
import contextlib
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from benchmarks.claim import Claim, MeasureError, compared, report, spread
from benchmarks.recovery.launchers import LIGHTHOUSE, RANKS, end, launched, torchft_lighthouse, tree
from benchmarks.recovery.trace import await_steps, steps_of, wait_until
from headway.runner.lines import read_lines

# Before the kill, and after the return.
STEADY = 20
SHIPPED, TUNED = "as shipped (heartbeat 5 s)", "heartbeat 500 ms"
HEARTBEATS_MS = {SHIPPED: 5000, TUNED: 500}
STEPS = 2000
# Of a round of torchft.
_TRIES = 8

# As many parameters as the network that torchft trains here.
_CLUSTER = """apiVersion: headway/v1alpha1
kind: Cluster
name: this-machine
scheduler: {kind: local}
node_groups: [{name: cpu, count: 1, cpus: 2, procs: 2}]
storage: [{name: runs, kind: posix, path: runs, shared: true}]
"""
_JOB = f"""apiVersion: headway/v1alpha1
kind: TrainingJob
name: replicas
cluster: this-machine
nodes: 1
model: {{vocab_size: 256, layers: 5, hidden: 128, heads: 4, kv_heads: 4, ffn_hidden: 344}}
data: {{kind: python-stdlib, options: {{limit: 1MB}}}}
batch: {{global: 2 sequences, micro: 1, sequence: 32}}
optimizer: {{lr: 0.001}}
steps: {STEPS}
layout: {{dp_replicate: 2}}
resilience: {{replica_recovery: true}}
checkpoint: {{tiers: [{{kind: shared, every: 1000 steps}}]}}
"""


@dataclass(frozen=True)
class Gaps:
    """The survivor's longest times between two steps, in seconds: around the death of the other group, and around its return."""

    death_s: float
    return_s: float

    @property
    def longest_s(self) -> float:
        return max(self.death_s, self.return_s)


def longest(times: Sequence[float], begin: float, until: float) -> float:
    """Return the longest time between two steps of which the second ended in `begin`..`until`; 0 without one."""
    return max((after - before for before, after in pairwise(times) if begin <= after <= until), default=0.0)


# --- headway ----------------------------------------------------------------------------------------------------------


def of_headway(folder: Path) -> Gaps:
    """Kill rank 1, which is a replica group; raises MeasureError where the groups differ in the end."""
    (folder / "cluster.yaml").write_text(_CLUSTER)
    (folder / "job.yaml").write_text(_JOB)
    words: list[str | Path] = [sys.executable, "-m", "headway.cli.main", "run", folder / "job.yaml"]
    with launched(words, folder, {"HEADWAY_RUNS": str(folder / "runs")}, "launcher") as launcher:
        wait_until(lambda: any(folder.glob("runs/*/attempts/0/nodes/0.json")) or launcher.poll() is not None, "the run")
        if launcher.poll() is not None:
            raise MeasureError(f"headway run has ended: {(folder / 'launcher.log').read_text()}")
        (run,) = (path.parent for path in folder.glob("runs/*/handle.json"))
        wait_until(lambda: journal(run, "standby"), "standbys")
        wait_until(lambda: len(completed(run)) >= STEADY, f"{STEADY} steps")
        killed_s = time.monotonic()
        os.kill(worker(launcher.pid, 1), signal.SIGKILL)
        wait_until(lambda: any(line.get("returned") for line in journal(run, "regrouped")), "the return of the group")
        returned_s = time.monotonic()
        wait_until(lambda: len([at for at in completed(run) if at > returned_s]) >= STEADY, f"{STEADY} steps after the return")
        # It saves after its step, and stops: with the state that the groups then compare.
        os.kill(launcher.pid, signal.SIGTERM)
        launcher.wait(60)
        states = {path.name: path.read_text().rpartition(": state ")[2].split() for path in run.glob("attempts/0/logs/0/*.log")}
    if len(states) != RANKS or not all(states.values()) or len({each[0] for each in states.values()}) != 1:
        raise MeasureError(f"the replica groups did not end with one state: {states}")
    times = completed(run)
    # The others learn then that the group is ready to return.
    middle_s = journal(run, "members")[-1]["wall"] - clocks(run)
    return Gaps(longest(times, killed_s, middle_s), longest(times, middle_s, times[-1]))


def journal(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [line for path in sorted(run.glob("shared/journal/*.jsonl")) for line, _ in read_lines(path)]
    return [line for line in lines if line["kind"] == kind]


def clocks(run: Path) -> float:
    """Return the wall clock's time at the zero of the monotonic clock."""
    line, _ = next(iter(read_lines(run / "metrics.jsonl")))
    return float(line["wall"]) - float(line["mono_s"])


def completed(run: Path) -> list[float]:
    """When steps were complete, by the machine's monotonic clock."""
    return [float(line["mono_s"]) for line, _ in read_lines(run / "metrics.jsonl")]


def worker(launcher: int, rank: int) -> int:
    """The process of a rank below the launcher."""
    for pid in tree(launcher):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in environment:
            return pid
    raise MeasureError(f"rank {rank} does not run")


# --- torchft ----------------------------------------------------------------------------------------------------------


def of_torchft(folder: Path, heartbeat_ms: int) -> Gaps:
    """Kill a replica group, and launch it again when the other one continues."""
    with torchft_lighthouse(folder, heartbeat_ms) as launch:
        groups = [launch(group) for group in range(RANKS)]

        def until(ready: Callable[[], object], what: str) -> None:
            wait_until(lambda: ready() or groups[0].poll() is not None, what)
            if groups[0].poll() is not None:
                raise SurvivorCrashError

        await_steps(folder, RANKS, STEADY)
        killed_s = time.monotonic()
        end(groups[1].pid)
        before = {step.pid for step in steps_of(folder, 1)}
        until(lambda: len([step for step in steps_of(folder, 0) if step.ended_s > killed_s]) >= STEADY, "steps alone")
        launched_s = time.monotonic()
        launch(1)
        until(lambda: any(step.pid not in before for step in steps_of(folder, 1)), "the group's first step")
        first_s = next(step.ended_s for step in steps_of(folder, 1) if step.pid not in before)
        enough = len(steps_of(folder, 0)) + STEADY
        until(lambda: len(steps_of(folder, 0)) >= enough, f"{enough} steps")
    times = [step.ended_s for step in steps_of(folder, 0)]
    return Gaps(longest(times, killed_s, launched_s), longest(times, first_s - 1.0, times[-1]))


class SurvivorCrashError(Exception):
    """torchft's other group has crashed, too: with torch 2.13 its DDP hook fails (`assert fut._fut`) if the peer dies in an all-reduce."""


def of_torchft_when_it_survives(heartbeat_ms: int, crashes: list[int]) -> Gaps:
    """Repeat a round in which the other group has crashed, and count that in `crashes`."""
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory(prefix="headway-replicas-") as path, contextlib.suppress(SurvivorCrashError):
            return of_torchft(Path(path), heartbeat_ms)
        crashes.append(heartbeat_ms)
    raise MeasureError(f"torchft's other group crashed in {_TRIES} rounds in a row")


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rounds: int) -> Iterator[Claim]:
    if not LIGHTHOUSE.exists():
        raise MeasureError(f"{LIGHTHOUSE} is not there; `make peers` installs it")
    ours: list[Gaps] = []
    crashes: list[int] = []
    theirs: dict[str, list[Gaps]] = {name: [] for name in HEARTBEATS_MS}
    # Alternate, so that all run on the same machine state.
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="headway-replicas-") as path:
            ours.append(of_headway(Path(path)))
        for name, found in theirs.items():
            found.append(of_torchft_when_it_survives(HEARTBEATS_MS[name], crashes))
    conditions = (
        f"{rounds} rounds in turn, two replica groups of one gloo rank, AdamW, a state of 12.6 MB, steps of 30 ms and more, "
        f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs; "
        f"torchft's other group crashed in {len(crashes)} further rounds, which are not counted"
    )
    at_death: Callable[[Gaps], float] = attrgetter("death_s")
    at_either: Callable[[Gaps], float] = attrgetter("longest_s")
    for when, gap in (("death", at_death), ("death and return", at_either)):
        mine, shipped, tuned = (spread([gap(each) for each in found]) for found in (ours, theirs[SHIPPED], theirs[TUNED]))
        beside = f"{TUNED}: {tuned.median:.3f} s ({tuned.low:.3f} to {tuned.high:.3f}), ratio {mine.median / tuned.median:.2f}"
        what = f"the survivor's longest gap at a replica group's {when}"
        yield compared(what, (mine, shipped), f"torchft 0.2.0, {SHIPPED}", 0.5, f"{beside}; {conditions}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replica_recovery", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    return report(claims(arguments.rounds), ["--json"] if arguments.json else [])


if __name__ == "__main__":
    sys.exit(main())
