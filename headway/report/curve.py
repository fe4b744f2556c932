"""Turns the loss of every step into a figure: valid steps, steps taken back, failures and checkpoints."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from headway.report import units, wording
from headway.report.markup import Markup, element, join
from headway.report.summary import CommitSummary, CurvePoint, RunSummary

# The picture is stretched to its frame; every position in it is in thousandths of the frame.
EXTENT = 1000
STANDING_POINTS = 1600
TAKEN_BACK_POINTS = 200
TICK_DISTANCE = 6
# Beyond these the arithmetic of an axis overflows, or its labels lose their digits.
LARGEST = 1e300
SMALLEST = 1e-9


class Scale(Struct, frozen=True):
    """The ranges of both axes: steps from left to right, loss from bottom to top."""

    first_step: float
    last_step: float
    low: float
    high: float

    def x(self, step: float) -> float:
        return EXTENT * ((step - self.first_step) / (self.last_step - self.first_step))

    def y(self, loss: float) -> float:
        return EXTENT * ((self.high - min(max(loss, self.low), self.high)) / (self.high - self.low))


def downsample(points: Sequence[CurvePoint], limit: int) -> list[CurvePoint]:
    """At most `limit` (4 or more) of `points`, in order: of each stretch the first and last, the lowest and highest."""
    if len(points) <= limit:
        return list(points)
    bins = limit // 4
    edges = [index * len(points) // bins for index in range(bins + 1)]
    return [points[i] for low, high in itertools.pairwise(edges) for i in _kept_of(points, low, high)]


def _kept_of(points: Sequence[CurvePoint], low: int, high: int) -> list[int]:
    finite = [i for i in range(low, high) if math.isfinite(points[i].loss)]
    extremes = (min(finite, key=lambda i: points[i].loss), max(finite, key=lambda i: points[i].loss)) if finite else ()
    return sorted({low, high - 1, *extremes})


def figure(summary: RunSummary) -> Markup:
    """Return the figure; if no step has a finite loss, a sentence instead."""
    finite = [point for point in summary.curve if math.isfinite(point.loss)]
    if not finite:
        found = "No step was recorded." if not summary.curve else "No recorded step has a finite loss."
        return element("p", found, class_="nothing")
    scale = scale_of(finite, summary.planned_steps if summary.exit_code is None else None)
    standing = downsample([point for point in summary.curve if point.stands], STANDING_POINTS)
    frame = element("div", _picture(summary, scale, standing), *_badges(summary, scale), _hover(), class_="frame")
    axes = (_loss_axis(scale), frame, _step_axis(scale))
    return element("figure", element("div", *axes, class_="plot", **_data(standing, scale)), _legend(summary), class_="curve")


def scale_of(points: Iterable[CurvePoint], planned: int | None = None) -> Scale:
    """Round loss limits around the finite `points`; a run that still goes shows the steps to come as empty room."""
    steps, losses = zip(*((point.step, point.loss) for point in points), strict=True)
    low, high = (min(max(loss, -LARGEST), LARGEST) for loss in (min(losses), max(losses)))
    # Losses that hardly differ get the room of a tenth, else the labels of the axis would be equal.
    size = max(abs(low), abs(high))
    room = 0.1 * size if size > SMALLEST else 1.0
    tick = _tick(room if high - low < max(1e-3 * size, SMALLEST) else high - low, 5)
    low, high = math.floor(low / tick) * tick, math.ceil(high / tick) * tick
    first, last = min(steps), max(*steps, planned or 0, min(steps) + 1)
    return Scale(first, last, low, high if high > low else low + tick)


# --- the picture ------------------------------------------------------------------------------------------------------


def _picture(summary: RunSummary, scale: Scale, standing: Sequence[CurvePoint]) -> Markup:
    # A stretched picture distorts shapes, but not strokes with a fixed width: a dot is a stroke of no length with round ends.
    grid = _path("grid", "".join(f"M0 {scale.y(value):.1f}H{EXTENT}" for value in ticks(scale.low, scale.high, 5)))
    drawn = (
        _path("lost-band", _bands(summary, scale)),
        grid,
        *_checkpoint_ticks(summary.commits, scale),
        _path("failure-line", "".join(f"M{x:.1f} 0V{EXTENT}" for x in _failure_places(summary, scale))),
        *(_path("taken-back", _line(part, scale)) for part in _taken_back(summary.curve)),
        _path("standing", _line(standing, scale)),
        _path("standing-dot", _dots(standing, scale)) if len(standing) == 1 else None,
        _path("resume-dot", _dots(_resume_points(summary), scale)),
        _path("failure-dot", _dots(_failure_points(summary), scale)),
    )
    sized = {"viewBox": f"0 0 {EXTENT} {EXTENT}", "preserveAspectRatio": "none"}
    return element("svg", *drawn, role="img", aria_label=_description(summary), **sized)


def _description(summary: RunSummary) -> str:
    start, end = units.loss(summary.first_loss), units.loss(summary.last_loss)
    told = [f"Loss from {start} to {end} in {wording.steps(summary)}"]
    told += [f"failure at step {f.at_step}, resumed from step {f.resumed_from_step}" for f in summary.failures[:5]]
    return "; ".join(told)


def _path(class_: str, d: str) -> Markup | None:
    return element("path", class_=class_, d=d) if d else None


def _line(points: Iterable[CurvePoint], scale: Scale) -> str:
    """Lines through the points; a loss that is not finite leaves a gap."""
    commands, gap = [], True
    for point in points:
        if math.isfinite(point.loss):
            commands.append(f"{'M' if gap else 'L'}{_at(point, scale)}")
        gap = not math.isfinite(point.loss)
    return "".join(commands)


def _dots(points: Iterable[CurvePoint], scale: Scale) -> str:
    return "".join(f"M{_at(point, scale)}h0" for point in points if math.isfinite(point.loss))


def _at(point: CurvePoint, scale: Scale) -> str:
    return f"{scale.x(point.step):.1f} {scale.y(point.loss):.1f}"


def _taken_back(curve: Sequence[CurvePoint]) -> Iterator[list[CurvePoint]]:
    """Return the discarded steps of each generation, from the valid point that it left."""
    in_vain = downsample([point for point in curve if not point.stands], TAKEN_BACK_POINTS)
    standing = {point.step: point for point in curve if point.stands}
    for _, points in itertools.groupby(in_vain, key=lambda point: point.generation):
        group = list(points)
        anchor = standing.get(group[0].step - 1)
        yield [anchor, *group] if anchor else group


def _bands(summary: RunSummary, scale: Scale) -> str:
    """From the step that a failure was resumed from to the step that it had reached."""
    spans = ((f.resumed_from_step, f.at_step) for f in summary.failures)
    places = [
        (scale.x(max(low, scale.first_step)), scale.x(high))
        for low, high in spans
        if low is not None and high is not None and low < high
    ]
    return "".join(f"M{left:.1f} 0H{right:.1f}V{EXTENT}H{left:.1f}Z" for left, right in places)


def _failure_points(summary: RunSummary) -> list[CurvePoint]:
    where = {(failure.generation, failure.at_step) for failure in summary.failures}
    return [point for point in summary.curve if (point.generation, point.step) in where]


def _resume_points(summary: RunSummary) -> list[CurvePoint]:
    where = {failure.resumed_from_step for failure in summary.failures}
    return [point for point in summary.curve if point.stands and point.step in where]


def _failure_places(summary: RunSummary, scale: Scale) -> list[float]:
    """Where the failures stand from left to right, at a step that the axis shows."""
    steps = [failure.at_step for failure in summary.failures if failure.at_step is not None]
    return [scale.x(min(max(step, scale.first_step), scale.last_step)) for step in steps]


def _checkpoint_ticks(commits: Sequence[CommitSummary], scale: Scale) -> Iterator[Markup | None]:
    for class_, chosen in (("checkpoint", False), ("refused", True)):
        places = sorted(scale.x(commit.step) for commit in commits if commit.refused is chosen)
        drawn = thinned([x for x in places if 0 <= x <= EXTENT], apart=TICK_DISTANCE)
        yield _path(class_, "".join(f"M{x:.1f} {EXTENT}v-28" for x in drawn))


def thinned(places: Sequence[float], apart: float) -> list[float]:
    """The sorted `places` without those closer than `apart` to the one kept before."""
    kept: list[float] = []
    for place in places:
        if not kept or place - kept[-1] >= apart:
            kept.append(place)
    return kept


# --- around the picture -----------------------------------------------------------------------------------------------


def _badges(summary: RunSummary, scale: Scale) -> Iterator[Markup]:
    """The failures' numbers above their lines; those too close to stand side by side share one badge."""
    numbered = [(failure, n) for n, failure in enumerate(summary.failures, start=1) if failure.at_step is not None]
    places = sorted(zip(_failure_places(summary, scale), (n for _, n in numbered), strict=True))
    for group in _clusters(places, apart=35):
        numbers = sorted(n for _, n in group)
        label = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}\u2013{numbers[-1]}"
        at = sum(x for x, _ in group) / len(group)
        yield element(
            "a", label, class_="badge", href=f"#failure-{numbers[0]}", style=f"left:{at / 10:.2f}%", title=f"failure {label}"
        )


