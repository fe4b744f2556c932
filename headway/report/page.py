"""Turns a summary into one self-contained HTML page, whose only script shows the curve's values on hover."""

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headway.report import curve, timeline, units, wording
from headway.report.costs import FailureCost
from headway.report.events import Event
from headway.report.markup import Child, Markup, element, join, raw
from headway.report.summary import SCRIPT, CommitSummary, FailureSummary, RefusedCheckpoint, RunSummary

LONGEST_TABLE = 100
LONGEST_LIST = 8
_FOLDER = Path(__file__).parent


def write_page(summary: RunSummary, path: Path) -> None:
    """Writes the page to `path`, whole or not at all. Raises OSError where the folder cannot be written."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        temporary.write_text(render_page(summary), encoding="utf-8", errors="replace")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def render_page(summary: RunSummary) -> str:
    """The page as text; the same summary gives the same bytes."""
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    body = element("body", element("main", _header(summary), *_sections(summary)), raw("script", script))
    return "<!doctype html>\n" + element("html", _head(summary, script), body, lang="en") + "\n"


def _head(summary: RunSummary, script: str) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{summary.run}: {wording.verdict(summary)}"),
        raw("style", (_FOLDER / "page.css").read_text(encoding="utf-8")),
    )


def _policy(script: str) -> str:
    """Restrict the browser to this one script and no other source, whatever the records hold."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _header(summary: RunSummary) -> Markup:
    title = element("div", element("p", summary.job, class_="job"), element("h1", summary.run))
    badge = element("p", wording.verdict(summary), class_=f"verdict {wording.tone(summary)}")
    cause = element("p", summary.cause, class_="cause") if summary.cause else None
    return element(
        "header",
        element("div", title, badge, class_="top"),
        cause,
        element("p", wording.bottom_line(summary), class_="bottom-line"),
    )


def _sections(summary: RunSummary) -> Iterator[Markup]:
    yield element("section", element("dl", *(_key_figure(*figure) for figure in _key_figures(summary)), class_="figures"))
    yield _section("Loss", curve.figure(summary))
    yield _section("Where the time went", timeline.goodput_bar(summary))
    yield _section("Generations", timeline.timeline(summary))
    yield _section("Failures", _costs(summary), _failures(summary))
    if summary.events:
        yield _section("Events", _events(summary))
    yield _section("Checkpoints", _refused(summary), _commits(summary))
    yield _section("Hashes of the final state", _hashes(summary))
    yield _section("Run", element("dl", *(_fact(*fact) for fact in _identity(summary)), class_="facts"))


def _section(title: str, *children: Child) -> Markup:
    return element("section", element("h2", title), *children)


# --- key figures ------------------------------------------------------------------------------------------------------


def _key_figures(summary: RunSummary) -> Iterator[tuple[str, str, str]]:
    """A label, its value, and the small print."""
    yield "Loss", _loss_change(summary), wording.steps(summary)
    yield "Goodput", units.share(summary.goodput), _goodput_base(summary)
    yield "Lost to failures", units.seconds(summary.lost_s), units.count(len(summary.failures), "failure")
    yield "Throughput", units.compact(summary.tokens_per_s), "tokens/s while stepping"
    if (found := summary.throughput) is not None:
        yield "Step", units.seconds(found.step_s), _step_print(summary)
        if found.mfu_causal is not None:
            yield (
                "MFU",
                units.share(found.mfu_causal),
                f"of the peak in bf16; {units.share(found.mfu_full)} with attention's full square",
            )
        yield "Memory", *_memory_print(summary)
        if found.exposed is not None:
            yield "Exposed communication", units.share(found.exposed), "of the steps, on rank 0"
    yield "Generations", units.count(summary.generations), f"in {units.count(summary.attempts, 'attempt')}"


def _step_print(summary: RunSummary) -> str:
    assert summary.throughput is not None  # noqa: S101
    rate = wording.rate(summary.throughput)
    told = "median" if rate is None else f"median; {rate}"
    return told if summary.planned_step is None else f"{told}; {wording.planned_time(summary.planned_step)}"


def _memory_print(summary: RunSummary) -> tuple[str, str]:
    found, planned = summary.throughput, summary.planned_step
    assert found is not None  # noqa: S101
    if found.device_bytes is None:
        return units.size(found.memory_bytes), "resident, of rank 0's process"
    told = "" if planned is None else f"; planned: {units.size(planned.memory_bytes)}"
    return units.size(found.device_bytes), f"in tensors on rank 0's GPU{told}"


def _goodput_base(summary: RunSummary) -> str:
    told = f"of {wording.goodput_base(summary)}"
    return f"{told}; {wording.ettr(summary)}" if summary.buckets.get("queue") else told


def _loss_change(summary: RunSummary) -> str:
    if summary.first_loss is None:
        return units.UNKNOWN
    return f"{_short(summary.first_loss)} \u2192 {_short(summary.last_loss)}"


def _short(loss: float | None) -> str:
    return units.UNKNOWN if loss is None else f"{loss:.3g}"


def _key_figure(name: str, value: str, small: str) -> Markup:
    return element("div", element("dt", name), element("dd", value), element("dd", small, class_="small"))


# --- tables -----------------------------------------------------------------------------------------------------------


def _costs(summary: RunSummary) -> Markup | None:
    if not summary.costs:
        return None
    heads = ("Cause", "Failures", "FailureCost", "Share of the time")
    return _table("What failures cost, by cause", heads, (_cost_row(cost, summary) for cost in summary.costs), numbers={1, 2, 3})


def _cost_row(cost: FailureCost, summary: RunSummary) -> Markup:
    share = None if cost.seconds is None or summary.wall_s <= 0 else cost.seconds / summary.wall_s
    return _row((cost.kind, units.count(cost.count), units.seconds(cost.seconds), units.share(share)))


