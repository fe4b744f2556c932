"""The interval of a ratio over groups of paired turns covers the true ratio, and pairing cancels the machine's drift."""

import numpy as np
import pytest

from benchmarks.overhead.bootstrap import ratio, student
from benchmarks.overhead.job import EVERY, GROUP, LONG

TRUE = 1.01


def test_equal_groups_have_a_ratio_of_exactly_1() -> None:
    found = ratio([5.0, 6.0, 7.0], [5.0, 6.0, 7.0])
    assert (found.mean, found.low, found.high) == (1.0, 1.0, 1.0)


def test_slowdown_of_the_machine_cancels_out_in_pairs() -> None:
    other = [5.0 + 0.5 * number for number in range(24)]
    found = ratio([TRUE * took_s for took_s in other], other)
    assert found.low == pytest.approx(TRUE)
    assert found.high == pytest.approx(TRUE)


@pytest.mark.parametrize(("freedom", "bound"), [(5, 2.571), (9, 2.262), (23, 2.069), (100, 1.984)])
def test_bound_of_students_t_matches_the_table(freedom: int, bound: float) -> None:
    assert student(freedom) == pytest.approx(bound, abs=0.025)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "mood", "stalls"), [(0.02, 0.0, 0.0), (0.03, 0.01, 0.0), (0.03, 0.01, 0.05)])
def test_about_475_of_500_intervals_cover_the_true_ratio(noise: float, mood: float, stalls: float) -> None:
    """Turns of a drifting machine, with a checkpoint in the last turn of each of headway's groups and occasional stalls on either side."""
    covered, steps, shape = 0, np.array(GROUP), (24, len(GROUP))
    for seed in range(500):
        chance = np.random.default_rng(seed)
        machine = np.exp(chance.normal(0.0, mood, shape).cumsum()).reshape(shape)
        saving = np.full(shape, 1 + (TRUE - 1) / 2)
        saving[:, -1] += EVERY / LONG * (TRUE - 1) / 2
        sides = []
        for costs in (saving, np.ones(shape)):
            stalled = (chance.random(shape) < stalls) * chance.exponential(0.2, shape)
            sides.append((machine * steps * costs * (1 + noise * chance.standard_normal(shape) + stalled)).sum(axis=1))
        found = ratio(list(sides[0]), list(sides[1]), seed, resamples=1000)
        covered += found.low <= TRUE <= found.high
    assert 465 <= covered <= 485
