"""Quantities in human-readable form, at the values where a unit changes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.report import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (0.5, "0.50 s"),
        (11.44, "11.4 s"),
        (59.94, "59.9 s"),
        (59.96, "1m"),
        (92.0, "1m32s"),
        (7_500.0, "2h5m"),
        (273_600.0, "3d4h"),
        (None, "n/a"),
        (math.nan, "n/a"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (999_600, "1 MB"), (3_400_000, "3.4 MB"), (2e18, "2,000.0 PB")],
)
def test_size(n_bytes: float, text: str) -> None:
    assert units.size(n_bytes) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "0.0 %"), (1, "100.0 %"), (0.9999, "> 99.9 %"), (0.0001, "< 0.1 %"), (0.861, "86.1 %")]
)
def test_share_is_printed_as_100_percent_only_if_exact(fraction: float, text: str) -> None:
    assert units.share(fraction) == text


@pytest.mark.parametrize(
    ("value", "text"), [(812, "812"), (10_240, "10,240"), (1_234_567, "1.23 M"), (4.56e9, "4.56 G"), (None, "n/a")]
)
def test_compact(value: float | None, text: str) -> None:
    assert units.compact(value) == text


def test_counts_agree_with_their_noun() -> None:
    assert [units.count(n, "failure") for n in (0, 1, 2_000)] == ["0 failures", "1 failure", "2,000 failures"]


def test_moment_is_in_utc() -> None:
    assert units.moment(1_763_710_000.0) == "2025-11-21 07:26:40 UTC"


@given(st.floats())
def test_any_number_can_be_formatted(value: float) -> None:
    for words in (units.seconds, units.share, units.compact, units.loss, units.moment):
        assert words(value)
