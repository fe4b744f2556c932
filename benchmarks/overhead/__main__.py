"""Prints what a training step costs under headway, with all detectors on and checkpoints, beside plain torchrun; 1 above the goal."""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.claim import Claim, Spread, report, spread
from benchmarks.overhead.bootstrap import Ratio, ratio
from benchmarks.overhead.job import MODEL, TOKENS
from benchmarks.overhead.jobs import RANKS, Measured, measure
from headway.runner.train.model import Transformer

GOAL = 1.015
STEP_S = 0.1


class Overhead(Claim):
    """`ours` and `peer` are seconds a step; `ratio` is the upper end of its 95 % interval, and `goal` what that may be."""

    unit = "s a step"
    goal_unit = "times the peer's, for the upper end of the 95 % interval"


def claims(blocks: int, steps: int, limit_s: float, keep: Path | None) -> Iterator[Claim]:
    sequences = sequences_for(STEP_S)
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(keep or Path(folder), sequences, blocks, steps, limit_s)
    yield _judged(measured, sequences, steps)


def _judged(measured: Measured, sequences: int, steps: int) -> Claim:
    """What our control processes took while it was not our turn is taken off the other's time and put on ours, as if all of it had held
    up the steps."""
    ours_s = [took_s + control_s for took_s, control_s in zip(measured.ours_s, measured.control_s, strict=True)]
    other_s = [took_s - control_s for took_s, control_s in zip(measured.other_s, measured.control_s, strict=True)]
    found, plain = ratio(ours_s, other_s), ratio(measured.ours_s, measured.other_s)
    conditions = (
        f"mean ratio {_text(found)}, {_text(plain)} without the CPU of our control processes in the other's blocks, "
        f"{1000 * sum(measured.control_s) / len(measured.control_s) / steps:.2f} ms a step; {len(ours_s)} pairs of blocks of {steps} steps "
        f"in turn, one checkpoint a block on our side by dcp.async_save, {measured.state_bytes} bytes of state; {RANKS} gloo ranks of one "
        f"thread, {sequences} sequences each; Python {platform.python_version()}, {os.cpu_count()} CPUs"
    )
    ours, other = _per_step(ours_s, steps), _per_step(other_s, steps)
    name = f"torchrun {torch.__version__}, no checkpoints"
    return Overhead("a training step, all detectors on", ours, other, name, found.high, GOAL, found.high <= GOAL, conditions)


def _text(found: Ratio) -> str:
    return f"{found.mean:.4f} ({found.low:.4f} to {found.high:.4f})"


def _per_step(block_s: list[float], steps: int) -> Spread:
    return spread([each / steps for each in block_s])


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
    parser.add_argument("--blocks", type=int, default=24, help="that count, on each side")
    parser.add_argument("--steps", type=int, default=50, help="of a block, in which there is one checkpoint")
    parser.add_argument("--limit", type=float, default=900.0, metavar="SECONDS", help="after which the jobs are given up")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the jobs leave logs, times and checkpoints")
    parser.add_argument("--json", action="store_true", help="print an object a claim")
    options = parser.parse_args()
    return report(claims(options.blocks, options.steps, options.limit, options.keep), ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
