"""Writes the results of `python -m benchmarks.planner` as Markdown: figures with goals, errors by source, memory, choices, peers."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import yaml

import benchmarks.planner
from benchmarks.planner.goals import goals
from benchmarks.planner.layouts import Choices
from benchmarks.planner.memories import Verdicts
from benchmarks.planner.peers import PYTHON
from benchmarks.planner.predict import Predicted
from benchmarks.planner.rows import OWN_LINE, read
from benchmarks.planner.score import Score, score
from benchmarks.planner.spread import Errors
from benchmarks.planner.times import Kind, Timed, timed
from headway.jobspec.markdown import table

_SOURCES = Path(benchmarks.planner.__file__).with_name("sources.yaml")
_WRONG = 0.1
_WORST = 16
_MET = {True: "yes", False: "**no**", None: "not measured"}
_ERRORS = ("rows", "mean", "median", "90th percentile", "worst", "bias")


@cache
def measured() -> tuple[Score, list[Predicted]]:
    """Run the benchmark over the published rows once, with llm-analysis if it is installed. Raises OSError and MeasureError."""
    return score(read(), PYTHON.is_file())


def headline() -> str:
    """Return the figures of a dense step and of memory in one sentence."""
    found, _ = measured()
    steps, peaks, unseen = found.dense.pooled, found.peaks.known, found.unseen_sources
    assert steps is not None
    assert peaks is not None
    held = {each.name: each.held for each in found.coverage}
    return (
        f"On sources that no constant was fitted on, the time of a step has a mean error of {unseen['pooled']:.1%} for dense models "
        f"({unseen['rows']} published steps; {unseen['mean_over_sources']:.1%} as the mean over sources; one utilization per accelerator "
        f"and format: {unseen['naive']['pooled']:.1%}) and of {unseen['experts']['pooled']:.1%} with experts ({unseen['experts']['rows']} "
        f"steps; {unseen['experts']['mean_over_sources']:.1%} over sources). The printed intervals of 90% hold "
        f"{held['dense, unseen sources']:.1%} and {held['experts, unseen sources']:.1%} of these steps. On the rows that the constants "
        f"were fitted on, the error of a dense step is {steps.mean:.1%}. Compared with {peaks.rows} published peaks of memory, the mean "
        f"error is {peaks.mean:.1%}."
    )


def scores_markdown() -> str:
    """Return the whole section."""
    found, predictions = measured()
    return "\n\n".join(
        [
            *_rows(found, predictions),
            "### What was measured",
            _goals(found),
            "### Sources that no constant saw",
            *_unseen(found),
            "### Intervals",
            _coverage(found),
            "### Step time, dense models",
            _by_source(found.dense),
            *_wrong(found.dense),
            "### Step time, models with experts",
            _by_source(found.experts),
            *_wrong(found.experts),
            *_own_line(found.own_line),
            "### The worst rows",
            _worst(predictions),
            "### Memory",
            _memory(found),
            _verdicts(found),
            "### Choice of a layout",
            _choices(found),
        ]
    )


def peers_markdown() -> str:
    """Return the peers' errors on the rows that they accept."""
    return _peers(measured()[0])


def transfer_markdown() -> str:
    """Return how well one measured row of a group predicts the others."""
    found, _ = measured()
    kinds = (("dense", found.transfer), ("with experts", found.transfer_experts))
    rows = (
        (
            name,
            str(each.groups),
            _share(each.uncalibrated),
            _share(each.mean_over_groups),
            f"{each.worst_group}: {_share(each.worst)}",
        )
        for name, each in kinds
        if each is not None
    )
    return table(("models", "groups", "error without", "with one measured step", "worst group"), rows)


def sources_markdown() -> str:
    """Return each source with the profile for its rows."""
    found, _ = measured()
    named = {*found.dense.by_source, *found.experts.by_source, *found.own_line.by_source, *found.peaks.by_source}
    known = yaml.safe_load(_SOURCES.read_text(encoding="utf-8"))
    rows = ((source, each["framework"], each["because"]) for source, each in known.items() if source in named)
    return table(("source", "framework", "who measured, and why this profile"), rows)


def _rows(found: Score, predictions: list[Predicted]) -> Iterator[str]:
    counts = found.counts
    kinds: Counter[str] = Counter()
    for reason, ids in counts.left_out.items():
        kinds[reason.split(":")[0]] += len(ids)
    left_out = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    gpus = [each.training.gpus for each in predictions if each.row.timed]
    yield (
        f"{counts.rows:,} rows, of 1 to {max(gpus):,} GPUs; {counts.complete:,} are complete, {counts.timed:,} of these say how long a "
        f"step took. Left out: {left_out}."
    )


def _goals(found: Score) -> str:
    rows = (
        (
            goal.name,
            _share(goal.measured),
            f"{goal.least:.0%} to {goal.most:.0%}" if goal.least else f"at most {goal.most:.0%}",
            _MET[goal.met],
        )
        for goal in goals(found)
    )
    return table(("what", "measured", "wanted", "reached"), rows)


def _by_source(kind: Kind) -> str:
    rows = [(source, *_cells(each)) for source, each in kind.by_source.items()]
    if kind.pooled is not None:
        rows.append(("all", *_cells(kind.pooled)))
    return table(("source", *_ERRORS), rows)


def _wrong(kind: Kind) -> Iterator[str]:
    """Yield the sources with the largest errors."""
    wrong = {source: each for source, each in kind.by_source.items() if each.mean > _WRONG}
    if wrong:
        yield (
            "Wrong by more than 10 % on the mean: "
            + ", ".join(f"{source} ({each.mean:.0%})" for source, each in wrong.items())
            + "."
        )


