"""The ledger: every second of a generation goes into exactly one bucket."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.contract import LEDGER_BUCKETS
from headway.runner.goodput.ledger import Account, StepTime, account


def section(name: str, wall: float) -> dict[str, Any]:
    return {"kind": "section", "name": name, "wall": wall}


def loaded(wall: float) -> dict[str, Any]:
    return {"kind": "loaded", "wall": wall}


def waited(seconds: float, wall: float = 0.0) -> dict[str, Any]:
    """At its end a generation waits for the saves that are under way."""
    return {"kind": "waited", "seconds": seconds, "wall": wall}


FAILURE = {"kind": "failure", "wall": 0.0}
STARTED = [section("rendezvous", 102.0), section("restore", 103.0), loaded(105.0)]


def rounded(closed: Account) -> dict[str, float]:
    return {name: round(seconds, 6) for name, seconds in closed.buckets.items() if round(seconds, 6)}


walls = st.floats(-1e3, 1e4)
lines = st.one_of(
    st.builds(section, st.sampled_from(["start", "rendezvous", "restore", "compute", "script"]), walls),
    st.builds(loaded, walls),
    st.builds(waited, st.floats(0, 1e3), walls),
    st.just(FAILURE),
)
step_times = st.builds(StepTime, st.integers(1, 100), st.floats(0, 1e3), st.floats(0, 1e3))


@settings(max_examples=500, deadline=None)
@given(walls, walls, st.lists(lines, max_size=12), st.lists(step_times, max_size=20), st.integers(0, 100))
def test_buckets_sum_to_the_wall_time(
    start: float, end: float, journal: list[dict[str, Any]], steps: list[StepTime], best: int
) -> None:
    closed = account(start, end, journal, steps, best)
    assert math.isclose(sum(closed.buckets.values()), closed.end - closed.start, rel_tol=1e-9, abs_tol=1e-6)
    assert (closed.start, closed.end) == (start, max(start, end))
    assert min(closed.buckets.values()) >= -1e-6
    assert closed.buckets.keys() <= set(LEDGER_BUCKETS)


def test_a_generation_that_trains_and_saves() -> None:
    steps = [StepTime(n, 1.0, save_s=2.0 if n == 5 else 0.0) for n in range(1, 11)]
    closed = account(100.0, 120.0, [*STARTED, waited(1.0)], steps, best_before=0)
    expected = {"restart": 2.0 + 2.0, "rendezvous": 1.0, "restore": 2.0, "productive": 10.0, "save_block": 3.0}
    assert rounded(closed) == expected


def test_steps_that_an_earlier_generation_had_reached_are_lost() -> None:
    steps = [StepTime(n, 1.0) for n in range(6, 11)]
    closed = account(100.0, 110.0, STARTED, steps, best_before=8)
    assert rounded(closed) == {"restart": 2.0, "rendezvous": 1.0, "restore": 2.0, "lost_recompute": 3.0, "productive": 2.0}


def test_what_a_failed_generation_did_after_its_last_step_is_detection() -> None:
    closed = account(100.0, 110.0, [*STARTED, FAILURE], [StepTime(1, 1.0)], best_before=0)
    assert rounded(closed) == {"restart": 2.0, "rendezvous": 1.0, "restore": 2.0, "productive": 1.0, "detect": 4.0}


@pytest.mark.parametrize(
    ("journal", "expected"),
    [
        ([], {"restart": 10.0}),
        (STARTED[:1], {"restart": 2.0, "rendezvous": 8.0}),
        (STARTED[:2], {"restart": 2.0, "rendezvous": 1.0, "restore": 7.0}),
        ([*STARTED[:2], FAILURE], {"restart": 2.0, "rendezvous": 1.0, "restore": 7.0}),
    ],
    ids=["never started", "no rendezvous", "never loaded", "failed while loading"],
)
def test_a_generation_that_never_trained_spent_its_time_where_it_stopped(
    journal: list[dict[str, Any]], expected: dict[str, float]
) -> None:
    assert rounded(account(100.0, 110.0, journal, [], best_before=0)) == expected


def test_a_scripts_time_counts_as_productive_from_its_start() -> None:
    closed = account(100.0, 110.0, [section("script", 103.0), FAILURE], [], best_before=0)
    assert rounded(closed) == {"restart": 3.0, "productive": 7.0}


def test_steps_that_took_longer_than_there_was_are_shrunk_together() -> None:
    closed = account(100.0, 110.0, [*STARTED, waited(4.0)], [StepTime(1, 8.0), StepTime(2, 8.0)], best_before=1)
    assert rounded(closed) == {
        "restart": 2.0,
        "rendezvous": 1.0,
        "restore": 2.0,
        "lost_recompute": 2.0,
        "productive": 2.0,
        "save_block": 1.0,
    }


def test_a_clock_that_was_set_back_takes_no_time() -> None:
    assert account(100.0, 90.0, STARTED, [StepTime(1, 1.0)], best_before=0) == Account(
        100.0, 100.0, dict.fromkeys(("restart", "rendezvous", "restore", "productive", "lost_recompute", "save_block"), 0.0)
    )
