"""Turns the ledger into two figures: one row per generation over time, and one bar of where all seconds went."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from headway.report import units
from headway.report.buckets import NOT_RECORDED, Bucket, bucket
from headway.report.events import Event
from headway.report.markup import Markup, element
from headway.report.summary import RunSummary, TimeSpan

LONGEST = 60
MARKED = frozenset({"hang", "corruption", "straggler", "lost", "rebound", "takeover", "regroup", "replica lost", "regrouped"})
_READING = "Each row is one start of all ranks over time. Colours show how its seconds divide, not their order; ticks are events."


def timeline(summary: RunSummary) -> Markup:
    """One row a generation or wait between attempts, on the clock; of a long run the newest."""
    if not summary.spans:
        return element("p", "No generation has closed its ledger.", class_="nothing")
    shown = summary.spans[-LONGEST:]
    start, end = min(span.start for span in shown), max(span.end for span in shown)
    rows = (_row(span, start, max(end - start, 1e-9), _marked(span, summary.events)) for span in shown)
    reading = element("p", _READING, class_="note")
    return element("div", reading, element("div", *rows, class_="timeline"), _clock_axis(start, end), _note(summary, len(shown)))


def _marked(span: TimeSpan, happened: Sequence[Event]) -> list[Event]:
    """Return the events that are drawn on the span's row: those within its time, so that each is drawn once."""
    return [event for event in happened if event.kind in MARKED and span.start <= event.wall < span.end]


def _note(summary: RunSummary, drawn: int) -> Markup | None:
    """Return a sentence about events that the timeline omits."""
    earlier, still_open = len(summary.spans) - drawn, summary.generations - sum(span.generation > 0 for span in summary.spans)
    told = [f"{units.count(earlier, 'earlier row')} not drawn."] if earlier else []
    told += [f"{units.count(still_open, 'generation')} not drawn: no ledger line yet."] if still_open > 0 else []
    return element("p", " ".join(told), class_="note") if told else None


def goodput_bar(summary: RunSummary) -> Markup:
    """The seconds of all generations, one colour a bucket, with the legend that gives each its seconds and share."""
    if not summary.buckets or summary.wall_s <= 0:
        return element("p", "No generation has closed its ledger.", class_="nothing")
    shares = list(_with_rest(summary))
    label = "; ".join(f"{kind.label} {units.seconds(spent_s)}" for kind, spent_s in shares)
    bar = element("div", *_segments(shares, summary.wall_s), class_="bar", role="img", aria_label=label)
    return element("div", bar, element("ul", *(_legend_item(*item, summary.wall_s) for item in shares), class_="legend"))


def _with_rest(summary: RunSummary) -> Iterator[tuple[Bucket, float]]:
    yield from _spent(summary.buckets)
    if summary.not_recorded_s >= 0.05:
        yield NOT_RECORDED, summary.not_recorded_s


def _spent(buckets: Mapping[str, float]) -> list[tuple[Bucket, float]]:
    return [(bucket(name), spent_s) for name, spent_s in buckets.items() if spent_s > 0]


def _segments(shares: Iterable[tuple[Bucket, float]], whole_s: float) -> Iterator[Markup]:
    for kind, spent_s in shares:
        title = f"{kind.label}: {units.seconds(spent_s)}, {units.share(spent_s / whole_s)}"
        yield element("i", class_=kind.css, style=f"width:{100 * spent_s / whole_s:.3f}%", title=title)


def _legend_item(kind: Bucket, spent_s: float, whole_s: float) -> Markup:
    amount = element("b", units.seconds(spent_s))
    return element(
        "li", element("i", class_=kind.css), element("span", kind.label), amount, element("small", units.share(spent_s / whole_s))
    )


def _row(span: TimeSpan, start: float, extent_s: float, marked: Sequence[Event]) -> Markup:
    length_s = max(span.end - span.start, 1e-9)
    left, width = 100 * (span.start - start) / extent_s, 100 * length_s / extent_s
    name = f"Generation {span.generation}" if span.generation else "Between two attempts"
    label = f"{name}, {units.seconds(length_s)}: " + ", ".join([*_told(span.buckets), *(event.text for event in marked)])
    strip = element(
        "div", *_segments(_spent(span.buckets), length_s), class_="bar", style=f"margin-left:{left:.3f}%;width:{width:.3f}%"
    )
    return element(
        "div",
        element("span", f"{span.generation or 'wait'}"),
        element("div", strip, *(_mark(event, start, extent_s) for event in marked), class_="track", role="img", aria_label=label),
    )


def _mark(event: Event, start: float, extent_s: float) -> Markup:
    place = f"left:{100 * (event.wall - start) / extent_s:.3f}%"
    return element("i", class_="mark", style=place, title=f"{event.kind}: {event.text}")


def _told(buckets: Mapping[str, float]) -> Sequence[str]:
    return [f"{kind.label} {units.seconds(spent_s)}" for kind, spent_s in _spent(buckets)]


def _clock_axis(start: float, end: float) -> Markup:
    middle = (start + end) / 2
    return element(
        "div", *(element("span", units.clock(wall, start)) for wall in (start, middle, end)), class_="clock", aria_hidden="true"
    )