def _own_line(kind: Kind) -> Iterator[str]:
    """Yield the source that no table includes."""
    if kind.pooled is not None:
        yield f"{OWN_LINE}: {kind.pooled.mean:.1%} on the mean of {kind.pooled.rows:,} rows, bias {kind.pooled.bias:+.1%}."


def _worst(predictions: list[Predicted]) -> str:
    rows = [row for row in timed(predictions) if row.predicted.row.source != OWN_LINE]
    rows.sort(key=lambda row: -abs(row.seconds / row.measured - 1))
    return table(("row", "framework", "model", "GPUs", "layout", "microbatches", "error"), map(_row, rows[:_WORST]))


def _row(row: Timed) -> tuple[str, ...]:
    published, training = row.predicted.row, row.predicted.training
    degrees = training.degrees
    stages = f"{degrees.pp} x {degrees.chunks}" if degrees.chunks > 1 else str(degrees.pp)
    sizes = {"tp": degrees.tp, "cp": degrees.cp, "pp": stages, "dp": degrees.dp, "ep": degrees.ep}
    return (
        published.id,
        training.framework,
        published.model,
        f"{training.gpus:,} {published.gpu}",
        ", ".join(f"{name} {size}" for name, size in sizes.items() if str(size) != "1"),
        f"{training.accumulation} of {training.micro}",
        f"{row.seconds / row.measured - 1:+.0%}",
    )


def _unseen(found: Score) -> Iterator[str]:
    """Yield rows outside every fit, of dense models and of models with experts."""
    dense, experts = found.unseen_sources, found.unseen_sources["experts"]
    rows = (
        (
            name,
            str(each["rows"]),
            _share(each["pooled"]),
            _share(each["mean_over_sources"]),
            _share(each["naive"]["pooled"]),
            _share(each["naive"]["mean_over_sources"]),
        )
        for name, each in (("dense", dense), ("with experts", experts))
    )
    yield table(
        ("models", "rows", "error, pooled", "mean over sources", "naive model, pooled", "naive model, over sources"), rows
    )
    for name, each in (("Dense", dense), ("With experts", experts)):
        by_source = ", ".join(f"{source} {share:.1%}" for source, share in each["by_source"].items())
        yield f"{name}: {by_source}."
    left = found.left_one_out
    if left is not None:
        yield (
            "By fifths that the fit did not see, mean over sources: groups of a source, model, accelerator and number of GPUs "
            f"{left['scales']['mean_over_sources']:.1%}, models of a source {left['models']['mean_over_sources']:.1%}. With experts, each "
            f"model of a source left out alone: {left['experts']['models']['mean_over_sources']:.1%}, mean over sources."
        )


def _coverage(found: Score) -> str:
    """Return how many steps of unseen sources are within their intervals."""
    rows = (
        (
            each.name,
            str(each.rows),
            str(each.sources),
            _share(each.held),
            _share(each.held_over_sources),
            f"{each.factor:.2f}",
            _share(each.naive_held),
            f"{each.naive_factor:.2f}",
        )
        for each in found.coverage
    )
    head = (
        "steps",
        "rows",
        "sources",
        "held",
        "mean over sources",
        "upper / lower end",
        "naive model: held",
        "upper / lower end",
    )
    return table(head, rows)


def _memory(found: Score) -> str:
    kinds: tuple[tuple[str, Mapping[str, Errors]], ...] = (
        ("printed as", found.peaks.by_kind),
        ("framework", found.peaks.by_framework),
    )
    rows = [(f"{title} {name}", *_cells(each)) for title, kind in kinds for name, each in kind.items()]
    return table(("peak memory", *_ERRORS), rows)


def _verdicts(found: Score) -> str:
    said = found.out_of_memory
    named = (("all", said.all), (said.largest, said.largest_source), ("the others", said.others))
    head = (
        "of sources that print what ran out of memory",
        "rows",
        "ran out",
        "right, of what is not `tight`",
        "`fits`, of what ran out",
        "`tight`",
    )
    return table(head, (_verdict(name, each) for name, each in named if each is not None))


def _verdict(name: str, each: Verdicts) -> tuple[str, ...]:
    return name, str(each.rows), str(each.out_of_memory), _share(each.right), _share(each.missed), _share(each.tight)


def _choices(found: Score) -> str:
    groups = {"all": found.layouts, **found.layouts_by_source, "vtrain-single (not in all)": found.layouts_own_line}
    rows = (
        (name, str(each.ours.sweeps), _lost(each.ours), _lost(each.fitting), _lost(each.naive), _lost(each.chance))
        for name, each in groups.items()
        if each.ours is not None
    )
    return table(("source", "sweeps", "chosen", "chosen of what `fits`", "by the naive model", "by chance"), rows)


def _lost(choices: Choices | None) -> str:
    return "-" if choices is None else f"{choices.mean:.1%} ({choices.worst:.1%})"


def _peers(found: Score) -> str:
    rows = (
        (each.name, str(each.rows), str(each.refused), _share(each.peer.mean), _share(each.ours.mean))
        for each in found.beside
        if each.peer is not None and each.ours is not None
    )
    return table(("peer", "rows", "refused", "its mean error", "headway's on the same rows"), rows)


def _cells(each: Errors) -> tuple[str, ...]:
    return (str(each.rows), *(_share(share) for share in (each.mean, each.median, each.p90, each.worst)), f"{each.bias:+.1%}")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
