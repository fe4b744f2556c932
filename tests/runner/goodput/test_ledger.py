"""Tests that the ledger puts every second of a generation into exactly one bucket."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.contract import LEDGER_BUCKETS
from headway.runner.goodput.ledger import POINTS, Account, Book, Seen, StepTime, account


def section(name: str, wall: float) -> dict[str, Any]:
    return {"kind": "section", "name": name, "wall": wall}


def loaded(wall: float) -> dict[str, Any]:
    return {"kind": "loaded", "wall": wall}


def waited(seconds: float, wall: float = 0.0) -> dict[str, Any]:
    """At its end a generation waits for the saves in progress."""
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


@settings(max_examples=100, deadline=None)
@given(walls, walls, st.lists(lines, max_size=12), st.lists(step_times, max_size=20), st.integers(0, 100))
def test_buckets_sum_to_the_wall_time(
    start: float, end: float, journal: list[dict[str, Any]], steps: list[StepTime], best: int
) -> None:
    closed = account(start, end, journal, steps, best)
    assert math.isclose(sum(closed.buckets.values()), closed.end - closed.start, rel_tol=1e-9, abs_tol=1e-6)
    assert (closed.start, closed.end) == (start, max(start, end))
    assert min(closed.buckets.values()) >= -1e-6
    assert closed.buckets.keys() <= set(LEDGER_BUCKETS)


def test_a_generation_that_trains_and_saves_fills_its_buckets() -> None:
    steps = [StepTime(n, 1.0, save_s=2.0 if n == 5 else 0.0) for n in range(1, 11)]
    closed = account(100.0, 120.0, [*STARTED, waited(1.0)], steps, best_before=0)
    expected = {"restart": 2.0 + 2.0, "rendezvous": 1.0, "restore": 2.0, "productive": 10.0, "save_block": 3.0}
    assert rounded(closed) == expected


def test_steps_that_an_earlier_generation_had_reached_are_lost() -> None:
    steps = [StepTime(n, 1.0) for n in range(6, 11)]
    closed = account(100.0, 110.0, STARTED, steps, best_before=8)
    assert rounded(closed) == {"restart": 2.0, "rendezvous": 1.0, "restore": 2.0, "lost_recompute": 3.0, "productive": 2.0}


def test_time_after_a_failed_generations_last_step_is_detection() -> None:
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


def test_steps_longer_than_the_available_time_are_scaled_down_together() -> None:
    closed = account(100.0, 110.0, [*STARTED, waited(4.0)], [StepTime(1, 8.0), StepTime(2, 8.0)], best_before=1)
    assert rounded(closed) == {
        "restart": 2.0,
        "rendezvous": 1.0,
        "restore": 2.0,
        "lost_recompute": 2.0,
        "productive": 2.0,
        "save_block": 1.0,
    }


def test_a_clock_that_was_set_back_adds_no_time() -> None:
    closed = account(100.0, 90.0, STARTED, [StepTime(1, 1.0)], best_before=0)
    assert (closed.start, closed.end, set(closed.buckets.values())) == (100.0, 100.0, {0.0})


# --- hangs, stragglers, spares ----------------------------------------------------------------------------------------


def hang(wall: float, silent_s: float) -> dict[str, Any]:
    return {"kind": "hang", "silent_s": silent_s, "wall": wall}


def straggler(wall: float, own_step_s: float, ratio: float) -> dict[str, Any]:
    return {"kind": "straggler", "own_step_s": own_step_s, "ratio": ratio, "wall": wall}


def test_a_hang_lasts_from_the_last_heartbeat_until_it_was_named() -> None:
    steps = [StepTime(1, 1.0)]
    closed = account(100.0, 115.0, [*STARTED, hang(112.0, 5.0), FAILURE], steps, best_before=0)
    assert rounded(closed) == {
        "restart": 2.0,
        "rendezvous": 1.0,
        "restore": 2.0,
        "productive": 1.0,
        "hang": 5.0,
        "detect": 15.0 - 5.0 - 1.0 - 5.0,
    }


def test_a_hang_before_the_first_step_is_subtracted_from_its_section() -> None:
    closed = account(100.0, 120.0, [*STARTED[:1], hang(118.0, 10.0), FAILURE], [], best_before=0)
    assert rounded(closed) == {"restart": 2.0, "rendezvous": 8.0, "hang": 10.0}


def test_straggle_counts_from_a_stragglers_naming_and_only_for_slow_steps() -> None:
    slow = [StepTime(n, 1.5, wall=105.0 + 1.5 * n) for n in range(1, 5)]
    quick = [StepTime(5, 1.0, wall=112.0)]
    closed = account(100.0, 112.0, [*STARTED, straggler(107.0, 1.5, 1.5)], [*slow, *quick], best_before=0)
    assert rounded(closed) == {"restart": 2.0, "rendezvous": 1.0, "restore": 2.0, "productive": 1.5 + 3 + 1.0, "straggle": 1.5}


def test_seconds_of_all_nodes_sum_to_nodes_times_the_wall_time() -> None:
    closed = account(100.0, 110.0, STARTED, [StepTime(1, 5.0)], best_before=0, slots=3, spares=2)
    assert closed.node_s["spare_idle"] == 20.0
    assert closed.node_s["productive"] == 15.0
    assert sum(closed.node_s.values()) == 50.0


# --- scripts: times from heartbeats -----------------------------------------------------------------------------------


def seen(*steps: tuple[int, float]) -> list[tuple[int, float]]:
    found = Seen()
    for step, wall in steps:
        found.add(step, wall)
    return found.steps


def test_a_scripts_step_times_follow_from_its_start_and_end() -> None:
    """Steps of 0.5 s from 106.0 on; the failure is noticed 4 s after the last."""
    shown = seen(*((n, 106.0 + n / 2) for n in range(2, 21, 2)))
    closed = account(100.0, 120.0, [section("script", 103.0), FAILURE], [], best_before=0, seen=shown)
    assert rounded(closed) == {"restart": 6.0, "productive": 10.0, "detect": 4.0}


def test_time_after_a_scripts_last_step_is_productive() -> None:
    closed = account(100.0, 120.0, [section("script", 103.0)], [], best_before=0, seen=seen((1, 104.0), (2, 105.0)))
    assert rounded(closed) == {"restart": 3.0, "productive": 17.0}


def test_a_script_repeats_the_steps_since_its_last_save() -> None:
    book = Book(100.0, script=True)
    first = seen(*((n, 100.0 + n) for n in range(1, 26)))
    book.close(130.0, [section("script", 100.0), FAILURE], seen=first, saves=[120.4])
    again = book.close(160.0, [section("script", 130.0), FAILURE], seen=seen(*((n, 130.0 + n) for n in range(1, 16))))
    assert rounded(again) == {"lost_recompute": 5.0, "productive": 10.0, "detect": 15.0}
    # From the same save once more: the fifteen steps of the previous generation were not saved.
    third = book.close(190.0, [section("script", 160.0)], seen=seen(*((n, 160.0 + n) for n in range(1, 31))))
    assert rounded(third) == {"lost_recompute": 15.0, "productive": 15.0}


def test_a_script_that_saves_nothing_repeats_all_steps() -> None:
    book = Book(100.0, script=True)
    book.close(110.0, [section("script", 100.0), FAILURE], seen=seen((5, 105.0), (10, 110.0)))
    again = book.close(125.0, [section("script", 110.0)], seen=seen((5, 115.0), (15, 125.0)))
    assert rounded(again) == {"lost_recompute": 10.0, "productive": 5.0}


def test_the_ledger_tracks_the_furthest_step_of_the_builtin_trainer() -> None:
    book = Book(100.0)
    book.close(110.0, STARTED, [StepTime(n, 1.0) for n in range(1, 6)])
    again = book.close(
        118.0, [section("rendezvous", 111.0), section("restore", 111.0), loaded(112.0)], [StepTime(5, 2.0), StepTime(6, 2.0)]
    )
    assert (again.start, again.end) == (110.0, 118.0)
    assert rounded(again) == {"restart": 1.0 + 2.0, "restore": 1.0, "lost_recompute": 2.0, "productive": 2.0}


def test_a_long_generation_is_stored_in_bounded_memory() -> None:
    found = Seen()
    for step in range(1, 50_001):
        found.add(step, float(step))
        found.add(step - 1, float(step))
    assert len(found.steps) <= POINTS
    assert found.steps[0] == (1, 1.0)
    assert found.steps == sorted(found.steps)
    assert found.steps[-1][0] > 50_000 - 50_000 // POINTS * 4
    closed = account(0.0, 50_000.0, [section("script", 0.0)], [], best_before=0, seen=found.steps)
    assert rounded(closed)["productive"] == 50_000.0


beats = st.lists(st.tuples(st.integers(0, 1000), walls), max_size=20).map(lambda points: seen(*sorted(points)))
events = st.one_of(
    lines, st.builds(hang, walls, st.floats(0, 1e4)), st.builds(straggler, walls, st.floats(0.01, 10), st.floats(0.5, 9))
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    walls,
    st.lists(st.tuples(st.floats(-10, 1e3), st.lists(events, max_size=8), st.lists(step_times, max_size=8), beats), max_size=4),
    st.integers(1, 64),
    st.integers(0, 4),
    st.booleans(),
)
def test_every_second_of_every_node_is_in_exactly_one_bucket(
    start: float,
    generations: list[tuple[float, list[dict[str, Any]], list[StepTime], list[tuple[int, float]]]],
    slots: int,
    spares: int,
    script: bool,
) -> None:
    book, total, end = Book(start, script=script), 0.0, start
    for length, journal, steps, shown in generations:
        end = max(end, end + length)
        closed = book.close(end, journal, steps, shown, slots=slots, spares=spares)
        assert closed.buckets.keys() <= set(LEDGER_BUCKETS)
        assert min(closed.node_s.values()) >= -1e-6
        total += sum(closed.node_s.values())
    assert math.isclose(total, (slots + spares) * (end - start), rel_tol=1e-9, abs_tol=1e-5)
