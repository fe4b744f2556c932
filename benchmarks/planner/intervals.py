"""Writes intervals.yaml from residuals.csv, and measures how many steps of unseen sources such intervals hold.

`python -m benchmarks.planner.intervals`. A row's score is the size of the logarithm of measured over predicted time under constants that
were fitted without its source. An interval reaches to either side as far as the 90 % quantile of the scores, where each source has the
same weight (arXiv 1809.07441: CDF pooling, for a row of a new source). A guarantee (arXiv 2306.06342) would need nine sources or more in
each class; `coverages` measures instead how many rows of unseen sources the intervals hold.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from benchmarks.planner.residuals import LeftOut, Residual, read_residuals
from headway.planner.speed import intervals

_LEVEL = 0.9
# Most rows of an accelerator have others of the same architecture; errors without those alone would make the interval too narrow.
_ACCELERATOR: tuple[LeftOut, ...] = ("accelerator", "architecture")
# The classes of intervals.yaml, by what was taken out with the source.
_CLASSES: Mapping[str, Mapping[str, tuple[LeftOut, ...]]] = {
    "dense": {"usual": ("source",), "accelerator": _ACCELERATOR, "architecture": ("architecture",), "gpus": ("gpus",)},
    "experts": {
        "usual": ("source",),
        "accelerator": _ACCELERATOR,
        "architecture": ("architecture",),
        "gpus": ("gpus",),
        "ep": ("ep",),
    },
}
_HEAD = """\
# Logarithms of measured over estimated time between which 90 % of the steps of a class are (classes: intervals.py), and what was measured.
# Written by `python -m benchmarks.planner.intervals` from benchmarks/planner/residuals.csv.
"""


class Coverage(Struct, frozen=True):
    """The share of `rows` that their intervals hold: of all, and as the mean over `sources`. No interval saw the source of its row, nor
    the architecture where that was taken out. `factor` is the median of upper over lower end; `naive` is the same of the naive model."""

    name: str
    rows: int
    sources: int
    held: float
    held_over_sources: float
    factor: float
    naive_held: float
    naive_factor: float


def reach(scored: Sequence[tuple[str, float]]) -> float:
    """Return the 90 % quantile of the sizes of (source, logarithm)."""
    rows = Counter(source for source, _ in scored)
    sizes = sorted((abs(error), 1 / rows[source]) for source, error in scored)
    left = _LEVEL * sum(weight for _, weight in sizes)
    for size, weight in sizes:
        left -= weight
        if left <= 1e-9:
            return size
    raise ValueError("nothing was measured")


def coverages(residuals: Sequence[Residual] | None = None) -> tuple[Coverage, ...]:
    """Return how many rows of unseen sources are within intervals of all other sources, by what was taken out."""
    found = read_residuals() if residuals is None else residuals
    kinds: tuple[tuple[str, LeftOut, bool], ...] = (
        ("dense, unseen sources", "source", False),
        ("experts, unseen sources", "source", True),
        ("dense, unseen accelerators", "accelerator", False),
        ("experts, unseen accelerators", "accelerator", True),
        ("dense, unseen architectures", "architecture", False),
        ("experts, unseen architectures", "architecture", True),
        ("dense, more GPUs than seen", "gpus", False),
        ("experts, larger ep than seen", "ep", True),
    )
    each = ((name, left_out, [row for row in found if bool(row.ep) == experts]) for name, left_out, experts in kinds)
    return tuple(
        _coverage(name, left_out, rows) for name, left_out, rows in each if any(row.left_out == left_out for row in rows)
    )


def _coverage(name: str, left_out: LeftOut, rows: Sequence[Residual]) -> Coverage:
    ours, naive = (_held(left_out, rows, error) for error in (lambda row: row.planner, lambda row: row.naive))
    return Coverage(name, sum(map(len, ours[0].values())), len(ours[0]), *_shares(*ours), *_shares(*naive)[::2])


def _shares(held: Mapping[str, Sequence[bool]], reaches: Sequence[float]) -> tuple[float, float, float]:
    pooled = statistics.fmean(one for group in held.values() for one in group)
    return pooled, statistics.fmean(map(statistics.fmean, held.values())), math.exp(2 * statistics.median(reaches))


def _held(
    left_out: LeftOut, rows: Sequence[Residual], error: Callable[[Residual], float]
) -> tuple[dict[str, list[bool]], list[float]]:
    """Return whether each row is within its interval, by source, and how far the intervals reach."""
    held, reaches = defaultdict[str, list[bool]](list), list[float]()
    known = dict[tuple[str, str], float]()
    for row in rows:
        if row.left_out != left_out:
            continue
        unseen = row.architecture if left_out in ("accelerator", "architecture") else ""
        if (row.source, unseen) not in known:
            known[row.source, unseen] = _reach_for(left_out, [one for one in rows if one.source != row.source], unseen, error)
        reaches.append(known[row.source, unseen])
        held[row.source].append(abs(error(row)) <= reaches[-1])
    return held, reaches


def _reach_for(left_out: LeftOut, others: Iterable[Residual], unseen: str, error: Callable[[Residual], float]) -> float:
    """Return how far the interval of a row reaches by the rows of other sources: as far as the usual one, or that of its class."""
    taken_out: tuple[LeftOut, ...] = _ACCELERATOR if left_out == "accelerator" else (left_out,)
    usual, like = list[tuple[str, float]](), list[tuple[str, float]]()
    for other in others:
        if other.left_out == "source":
            usual.append((other.source, error(other)))
        if other.left_out in taken_out and other.architecture != unseen:
            like.append((other.source, error(other)))
    return max(reach(usual), reach(like))


def table(residuals: Sequence[Residual]) -> str:
    """Return the text of intervals.yaml."""
    lines = [_HEAD + "classes:"]
    for kind, classes in _CLASSES.items():
        lines.append(f"  {kind}:")
        lines.extend(f"    {name}: {_entry(_of_class(residuals, kind, left_out))}" for name, left_out in classes.items())
    lines.append("measured:")
    for kind in _CLASSES:
        rows = _of_class(residuals, kind, ("source",))
        accelerators = ", ".join(sorted({row.accelerator for row in rows}))
        architectures = ", ".join(sorted({row.architecture for row in rows}))
        ep = f", ep: {max(row.ep for row in rows)}" if kind == "experts" else ""
        lines.append(
            f"  {kind}: {{accelerators: [{accelerators}], architectures: [{architectures}], gpus: {max(row.gpus for row in rows)}{ep}}}"
        )
    return "\n".join(lines) + "\n"


def _of_class(residuals: Sequence[Residual], kind: str, left_out: tuple[LeftOut, ...]) -> list[Residual]:
    """Return the rows of a class; those on many GPUs are of both kinds, since few have experts."""
    of_kind = (row for row in residuals if row.left_out == "gpus" or bool(row.ep) == (kind == "experts"))
    return [row for row in of_kind if row.left_out in left_out]


def _entry(rows: Sequence[Residual]) -> str:
    size = reach([(row.source, row.planner) for row in rows])
    return f"{{interval: [{-size:.3f}, {size:.3f}], rows: {len({row.id for row in rows})}, sources: {len({row.source for row in rows})}}}"


def main() -> None:
    """The command."""
    intervals.FILE.write_text(table(read_residuals()), encoding="utf-8")


if __name__ == "__main__":
    main()
