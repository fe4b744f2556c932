"""Turns a summary into the block that ends `headway run` and `headway report` on the terminal."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headway.report import units, wording
from headway.report.buckets import bucket
from headway.report.summary import SCRIPT, FailureSummary, RunSummary

_BAR_CELLS = 24
_LONGEST_LIST = 10
_STYLES = {"good": "green", "warn": "yellow", "bad": "red"}

T = TypeVar("T")


def print_summary(summary: RunSummary, console: Console | None = None) -> None:
    """Prints the block on `console`, or on stdout. It reads without colour and at 40 columns."""
    console = console or Console(highlight=False)
    console.print(
        Text.assemble(_text(summary.run, "bold"), "  ", _text(wording.verdict(summary), _STYLES[wording.tone(summary)]))
    )
    console.print(Padding(_rows(summary, bars=console.encoding.startswith("utf")), (0, 0, 0, 2)))
    console.print(_text(wording.bottom_line(summary), "bold"))


def _rows(summary: RunSummary, bars: bool) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in _named_rows(summary, bars):
        table.add_row(name, value)
    return table


def _named_rows(summary: RunSummary, bars: bool) -> Iterator[tuple[str, RenderableType]]:
    if summary.cause and summary.exit_code:
        yield "cause", _text(summary.cause)
    yield "loss", _text(_loss(summary))
    yield "run", _text(_run(summary))
    if summary.throughput is not None:
        yield "speed", _text(wording.speed(summary.throughput))
        yield "memory", _text(wording.memory(summary.throughput))
    if summary.planned_step is not None:
        yield "", _text(wording.planned(summary.planned_step))
    if summary.trainer == SCRIPT and summary.spec_hash:
        # One that was typed as torchrun has printed right here.
        yield "output", _text(f"attempts/{summary.attempts - 1}/logs/SLOT/RANK.log")
    yield from _titled("failures", summary.failures, _failure)
    yield from _titled("events", summary.events, lambda event: _text(event.text))
    yield "goodput", _text(_goodput(summary))
    if summary.buckets:
        yield "", _bucket_table(summary, bars)
    if summary.commits:
        yield "checkpoints", _text(_checkpoints(summary))
    yield from _titled("refused", summary.refused, lambda found: _text(f"{found.path}: {found.reason}", "yellow"))
    yield from _titled("hashes", tuple((summary.hashes or {}).items()), lambda item: _text(f"{item[0]:<10}  {item[1]}"))


def _titled(title: str, items: Sequence[T], shown: Callable[[T], Text]) -> Iterator[tuple[str, RenderableType]]:
    """One row an item, the title before the first; of a long list the newest, and how many came before."""
    left_out = max(0, len(items) - _LONGEST_LIST)
    rows = [_text(f"{left_out:,} earlier ones are in the HTML report")] if left_out else []
    rows += [shown(item) for item in items[left_out:]]
    yield from zip([title, *[""] * (len(rows) - 1)], rows, strict=True) if rows else ()


def _loss(summary: RunSummary) -> str:
    if summary.first_loss is None:
        return f"none recorded; {wording.steps(summary)}"
    return f"{units.loss(summary.first_loss)} -> {units.loss(summary.last_loss)} in {wording.steps(summary)}"


def _run(summary: RunSummary) -> str:
    parts = [
        units.count(summary.attempts, "attempt"),
        units.count(summary.generations, "generation"),
        wording.gang(summary),
        units.seconds(summary.wall_s),
    ]
    return ", ".join([*parts, *([f"{units.compact(summary.tokens_per_s)} tokens/s"] if summary.tokens_per_s else [])])


def _failure(failure: FailureSummary) -> Text:
    place, reached = wording.place(failure), wording.reached(failure)
    named = _text(failure.cause + (f", {place}" if place else ""), "red")
    return Text.assemble(named, f" {reached}" if reached else "", f": {wording.cost(failure)}")


def _goodput(summary: RunSummary) -> str:
    if summary.goodput is None:
        return "unknown: no generation has closed its ledger"
    return f"{units.share(summary.goodput)} of {wording.goodput_base(summary)}{_spares(summary)}"


def _spares(summary: RunSummary) -> str:
    """`; spares were idle for 30.0 s, 33.3 % of all nodes' time`."""
    if not summary.spare_idle_s:
        return ""
    share = units.share(summary.spare_idle_s / summary.node_s)
    return f"; spares were idle for {units.seconds(summary.spare_idle_s)}, {share} of all nodes' time"


def _bucket_table(summary: RunSummary, bars: bool) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="crop")
    for name, spent_s in _shown_buckets(summary):
        fraction = spent_s / summary.wall_s if summary.wall_s else 0.0
        table.add_row(name, units.seconds(spent_s), units.share(fraction), _bar(fraction) if bars else "")
    return table


def _shown_buckets(summary: RunSummary) -> Iterator[tuple[str, float]]:
    yield from ((bucket(name).label, spent_s) for name, spent_s in summary.buckets.items() if spent_s > 0)
    if summary.not_recorded_s >= 0.05:
        yield "not recorded", summary.not_recorded_s


def _bar(fraction: float) -> str:
    return "\N{FULL BLOCK}" * round(_BAR_CELLS * min(1.0, max(0.0, fraction)))


def _checkpoints(summary: RunSummary) -> str:
    newest = max(summary.commits, key=lambda commit: (commit.stands, commit.generation, commit.step))
    files = "" if newest.files is None else f" in {units.count(newest.files, 'file')},"
    saved = f"{units.size(newest.bytes)}{files} in {units.seconds(newest.save_s)}"
    return f"{len(summary.commits):,} committed, the newest at step {newest.step:,} ({saved})"


def _text(value: str, style: str = "") -> Text:
    """Text of which nothing is markup and no control character reaches the terminal."""
    return Text("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value), style)
