"""Quantities with units: accepted and rejected notations; a bare number is rejected."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter

from headway.jobspec import units
from headway.jobspec.spec.section import Section
from headway.jobspec.units import Amount, Interval


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "80GiB", 80 << 30),
        (units.parse_bytes, "1.5TB", 1_500_000_000_000),
        (units.parse_bytes, "1.2PiB", 1_351_079_888_211_149),
        (units.parse_bytes, "0.3GiB", 322_122_547),
        (units.parse_bytes, "1.1KiB", 1126),
        (units.parse_bytes, "512 B", 512),
        (units.parse_bits_per_second, "400Gb/s", 400_000_000_000),
        (units.parse_bytes_per_second, "200GB/s", 200_000_000_000),
        (units.parse_seconds, "15m", 900.0),
        (units.parse_seconds, "1h30m", 5400.0),
        (units.parse_seconds, "1:30:00", 5400.0),
        (units.parse_seconds, "250ms", 0.25),
        (units.parse_metres, "5m", 5),
        (units.parse_metres, "0.5m", 1),
        (units.parse_metres, "2km", 2000),
        (units.parse_interval, "1 step", Interval(steps=1)),
        (units.parse_interval, "100 steps", Interval(steps=100)),
        (units.parse_interval, "15m", Interval(seconds=900.0)),
        (units.parse_amount, "2048 sequences", Amount(sequences=2048)),
        (units.parse_amount, "16Mi tokens", Amount(tokens=16 << 20)),
        (units.parse_amount, "4M tokens", Amount(tokens=4_000_000)),
    ],
)
def test_quantity_is_parsed_in_its_base_unit(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_bytes, "80"),
        # Gib are bits.
        (units.parse_bytes, "80Gib"),
        (units.parse_bytes, "80gib"),
        # k is 1000, Ki is 1024, K is neither.
        (units.parse_bytes, "1KB"),
        (units.parse_bytes, "-1GiB"),
        (units.parse_bytes, "080GiB"),
        (units.parse_bytes, "1.5B"),
        (units.parse_bytes, "0.0001kB"),
        (units.parse_bytes, "9999999PB"),
        # GB are bytes.
        (units.parse_bits_per_second, "400GB/s"),
        (units.parse_bits_per_second, "400Gbps"),
        (units.parse_seconds, "30m1h"),
        (units.parse_seconds, "1h1h"),
        (units.parse_seconds, "90 minutes"),
        (units.parse_seconds, "1:60:00"),
        (units.parse_seconds, "30:00"),
        (units.parse_seconds, ""),
        (units.parse_interval, "0 steps"),
        (units.parse_interval, "0s"),
        (units.parse_amount, "0 tokens"),
        (units.parse_amount, "2048"),
        (units.parse_amount, "2048sequences"),
        (units.parse_amount, "1.5 sequences"),
    ],
)
def test_wrong_units_orders_and_fractions_are_rejected(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(text)


@given(st.integers(0, 10_000 * 3600 - 1))
def test_durations_in_hours_minutes_seconds_round_trip(seconds: int) -> None:
    assert units.parse_seconds(units.format_seconds(seconds)) == seconds


@given(st.integers(0, 10**15 - 1))
def test_bytes_round_trip(number: int) -> None:
    assert units.parse_bytes(f"{number}B") == number


class _Quantities(Section):
    size: units.Bytes | None = Field(None)
    speed: units.BitRate | None = Field(None)
    flow: units.ByteRate | None = Field(None)
    time: units.Seconds | None = Field(None)
    cable: units.Metres | None = Field(None)
    every: units.Every | None = Field(None)
    batch: units.GlobalBatch | None = Field(None)


@pytest.mark.parametrize("field", list(_Quantities.model_fields))
@pytest.mark.parametrize("value", ["8", "8.5", '"8"'])
def test_bare_number_is_rejected_without_its_unit(field: str, value: str) -> None:
    with pytest.raises(ValueError, match="unit_missing"):
        _Quantities.model_validate_json(f'{{"{field}": {value}}}')


WRITTEN = st.one_of(
    st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,2})? ?[kMGTPKi]{0,2}(B|b/s|B/s)", fullmatch=True),
    st.from_regex(r"([0-9]{1,3}(ms|[smhdy])){1,3}|[0-9]{1,2}:[0-9]{2}:[0-9]{2}|[0-9]{1,4}k?m", fullmatch=True),
    st.from_regex(r"[0-9]{1,4} ?[kMG]?i? (steps?|tokens?|sequences?)", fullmatch=True),
    st.text(max_size=12),
)


@pytest.mark.slow
@given(st.sampled_from(sorted(_Quantities.model_fields)), WRITTEN)
def test_parser_accepts_only_what_the_published_pattern_allows(field: str, text: str) -> None:
    """The pattern that editors use rejects no text that the parser accepts."""
    try:
        TypeAdapter(_Quantities).validate_python({field: text})
    except ValueError:
        return
    schema = _Quantities.model_json_schema()["properties"][field]
    patterns = [each["pattern"] for each in schema["anyOf"] if "pattern" in each]
    assert any(re.fullmatch(pattern, text) for pattern in patterns)
