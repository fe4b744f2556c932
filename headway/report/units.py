"""Formats quantities for reports: seconds, bytes, shares, rates and times of day, each with its unit."""

import math
from datetime import UTC, datetime

from headway.jobspec.notation import write_duration

UNKNOWN = "n/a"


def seconds(value: float | None) -> str:
    """`0 s`, `0.42 s`, `11.4 s`; from a minute on as a spec has it: `1m32s`, `2h5m`, `3d4h`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 1:
        return f"{value:.2f} s" if value else "0 s"
    if value < 59.95:
        return f"{value:.1f} s"
    return write_duration(value)


def size(n_bytes: float) -> str:
    """Bytes in powers of 1,000: `812 B`, `3.4 MB`."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.1f} PB"


def share(fraction: float | None) -> str:
    """`86.1 %`; never rounded up to a whole that it is not, nor down to nothing."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    percent = 100 * fraction
    if 99.95 <= percent < 100:
        return "> 99.9 %"
    if 0 < percent < 0.05:
        return "< 0.1 %"
    return f"{percent:.1f} %"


def compact(value: float | None) -> str:
    """A large number: `812`, `10,240`, `1.23 M`, `4.56 G`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 1e6:
        return f"{value:,.0f}"
    return f"{value / 1e6:.3g} M" if value < 1e9 else f"{value / 1e9:,.3g} G"


def loss(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4f}" if math.isfinite(value) and abs(value) < 1e6 else f"{value:.3g}"


def count(n: int | None, noun: str | None = None, plural: str | None = None) -> str:
    """`1 failure`, `2 failures`, `100,000 steps`."""
    if n is None:
        return UNKNOWN
    if noun is None:
        return f"{n:,}"
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def moment(wall: float) -> str:
    """A Unix time as `2025-11-21 07:41:09 UTC`."""
    try:
        return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def clock(wall: float, start: float) -> str:
    """How long after `start`: `+11.4 s`."""
    return "+" + seconds(max(0.0, wall - start))
