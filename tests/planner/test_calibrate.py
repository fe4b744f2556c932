"""Measured steps correct estimated ones."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from msgspec.structs import replace

from headway.planner.speed.calibrate import WARM_UP, MeasurementError, calibrate, measured_step
from headway.planner.speed.step import step_time
from headway.planner.training import Degrees
from headway.runner import contract
from tests.planner.test_compute import BASE

OTHER = replace(BASE, micro=2)
UNLIKE = replace(BASE, micro=8, degrees=Degrees(tp=8, pp=4, dp_shard=4, sharding="optimizer"), recompute="full", accumulation=16)


def test_measurement_equal_to_the_estimate_changes_nothing() -> None:
    seconds = step_time(BASE).seconds
    assert calibrate([(BASE, seconds)]).step_time(OTHER).seconds == pytest.approx(step_time(OTHER).seconds)


def test_measurement_corrects_similar_layouts_most_and_none_fully() -> None:
    calibration = calibrate([(BASE, 1.2 * step_time(BASE).seconds)])
    factors = [calibration.factor(training) for training in (UNLIKE, OTHER, BASE)]
    assert 1 < factors[0] < factors[1] < factors[2] < 1.2


def test_consistent_measurements_have_more_weight() -> None:
    measured = [(replace(BASE, micro=micro), 1.2 * step_time(replace(BASE, micro=micro)).seconds) for micro in (1, 2, 4)]
    factors = [calibrate(measured[:count]).factor(UNLIKE) for count in (1, 2, 3)]
    assert 1 < factors[0] < factors[1] < factors[2] < 1.2


def test_differing_measurements_correct_each_layout_by_the_nearest() -> None:
    calibration = calibrate([(BASE, 1.2 * step_time(BASE).seconds), (UNLIKE, 0.9 * step_time(UNLIKE).seconds)])
    assert calibration.factor(UNLIKE) < 1 < calibration.factor(BASE)


def test_calibration_scales_the_parts_and_narrows_the_interval() -> None:
    step = calibrate([(BASE, step_time(BASE).seconds)]).step_time(BASE)
    before = step_time(BASE)
    assert sum(step.parts.values()) == pytest.approx(step.seconds)
    assert step.low < step.seconds < step.high
    assert math.log(step.high / step.low) < math.log(before.high / before.low)


def test_calibration_without_measurements_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="no step was measured"):
        calibrate([])
    with pytest.raises(MeasurementError, match="takes no time"):
        calibrate([(BASE, 0.0)])


def line(generation: int, step: int, step_s: float) -> str:
    """Return a line of metrics in the format of rank 0."""
    record = contract.MetricsLine(0.0, 0.0, 1, generation, step, 2.5, 0.1, 8192, step_s, 1 << 30)
    return json.dumps(asdict(record)) + "\n"


def test_step_of_a_run_is_the_median_after_the_warm_up(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    first = [line(1, step, 9.0 if step < WARM_UP else 2.0) for step in range(WARM_UP + 3)]
    second = [line(2, step, 9.0 if step < WARM_UP else 3.0) for step in range(WARM_UP + 2)]
    metrics.write_text("".join(first + second))
    assert measured_step(metrics) == 2.0


def test_run_with_only_warm_up_steps_and_invalid_line_are_errors(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(line(1, step, 1.0) for step in range(WARM_UP)))
    with pytest.raises(MeasurementError, match="only the first 5 steps of each generation"):
        measured_step(metrics)
    metrics.write_text('{"step": 1}\n')
    with pytest.raises(MeasurementError, match=r"not a line of metrics.jsonl: \{\"step\": 1\}"):
        measured_step(metrics)
