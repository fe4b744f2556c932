"""Prints how much of a GPU's peak the builtin trainer reaches on layers of Llama 3 8B, compared with a bare FSDP2 loop; 1 below a goal.

python -m benchmarks.gpu [--json] [--gpu MODEL] [--layers N] [--micro N] [--sequence N] [--steps N]
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.claim import Claim, report, spread
from benchmarks.gpu.jobs import Load, bare, builtin
from headway.runner.contract.throughput import step_rates

# Of the peak, with attention's full square.
UTILIZATION = 0.50


class Utilization(Claim):
    """`ours`, `peer` and `goal` are shares of the GPU's peak in bf16; `goal` is the least."""

    unit = "of the peak"
    goal_unit = "of the peak"
    bound = "at least"


def claims(load: Load, gpu: str) -> Iterator[Claim]:
    # Each job has tens of gigabytes of checkpoints, which are removed before the next one.
    with tempfile.TemporaryDirectory(prefix="headway-gpu-") as path:
        ours, config = builtin(Path(path), load, gpu)
    with tempfile.TemporaryDirectory(prefix="headway-gpu-") as path:
        other = bare(Path(path), load, deterministic=False)
        alike = bare(Path(path), load, deterministic=True)
    rates = [[step_rates(config, load.tokens, took) for took in each.steps_s] for each in (ours, other, alike)]
    share, their_share, alike_share = (spread([step["mfu_full"] for step in each]) for each in rates)
    causal, their_causal, _ = (spread([step["mfu_causal"] for step in each]).median for each in rates)
    yield Utilization(
        "MFU of the builtin trainer, attention as its full square",
        share,
        their_share,
        "a bare FSDP2 loop of the same model, its algorithms not deterministic",
        share.median / their_share.median,
        UTILIZATION,
        share.median >= UTILIZATION,
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, one rank, {load.layers} layers of Llama 3 8B and a vocabulary of "
        f"32,000, {load.rounds} rounds of {load.micro} sequences of {load.sequence} tokens, bf16, compiled, {len(ours.steps_s)} "
        f"steps; with the half of attention that a mask leaves {causal:.3f}, the loop {their_causal:.3f}; the loop with the deterministic "
        f"algorithms of the builtin trainer {alike_share.median:.3f} with the full square; "
        f"{ours.device_bytes / 1e9:.1f} GB of tensors on the device at most, the loop {other.device_bytes / 1e9:.1f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object per claim")
    parser.add_argument("--gpu", default="H100-SXM-80", help="the GPU's model in the catalogue")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--micro", type=int, default=2, help="sequences of a microbatch")
    parser.add_argument("--sequence", type=int, default=8192, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU that torch can use")
    load = Load(options.layers, 2, options.micro, options.sequence, options.steps)
    return report(claims(load, options.gpu), ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
