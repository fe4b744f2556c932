"""Tests the watch on traces of real jobs and of a synthetic one: slow jobs continue, and hung ones are named."""

from functools import partial
from pathlib import Path

import pytest

from benchmarks.detection import trace
from benchmarks.detection.__main__ import IN_TIME, PROVEN, TRACES
from benchmarks.detection.detectors import Ours, StepTimeout
from benchmarks.detection.job import HANGS, SLOW
from benchmarks.detection.replay import replayed
from benchmarks.detection.synthetic import Job, Steps, fitted
from benchmarks.detection.trace import Heard, Trace
from headway.runner.health.watch import Probe, RankBeat


def recorded(what: str) -> Trace:
    return trace.read(TRACES / f"{what}.jsonl")


def test_each_kind_of_trace_is_recorded() -> None:
    assert {path.stem for path in TRACES.glob("*.jsonl")} == {*SLOW, *HANGS}


@pytest.mark.parametrize("what", SLOW)
def test_a_real_job_continues_in_which_a_rank(what: str) -> None:
    assert replayed(recorded(what), Ours) is None


@pytest.mark.parametrize("what", SLOW)
def test_a_short_timeout_would_have_ended_the_job_in_which_a_rank(what: str) -> None:
    assert replayed(recorded(what), lambda _, __: StepTimeout(5.0)) is not None


@pytest.mark.parametrize("what", [what for what in PROVEN if what not in IN_TIME])
def test_a_real_job_is_ended_within_the_bound_when_a_rank(what: str) -> None:
    job = recorded(what)
    named = replayed(job, Ours, on_s=5.0)
    assert named is not None
    assert named.ranks == (1,)
    assert named.after_s <= job.bound_s


@pytest.mark.slow
@pytest.mark.parametrize("what", IN_TIME)
def test_an_unproven_hang_is_ended_by_a_timeout(what: str) -> None:
    """A rank in an endless loop is still named; of two ranks in two different collectives neither can be proven wrong."""
    timeout_s, ranks = IN_TIME[what]
    named = replayed(recorded(what), partial(Ours, busy_s=timeout_s), on_s=timeout_s + 60.0)
    assert named is not None
    assert named.ranks == ranks
    assert timeout_s - 5.0 <= named.after_s <= timeout_s + 5.0


def test_a_trace_is_read_as_written(tmp_path: Path) -> None:
    probe = Probe("S", 1.25, 4096, ("/job/train.py:1 main",), None, "futex_do_wait")
    heard = (Heard(0.5, {0: RankBeat(1, "data", 2, None, 0.5)}), Heard(1.0, {}, {0: probe}), Heard(1.5, {}, {0: probe}))
    written = Trace("loops", 1, 0.75, (0.1, 0.2), heard)
    trace.write(written, tmp_path / "loops.jsonl")
    assert trace.read(tmp_path / "loops.jsonl") == written


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_synthetic_job_with_heavy_tails_continues(ranks: int) -> None:
    job, ours = Job(ranks, Steps(0.1, 0.2, 1.5), every=50, seed=1), Ours(ranks, 0.0)
    assert list(job.run(4000, [ours])) == []
    assert ours.stragglers == 0
    assert len(job.happened) == 16
    assert job.now_s > 1000.0


def test_a_short_timeout_would_have_ended_the_synthetic_job() -> None:
    job = Job(2, Steps(0.1, 0.2, 1.5), every=50, seed=1)
    assert next(job.run(4000, [StepTimeout(45.0)]), None) == 0


def test_the_steps_of_a_synthetic_job_are_fitted_to_real_ones() -> None:
    steps = fitted([0.1] * 30 + [0.11] * 50 + [0.121] * 25 + [0.2, 0.4, 0.8, 1.6, 3.2])
    assert steps.median_s == 0.11
    assert steps.sigma == pytest.approx(0.1413, abs=1e-4)
    assert steps.tail == pytest.approx(0.7213, abs=1e-4)
