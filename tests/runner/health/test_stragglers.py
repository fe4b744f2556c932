"""Tests straggler detection by ranks' own time per step over simulated jobs: which ranks are named, and the rate of false alarms."""

import random
from collections.abc import Callable

import pytest

from headway.runner.health.stragglers import SLOW_WINDOWS, STEPS_A_WINDOW, WINDOW_S, WINDOWS, Straggler, Stragglers

STEP_S, OWN_S, BEAT_S = 0.1, 0.06, 0.5
OwnTime = Callable[[int, int, random.Random], float]


def jitter(_: int, __: int, chance: random.Random) -> float:
    """One step's time on a healthy rank: 10 % of noise, and one step in two hundred much longer."""
    noise = chance.lognormvariate(0.0, 0.1)
    return OWN_S * noise * (1.0 if chance.random() > 0.005 else min(chance.paretovariate(1.5), 20.0))


def run(ranks: int, steps: int, own_time: OwnTime, stages: int = 1, seed: int = 1) -> list[Straggler]:
    """Steps of a job whose ranks wait for the slowest, with heartbeats in between."""
    chance, watch = random.Random(seed), Stragglers(ranks, stages)
    now_s, own_s, beat_s, found = 0.0, [0.0] * ranks, 0.0, list[Straggler]()
    for step in range(steps):
        own = [own_time(rank, step, chance) for rank in range(ranks)]
        took_s = max(own) + STEP_S - OWN_S
        while beat_s <= now_s + took_s:
            for rank in range(ranks):
                spent_s = min(beat_s - now_s, own[rank])
                watch.saw(rank, step, own_s[rank] + spent_s, beat_s, training=True)
            beat_s += BEAT_S
        own_s = [before + new for before, new in zip(own_s, own, strict=True)]
        now_s += took_s
        found += watch.found()
    return found


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize(("factor", "least"), [(1.1, 1.06), (2.0, 1.8)])
def test_a_rank_that_is_always_slow_is_named_once_with_its_ratio(ranks: int, factor: float, least: float) -> None:
    found = run(ranks, 1800, lambda rank, _, chance: OWN_S * chance.lognormvariate(0.0, 0.05) * (factor if rank == 1 else 1.0))
    assert [each.rank for each in found] == [1]
    assert least < found[0].ratio < factor * 1.05
    assert found[0].own_step_s == pytest.approx(OWN_S * factor, rel=0.05)


def test_detection_takes_the_documented_number_of_windows() -> None:
    window_steps = round(WINDOW_S / STEP_S)
    assert window_steps > STEPS_A_WINDOW
    slow: OwnTime = lambda rank, _, __: OWN_S * (1.5 if rank == 1 else 1.0)  # noqa: E731
    assert run(2, SLOW_WINDOWS * window_steps // 2, slow) == []
    assert [each.rank for each in run(2, (WINDOWS + 2) * window_steps, slow)] == [1]


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_jitter_and_long_tails_name_no_rank(ranks: int) -> None:
    assert run(ranks, 5000, jitter) == []


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_slowdown_of_all_ranks_names_none(ranks: int) -> None:
    assert run(ranks, 3000, lambda rank, step, chance: jitter(rank, step, chance) * (2.0 if step > 1000 else 1.0)) == []


@pytest.mark.parametrize("ranks", [2, 8])
def test_one_long_pause_names_no_rank(ranks: int) -> None:
    assert run(ranks, 3000, lambda rank, step, chance: 30.0 if rank == 1 and step == 1000 else jitter(rank, step, chance)) == []


def test_stages_with_more_work_are_compared_with_themselves() -> None:
    def own_time(rank: int, _: int, chance: random.Random) -> float:
        return OWN_S * chance.lognormvariate(0.0, 0.05) * (1.3 if rank >= 4 else 1.0) * (1.2 if rank == 6 else 1.0)

    assert [each.rank for each in run(8, 1800, own_time, stages=2)] == [6]


def test_windows_with_a_save_or_an_evaluation_do_not_count() -> None:
    watch = Stragglers(2)
    for beat in range(2000):
        now_s = beat * BEAT_S
        watch.saw(0, beat * 5, now_s * 0.6, now_s, training=True)
        watch.saw(1, beat * 5, now_s * 0.9, now_s, training=beat % 5 != 0)
    assert watch.found() == ()


def test_a_recovered_rank_can_be_named_again() -> None:
    slow: OwnTime = lambda rank, step, _: OWN_S * (1.5 if rank == 1 and not 1500 < step < 3000 else 1.0)  # noqa: E731
    assert [each.rank for each in run(2, 4500, slow)] == [1, 1]
