"""Tests the sample order: each epoch holds every sample once, and the order is a pure function of seed and position."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.train.sampler import sample_at

seeds = st.integers(0, 2**63 - 1)


def epoch(number: int, samples: int, seed: int) -> list[int]:
    return [sample_at(position, samples, seed) for position in range(number * samples, (number + 1) * samples)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5000), seeds, st.integers(0, 1000))
def test_each_epoch_is_a_permutation(samples: int, seed: int, number: int) -> None:
    assert sorted(epoch(number, samples, seed)) == list(range(samples))


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097])
def test_an_epoch_is_a_permutation_at_and_next_to_powers_of_four(samples: int) -> None:
    assert sorted(epoch(0, samples, seed=1)) == list(range(samples))


@given(st.integers(0, 2**50), st.integers(1, 2**40), seeds)
def test_a_position_gives_the_same_sample_after_any_other_requests(position: int, samples: int, seed: int) -> None:
    first = sample_at(position, samples, seed)
    for other in range(5):
        sample_at(other, samples, seed)
    assert first == sample_at(position, samples, seed)
    assert 0 <= first < samples


@settings(max_examples=30, deadline=None)
@given(st.integers(50, 400), seeds, st.integers(0, 100))
def test_epochs_and_seeds_have_different_orders(samples: int, seed: int, number: int) -> None:
    order = epoch(number, samples, seed)
    assert order != list(range(samples))
    assert order != epoch(number + 1, samples, seed)
    assert order != epoch(number, samples, seed + 1)


def test_the_sample_order_equals_that_of_earlier_runs() -> None:
    """A changed order would make a resumed run see some samples twice and some never."""
    assert epoch(0, 10, seed=7) + epoch(1, 10, seed=7) == [4, 8, 2, 6, 7, 0, 3, 9, 1, 5, 1, 5, 2, 4, 3, 7, 8, 0, 6, 9]
