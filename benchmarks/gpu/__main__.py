"""Prints how much of a GPU's peak the builtin trainer reaches on layers of Llama 3 8B, compared with a bare FSDP2 loop; 1 below a goal.

python -m benchmarks.gpu [--json] [--gpu MODEL] [--layers N] [--micro N] [--steps N]
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.claim import Claim, report, spread
from benchmarks.gpu.jobs import Load, Measured, bare, builtin
from headway.jobspec.catalog.gpus import gpus

# Of the peak, with attention's full square.
UTILIZATION = 0.50


class Utilization(Claim):
    """`ours`, `peer` and `goal` are shares of the GPU's peak in bf16; `goal` is the least."""

    unit = "of the peak"
    goal_unit = "of the peak"
    bound = "at least"


def claims(load: Load, gpu: str) -> Iterator[Claim]:
    peak = gpus()[gpu].bf16_tflops * 1e12
    loop = "a bare FSDP2 loop of the same model, its algorithms not deterministic"
    with tempfile.TemporaryDirectory(prefix="headway-gpu-") as path:
        ours, other = _alone(builtin, Path(path, "ours"), load, gpu), _alone(bare, Path(path, "bare"), load, gpu)
    shape = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, one rank, {load.layers} layers of Llama 3 8B and a vocabulary "
        f"of 32,000, {load.rounds} rounds of {load.micro} sequences of {load.sequence} tokens, bf16, compiled"
    )
    conditions = (
        f"{shape}, {len(ours.steps_s)} steps; {ours.device_bytes / 1e9:.1f} GB of tensors on the device at most, the loop "
        f"{other.device_bytes / 1e9:.1f}"
    )
    for name, operations, goal in zip(
        ("the half of attention that a mask leaves", "attention's full square"),
        load.operations(),
        (0.0, UTILIZATION),
        strict=True,
    ):
        mine, theirs = (spread([operations / peak / took for took in each.steps_s]) for each in (ours, other))
        ratio, holds = mine.median / theirs.median, mine.median >= goal
        yield Utilization(f"MFU of the builtin trainer, {name}", mine, theirs, loop, ratio, goal, holds, conditions)


def _alone(measure: Callable[[Path, Load, str], Measured], folder: Path, load: Load, gpu: str) -> Measured:
    """Measure, and leave no checkpoints of tens of gigabytes to the next job."""
    try:
        return measure(folder, load, gpu)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object per claim")
    parser.add_argument("--gpu", default="H100-SXM-80", help="the GPU's model in the catalogue")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--micro", type=int, default=2, help="sequences of a microbatch")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU that torch can use")
    load = Load(options.layers, 2, options.micro, 8192, options.steps)
    return report(claims(load, options.gpu), ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
