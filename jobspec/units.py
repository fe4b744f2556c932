"""Parses quantities (`80GiB`, `400Gb/s`, `15m`) into the numbers of plans; a number without its unit is rejected."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

# IEEE 1541 and IEC 80000-13: k, M, G, ... are powers of 1000, Ki, Mi, Gi, ... of 1024. B is a byte, b a bit.
PREFIXES: Mapping[str, int] = {"": 1} | {
    letter + suffix: base**power
    for power, letters in enumerate(("kK", "MM", "GG", "TT", "PP"), 1)
    for letter, suffix, base in ((letters[0], "", 1000), (letters[1], "i", 1024))
}
_SECONDS: Mapping[str, Fraction] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
    "y": Fraction(86400 * 365),
}
_NUMBER = r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,9})?"
_PREFIX = "(?:[kMGTP]|[KMGTP]i)?"
_CLOCK = re.compile(r"([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])")
_STEPS = r"([1-9][0-9]{0,14}) steps?"
_PART = re.compile(rf"({_NUMBER})(ms|[smhdy])")

MISSING_UNIT = "unit_missing"
NOT_A_QUANTITY = "not_a_quantity"


@dataclass(frozen=True)
class Interval:
    """How often: each so many optimizer steps, or each so many seconds; one of the two is set."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Amount:
    """How much one optimizer step reads: sequences, or tokens; one of the two is set."""

    sequences: int | None = None
    tokens: int | None = None


def parse_bytes(text: str) -> int:
    """Return bytes in `80GiB` or `1.2PiB`, rounded to whole ones. Raises ValueError."""
    return _scaled(text, "B")


def parse_bits_per_second(text: str) -> int:
    """Return bits per second in `400Gb/s`. Raises ValueError."""
    return _scaled(text, "b/s")


def parse_bytes_per_second(text: str) -> int:
    """Return bytes per second in `200GB/s`. Raises ValueError."""
    return _scaled(text, "B/s")


def parse_seconds(text: str) -> float:
    """Return seconds in `90s`, `1h30m`, `7d` or `1:30:00` (hours, minutes, seconds). Raises ValueError."""
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = map(int, clock.groups())
        return float(hours * 3600 + minutes * 60 + seconds)
    parts = _PART.findall(text)
    units = [list(_SECONDS).index(unit) for _, unit in parts]
    if not parts or "".join(number + unit for number, unit in parts) != text or units != sorted(set(units), reverse=True):
        raise ValueError(text)
    return float(sum(Fraction(number) * _SECONDS[unit] for number, unit in parts))


def parse_metres(text: str) -> int:
    """Return metres in `5m`, `0.5m` or `1.5km`, rounded up to whole ones. Raises ValueError."""
    found = re.fullmatch(rf"({_NUMBER})(m|km)", text)
    if found is None:
        raise ValueError(text)
    return math.ceil(Fraction(found[1]) * (1000 if found[2] == "km" else 1))


def parse_steps(text: str) -> int:
    """`100 steps`. Raises ValueError."""
    found = re.fullmatch(_STEPS, text)
    if found is None:
        raise ValueError(text)
    return int(found[1])


def parse_interval(text: str) -> Interval:
    """`100 steps`, or a time. Raises ValueError."""
    if re.fullmatch(_STEPS, text):
        return Interval(steps=parse_steps(text))
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise ValueError(text)
    return Interval(seconds=seconds)


def parse_amount(text: str) -> Amount:
    """`2048 sequences` or `16Mi tokens`. Raises ValueError."""
    found = re.fullmatch(rf"({_NUMBER}) ?({_PREFIX}) (sequences?|tokens?)", text)
    if found is None:
        raise ValueError(text)
    number = _whole(Fraction(found[1]) * PREFIXES[found[2]])
    if number < 1:
        raise ValueError(text)
    return Amount(tokens=number) if found[3].startswith("token") else Amount(sequences=number)


def format_seconds(seconds: float) -> str:
    """Return hours, minutes and seconds as schedulers accept them: `1:30:00`; parts of a second count as a whole one."""
    whole = -int(-seconds // 1)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def format_bytes(number: float) -> str:
    """Return bytes in the largest binary unit, with one digit behind the point where it is not whole."""
    for name in ("PiB", "TiB", "GiB", "MiB", "KiB"):
        scale = PREFIXES[name.removesuffix("B")]
        if number >= scale:
            return f"{number / scale:.1f}".removesuffix(".0") + name
    return f"{number:g}B"


def _scaled(text: str, unit: str) -> int:
    """Return the nearest whole number of the unit; parts of a byte or bit are a mistake."""
    found = re.fullmatch(rf"({_NUMBER}) ?({_PREFIX}){re.escape(unit)}", text)
    if found is None:
        raise ValueError(text)
    number = Fraction(found[1]) * PREFIXES[found[2]]
    return _whole(Fraction(round(number)) if found[2] and number >= 1 else number)


def _whole(number: Fraction) -> int:
    if number.denominator != 1 or number >= 1 << 63:
        raise ValueError(number)
    return int(number)


def _reading(what: str, parse: Callable[[str], Any], examples: str) -> BeforeValidator:
    """Parse text; a bare number gets a separate error, because its unit is missing."""

    def read(value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise PydanticCustomError(MISSING_UNIT, "{what}", {"what": what, "examples": examples})
        if not isinstance(value, str):
            raise PydanticCustomError(NOT_A_QUANTITY, "{what}", {"what": what, "examples": examples})
        try:
            return parse(value)
        except ValueError:
            kind = MISSING_UNIT if re.fullmatch(_NUMBER, value) else NOT_A_QUANTITY
            raise PydanticCustomError(kind, "{what}", {"what": what, "examples": examples}) from None

    return BeforeValidator(read)


def _schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"})


_SIZE = f"{_NUMBER} ?{_PREFIX}"
_TIME = rf"[0-9]{{1,4}}:[0-5][0-9]:[0-5][0-9]|(?:{_NUMBER}(?:ms|[smhdy]))+"

Bytes = Annotated[int, _reading("a size in bytes", parse_bytes, "`80GiB` or `1.5TB`"), _schema(f"{_SIZE}B")]
BitRate = Annotated[int, _reading("a speed in bits a second", parse_bits_per_second, "`400Gb/s`"), _schema(f"{_SIZE}b/s")]
ByteRate = Annotated[int, _reading("a speed in bytes a second", parse_bytes_per_second, "`200GB/s`"), _schema(f"{_SIZE}B/s")]
Seconds = Annotated[float, _reading("a time", parse_seconds, "`30s`, `15m`, `1h30m` or `1:30:00`"), _schema(_TIME)]
Metres = Annotated[int, _reading("a length", parse_metres, "`5m`"), _schema(f"{_NUMBER}k?m")]
Steps = Annotated[int, _reading("a number of steps", parse_steps, "`10000 steps`"), _schema(r"[1-9][0-9]{0,14} steps?")]
Every = Annotated[
    Interval,
    _reading("a number of steps or a time", parse_interval, "`100 steps` or `15m`"),
    _schema(rf"[1-9][0-9]{{0,14}} steps?|{_TIME}"),
]
GlobalBatch = Annotated[
    Amount,
    _reading("a number of sequences or of tokens", parse_amount, "`2048 sequences` or `16Mi tokens`"),
    _schema(rf"{_SIZE} (?:sequences?|tokens?)"),
]
