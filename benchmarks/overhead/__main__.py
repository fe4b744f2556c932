"""Prints what a training step costs under headway, with all detectors on and checkpoints, beside plain torchrun; 1 above a goal."""

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
from benchmarks.overhead.job import EVERY, MODEL, SAVERS, STEPS, TOKENS, TURNS
from benchmarks.overhead.jobs import RANKS, Measured, measure
from headway.runner.train.model import Transformer

GOAL = 1.015
STEP_S = 0.1
SAVED_BY = {"headway": "headway.checkpoint", "dcp": "dcp.async_save"}


class Overhead(Claim):
    """`ours` and `peer` are seconds a step; `ratio` is the upper end of its 95 % interval, and `goal` what that may be."""

    unit = "s a step"
    goal_unit = "times the peer's, for the upper end of the 95 % interval"


def claims(savers: Sequence[str], groups: int, limit_s: float, keep: Path | None) -> Iterator[Claim]:
    sequences = sequences_for(STEP_S)
    with tempfile.TemporaryDirectory() as folder:
        for saver in savers:
            place = (keep or Path(folder)) / saver
            place.mkdir(parents=True)
            yield _judged(measure(place, sequences, groups, saver, limit_s), sequences, saver)


def _judged(measured: Measured, sequences: int, saver: str) -> Claim:
    """What our control processes take in our turns is in our time already. What they take in the other's turns has held up the other: by
    that CPU time at most, where all its ranks waited for each other at every moment of it, and by that over the number of cores at least.
    The most is taken off the other's time, so the ratio that is judged errs against us."""
    ours_s, control_s = _grouped(measured.ours_s), _grouped(measured.control_s)
    measured_s = _grouped(measured.other_s)
    other_s = [took_s - held_up_s for took_s, held_up_s in zip(measured_s, control_s, strict=True)]
    found, plain = ratio(ours_s, other_s), ratio(ours_s, measured_s)
    control_ms = 1000 * sum(control_s) / len(control_s) / EVERY
    standbys = "two standbys, ready before" if measured.standbys else "no standbys"
    conditions = (
        f"mean ratio {_text(found)}; {_text(plain)} with the other's turns as they were, in which our control processes took "
        f"{control_ms:.2f} ms of CPU a step; {len(ours_s)} groups of {TURNS} turns of {STEPS} steps on each side, on ours one checkpoint a "
        f"group, durable before its turn ends, {measured.state_bytes} bytes of state; {standbys} ({measured.set_up_s:.1f} s of CPU for all "
        f"control processes until then); {RANKS} gloo ranks of one thread, {sequences} sequences each; Python {platform.python_version()}, "
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    ours, other = (spread([each / EVERY for each in group_s]) for group_s in (ours_s, other_s))
    claim = f"a training step, all detectors on, a checkpoint every {EVERY} steps by {SAVED_BY[saver]}"
    name = f"torchrun {torch.__version__}, no checkpoints"
    return Overhead(claim, ours, other, name, found.high, GOAL, found.high <= GOAL, conditions)


def _grouped(turn_s: Sequence[float]) -> list[float]:
    """Of each group all turns together: a group has one checkpoint."""
    return [sum(turn_s[at : at + TURNS]) for at in range(0, len(turn_s), TURNS)]


def _text(found: Ratio) -> str:
    return f"{found.mean:.4f} ({found.low:.4f} to {found.high:.4f})"


def sequences_for(step_s: float) -> int:
    """How many sequences a rank needs for steps of about so long on this machine, on one thread."""
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
    parser.add_argument("--saver", choices=tuple(SAVERS), help="only this one")
    parser.add_argument(
        "--groups", type=int, default=24, help=f"of {TURNS} turns of {STEPS} steps on each side, and one checkpoint"
    )
    parser.add_argument(
        "--limit", type=float, default=900.0, metavar="SECONDS", help="after which the two jobs of a saver are given up"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the jobs leave logs, times and checkpoints")
    parser.add_argument("--json", action="store_true", help="print an object a claim")
    options = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # the jobs are in sessions of their own: they are ended
    savers = [options.saver] if options.saver else list(SAVERS)
    return report(claims(savers, options.groups, options.limit, options.keep), ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
