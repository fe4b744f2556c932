"""Prints a score as text: the measurements table by table, and the goals last."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.planner.goals import Goal, goals
from benchmarks.planner.intervals import Coverage
from benchmarks.planner.layouts import Choices
from benchmarks.planner.memories import Verdicts
from benchmarks.planner.score import Beside, ByLayout, Counts, Score
from benchmarks.planner.spread import Errors
from benchmarks.planner.times import Kind, Transfer

_IDS = 4


def lines(score: Score) -> Iterator[str]:
    """Yield the whole report."""
    yield from _counts(score.counts)
    yield from _unseen("dense models", score.unseen_sources)
    yield from _unseen("models with experts", score.unseen_sources["experts"])
    yield from _coverage(score.coverage)
    yield from _kind("Step time, dense models", score.dense)
    yield from _transfer(score.transfer)
    yield from _left_one_out(score.left_one_out, "fit")
    yield from _kind("Step time, models with experts", score.experts)
    yield from _transfer(score.transfer_experts)
    yield from _left_one_out((score.left_one_out or {}).get("experts"), "fit_experts")
    yield from _kind("Step time, vtrain-single (in none of the figures above)", score.own_line, tables=False)
    yield from _memory(score)
    yield from _layouts(score)
    yield from _beside(score.beside)
    yield from _goals(goals(score))


def _counts(counts: Counts) -> Iterator[str]:
    yield f"{counts.rows} rows, {counts.complete} complete, {counts.timed} of them with a step time"
    yield "Left out:"
    for reason, ids in counts.left_out.items():
        yield f"  {len(ids):5} {reason} ({_some(ids)})"
    for title, found in (("Not modelled, in rows that count all the same:", counts.not_modelled), ("Assumed:", counts.assumed)):
        if found:
            yield title
            yield from (f"  {number:5} {text}" for text, number in found.items())
    if counts.refused:
        yield "Refused by the planner:"
        yield from (f"  {len(ids):5} {reason} ({_some(ids)})" for reason, ids in counts.refused.items())


def _some(ids: tuple[str, ...]) -> str:
    return ", ".join(ids[:_IDS]) + (", ..." if len(ids) > _IDS else "")


def _kind(title: str, kind: Kind, *, tables: bool = True) -> Iterator[str]:
    yield ""
    yield title
    if kind.pooled is None:
        yield "  no rows"
        return
    yield f"  mean over sources {_share(kind.mean_over_sources)}"
    yield f"  pooled            {_errors(kind.pooled)}"
    if kind.newer is not None:
        yield f"  Hopper or newer   {_errors(kind.newer)}"
    yield f"  intervals of 90 % hold {_share(kind.covered)}; their ends differ by a factor of {kind.width or 0:.2f} (median)"
    if tables:
        yield from _table("source", kind.by_source)
        yield from _table("accelerator", kind.by_gpu)


def _table(head: str, found: Mapping[str, Errors]) -> Iterator[str]:
    width = max((len(name) for name in found), default=0) + 2
    yield f"  {head:{width}} rows    mean  median     p90   worst    bias"
    for name, each in found.items():
        shares = (each.mean, each.median, each.p90, each.worst)
        yield f"  {name:{width}}{each.rows:5} {' '.join(f'{share:7.1%}' for share in shares)} {each.bias:+7.1%}"


def _errors(each: Errors) -> str:
    return f"{each.mean:.1%}, median {each.median:.1%}, p90 {each.p90:.1%}, bias {each.bias:+.1%} ({each.rows} rows)"


def _share(share: float | None) -> str:
    return "not measured" if share is None else f"{share:.1%}"


def _transfer(found: Transfer | None) -> Iterator[str]:
    if found is None:
        return
    yield f"  one row measured, the others of its group predicted: mean over {found.groups} groups {found.mean_over_groups:.1%}"
    yield (
        f"    (of all predictions {found.pooled:.1%}; without the measured row {found.uncalibrated:.1%}; "
        f"worst group: {found.worst_group}, {found.worst:.1%})"
    )


def _unseen(kind: str, found: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"Step time, {kind}, of sources that no constant saw (benchmarks.planner.leave_out, on its own rows)"
    yield f"  mean over sources {_share(found['mean_over_sources'])}, by the naive model {_share(found['naive']['mean_over_sources'])}"
    yield f"  pooled            {_share(found['pooled'])} ({found['rows']} rows), by the naive model {_share(found['naive']['pooled'])}"
    yield "    " + ", ".join(f"{source} {share:.1%}" for source, share in found["by_source"].items())


def _coverage(found: tuple[Coverage, ...]) -> Iterator[str]:
    yield ""
    yield "Intervals of 90 %, of rows whose source none of them saw; ends differ by the factor (median)"
    for each in found:
        yield (
            f"  {each.name:30} {each.rows:4} rows of {each.sources:2} sources: hold {each.held:.1%}, mean over sources "
            f"{each.held_over_sources:.1%}, factor {each.factor:.2f}; naive model {each.naive_held:.1%}, factor {each.naive_factor:.2f}"
        )


def _left_one_out(found: Mapping[str, Any] | None, fit: str) -> Iterator[str]:
    if found is None:
        yield f"  models that no constant saw: `python -m benchmarks.planner.{fit} --leave-one-out` has not measured them"
        return
    if "scales" in found:
        yield f"  models and numbers of GPUs that no constant saw: mean over sources {found['scales']['mean_over_sources']:.1%}"
    elif "models" in found:
        yield f"  a source's models that no constant saw: mean over sources {found['models']['mean_over_sources']:.1%}"


def _memory(score: Score) -> Iterator[str]:
    yield ""
    yield "Peak memory"
    yield from _table("what was printed", score.peaks.by_kind)
    yield from _table("framework", score.peaks.by_framework)
    yield from _table("source", score.peaks.by_source)
    yield ""
    yield "Fits, tight, does not fit: against the rows that ran out of memory, of sources that print both"
    found = score.out_of_memory
    yield from _verdicts("all", found.all)
    yield from _verdicts(found.largest, found.largest_source)
    yield from _verdicts("the others", found.others)


def _verdicts(name: str, found: Verdicts | None) -> Iterator[str]:
    if found is not None:
        yield (
            f"  {name}: {found.rows} rows, {found.out_of_memory} of them ran out of memory: right {_share(found.right)} of what is not "
            f"called tight; called fitting {_share(found.missed)} of those that ran out; called tight {found.tight:.1%}"
        )


def _layouts(score: Score) -> Iterator[str]:
    yield ""
    yield "Choice of a layout: throughput lost against the best measured; what ran out of memory loses all"
    yield from _by_layout("all", score.layouts)
    for source, found in score.layouts_by_source.items():
        yield from _by_layout(source, found)
    yield from _by_layout("vtrain-single (not in all)", score.layouts_own_line)


def _by_layout(name: str, found: ByLayout) -> Iterator[str]:
    if found.ours is None:
        return
    yield f"  {name}: {found.ours.sweeps} sweeps"
    yield from _choices("of what ran", found.ours)
    yield from _choices("of what ran, by the naive model", found.naive)
    yield from _choices("of what ran, by chance", found.chance)
    yield from _choices("of all that is not called too large", found.not_too_large)
    yield from _choices("of all that is called fitting", found.fitting)


def _choices(name: str, found: Choices | None) -> Iterator[str]:
    if found is not None:
        ranks = "" if found.correlation is None else f", rank correlation {found.correlation:.2f}"
        failed = f", {found.out_of_memory:g} ran out of memory" if found.out_of_memory else ""
        yield f"    {name}: mean {found.mean:.1%}, worst {found.worst:.1%}{ranks}{failed}"


def _beside(found: tuple[Beside, ...]) -> Iterator[str]:
    yield ""
    yield "Step time beside peers, on the rows that the peer takes"
    for each in found:
        if each.peer is None or each.ours is None:
            continue
        yield f"  {each.name}: {each.rows} rows, {each.refused} refused"
        yield f"    peer {_share(each.peer_over_sources)} over sources, pooled {_errors(each.peer)}"
        yield f"    ours {_share(each.ours_over_sources)} over sources, pooled {_errors(each.ours)}; ratio {each.ratio or 0:.2f}"


def _goals(found: tuple[Goal, ...]) -> Iterator[str]:
    yield ""
    yield "Goals"
    for goal in found:
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[goal.met]
        yield f"  {verdict:12} {goal.name}: {_share(goal.measured)}, {_wanted(goal)}"


def _wanted(goal: Goal) -> str:
    if goal.least == 0:
        return f"at most {goal.most:.0%}"
    return f"at least {goal.least:.0%}" if goal.most == 1 else f"{goal.least:.0%} to {goal.most:.0%}"
