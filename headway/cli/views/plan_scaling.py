"""Prints how a job scales, for `headway plan --scaling`: a row and a bar per number of GPUs, and where more stop paying."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.cli.terminal import bar, print_line, print_table
from headway.cli.views.estimates import layout_words
from headway.planner.scaling import Scaling, ScalingPoint

if TYPE_CHECKING:
    from rich.console import Console

_BAR = 16
_TEXTS = ("", "best layout")
# Columns that a narrow terminal drops first; the efficiency has the value that its bar shows.
_DISPENSABLE = ("", "bubble", "sequences", "communication", "goodput")
_GOODPUT = (
    "goodput: each tier saves at its best interval, and lost nodes are replaced at once; `headway simulate` models the wait too"
)
_TITLES = {"strong": "the global batch stays the same", "weak": "the global batch grows with the GPUs"}


def print_scaling(console: "Console", scalings: Sequence[Scaling]) -> None:
    """Each kind of scaling as a table, and in words where more GPUs stop paying."""
    for each in scalings:
        console.print(f"\n[bold]{each.growth} scaling[/]: {_TITLES[each.growth]}")
        print_table(console, [_cells(point, console) for point in each.points], _TEXTS, _DISPENSABLE)
        print_line(console, each.words, hang=2)
    if any(point.goodput is not None for each in scalings for point in each.points):
        console.print()
        print_line(console, _GOODPUT)


def scaling_json(scalings: Sequence[Scaling]) -> Mapping[str, Any]:
    """The same as JSON."""
    return {
        each.growth: {
            "points": [_point_json(point) for point in each.points],
            "pays_to_gpus": each.pays_to,
            "marginal": each.marginal,
            "cost": each.cost,
            "words": each.words,
        }
        for each in scalings
    }


def _point_json(point: ScalingPoint) -> Mapping[str, Any]:
    return {
        "gpus": point.gpus,
        "sequences": point.sequences,
        "layout": None if point.best is None else layout_words(point.best),
        "step_s": None if point.best is None else point.best.step.seconds,
        "tokens_s": point.tokens_s,
        "efficiency": point.efficiency,
        "communication": point.communication,
        "bubble": point.bubble,
        "goodput": point.goodput,
    }


def _cells(point: ScalingPoint, console: "Console") -> dict[str, str]:
    known = point.best is not None
    return {
        "GPUs": f"{point.gpus:,}",
        "sequences": f"{point.sequences:,}",
        "tokens/s": f"{point.tokens_s:,.0f}" if known else "-",
        "communication": f"{point.communication:.1%}" if known else "-",
        "bubble": f"{point.bubble:.1%}" if known else "-",
        "goodput": _goodput(point.goodput),
        "efficiency": f"{point.efficiency:.1%}" if known else "-",
        "": bar(point.efficiency, console, _BAR) if known else "",
        "best layout": "none fits" if point.best is None else layout_words(point.best),
    }


def _goodput(share: float | None) -> str:
    """Never rounded up to a whole that it is not."""
    if share is None:
        return "-"
    return "> 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"