def _events(summary: RunSummary) -> Markup:
    heads = ("When", "Generation", "Kind", "What happened")
    shown = summary.events[-LONGEST_TABLE:]
    rows = (_event_row(event, summary.submitted_at) for event in shown)
    return join(_left_out(len(summary.events) - len(shown), "event"), _table("Events", heads, rows, numbers={0, 1}, wide=3))


def _event_row(event: Event, submitted_at: float) -> Markup:
    files = (element("code", name) for name in event.evidence[:LONGEST_LIST])
    told = join(event.text, *(join(" ", file) for file in files))
    return _row((units.clock(event.wall, submitted_at), f"{event.generation}", event.kind, told))


def _failures(summary: RunSummary) -> Markup:
    if not summary.failures:
        return element("p", "None.", class_="nothing")
    heads = ("#", "When", "Generation", "Cause", "Where", "At step", "Resumed from", "Steps lost", "Recovered in")
    rows = (_failure_row(number, failure, summary) for number, failure in enumerate(summary.failures, start=1))
    return _table("Failures", heads, rows, numbers={0, 2, 5, 6, 7, 8}, wide=3)


def _failure_row(number: int, failure: FailureSummary, summary: RunSummary) -> Markup:
    cells = (
        f"{number}",
        units.clock(failure.wall, summary.submitted_at),
        f"{failure.generation}",
        failure.cause,
        wording.place(failure) or units.UNKNOWN,
        units.count(failure.at_step) if failure.own_steps is None else wording.reached(failure),
        units.count(failure.resumed_from_step),
        units.count(failure.lost_steps),
        units.seconds(failure.recovered_s),
    )
    return _row(cells, id=f"failure-{number}")


def _refused(summary: RunSummary) -> Markup | None:
    if not summary.refused:
        return None
    heads = ("Refused", "Saved at step", "By generation", "Reason", "Noticed by generation")
    return _table("Refused checkpoints", heads, (_refused_row(found) for found in summary.refused), numbers={1, 2, 4}, wide=3)


def _refused_row(found: RefusedCheckpoint) -> Markup:
    name = element("code", found.path)
    return _row((name, units.count(found.step), f"{found.generation}", found.reason, f"{found.noticed_in}"), class_="refused")


def _commits(summary: RunSummary) -> Markup:
    if not summary.commits:
        own = ": the script keeps its own" if summary.trainer == SCRIPT else ""
        return element("p", f"None was committed{own}.", class_="nothing")
    heads = ("Step", "Generation", "When", "Size", "Saved in", "State")
    shown = summary.commits[-LONGEST_TABLE:]
    rows = (_commit_row(commit, summary.submitted_at) for commit in shown)
    return join(
        _left_out(len(summary.commits) - len(shown), "checkpoint"),
        _table("Committed checkpoints", heads, rows, numbers={0, 1, 3, 4}, wide=5),
    )


def _left_out(rows: int, name: str) -> Markup | None:
    return element("p", f"{units.count(rows, f'earlier {name}')} not shown.", class_="note") if rows else None


def _commit_row(commit: CommitSummary, submitted_at: float) -> Markup:
    cells = (
        units.count(commit.step),
        f"{commit.generation}",
        units.clock(commit.wall, submitted_at),
        units.size(commit.bytes),
        units.seconds(commit.save_s),
        _state(commit),
    )
    return _row(cells, class_="refused" if commit.refused else None)


def _state(commit: CommitSummary) -> str:
    if commit.refused:
        return "refused"
    if commit.resumed:
        words = "resumed from here" if commit.stands else "resumed from here, later taken back"
    else:
        words = "stands" if commit.stands else "taken back by a resume"
    if commit.retired:
        return "deleted, newer ones are kept" if words == "stands" else f"{words}; deleted"
    return words


def _table(label: str, heads: Sequence[str], rows: Iterable[Markup], numbers: set[int], wide: int | None = None) -> Markup:
    """A table that scrolls by itself where the screen is narrow; `numbers` are set flush right, `wide` takes the room left."""
    cells = (element("th", head, scope="col") for head in heads)
    classes = [f"r{column + 1}" for column in sorted(numbers)] + ([] if wide is None else [f"w{wide + 1}"])
    table = element("table", element("thead", element("tr", *cells)), element("tbody", *rows), class_=" ".join(classes))
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def _row(cells: Iterable[Child], id: str | None = None, class_: str | None = None) -> Markup:  # noqa: A002
    return element("tr", *(element("td", cell) for cell in cells), id=id, class_=class_)


# --- identity ---------------------------------------------------------------------------------------------------------


def _hashes(summary: RunSummary) -> Markup:
    if not summary.hashes:
        return element("p", "None recorded: the builtin trainer writes them when the run finishes.", class_="nothing")
    facts = (_fact(name, element("code", digest)) for name, digest in summary.hashes.items())
    return element("dl", *facts, class_="facts")


def _identity(summary: RunSummary) -> Iterator[tuple[str, Child]]:
    yield "Run", element("code", summary.run)
    yield "Job", summary.job
    yield "Spec hash", element("code", summary.spec_hash)
    yield "World size", wording.gang(summary)
    yield "Hosts", _hosts(summary.hosts)
    yield "Trainer", summary.trainer
    yield "Submitted", units.moment(summary.submitted_at)
    yield "Last record", units.moment(summary.last_record_at)


def _hosts(hosts: tuple[str, ...], shown: int = 8) -> str:
    rest = f" and {len(hosts) - shown:,} more" if len(hosts) > shown else ""
    return (", ".join(hosts[:shown]) or units.UNKNOWN) + rest


def _fact(name: str, value: Child) -> Markup:
    return element("div", element("dt", name), element("dd", value))
