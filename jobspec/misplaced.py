"""Finds fields that are right and in the wrong place: not below their section, outside of their item, or as Kubernetes indents them."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from headway.jobspec.document import Document, Path, dotted
from headway.jobspec.fitting import accepts
from headway.jobspec.flow import flow, short_flow
from headway.jobspec.problem import Problem
from headway.jobspec.spec.fields import field_names, field_of, model_of, owner_of
from headway.jobspec.suggest import Hint, listed
from headway.jobspec.type_repair import MAPPINGS
from headway.jobspec.unknown import Meaning, names_of


def misplaced_fields(
    found: Sequence[ErrorDetails], meant: Mapping[Path, Meaning], model: type[BaseModel], document: Document, prefix: Path
) -> list[tuple[Problem, set[Path]]]:
    """Return one problem, with the errors that it covers, for each section whose fields are not below it: an empty one with its fields
    at the top, and a kind with its options next to it."""
    lost: list[tuple[Problem, set[Path]]] = [*_items_by_kind(found, document, prefix), *_split_items(found, document, prefix)]
    lost += _items_outside(meant, model, document, prefix)
    lost += _in_one_home(meant, model, document, prefix)
    # Several names of one section's fields, `ecn_min` and `ecn_max`: one problem.
    same: dict[tuple[Path, Hint], list[Path]] = {}
    for loc, place in meant.items():
        if place.hint.fix is None and place.target is not None:
            same.setdefault((loc[:-1], place.hint), []).append(loc)
    for locs in same.values():
        if len(locs) > 1 and (meant[locs[0]].target or ())[-1:] != ("options",):
            names = listed([str(loc[-1]) for loc in locs])
            message = (
                f"{names} are not fields of {section_name((*prefix, *locs[0][:-1]), owner_of(model, locs[0][:-1]) or model)}"
            )
            path = (*prefix, *locs[0])
            lost.append((Problem("HW201", document.name, path, message, meant[locs[0]].hint.text, at_key=True), set(locs)))
    for section in dict.fromkeys(
        loc[:-1] for loc, place in meant.items() if place.target == (*names_of((*prefix, *loc[:-1])), "options")
    ):
        # A misspelt `options` is there.
        keys = [loc for loc, place in meant.items() if loc[:-1] == section and place.hint.fix is None]
        if len(keys) > 1:
            names = listed([str(loc[-1]) for loc in keys])
            message = f"{names} are not fields of `{dotted((*prefix, *section))}`"
            hint = "they belong under `options`: indent them below it"
            lost.append((Problem("HW201", document.name, (*prefix, *keys[0]), message, hint, at_key=True), set(keys)))
    return [*lost, *_beside_an_empty_one(found, meant, model, document, prefix)]


def _in_one_home(
    meant: Mapping[Path, Meaning], model: type[BaseModel], document: Document, prefix: Path
) -> Iterator[tuple[Problem, set[Path]]]:
    """Yield one problem for several fields of one section that are in another one."""
    for section in dict.fromkeys(loc[:-1] for loc in meant):
        here = names_of((*prefix, *section))
        homes: dict[tuple[str, ...], list[Path]] = {}
        for loc, place in meant.items():
            home, name = ((*here,), "") if place.target is None else (place.target[:-1], place.target[-1])
            if loc[:-1] == section and name == str(loc[-1]) and here not in (home, home[:-1]) and place.hint.fix is None:
                homes.setdefault(home, []).append(loc)
        for home, locs in homes.items():
            if len(locs) > 1:
                names = listed([str(loc[-1]) for loc in locs])
                message = f"{names} are not fields of {section_name((*prefix, *section), owner_of(model, section) or model)}"
                hint = f"they belong {f'in `{dotted(home)}`' if home else 'at the top of the document'}"
                yield Problem("HW201", document.name, (*prefix, *locs[0]), message, hint, at_key=True), set(locs)


def _beside_an_empty_one(
    found: Sequence[ErrorDetails], meant: Mapping[Path, Meaning], model: type[BaseModel], document: Document, prefix: Path
) -> Iterator[tuple[Problem, set[Path]]]:
    """Yield one problem for each empty section whose fields are next to it."""
    empty: list[Path] = [details["loc"] for details in found if details["type"] in MAPPINGS and details["input"] is None]
    # A section that may be left out is empty without an error.
    homes = dict.fromkeys(place.target[:-1] for place in meant.values() if place.target is not None)
    empty += [home for home in homes if home not in empty and home in document.values and document.value(home) is None]
    for loc in () if prefix else empty:
        keys = [key for key, place in meant.items() if len(key) == 1 and place.target is not None and place.target[:-1] == loc]
        below: list[Path] = [*keys] or _after(loc, meant, model, document)
        if below:
            names = listed([str(key[-1]) for key in below])
            message = f"`{dotted(loc)}` is empty, and {names} beside it belong{'s' if len(below) == 1 else ''} in it"
            hint = f"indent {names} below `{loc[-1]}`"
            yield Problem("HW203", document.name, loc, message, hint, at_key=True), {loc, *below}


def _after(loc: Path, meant: Mapping[Path, Meaning], model: type[BaseModel], document: Document) -> list[Path]:
    """Return the unknown fields right after an empty section that are fields of it."""
    info = field_of(model, loc)
    section = None if info is None else model_of(info.annotation)
    fields = {} if section is None else field_names(section)
    siblings = [path for path in document.keys if len(path) == len(loc) and path[:-1] == loc[:-1]]
    keys: list[Path] = []
    for path in siblings[siblings.index(loc) + 1 :] if loc in siblings else ():
        if path not in meant or (path[-1] not in fields and meant[path].target != names_of(loc)):
            break
        keys.append(path)
    return keys


def _items_outside(
    meant: Mapping[Path, Meaning], model: type[BaseModel], document: Document, prefix: Path
) -> Iterator[tuple[Problem, set[Path]]]:
    """Yield one problem for several fields of an item that are next to its list, which is not there: `{kind: shared, every: 2h}` in place
    of `tiers: [{kind: shared, every: 2h}]`."""
    for section in dict.fromkeys(loc[:-1] for loc in meant):
        locs = [loc for loc in meant if loc[:-1] == section]
        owner, around = owner_of(model, section) or model, document.value((*prefix, *section))
        given = {str(loc[-1]): document.value((*prefix, *loc)) for loc in locs}
        for name, info in field_names(owner).items():
            item = model_of(info.annotation)
            is_set = isinstance(around, dict) and name in around
            if len(locs) < 2 or item is None or is_set or not given.keys() <= field_names(item).keys():
                continue
            if accepts(info, [given]):
                message = f"{listed(given)} are not fields of {section_name((*prefix, *section), owner)}"
                hint = f"write `{name}: {flow([given])}`"
                yield Problem("HW201", document.name, (*prefix, *locs[0]), message, hint, at_key=True), {*locs, (*section, name)}
                break


def _items_by_kind(found: Sequence[ErrorDetails], document: Document, prefix: Path) -> Iterator[tuple[Problem, set[Path]]]:
    """Yield one problem for each item of a list that is written as its kind alone, with its fields below: `{shared: {every: 2h}}`."""
    for at in dict.fromkeys(
        details["loc"][:-1] for details in found if details["type"] == "missing" and details["loc"][-1] == "kind"
    ):
        item = document.value((*prefix, *at)) if at and isinstance(at[-1], int) else None
        if isinstance(item, dict) and len(item) == 1 and not isinstance(next(iter(item.values())), dict | list):
            ((kind, value),) = item.items()
            other = [str(each["loc"][-1]) for each in found if each["loc"][:-1] == at and each["type"] == "missing"]
            fields = [name for name in other if name != "kind"]
            item = {kind: {fields[0]: value}} if len(fields) == 1 and kind not in fields else item
        if isinstance(item, dict) and len(item) == 1 and isinstance(inside := next(iter(item.values())), dict):
            kind = str(next(iter(item)))
            message = f"`{kind}` is not a field of `{dotted((*prefix, *at))}`"
            hint = f"write the item as {short_flow({'kind': kind, **inside})}"
            covered = {details["loc"] for details in found if details["loc"][: len(at)] == at}
            yield Problem("HW201", document.name, (*prefix, *at, kind), message, hint, at_key=True), covered


def _split_items(found: Sequence[ErrorDetails], document: Document, prefix: Path) -> Iterator[tuple[Problem, set[Path]]]:
    """Yield one problem for each two items that are one with a `- ` too many: the fields that one of them is missing are in the other."""
    lacking: dict[Path, set[str]] = {}
    for details in found:
        if details["type"] == "missing" and any(isinstance(each, int) for each in details["loc"][-2:-1]):
            lacking.setdefault(details["loc"][:-1], set()).add(str(details["loc"][-1]))
    for at, names in lacking.items():
        after = (*at[:-1], int(at[-1]) + 1)
        first, second = document.value((*prefix, *at)), document.value((*prefix, *after))
        if (
            not isinstance(first, dict)
            or not isinstance(second, dict)
            or not names <= second.keys()
            or first.keys() & second.keys()
        ):
            continue
        if lacking.get(after, set()) and lacking[after] <= first.keys():
            parts = listed([str(key) for key in second])
            message = f"{parts} {'is an item' if len(second) == 1 else 'are an item'} of the list without {listed(sorted(lacking[after]))}"
            hint = f"remove the `- ` before it: {parts} {'belongs' if len(second) == 1 else 'belong'} to the item above"
            covered = {(*place, name) for place in (at, after) for name in lacking[place]}
            yield Problem("HW202", document.name, (*prefix, *after), message, hint, at_key=True), covered


def head_of_kubernetes(head: Sequence[str], document: Document) -> Problem:
    both = " and ".join(f"`{key}`" for key in head)
    message = f"headway has no {both}: the fields of a document are at its top"
    hint = "write `name` at the top, and the fields of `spec` beside it, without their indent"
    return Problem("HW201", document.name, (head[0],), message, hint, at_key=True)


def section_name(path: Path, owner: type[BaseModel]) -> str:
    return f"`{dotted(path)}`" if path else f"{'an' if owner.__name__[0] in 'AEIOU' else 'a'} {owner.__name__}"
