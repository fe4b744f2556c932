"""Quantities and values round-trip through their notation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.jobspec import notation, units
from headway.jobspec.flow import flow
from headway.jobspec.load import load_bytes

WHOLE = st.one_of(
    st.integers(0, 10**14), st.builds(lambda count, power: count << (10 * power), st.integers(0, 99), st.integers(0, 4))
)


@given(WHOLE)
def test_sizes_and_speeds_round_trip(number: int) -> None:
    assert units.parse_bytes(notation.write_bytes(number)) == number
    assert units.parse_bits_per_second(notation.write_bits_per_second(number)) == number
    assert units.parse_bytes_per_second(notation.write_bytes_per_second(number)) == number


@given(st.integers(0, 10**13))
def test_times_round_trip(milliseconds: int) -> None:
    assert units.parse_seconds(notation.write_seconds(milliseconds / 1000)) == milliseconds / 1000


@given(st.integers(1, 10**14))
def test_lengths_intervals_and_amounts_round_trip(number: int) -> None:
    assert units.parse_metres(notation.write_metres(number)) == number
    for interval in (units.Interval(steps=number), units.Interval(seconds=number / 1000)):
        assert units.parse_interval(notation.write_interval(interval)) == interval
    for amount in (units.Amount(sequences=number), units.Amount(tokens=number)):
        assert units.parse_amount(notation.write_amount(amount)) == amount


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (notation.write_bytes(80 << 30), "80GiB"),
        (notation.write_bytes(8_000_000), "8MB"),
        (notation.write_bytes(1001), "1001B"),
        (notation.write_bytes(0), "0B"),
        (notation.write_bits_per_second(400 * 10**9), "400Gb/s"),
        (notation.write_seconds(90.0), "90s"),
        (notation.write_seconds(5400.0), "90m"),
        (notation.write_seconds(0.25), "250ms"),
        (notation.write_seconds(0.0), "0s"),
        (notation.write_seconds(7 * 86400.0), "7d"),
        (notation.write_amount(units.Amount(tokens=16 << 20)), "16Mi tokens"),
    ],
)
def test_largest_unit_with_an_integer_value_is_used(text: str, expected: str) -> None:
    assert text == expected


def test_every_type_of_quantity_has_a_notation() -> None:
    quantities = ("Bytes", "BitRate", "ByteRate", "Seconds", "Metres", "Steps", "Every", "GlobalBatch")
    assert len(notation.NOTATIONS) == len(quantities)
    assert {name for name in vars(units) if name in quantities} == set(quantities)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (("1", None, "8", None), "1 to 8"),
        (("1", None, None, None), "at least 1"),
        ((None, "0", "1h", None), "more than 0, at most 1h"),
        (("0", None, None, "1"), "at least 0, less than 1"),
        ((None, None, None, None), ""),
    ],
)
def test_limits_are_described_in_words(limits: tuple[str | None, str | None, str | None, str | None], words: str) -> None:
    assert notation.bounds(*limits) == words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"paths": ["corpus/*.txt"], "shared": True, "url": None}, "{paths: [corpus/*.txt], shared: true, url: null}"),
        ({"cuda": "12.8", "time": "1:30:00", "rate": 3e-4}, '{cuda: "12.8", time: 1:30:00, rate: 0.0003}'),
        (["1,2", "a: b", "yes", "true", "", "x #y", "0123"], '["1,2", "a: b", yes, "true", "", "x #y", "0123"]'),
    ],
)
def test_text_is_quoted_if_it_would_be_parsed_as_another_value(value: Any, text: str) -> None:
    assert flow(value) == text


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(-1e9, 1e9)
    | st.text("aB1 .,:#-'\"[]{}&*!|>%@`~\n=é", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab:1. ", max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_value_on_one_line_round_trips(value: Any) -> None:
    document, problems = load_bytes("case.yaml", f"value: {flow(value)}\n".encode())
    assert problems == []
    assert document.data == {"value": value}
