"""The loss curve keeps the important points of very long and very short runs."""

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.report.curve import STANDING_POINTS, TAKEN_BACK_POINTS, downsample, figure, scale_of, thinned, ticks
from headway.report.summary import CurvePoint, summarize

from . import run_directory as build
from .run_directory import RunDirectory

LOSSES = st.floats(allow_nan=True, allow_infinity=True)


def points_of(losses: list[float]) -> list[CurvePoint]:
    return [CurvePoint(step, loss, 1, True) for step, loss in enumerate(losses, start=1)]


@given(st.lists(LOSSES, max_size=300), st.integers(4, 60))
def test_downsampling_keeps_both_ends_the_minimum_and_the_maximum(losses: list[float], limit: int) -> None:
    points = points_of(losses)
    kept = downsample(points, limit)
    assert len(kept) <= limit
    assert [point.step for point in kept] == sorted({point.step for point in kept})
    finite = [loss for loss in losses if math.isfinite(loss)]
    if finite:
        assert {min(finite), max(finite)} <= {point.loss for point in kept}
    if points:
        assert {points[0].step, points[-1].step} <= {point.step for point in kept}


@pytest.mark.slow
def test_100000_steps_become_at_most_2000_points_and_keep_a_spike(runs: Path) -> None:
    run = RunDirectory(runs / "run", planned=100_000)
    run.begin()
    run.train(100_000, every=1_000)
    run.step = 61_803
    run.append("metrics.jsonl", [run.metrics_line(99.0)])
    drawn = figure(summarize(runs / "run"))
    data = json.loads(re.search(r'data-points="([^"]*)"', drawn).group(1))  # type: ignore[union-attr]
    assert 1_000 < len(data) <= STANDING_POINTS
    assert 99.0 in [loss for _, loss, *_ in data]
    line, *_ = re.findall(r'class="standing" d="([^"]*)"', drawn)
    assert line.count("M") + line.count("L") == len(data)


def test_kept_and_discarded_points_are_at_most_2000_together() -> None:
    assert STANDING_POINTS + 2 * TAKEN_BACK_POINTS <= 2_000


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_losses_keep_their_order_inside_the_frame(losses: list[float]) -> None:
    scale = scale_of(points_of(losses))
    assert scale.low <= min(losses) + 1e-6
    assert max(losses) <= scale.high + 1e-6
    order = sorted(losses)
    assert [scale.y(loss) for loss in order] == sorted((scale.y(loss) for loss in order), reverse=True)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_axis_can_show_any_finite_loss(losses: list[float]) -> None:
    scale = scale_of(points_of(losses))
    assert scale.low < scale.high
    assert all(0 <= scale.y(loss) <= 1000 for loss in losses)
    assert all(0 <= scale.x(step) <= 1000 for step in range(1, len(losses) + 1))
    assert 2 <= len(ticks(scale.low, scale.high, 5)) <= 12


def test_ticks_are_round_numbers_inside_the_axis() -> None:
    assert ticks(1.0, 40.0, 5) == [10, 20, 30, 40]
    assert ticks(1.6, 2.1, 5) == [1.6, 1.7, 1.8, 1.9, 2.0, 2.1]


def test_ticks_too_close_to_see_are_thinned_from_the_left() -> None:
    assert thinned([0, 1, 5, 6, 7, 20], apart=6) == [0, 6, 20]


def test_curve_shows_failures_resumes_checkpoints_and_discarded_steps(runs: Path) -> None:
    build.two_failures_and_a_refusal(runs / "run")
    drawn = figure(summarize(runs / "run"))
    paths = dict(re.findall(r'<path class="([a-z-]+)" d="([^"]+)"', drawn.split("<figcaption>")[0]))
    assert paths["failure-dot"].count("M") == 2
    assert paths["resume-dot"].count("M") == 1
    assert paths["checkpoint"].count("M") == 4
    assert paths["refused"].count("M") == 1
    assert drawn.split("<figcaption>")[0].count('class="taken-back"') == 2
    assert re.findall(r'href="#failure-(\d)"', drawn) == ["1", "2"]


def test_failures_at_the_same_position_share_one_badge(runs: Path) -> None:
    run = RunDirectory(runs / "run", planned=1_000)
    run.begin()
    run.train(500)
    run.fail(back_to=500)
    for _ in range(3):
        run.begin(base=(500, 1))
        run.train(502)
        run.fail(back_to=500)
    run.begin(base=(500, 1))
    run.train(1_000)
    run.finish()
    drawn = figure(summarize(runs / "run"))
    assert re.findall(r'class="badge"[^>]*>([^<]*)<', drawn) == ["1–4"]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_leaves_a_gap(runs: Path, loss: float) -> None:
    run = RunDirectory(runs / "run")
    run.begin()
    run.train(5)
    run.step += 1
    run.append("metrics.jsonl", [run.metrics_line(loss)])
    run.train(9)
    drawn = figure(summarize(runs / "run"))
    standing = re.search(r'class="standing" d="([^"]+)"', drawn)
    assert standing is not None
    assert (standing.group(1).count("M"), standing.group(1).count("L")) == (2, 6)


def test_run_without_a_finite_loss_has_a_note_instead_of_a_curve(runs: Path) -> None:
    run = RunDirectory(runs / "run")
    run.begin()
    run.step = 1
    run.append("metrics.jsonl", [run.metrics_line(math.nan)])
    assert figure(summarize(runs / "run")) == '<p class="nothing">No recorded step has a finite loss.</p>'
