"""The speed of a run: which steps count, both conventions of FLOPs, and the times of a trace."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.report import wording
from headway.report.throughput import WARM_UP, PlannedStep, Throughput, throughput
from headway.report.trace import TraceTimes, trace_times
from headway.runner.contract import Batch, Mesh, MetricsLine, Model, RunConfig, Trainer, step_flops

MODEL, BATCH = Model(256, 2, 64, 4, 2, 176), Batch(8, 2, 128)
CONFIG = RunConfig(1, 2, Mesh(dp_shard=2), Trainer("builtin"), "", model=MODEL, batch=BATCH, peak_tflops=0.001)


def line(step: int, step_s: float, generation: int = 1, **more: Any) -> MetricsLine:
    return MetricsLine(0.0, 0.0, 0, generation, step, 1.0, 1.0, 1024, step_s, 500, **more)


def steps(*seconds: float, generation: int = 1, **more: Any) -> list[MetricsLine]:
    """Return a generation with a slow warm-up, and then these steps."""
    return [line(number, each, generation, **more) for number, each in enumerate([99.0] * WARM_UP + list(seconds))]


def test_median_excludes_the_warm_up_of_each_generation() -> None:
    found = throughput(steps(1.0, 2.0) + steps(4.0, generation=2), None)
    assert found is not None
    assert (found.step_s, found.tokens_s, found.memory_bytes) == (2.0, 512.0, 500)
    assert (found.tflops_causal, found.mfu_full, found.device_bytes, found.exposed) == (None, None, None, None)
    assert throughput([line(1, 1.0)], CONFIG) is None


def test_flops_are_per_rank_and_mfu_is_relative_to_the_peak() -> None:
    found = throughput(steps(2.0, 2.0, 2.0), CONFIG)
    assert found is not None
    causal, full = step_flops(MODEL, BATCH)
    assert (found.tflops_causal, found.tflops_full) == (causal / 2 / 2 / 1e12, full / 2 / 2 / 1e12)
    assert found.mfu_causal == pytest.approx(causal / 4 / 1e9)
    assert found.mfu_full == pytest.approx(full / 4 / 1e9)


def test_batch_changed_by_history_counts_by_its_tokens() -> None:
    lines = [replace(each, tokens=2048) for each in steps(2.0)]
    found = throughput(lines, CONFIG)
    assert found is not None
    assert found.tflops_causal == 2 * step_flops(MODEL, BATCH)[0] / 2 / 2 / 1e12


def test_waits_and_gpu_memory_are_shown_if_known() -> None:
    found = throughput(steps(1.0, 3.0, communication_s=0.5, device_bytes=7_000_000_000), CONFIG)
    assert found is not None
    assert (found.exposed, found.device_bytes) == (0.25, 7_000_000_000)
    assert "exposed communication 25.0 %" in wording.speed(found)
    assert wording.memory(found) == "7 GB in tensors on the GPU, 500 B resident, at most, of rank 0"


def test_text_shows_both_conventions_of_flops() -> None:
    found = Throughput(9.84, 107_000.0, 1, None, None, 412.0, 436.0, 0.417, 0.441)
    assert wording.speed(found) == (
        "9.8 s a step (median), 107,000 tokens/s, 412 TFLOP/s a rank (436 with attention's full square), "
        "MFU 41.7 % of the peak in bf16 (44.1 %)"
    )
    step = PlannedStep(9.5, 8.4, 10.8, 58.2e9)
    assert wording.planned(step) == "planned: 9.5 s a step, 9 of 10 such runs 8.4 s to 10.8 s, 58.2 GB in tensors on a GPU"


# --- a trace ----------------------------------------------------------------------------------------------------------


def kernel(name: str, begin_us: float, end_us: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin_us, "dur": end_us - begin_us}


def written(folder: Path, *events: dict[str, Any]) -> Path:
    file = folder / "trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return file


def test_communication_that_is_not_overlapped_is_exposed(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        kernel("gemm", 0, 4e6),
        kernel("ncclDevKernel_AllGather", 3e6, 6e6),
        kernel("flash", 5e6, 7e6),
        kernel("ncclDevKernel_ReduceScatter", 8e6, 10e6),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 99e6},
    )
    assert trace_times(file) == TraceTimes(10.0, 6.0, 5.0, 3.0)


def test_trace_without_a_gpu_has_no_gpu_times(tmp_path: Path) -> None:
    assert trace_times(written(tmp_path, {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9})) is None


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.booleans()), min_size=1, max_size=12)


@given(spans)
def test_times_match_a_count_of_each_moment(tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int, bool]]) -> None:
    events = [kernel("nccl" if sends else "gemm", begin * 1e6, (begin + length) * 1e6) for begin, length, sends in spans]
    found = trace_times(written(tmp_path_factory.mktemp("trace"), *events))
    assert found is not None
    computing = {each for begin, length, sends in spans if not sends for each in range(begin, begin + length)}
    sending = {each for begin, length, sends in spans if sends for each in range(begin, begin + length)}
    assert found.compute_s == pytest.approx(len(computing))
    assert found.communication_s == pytest.approx(len(sending))
    assert found.exposed_s == pytest.approx(len(sending - computing))
