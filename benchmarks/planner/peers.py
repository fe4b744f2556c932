"""Runs llm-analysis on the same rows, in its own virtual environment."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.claim import MeasureError
from headway.planner.training import Training

PYTHON = Path(__file__).parents[2] / ".venv-peers" / "planner" / "bin" / "python"
NAME = "llm-analysis 0.2.2 at its recommended efficiency of 0.5"

_SCRIPT = Path(__file__).with_name("llm_analysis_peer.py")
_RECOMPUTE = {"none": "NONE", "selective": "SELECTIVE", "full": "FULL"}
_ZERO = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}
_BITS = {"fp8": 8, "mxfp8": 8, "nvfp4": 4}
_TIMEOUT_S = 120


def llm_analysis_seconds(trainings: Sequence[Training]) -> list[float | None]:
    """Return seconds of a step by llm-analysis, None for steps that it refuses. Raises MeasureError where the peer is
    not installed."""
    cases = "".join(json.dumps(_case(training)) + "\n" for training in trainings)
    try:
        done = subprocess.run([PYTHON, _SCRIPT], input=cases, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except OSError as error:
        raise MeasureError(f"{PYTHON} cannot be started ({error.strerror}); `make peers` installs it") from error
    except subprocess.CalledProcessError as error:
        raise MeasureError(f"{_SCRIPT.name} ended with {error.returncode}: {error.stderr[-1000:]}") from error
    return [json.loads(line).get("seconds") for line in done.stdout.splitlines()]


def takes(training: Training) -> bool:
    """Return whether llm-analysis has words for the training: it knows neither context parallelism nor latent attention."""
    return training.degrees.cp == 1 and training.model.latent_attention is None


def _case(training: Training) -> dict[str, Any]:
    model, degrees, experts = training.model, training.degrees, training.model.experts
    return {
        "model": {
            "name": "case",
            "num_layers": model.layers,
            "n_head": model.heads,
            "hidden_dim": model.hidden,
            "vocab_size": model.vocab_size,
            "max_seq_len": training.sequence,
            "num_key_value_heads": model.kv_heads,
            "ffn_embed_dim": experts.ffn_hidden if experts else model.ffn_hidden,
            "moe_num_experts": experts.count if experts else 1,
            "moe_top_k": experts.top_k if experts else 1,
        },
        "gpu": _gpu(training),
        "parallelism": {
            "tp_size": degrees.tp,
            "pp_size": degrees.pp,
            "dp_size": degrees.dp,
            "ep_size": degrees.ep,
            "sp_size": degrees.tp if degrees.sequence_parallel else 1,
        },
        "batch": {
            "batch_size_per_gpu": training.micro,
            "gradient_accumulation_steps": training.accumulation,
            "global_batch_size": training.sequences,
            "seq_len": training.sequence,
        },
        "bits": _BITS.get(training.formats.compute, 16),
        "recompute": _RECOMPUTE[training.recompute],
        "zero": _ZERO[degrees.sharding],
        "flash": not (training.kernels.attention or "flash").startswith(("unfused", "fused")),
        "gated": model.mlp == "gated",
    }


def _gpu(training: Training) -> dict[str, Any]:
    gpu = training.gpu
    return {
        "name": gpu.name,
        "mem_per_GPU_in_GB": gpu.memory_gib,
        "hbm_bandwidth_in_GB_per_sec": gpu.memory_tb_s * 1e3,
        "intra_node_bandwidth_in_GB_per_sec": training.network.scale_up_bytes_s / 1e9,
        "intra_node_min_message_latency": 8e-6,
        "peak_fp16_TFLOPS": gpu.bf16_tflops,
        "peak_i8_TFLOPS": gpu.fp8_tflops,
        "peak_i4_TFLOPS": gpu.fp4_tflops,
        "inter_node_bandwidth_in_GB_per_sec": training.network.scale_out_bytes_s * training.network.gpus_per_node / 1e9,
    }
