"""Runs llm-analysis on cases from stdin, one JSON object per line; prints the seconds of a step or the reason for refusal.

It runs in the peer's own virtual environment, so it imports nothing of headway.
"""

import contextlib
import io
import json
import logging
import sys
from typing import Any

from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis  # type: ignore[import-not-found]
from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig  # type: ignore[import-not-found]

_EFFICIENCY = 0.5
"""The values that llm_analysis/constant.py recommends for training with Megatron-LM."""


def step_s(case: dict[str, Any]) -> float:
    """Return seconds of an optimizer step. Raises AssertionError where llm-analysis does not take the model or the batch."""
    analysis = LLMAnalysis(
        ModelConfig(**case["model"]),
        GPUConfig(**case["gpu"]),
        DtypeConfig("case", weight_bits=case["bits"], activation_bits=case["bits"]),
        ParallelismConfig(**case["parallelism"]),
        flops_efficiency=_EFFICIENCY,
    )
    summary = analysis.training(
        **case["batch"],
        activation_recomputation=ActivationRecomputation[case["recompute"]],
        ds_zero=DSZeRO(case["zero"]),
        flash_attn=case["flash"],
        mlp_gated_linear_units=case["gated"],
    )
    return float(summary["latency_per_iter"])


def answer(line: str) -> dict[str, float | str]:
    """Return the answer to one case."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return {"seconds": step_s(json.loads(line))}
    except (AssertionError, ZeroDivisionError, TypeError) as error:
        return {"refused": str(error) or type(error).__name__}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for each in sys.stdin:
        print(json.dumps(answer(each)))