def _clusters(places: Sequence[tuple[float, int]], apart: float) -> Iterator[list[tuple[float, int]]]:
    group: list[tuple[float, int]] = []
    for place in places:
        if group and place[0] - group[-1][0] >= apart:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _hover() -> Markup:
    return join(element("div", class_="cross", hidden=True), element("div", class_="tip", hidden=True))


def _data(points: Sequence[CurvePoint], scale: Scale) -> dict[str, str]:
    """Return the data of the hover script: [step, loss, generation, x, y], the places in thousandths."""
    rows = [
        [p.step, float(f"{p.loss:.6g}"), p.generation, round(scale.x(p.step), 1), round(scale.y(p.loss), 1)]
        for p in points
        if math.isfinite(p.loss)
    ]
    return {"data_points": json.dumps(rows, separators=(",", ":"))}


def _loss_axis(scale: Scale) -> Markup:
    places = [(value, scale.y(value) / 10) for value in ticks(scale.low, scale.high, 5)]
    labels = (element("span", f"{value:g}", style=f"top:{place:.2f}%") for value, place in places)
    return element("div", *labels, class_="axis loss", aria_hidden="true")


def _step_axis(scale: Scale) -> Markup:
    places = [(value, scale.x(value) / 10) for value in ticks(scale.first_step, scale.last_step, 5) if value == int(value)]
    labels = (
        element("span", f"{int(v):,}", style=f"left:{place:.2f}%", class_="end" if place > 95 else None) for v, place in places
    )
    return element("div", *labels, element("em", "step"), class_="axis steps", aria_hidden="true")


