"""Prints how long headway and its peers take from a failure to the first new step, in turn; 1 if a claim does not hold.

python -m benchmarks.recovery [--json] [--rounds N] [--only WORD]
"""

import argparse
import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.claim import Claim, MeasureError, compared, report, spread
from benchmarks.recovery import launchers
from benchmarks.recovery.launchers import RANKS, end, free_port, launched, settle, standbys
from benchmarks.recovery.trace import await_steps, recovered_s, steps_of, wait_until

# Steps before the first kill.
STEADY = 10
# From the loss of a node to the launch of another one: a scheduler's time, in which torchrun's survivors notice the loss.
AT_ONCE_S, LATER_S = 0.0, 3.0
Command = tuple[Sequence[str | Path], dict[str, str]]

_TORCHRUN = f"torchrun {torch.__version__} with a store of its own for each restart and --monitor-interval 0.05"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headway-recovery-") as path:
        yield Path(path)


# --- a worker is killed -----------------------------------------------------------------------------------------------


def killed_worker(command: Callable[[Path], Command], rounds: int, ready: Callable[[int], None]) -> list[float]:
    """Return seconds from SIGKILL of rank 1 to the first step of the new processes, as often as asked in one run."""
    found = []
    with folder() as place:
        words, environment = command(place)
        with launched(words, place, environment, "launcher") as process:
            for _ in range(rounds):
                done = len(steps_of(place, 0))
                pids = await_steps(place, RANKS, done + STEADY)
                ready(process.pid)
                seen = {step.pid for rank in range(RANKS) for step in steps_of(place, rank)}
                killed_s = time.monotonic()
                os.kill(pids[1], signal.SIGKILL)
                found.append(recovered_s(place, killed_s, seen))
    return found


def with_standbys(pid: int) -> None:
    """Wait until each rank has a standby that has imported what it needs."""
    wait_until(lambda: len(standbys(pid)) == RANKS, f"{RANKS} standby workers")
    settle(standbys(pid))


