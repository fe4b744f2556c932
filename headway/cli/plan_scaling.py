"""How a job scales, as `headway plan --scaling` prints it: a row and a bar for each number of GPUs, and where more stop paying."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.cli.plan_search import layout_words
from headway.jobspec.estimate.scaling import Scaling, ScalingPoint

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_BAR = 16
_TITLES = {"strong": "the global batch stays", "weak": "the global batch grows with the GPUs"}


def print_scaling(console: "Console", scalings: Sequence[Scaling]) -> None:
    """Each kind of scaling as a table, and in words where more GPUs stop paying."""
    for each in scalings:
        console.print(f"\n[bold]{each.growth} scaling[/]: {_TITLES[each.growth]}")
        console.print(_table(each))
        console.print(each.words, markup=False, soft_wrap=True)


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


def _table(scaling: Scaling) -> "Table":
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 (only a table for people needs it)
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in ("GPUs", "sequences", "tokens/s", "communication", "bubble", "goodput", "efficiency", "", "best layout"):
        table.add_column(column, justify="left" if column in {"", "best layout"} else "right", no_wrap=True)
    for point in scaling.points:
        table.add_row(*_cells(point))
    return table


def _cells(point: ScalingPoint) -> Iterator[str]:
    yield from (f"{point.gpus:,}", f"{point.sequences:,}")
    if point.best is None:
        yield from ("-", "-", "-", "-", "-", "", "none fits")
        return
    yield f"{point.tokens_s:,.0f}"
    yield from (f"{share:.1%}" for share in (point.communication, point.bubble))
    yield "-" if point.goodput is None else f"{point.goodput:.1%}"
    yield f"{point.efficiency:.1%}"
    yield "█" * round(_BAR * min(1.0, point.efficiency))
    yield layout_words(point.best)
