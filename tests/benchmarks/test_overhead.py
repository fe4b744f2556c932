"""The interval of a ratio over paired blocks: it covers what is true, and pairing takes the machine's moods out of it."""

import random

import pytest

from benchmarks.overhead.bootstrap import ratio


def test_equal_blocks_have_the_ratio_one_exactly() -> None:
    found = ratio([5.0, 6.0, 7.0], [5.0, 6.0, 7.0])
    assert (found.mean, found.low, found.high) == (1.0, 1.0, 1.0)


def test_a_machine_that_becomes_slower_cancels_out_of_pairs() -> None:
    other = [5.0 + 0.5 * number for number in range(24)]
    found = ratio([1.01 * took_s for took_s in other], other)
    assert found.low == pytest.approx(1.01)
    assert found.high == pytest.approx(1.01)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    chance, covered = random.Random(1), 0
    for seed in range(40):
        other = [chance.gauss(5.0, 0.1) for _ in range(24)]
        ours = [chance.gauss(5.05, 0.1) for _ in range(24)]
        found = ratio(ours, other, seed, resamples=400)
        covered += found.low <= 1.01 <= found.high
    assert covered >= 34
