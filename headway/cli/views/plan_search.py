"""Prints the layouts that a search found, for `headway plan --search`: the fastest, and why others were ruled out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.cli.terminal import print_line, print_table
from headway.cli.views.estimates import estimate_json, layout_words, step_seconds
from headway.planner.estimate import Estimate
from headway.planner.memory.ledger import GIB
from headway.planner.search.frameworks import setting_of
from headway.planner.search.placement import Placement, placements
from headway.planner.search.search import SearchResult, headroom
from headway.report import units

if TYPE_CHECKING:
    from rich.console import Console

# Columns that say nothing where all layouts have this value.
_OPTIONAL = {"cp": "1", "pp": "1", "ep": "1", "schedule": "-", "sharding": "parameters"}
_TEXTS = ("", "schedule", "recompute", "sharding", " ")
# What goes first where a terminal is too narrow for all.
_DISPENSABLE = ("sharding", "schedule", "recompute", "MFU", " ", "free")


def print_search(console: "Console", found: SearchResult, own: Estimate | None = None) -> None:
    """Print the ranked layouts, how they compare with the job's own, how the first is placed on the nodes, and the counts of all others."""
    request = found.request
    console.print(
        f"\n[bold]layouts[/] of {units.count(request.gpus, 'GPU')}, {units.count(request.sequences, 'sequence')} of "
        f"{units.count(request.sequence, 'token')} a step"
    )
    if found.best is None:
        console.print("  none can be used")
    else:
        _print_ranked(console, found)
        if own is not None:
            print_line(console, f"  the job's layout, {_compared(own, found)}", hang=4)
        for placement in placements(found.best.training.degrees, request.network):
            console.print(f"  {_placed(placement)}", markup=False)
    _print_counts(console, found)


def search_json(found: SearchResult) -> Mapping[str, Any]:
    """The result as JSON: layouts as the language has them, each with its estimate."""
    counts = found.counts
    return {
        "gpus": found.request.gpus,
        "sequences": found.request.sequences,
        "sequence": found.request.sequence,
        "ranked": [_layout_json(each, found) for each in found.ranked],
        "counts": {"legal": counts.legal, "unfit": counts.unfit, "slow": counts.slow, "scored": counts.scored},
        "rejections": [{"reason": each.reason, "layouts": each.layouts, "choices": each.choices} for each in found.rejections],
    }


def _layout_json(estimate: Estimate, found: SearchResult) -> Mapping[str, Any]:
    training, degrees = estimate.training, estimate.training.degrees
    return {
        "layout": {
            "pp": degrees.pp,
            "dp_replicate": degrees.dp_replicate,
            "dp_shard": degrees.dp_shard,
            "sharding": setting_of(training.framework, degrees.sharding),
            "cp": degrees.cp,
            "tp": degrees.tp,
            "ep": degrees.ep,
            "sequence_parallel": degrees.sequence_parallel,
            "schedule": degrees.schedule if degrees.pp > 1 else None,
            "virtual_stages": degrees.chunks,
        },
        "micro": training.micro,
        "accumulation": training.accumulation,
        "recompute": training.recompute,
        "free_bytes": headroom(estimate.memory),
        "pareto": estimate in found.pareto,
        "estimate": estimate_json(estimate),
    }


def _print_ranked(console: "Console", found: SearchResult) -> None:
    """A row for each layout; what is alike in all of them and usual has no column."""
    rows = [_cells(estimate, number, estimate in found.pareto) for number, estimate in enumerate(found.ranked, 1)]
    columns = [name for name in rows[0] if name not in _OPTIONAL or any(row[name] != _OPTIONAL[name] for row in rows)]
    print_table(console, [{name: row[name] for name in columns} for row in rows], _TEXTS, _DISPENSABLE)
    print_line(
        console, "  * no faster layout leaves as much memory free; of times within 0.5 %, the simplest layout comes first", hang=4
    )


def _compared(own: Estimate, found: SearchResult) -> str:
    """The job's own layout, and its place in the table or how much longer its step is than the fastest."""
    place = next((number for number, each in enumerate(found.ranked, 1) if each.training == own.training), None)
    words = f"{layout_words(own)}, recompute {own.training.recompute}"
    if place is not None:
        return f"{words}, is number {place}"
    ratio = own.step.seconds / found.ranked[0].step.seconds
    slower = f"{ratio - 1:.0%} longer than number 1" if ratio > 1 else "not longer than number 1"
    room = "" if own.memory.verdict == "fits" else f", and its memory: {own.memory.verdict}"
    return f"{words}: a step of {step_seconds(own.step.seconds)}, {slower}{room}"


def _cells(estimate: Estimate, number: int, pareto: bool) -> dict[str, str]:
    training, degrees, memory = estimate.training, estimate.training.degrees, estimate.memory
    chunks = f" x {degrees.chunks}" if degrees.chunks > 1 else ""
    return {
        "": f"{number}{'*' if pareto else ''}",
        "tp": str(degrees.tp),
        "cp": str(degrees.cp),
        "pp": str(degrees.pp),
        "dp": str(degrees.dp) if degrees.dp_replicate == 1 else f"{degrees.dp_replicate} x {degrees.dp_shard}",
        "ep": str(degrees.ep),
        "schedule": "-" if degrees.pp == 1 else degrees.schedule + chunks,
        "micro": f"{training.accumulation} of {training.micro}",
        "recompute": training.recompute,
        "sharding": degrees.sharding,
        "step": step_seconds(estimate.step.seconds),
        "tokens/s": f"{estimate.tokens_s:,.0f}",
        "MFU": f"{estimate.mfu_causal:.1%}",
        "free": f"{headroom(memory) / GIB:.1f} GiB",
        " ": memory.verdict,
    }


def _placed(placement: Placement) -> str:
    apart = "next to each other" if placement.stride == 1 else f"{placement.stride:,} apart"
    return f"{placement.axis}: {placement.ranks:,} ranks {apart}, {placement.per_node} on a node, over {placement.over}"


def _print_counts(console: "Console", found: SearchResult) -> None:
    counts = found.counts
    legal = units.count(counts.legal, "layout is", "layouts are")
    console.print()
    print_line(
        console,
        f"{legal} legal: {counts.scored:,} scored, {counts.unfit:,} without room in memory, {counts.slow:,} too slow by their bounds",
    )
    for rejection in found.rejections:
        number = units.count(rejection.layouts, "layout") if rejection.layouts else units.count(rejection.choices, "choice")
        print_line(console, f"  {number:>16}  {rejection.reason}", hang=20)
