"""Prints how long a step takes of the builtin trainer, compared with a bare FSDP2 loop of the same model, and of torchtitan under
headway, compared with torchtitan under torchrun; 1 above a goal.

python -m benchmarks.trainer [--json] [--only WORD] [--starts N] [--steps N]
"""

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.claim import Claim, report, spread
from benchmarks.overhead.bootstrap import Ratio, ratio
from benchmarks.overhead.job import SIDES
from benchmarks.overhead.jobs import Measured
from benchmarks.trainer.jobs import MICRO, RANKS, ROUNDS, SEQUENCE, Start, bare, builtin, measure, titan, titan_under_torchrun

# Of the throughput, for the lower end of the 95 % interval; of the time, for its upper end.
THROUGHPUT, TIME = 0.98, 1.015


class Trainer(Claim):
    """`ours` and `peer` are seconds a step; `ratio` is the upper end of its 95 % interval, and `goal` what that may be."""

    unit = "s a step"
    goal_unit = "times the peer's, for the upper end of the 95 % interval"


@dataclass(frozen=True)
class Pair:
    """Two jobs whose steps take turns: ours, and what it is compared with; and how many starts and steps decide the claim."""

    claim: str
    jobs: tuple[Start, Start]
    peer: str
    goal: float
    load: str
    starts: int
    steps: int


PAIRS = (
    Pair(
        "a step of the builtin trainer",
        (builtin, bare),
        "a bare FSDP2 loop of the same model under torchrun",
        1 / THROUGHPUT,
        f"{ROUNDS} rounds of {MICRO} sequences of {SEQUENCE} tokens each",
        starts=10,
        steps=150,
    ),
    Pair(
        "a step of torchtitan's llama3_debugmodel",
        (titan, titan_under_torchrun),
        "the same under torchrun",
        TIME,
        "one sequence of 128 tokens each",
        # Starts differ by 2 %, and a start takes as long as 80 steps: many short ones decide.
        starts=40,
        steps=20,
    ),
)


def claims(pairs: Iterable[Pair]) -> Iterator[Claim]:
    for pair in pairs:
        measured, starts, steps = [], pair.starts, pair.steps
        for number in range(starts):
            with tempfile.TemporaryDirectory(prefix="headway-trainer-") as path:
                measured.append(measure(Path(path), SIDES[number % len(SIDES)], pair.jobs, steps))
            both = 100 * (sum(measured[-1].ours_s) / sum(measured[-1].other_s) - 1)
            print(f"start {number + 1} of {starts}: {both:+.2f} %", file=sys.stderr, flush=True)
        yield _judged(pair, measured)


def _judged(pair: Pair, measured: Sequence[Measured]) -> Claim:
    """CPU time of our control processes during the other's turns is taken off the other's time, as `benchmarks.overhead` does."""
    steps, ours_s, other_s = pair.steps, [sum(each.ours_s) for each in measured], [sum(each.other_s) for each in measured]
    charged_s = [took_s - each.control_s for took_s, each in zip(other_s, measured, strict=True)]
    found, plain = ratio(ours_s, charged_s), ratio(ours_s, other_s)
    conditions = (
        f"mean ratio {_text(found)}; {_text(plain)} with the other's turns as they were; {len(measured)} starts of both jobs with {steps} "
        f"turns of one step each; {RANKS} gloo ranks of one thread, {pair.load}, no saves, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    ours, other = (spread([each / steps for each in side]) for side in (ours_s, charged_s))
    return Trainer(pair.claim, ours, other, pair.peer, found.high, pair.goal, found.high <= pair.goal, conditions)


def _text(found: Ratio) -> str:
    return f"{found.mean:.4f} ({found.low:.4f} to {found.high:.4f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", default="", metavar="WORD", help="measure the claims with this word")
    defaults = ", ".join(f"{pair.starts} of {pair.steps} steps for {pair.claim}" for pair in PAIRS)
    parser.add_argument("--starts", type=int, help=f"starts of the two jobs, two at least (default: {defaults})")
    parser.add_argument("--steps", type=int, help="steps of each job in a start")
    parser.add_argument("--json", action="store_true", help="print one JSON object per claim")
    options = parser.parse_args()
    chosen = [
        replace(pair, starts=options.starts or pair.starts, steps=options.steps or pair.steps)
        for pair in PAIRS
        if options.only in pair.claim
    ]
    # The jobs are in separate sessions: end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return report(claims(chosen), ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
