"""Makes the runs of a job with a `sweep`: a document for each point, with a name that follows from the point's own values."""

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.change import is_field
from headway.jobspec.document import Document, Path
from headway.jobspec.flow import flow

_SWEEP: Path = ("sweep",)
# Fields that are one for all runs of a job, and the short form of another.
FIXED = ("apiVersion", "kind", "name", "extends", "partial", "ignore", "cluster", "run", "sweep", "history")
# The longest name of a point that spells its values out; a longer one has their hash.
_LONGEST = 40
_HASH_DIGITS = 8


class Point(Struct, frozen=True):
    """A run of a sweep: its name, and by field the value and the place of that value in the document."""

    name: str
    values: Mapping[str, tuple[Any, Path]]


def points(document: Document) -> list[Point]:
    """Return the points of the job's sweep, those of the grid first; none without one, or with one of the wrong form."""
    found = document.value(_SWEEP) if isinstance(document.data, dict) and _SWEEP in document.values else None
    if not isinstance(found, dict):
        return []
    job = str(document.data.get("name"))
    return [Point(_name(job, values), values) for values in (*_of_grid(found.get("grid")), *_of_list(found.get("points")))]


def with_first_point(document: Document) -> Document:
    """Return the job with the values of its first point, so that the job can be judged as a whole."""
    found = points(document)
    if not found:
        return document
    values = {field: value for field, value in found[0].values.items() if is_swept(field)}
    return at_point(document, replace(found[0], values=values), is_run=False)


def is_swept(field: str) -> bool:
    """Return whether the field may differ between runs of a sweep: it is a field of a job, and not one for all of them."""
    return field.partition(".")[0] not in FIXED and is_field(field)


def at_point(document: Document, point: Point, *, is_run: bool = True) -> Document:
    """Return the job with the values of the point, each at the position that it has in the sweep; a run has the point's name and no
    sweep."""
    data = copy.deepcopy(document.data)
    positions, keys, scalars = dict(document.values), dict(document.keys), set(document.scalars)
    for field, (value, source) in point.values.items():
        path = tuple(field.split("."))
        owner = data
        for depth, segment in enumerate(path[:-1], 1):
            if not isinstance(owner.get(segment), dict):
                owner[segment] = {}
                positions[path[:depth]] = keys[path[:depth]] = document.values[source]
            owner = owner[segment]
        owner[path[-1]] = copy.deepcopy(value)
        positions = {place: span for place, span in positions.items() if place[: len(path)] != path}
        scalars = {place for place in scalars if place[: len(path)] != path}
        below = {place: (*path, *place[len(source) :]) for place in document.values if place[: len(source)] == source}
        positions |= {new: document.values[place] for place, new in below.items()}
        scalars |= {new for place, new in below.items() if place in document.scalars}
        keys |= {new: document.keys.get(place, document.values[place]) for place, new in below.items()}
    if is_run:
        del data["sweep"]
        data["name"] = point.name
    return replace(document, data=data, values=positions, keys=keys, scalars=frozenset(scalars))


def _of_grid(grid: Any) -> Iterator[dict[str, tuple[Any, Path]]]:
    """Yield every combination of the values of the fields, the last field changing first."""
    if not isinstance(grid, dict) or not grid or not all(isinstance(values, list) for values in grid.values()):
        return
    axes = [[(field, (value, (*_SWEEP, "grid", field, index))) for index, value in enumerate(grid[field])] for field in grid]
    yield from map(dict, itertools.product(*axes))


def _of_list(given: Any) -> Iterator[dict[str, tuple[Any, Path]]]:
    for index, point in enumerate(given if isinstance(given, list) else ()):
        if isinstance(point, dict):
            yield {field: (value, (*_SWEEP, "points", index, field)) for field, value in point.items()}


def _name(job: str, values: Mapping[str, tuple[Any, Path]]) -> str:
    """Return the job's name with the values, or with their hash where that is too long or a value is no scalar."""
    said = "-".join(f"{field.rpartition('.')[2]}-{_word(value)}" for field, (value, _) in values.items())
    name = f"{job}-{re.sub(r'[^a-z0-9]+', '-', said.lower()).strip('-')}"
    if len(name) <= _LONGEST and all(not isinstance(value, list | dict) for value, _ in values.values()):
        return name
    text = json.dumps({field: value for field, (value, _) in values.items()}, sort_keys=True)
    return f"{job}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"


def _word(value: Any) -> str:
    # A name has no point: 1.5 becomes `1p5`; and 1e-05 is written as in documents, `1e-5`.
    return f"{value:g}".replace(".", "p").replace("e-0", "e-") if isinstance(value, float) else flow(value)
