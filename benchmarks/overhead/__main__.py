"""Prints the cost of a training step under headway, with all detectors and checkpoints, compared with torchrun; 1 above a goal."""

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.claim import Claim, report, spread
from benchmarks.overhead.bootstrap import Ratio, ratio
from benchmarks.overhead.job import EVERY, LONG, MODEL, SAVERS, SIDES, SINGLE, TOKENS
from benchmarks.overhead.jobs import RANKS, SAVES_TOO, Measured, measure
from headway.runner.train.model import Transformer

GOAL = 1.015
STEP_S = 0.1
SAVED_BY = {"headway": "headway.checkpoint", "dcp": "dcp.async_save"}


class Overhead(Claim):
    """`ours` and `peer` are seconds a step; `ratio` is the upper end of its 95 % interval, and `goal` what that may be."""

    unit = "s a step"
    goal_unit = "times the peer's, for the upper end of the 95 % interval"


def claims(savers: Sequence[str], starts: int, groups: int, limit_s: float, keep: Path | None) -> Iterator[Claim]:
    sequences = sequences_for(STEP_S)
    with tempfile.TemporaryDirectory() as folder:
        for saver in savers:
            measured = []
            for number in range(starts):
                place = (keep or Path(folder)) / saver / str(number)
                place.mkdir(parents=True)
                first = SIDES[number % len(SIDES)]
                measured.append(measure(place, first, sequences, groups, saver, limit_s))
                _say_start(number, starts, measured[-1])
            yield _judged(measured, groups, sequences, saver)


def _say_start(number: int, starts: int, measured: Measured) -> None:
    both = 100 * (sum(measured.ours_s) / sum(measured.other_s) - 1)
    print(f"start {number + 1} of {starts}: {both:+.2f} %", file=sys.stderr, flush=True)


def _judged(measured: Sequence[Measured], groups: int, sequences: int, saver: str) -> Claim:
    """The turns of one start together are one value: where a process's memory comes to lie makes it faster or slower
    for as long as it lives, torchrun against torchrun too.

    The CPU time of our control processes in our turns is in our time already. Their CPU time in the other's turns has
    delayed the other: by that CPU time at most, where all its ranks waited for each other at every moment of it, and by
    that over the number of cores at least. The most is taken off the other's time, so the ratio that is judged errs
    against us.
    """
    ours_s, control_s = [sum(each.ours_s) for each in measured], [each.control_s for each in measured]
    measured_s = [sum(each.other_s) for each in measured]
    other_s = [took_s - held_up_s for took_s, held_up_s in zip(measured_s, control_s, strict=True)]
    found, plain = ratio(ours_s, other_s), ratio(ours_s, measured_s)
    control_ms = 1000 * sum(control_s) / len(control_s) / groups / EVERY
    set_up_s = sum(each.set_up_s for each in measured) / len(measured)
    standbys = "two standbys, ready before" if all(each.standbys for each in measured) else "not all with standbys"
    turns = f"{groups} groups of {SINGLE} turns of one step and one of {LONG} on each side, with a checkpoint in that where any are saved"
    conditions = (
        f"mean ratio {_text(found)}; {_text(plain)} with the other's turns as they were, in which our control processes took "
        f"{control_ms:.2f} ms of CPU a step; {len(measured)} starts of both jobs with {turns}, durable before its turn ends, "
        f"{measured[0].state_bytes} bytes of state; {standbys} ({set_up_s:.1f} s of CPU for all control processes until then); "
        f"{RANKS} gloo ranks of one thread, {sequences} sequences each; Python {platform.python_version()}, {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    ours, other = (spread([each / groups / EVERY for each in start_s]) for start_s in (ours_s, other_s))
    claim = f"a training step, all detectors on, a checkpoint every {EVERY} steps by {SAVED_BY[saver]}"
    name = f"torchrun {torch.__version__}, " + ("the same checkpoints" if saver in SAVES_TOO else "no checkpoints")
    return Overhead(claim, ours, other, name, found.high, GOAL, found.high <= GOAL, conditions)


def _text(found: Ratio) -> str:
    return f"{found.mean:.4f} ({found.low:.4f} to {found.high:.4f})"


def sequences_for(step_s: float) -> int:
    """Return how many sequences a rank needs for steps of about so long on this machine, on one thread."""
    torch.set_num_threads(1)
    model, tokens = Transformer(MODEL), torch.zeros(8, TOKENS, dtype=torch.long)
    took_s = []
    for _ in range(5):
        began_s = time.process_time()
        torch.autograd.backward(model(tokens).sum())
        took_s.append(time.process_time() - began_s)
    return max(round(8 * step_s / sorted(took_s)[2]), 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--saver", choices=tuple(SAVERS), help="measure only this saver")
    parser.add_argument("--starts", type=int, default=20, help="starts of the two jobs, for each saver")
    parser.add_argument(
        "--groups", type=int, default=5, help=f"groups per start, each of {EVERY} steps on each side and one checkpoint"
    )
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="give up two jobs after this time")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the jobs' logs, times and checkpoints in this folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object per claim")
    options = parser.parse_args()
    # The jobs are in separate sessions: end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    savers = [options.saver] if options.saver else list(SAVERS)
    return report(claims(savers, options.starts, options.groups, options.limit, options.keep), ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