def _legend(summary: RunSummary) -> Markup:
    shown = (
        ("standing", "loss", True),
        ("taken-back", "taken back by a resume", any(not point.stands for point in summary.curve)),
        ("failure-dot", "failure", bool(summary.failures)),
        ("resume-dot", "resumed here", bool(_resume_points(summary))),
        ("checkpoint", "checkpoint", any(not commit.refused for commit in summary.commits)),
        ("refused", "checkpoint refused", any(commit.refused for commit in summary.commits)),
    )
    return element("figcaption", *(_legend_item(class_, label) for class_, label, there in shown if there))


def _legend_item(class_: str, label: str) -> Markup:
    shape = {"failure-dot": "M12 7h0", "resume-dot": "M12 7h0", "checkpoint": "M12 13v-9", "refused": "M12 13v-9"}
    icon = element(
        "svg", _path(class_, shape.get(class_, "M2 7h20")), width=24, height=14, viewBox="0 0 24 14", aria_hidden="true"
    )
    return element("span", icon, label)


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round values from `low` to `high`, about `wanted` of them."""
    tick = _tick(high - low, wanted)
    return [round(n * tick, 12) for n in range(math.ceil(low / tick - 1e-9), math.floor(high / tick + 1e-9) + 1)]


def _tick(extent: float, wanted: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that divides `extent` into at most `wanted` parts."""
    power = 10.0 ** math.floor(math.log10(extent / wanted))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * wanted >= extent * (1 - 1e-9))
