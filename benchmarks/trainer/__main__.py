"""Prints how long a step of the builtin trainer takes, compared with a bare FSDP2 loop of the same model; 1 above the goal.

python -m benchmarks.trainer [--json] [--starts N] [--blocks N]
"""

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.claim import Claim, report, spread
from benchmarks.overhead.bootstrap import ratio
from benchmarks.trainer.jobs import MICRO, RANKS, ROUNDS, SEQUENCE, STEPS, both

# Of the throughput, for the lower end of the 95 % interval.
THROUGHPUT = 0.98


class Trainer(Claim):
    """`ours` and `peer` are seconds a step; `ratio` is the upper end of its 95 % interval, and `goal` what that may be."""

    unit = "s a step"
    goal_unit = f"times the peer's, for the upper end of the 95 % interval: a throughput of {THROUGHPUT} times its or more"


def claims(starts: int, blocks: int) -> Iterator[Claim]:
    ours, other = list[float](), list[float]()
    for start in range(starts):
        with tempfile.TemporaryDirectory(prefix="headway-trainer-") as path, both(Path(path)) as (builtin, bare):
            taken = {builtin: 0.0, bare: 0.0}
            for block in range(blocks):
                # In the order ABBA, so that a machine that becomes slower favours none.
                for side in (builtin, bare) if (start + block) % 2 else (bare, builtin):
                    taken[side] += side.block_s()
        ours.append(taken[builtin] / blocks / STEPS)
        other.append(taken[bare] / blocks / STEPS)
        print(f"start {start + 1} of {starts}: {100 * (ours[-1] / other[-1] - 1):+.2f} %", file=sys.stderr, flush=True)
    found = ratio(ours, other)
    conditions = (
        f"mean ratio {found.mean:.4f} ({found.low:.4f} to {found.high:.4f}); {starts} starts of both jobs with {blocks} blocks of {STEPS} "
        f"steps each in turn, all processes of the other job stopped meanwhile; {RANKS} gloo ranks of one thread, {ROUNDS} rounds of "
        f"{MICRO} sequences of {SEQUENCE} tokens each, no saves, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    goal = 1 / THROUGHPUT
    name = "a bare FSDP2 loop of the same model under torchrun"
    yield Trainer(
        "a step of the builtin trainer", spread(ours), spread(other), name, found.high, goal, found.high <= goal, conditions
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=10, help="starts of the two jobs, two at least")
    parser.add_argument("--blocks", type=int, default=8, help="blocks of each job in a start")
    parser.add_argument("--json", action="store_true", help="print one JSON object per claim")
    options = parser.parse_args()
    # The jobs are in separate sessions: end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return report(claims(options.starts, options.blocks), ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