def without_standbys(pid: int) -> None:
    """End the standbys, so that the next start is a cold one."""
    with_standbys(pid)
    for standby in standbys(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(standby, signal.SIGKILL)
    wait_until(lambda: not standbys(pid), "the end of the standby workers")


def nothing(_: object) -> None:
    """torchrun has nothing to wait for."""


def killed_group(heartbeat_ms: int, rounds: int) -> list[float]:
    """torchft: seconds from SIGKILL of one replica group to the next step that the other one has committed."""
    found = []
    for _ in range(rounds):
        with folder() as place, launchers.torchft_groups(place, heartbeat_ms) as groups:
            await_steps(place, RANKS, STEADY)
            killed_s = time.monotonic()
            end(groups[1].pid)
            try:
                await_steps(place, 1, len(steps_of(place, 0)) + STEADY)
            except MeasureError as error:
                raise MeasureError(f"torchft's other replica group did not continue: {error}") from error
            # A step may have been under way: the one that waited for the new quorum ends the longest gap.
            gaps = [(b.ended_s - a.ended_s, b.ended_s) for a, b in pairwise(steps_of(place, 0)) if b.ended_s > killed_s]
            found.append(max(gaps)[1] - killed_s)
    return found


# --- a node is lost ---------------------------------------------------------------------------------------------------

Node = Callable[[Path, int], Command]


def with_a_standby(pids: Sequence[int]) -> None:
    """Wait until each of the nodes has a standby that has imported what it needs: nodes are not lost in the first seconds."""
    for pid in pids:
        wait_until(partial(standbys, pid), "a standby worker of each node")
        settle(standbys(pid))


def lost_node(node: Node, launched_s: float | None, ready: Callable[[Sequence[int]], None]) -> float:
    """Return seconds from the loss of the second of two nodes to the first new step: a third one is launched
    `launched_s` later; None: it was parked before."""
    with folder() as place, contextlib.ExitStack() as running:
        port = free_port()

        def launch(name: str) -> "subprocess.Popen[Any]":
            words, environment = node(place, port)
            return running.enter_context(launched(words, place, environment, name))

        first = launch("node-0")
        # The first one hosts the rendezvous.
        time.sleep(1)
        second = launch("node-1")
        await_steps(place, RANKS, STEADY)
        ready([first.pid, launch("node-2").pid] if launched_s is None else [first.pid])
        await_steps(place, RANKS, 2 * STEADY)
        seen = {step.pid for rank in range(RANKS) for step in steps_of(place, rank)}
        killed_s = time.monotonic()
        end(second.pid)
        if launched_s is not None:
            time.sleep(launched_s)
            launch("node-2")
        return recovered_s(place, killed_s, seen)


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rounds: int, only: str) -> Iterator[Claim]:
    """Kills in one process, then losses of a node."""
    if "worker".startswith(only):
        yield from _worker_claims(rounds)
    if "node".startswith(only):
        yield from _node_claims(max(1, rounds // 2))


def _worker_claims(rounds: int) -> Iterator[Claim]:
    if not launchers.LIGHTHOUSE.exists():
        raise MeasureError(f"{launchers.LIGHTHOUSE} is not there; `make peers` installs it")
    warm, cold, theirs, fast, default = [], [], [], [], []
    # Alternate, so that all run on the same machine state.
    for _ in range(rounds):
        theirs += killed_worker(launchers.torchrun, 2, nothing)
        warm += killed_worker(launchers.headway, 2, with_standbys)
        cold += killed_worker(launchers.headway, 2, without_standbys)
        fast += killed_group(500, 1)
        default += killed_group(5000, 1)
    what, conditions = "a worker killed to the first new step", _conditions(rounds)
    yield compared(f"{what}, warm", (spread(warm), spread(theirs)), _TORCHRUN, 0.1, conditions)
    yield compared(f"{what}, cold", (spread(cold), spread(theirs)), _TORCHRUN, 1.0, conditions)
    for name, found in (("heartbeat 500 ms", fast), ("default heartbeat, 5 s", default)):
        peer = f"torchft 0.2.0, {name}, one of two replica groups killed, to the survivor's next committed step"
        yield compared(f"{what}, warm", (spread(warm), spread(found)), peer, 0.5, conditions)


def _node_claims(rounds: int) -> Iterator[Claim]:
    theirs: dict[float, list[float]] = {AT_ONCE_S: [], LATER_S: []}
    ours: dict[float | None, list[float]] = {AT_ONCE_S: [], LATER_S: [], None: []}
    for _ in range(rounds):
        for launched_s, found in theirs.items():
            found.append(lost_node(launchers.torchrun_node, launched_s, nothing))
        for place, seconds in ours.items():
            seconds.append(lost_node(launchers.headway_node, place, with_a_standby))
    conditions = _conditions(rounds)
    what = "one of two nodes lost to the first new step"
    peer = f"{_TORCHRUN}, {launchers.QUICK}"
    waited = f"another launched after {LATER_S:.0f} s, which are in both"
    for launched_s, said, goal in ((AT_ONCE_S, "another launched at once", 0.5), (LATER_S, waited, 1.0)):
        both = spread(ours[launched_s]), spread(theirs[launched_s])
        yield compared(f"{what}, {said}", both, f"{peer}, {said}", goal, conditions)
    least = f"{peer}, another launched at once"
    yield compared(f"{what}, a third one parked", (spread(ours[None]), spread(theirs[AT_ONCE_S])), least, 0.25, conditions)


def _conditions(rounds: int) -> str:
    return (
        f"{rounds} rounds in turn, {RANKS} gloo ranks, DDP with AdamW, a state of 12.6 MB loaded, steps of 50 ms and more; "
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("", "worker", "node"), default="")
    arguments = parser.parse_args()
    return report(claims(arguments.rounds, arguments.only), ["--json"] if arguments.json else [])


if __name__ == "__main__":
    sys.exit(main())
