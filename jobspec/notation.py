"""Writes quantities as text, the inverse of `units`, and limits in words."""

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

from msgspec import Struct
from pydantic import WithJsonSchema

from headway.jobspec import units

_DECIMAL = {letter: 1000**power for power, letter in enumerate("kMGTP", 1)}
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTP", 1)}
_PARTS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Notation(Struct, frozen=True):
    """One type of quantity: its name with its article, its accepted notation, and how a value of it is written."""

    article: str
    name: str
    about: str
    examples: tuple[str, ...]
    write: Callable[[Any], str]


def write_bytes(number: int) -> str:
    """`80GiB`, `1500MB`: in the largest unit that leaves a whole number."""
    return _in_largest(number, {**_DECIMAL, **_BINARY}, "B")


def write_bits_per_second(number: int) -> str:
    """`400Gb/s`."""
    return _in_largest(number, _DECIMAL, "b/s")


def write_bytes_per_second(number: int) -> str:
    """`200GB/s`."""
    return _in_largest(number, _DECIMAL, "B/s")


def write_seconds(seconds: float) -> str:
    """Write `90s`, `7d`; fractions of a millisecond are lost."""
    return _in_largest(round(seconds * 1000), _MILLISECONDS) if seconds else "0s"


def write_duration(seconds: float) -> str:
    """Return a time in days, hours, minutes and seconds as a spec may have it, the two largest parts: `2h41m`, `7d`."""
    largest = next((at for at, (_, scale) in enumerate(_PARTS) if round(seconds) >= scale), len(_PARTS) - 1)
    shown = _PARTS[largest : largest + 2]
    return write_parts(round(seconds / shown[-1][1]) * shown[-1][1])


def write_parts(seconds: float) -> str:
    """Return a time in days, hours, minutes and seconds, those that are not zero: `1d12h30m`; parts of a second count as a whole one."""
    parts, left = [], math.ceil(seconds)
    for unit, scale in _PARTS:
        count, left = divmod(left, scale)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def write_metres(metres: int) -> str:
    """`40m`."""
    return f"{metres}m"


def write_steps(steps: int) -> str:
    """`100 steps`."""
    return counted(steps, "step")


def write_interval(interval: units.Interval) -> str:
    """`100 steps`, `15m`."""
    return write_seconds(interval.seconds) if interval.seconds is not None else write_steps(interval.steps or 0)


def write_amount(amount: units.Amount) -> str:
    """`2048 sequences`, `16Mi tokens`."""
    return counted(amount.sequences or 0, "sequence") if amount.tokens is None else _in_largest(amount.tokens, _BINARY, " tokens")


def _in_largest(number: int, scales: Mapping[str, int], unit: str = "") -> str:
    fitting = [(scale, name) for name, scale in scales.items() if number and number % scale == 0]
    scale, name = max(fitting, default=(1, ""))
    return f"{number // scale}{name}{unit}"


_PREFIXES = "With k, M, G, T, P (1000) or Ki, Mi, Gi, Ti, Pi (1024) before the unit, or neither"
_TIME = "Years of 365 days, days, hours, minutes, seconds, milliseconds, in this order; or hours:minutes:seconds"

_QUANTITIES: tuple[tuple[Any, Notation], ...] = (
    (units.Bytes, Notation("a", "size", f"{_PREFIXES}; `B` is a byte; rounded to whole bytes", ("80GiB", "1.5TB"), write_bytes)),
    (units.BitRate, Notation("a", "link speed", "Bits a second, with the same prefixes", ("400Gb/s",), write_bits_per_second)),
    (units.ByteRate, Notation("a", "rate", "Bytes a second, with the same prefixes", ("200GB/s",), write_bytes_per_second)),
    (units.Seconds, Notation("a", "time", _TIME, ("90s", "1h30m", "7d", "1:30:00"), write_seconds)),
    (units.Metres, Notation("a", "length", "Metres or kilometres, rounded up to whole metres", ("5m", "1.5km"), write_metres)),
    (units.Steps, Notation("a", "number of steps", "Optimizer steps", ("10000 steps",), write_steps)),
    (units.Every, Notation("an", "interval", "A number of optimizer steps, or a time", ("100 steps", "15m"), write_interval)),
    (
        units.GlobalBatch,
        Notation(
            "an", "amount", "Sequences or tokens, with the prefixes of a size", ("2048 sequences", "16Mi tokens"), write_amount
        ),
    ),
)


def _pattern(quantity: Any) -> str:
    """Return what JSON Schema has of the type."""
    schemas = (each.json_schema or {} for each in get_args(quantity) if isinstance(each, WithJsonSchema))
    return next(str(schema["pattern"]) for schema in schemas)


_BY_PATTERN: Mapping[str, Notation] = {_pattern(quantity): notation for quantity, notation in _QUANTITIES}
NOTATIONS: tuple[Notation, ...] = tuple(_BY_PATTERN.values())


def notation_of(schema: Mapping[str, Any]) -> Notation | None:
    """Return the notation of the quantity in the JSON Schema, or in one of its alternatives; None if it has none."""
    patterns = (each.get("pattern", "") for each in (schema, *schema.get("anyOf", ())))
    return next((_BY_PATTERN[pattern] for pattern in patterns if pattern in _BY_PATTERN), None)


def bounds(least: str | None, above: str | None, most: str | None, below: str | None) -> str:
    """Return limits in words, for example `1 to 8`; empty where there are none."""
    if least is not None and most is not None:
        return f"{least} to {most}"
    limits = {"at least": least, "more than": above, "at most": most, "less than": below}
    return ", ".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)
