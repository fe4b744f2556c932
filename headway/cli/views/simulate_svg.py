"""Draws goodput over the checkpoint interval as an SVG picture, one panel per tier."""

import math
from collections.abc import Mapping, Sequence

from headway.planner.goodput.run import SimulatedRun
from headway.planner.goodput.summary import IntervalRow
from headway.report import units
from headway.report.markup import Markup, element

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 640, 260, 56, 36, 40
_PLOT = (_WIDTH - _LEFT - 16, _HEIGHT - _TOP - _BOTTOM)


def picture(run: SimulatedRun, intervals: Mapping[str, Sequence[IntervalRow]]) -> str:
    """The picture: points are simulated, bars hold nine of ten runs, the line is the formula, a ring is the run's own interval."""
    panels = [_panel(index, run, kind, rows) for index, (kind, rows) in enumerate(intervals.items())]
    height = _HEIGHT * max(1, len(panels))
    return element(
        "svg",
        *panels,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height}",
        font_family="sans-serif",
        font_size=12,
    )


def _panel(index: int, run: SimulatedRun, kind: str, rows: Sequence[IntervalRow]) -> Markup:
    x, y = _scales(rows)
    line = " ".join(f"{x(row.interval_s):.1f},{y(row.expected):.1f}" for row in rows)
    own_s = run.tier(kind).interval_s
    parts = [
        element("text", f"goodput over the interval of {kind} checkpoints", x=_LEFT, y=20),
        element("polyline", points=line, fill="none", stroke="#888", stroke_dasharray="4 3"),
        *(_point(row, x(row.interval_s), y, math.isclose(row.interval_s, own_s)) for row in rows),
        *(
            element("text", units.seconds(row.interval_s), x=f"{x(row.interval_s):.1f}", y=_HEIGHT - 16, text_anchor="middle")
            for row in (rows[0], rows[len(rows) // 2], rows[-1])
        ),
        *(element("text", units.share(share), x=_LEFT - 8, y=f"{y(share) + 4:.1f}", text_anchor="end") for share in _ends(rows)),
    ]
    return element("g", *parts, transform=f"translate(0 {index * _HEIGHT})")


def _point(row: IntervalRow, x: float, y: "_Scale", own: bool) -> Markup:
    bar = element(
        "line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=f"{y(row.goodput.low):.1f}", y2=f"{y(row.goodput.high):.1f}", stroke="#27c"
    )
    fill = "none" if own else "#27c"
    dot = element("circle", cx=f"{x:.1f}", cy=f"{y(row.goodput.mean):.1f}", r=5 if own else 3, fill=fill, stroke="#27c")
    return element("g", bar, dot)


class _Scale:
    """A linear map of [low, high] onto pixels."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False) -> None:
        self._convert = math.log if log else float
        self._low, self._high = self._convert(low), self._convert(high)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (self._convert(value) - self._low) / ((self._high - self._low) or 1.0)
        return self._start + share * (self._end - self._start)


def _scales(rows: Sequence[IntervalRow]) -> tuple[_Scale, _Scale]:
    low, high = _ends(rows)
    x = _Scale(rows[0].interval_s, rows[-1].interval_s, _LEFT + 12, _LEFT + _PLOT[0] - 12, log=True)
    return x, _Scale(low, high, _TOP + _PLOT[1], _TOP)


def _ends(rows: Sequence[IntervalRow]) -> tuple[float, float]:
    """The lowest and the highest share to be shown."""
    low = min(min(row.goodput.low, row.expected) for row in rows)
    high = max(max(row.goodput.high, row.expected) for row in rows)
    return low, high
