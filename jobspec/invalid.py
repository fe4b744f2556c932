"""Turns Pydantic's errors into problems: what was found, what was expected, where, and what to do."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from pydantic import BaseModel, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headway.jobspec import form_repair, repair
from headway.jobspec.catalog.models import models
from headway.jobspec.codes import CODES
from headway.jobspec.document import Document, Path, Span, dotted
from headway.jobspec.example import example_in
from headway.jobspec.flow import flow
from headway.jobspec.forms import form
from headway.jobspec.load import load_bytes
from headway.jobspec.notation import Notation, counted, notation_of
from headway.jobspec.problem import MAX_PROBLEMS, Problem, capped
from headway.jobspec.spec.docstrings import field_descriptions
from headway.jobspec.spec.fields import field_names, field_of, holder_of, literals_of, model_of, owner_of
from headway.jobspec.spec.operation import Version
from headway.jobspec.spec.resilience import EnvName
from headway.jobspec.spec.scheduling import Constraint, NodeList
from headway.jobspec.spec.section import Name
from headway.jobspec.spec.storage import StoreUrl
from headway.jobspec.spec.written import AUTO, OrAuto, OrRange
from headway.jobspec.suggest import Hint, joined_or, listed, nearest
from headway.jobspec.units import MISSING_UNIT, NOT_A_QUANTITY
from headway.jobspec.unknown import (
    EXTENDS,
    HEAD,
    KIND_OR_PRESET,
    Meaning,
    accepts,
    alias_or_nearest,
    fitted,
    meanings,
    names_of,
    short_of,
)


def _pattern(text: Any) -> str:
    """Return the regular expression of an annotated text."""
    return str(get_args(text)[1].pattern)


_TYPES: Mapping[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "`true` or `false`",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}

_BOUNDS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "greater_than": lambda bound: f"be more than {bound['gt']}",
    "greater_than_equal": lambda bound: f"be at least {bound['ge']}",
    "less_than": lambda bound: f"be less than {bound['lt']}",
    "less_than_equal": lambda bound: f"be at most {bound['le']}",
    "string_too_short": lambda bound: f"have at least {counted(bound['min_length'], 'character')}",
    "string_too_long": lambda bound: f"have at most {counted(bound['max_length'], 'character')}",
    "string_pattern_mismatch": lambda bound: _form(bound["pattern"]),
    "too_short": lambda bound: f"have at least {bound['min_length']} items",
    "too_long": lambda bound: f"have at most {counted(bound['max_length'], 'item')}",
}
_MAPPINGS = ("dict_type", "model_type", "model_attributes_type")
# A line of a mapping without the space after its colon.
_PAIR = re.compile(r"([A-Za-z_][\w-]*)[:=](\S+)(?: [A-Za-z_][\w-]*[:=]\S+)*")
_LIMITS = ("gt", "ge", "lt", "le")
_TIME = "time"
_LONGEST_FLOW = 120
# Items of one list with the same mistake.
_ALIKE = 2
_GRID = ("sweep", "grid")
# Words for all that there is.
_ALL = frozenset(("all", "max", "maximum", "default", "any", "everything", "full"))
# Numbers of users and groups.
_IDS = ("user", "group", "fs_group")
_DSCPS, _BYTE, _BOARD = 64, 255, 4
_MOST_ADAPTERS = 64
# The name of a document is near its top.
_HEAD_BYTES = 65_536

# How a text is brought into its form, by the form's regular expression.
_REPAIRS: Mapping[str, Callable[[Any], Hint | None]] = {
    **form_repair.REPAIRS,
    _pattern(NodeList): form_repair.brackets,
    _pattern(Constraint): form_repair.brackets,
    _pattern(Name): repair.name,
    _pattern(Version): repair.version,
    _pattern(StoreUrl): repair.store,
    _pattern(EnvName): repair.variable,
    r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$": repair.mac,
    r"^(HEAD|[0-9a-f]{40})$": lambda value: (
        form_repair.commit(value) or Hint("write `HEAD`, the commit that holds this spec", "HEAD")
    ),
}
# How a value is brought to its limit.
_AT_LIMIT: Mapping[str, str] = {
    "greater_than_equal": "write `{ge}` or more",
    "less_than_equal": "write `{le}` or less",
}

# The kind for `auto` where it is not supported, next to pydantic's kinds of errors.
_NOT_DECIDED = "auto"
# pydantic's suffix of a key that is not in its form.
_KEY = "[key]"
# Fields that a form leaves optional, and that nearly every job needs.
_NEEDED: Collection[Path] = (("steps",),)


def describe(error: ValidationError, model: type[BaseModel], document: Document, prefix: Path = ()) -> list[Problem]:
    """Return one problem per mistake. `prefix` is the path of the model's data in the document."""
    found = error.errors(include_url=False)[:MAX_PROBLEMS]
    more = error.error_count() - len(found)
    meant = meanings(found, model, document, prefix)
    if not prefix and (head := [key for key in HEAD if (key,) in meant]):
        found = [
            details for details in found if details["type"] != "missing" and details["loc"] not in {(each,) for each in head}
        ]
        problems = [_head_of_kubernetes(head, document)]
    else:
        lost = _lost_indents(found, meant, model, document, prefix)
        problems = [problem for problem, _ in lost]
        covered = {loc for _, locs in lost for loc in locs}
        found = [details for details in found if details["loc"] not in covered]
    targets = {place.target for place in meant.values()}
    problems += [
        _problem(details, model, document, prefix, meant) for details in found if not _echo(details, document, prefix, targets)
    ]
    return capped(_once_for_items(problems, document), document.name, more)


def _once_for_items(problems: Sequence[Problem], document: Document) -> list[Problem]:
    """Return the problems with one in place of those that all items of a list have, `root@10.0.0.11` and `root@10.0.0.12`, if each can be
    mended: that is one mistake."""
    alike: dict[tuple[Path, str, str], list[Problem]] = {}
    for problem in problems:
        if problem.path and isinstance(problem.path[-1], int) and problem.fix is not None and not problem.at_key:
            about = re.sub(r"`[^`]*`", "", f"{problem.message} {problem.hint}")
            alike.setdefault((problem.path[:-1], problem.code, about), []).append(problem)
    joined: dict[int, Problem | None] = {}
    for (path, _, _), same in alike.items():
        items = document.value(path)
        if len(same) < _ALIKE or not isinstance(items, list) or len(same) < len(items):
            continue
        fixes = {each.path[-1]: each.fix for each in same}
        written = f"[{', '.join(str(fixes[index]) for index in range(len(items)))}]"
        message = f"{same[0].message}, and {len(same) - 1} more"
        rest = (same[0].hint or "").partition("; ")[2]
        hint = f"write {_shortened(written)}" + (f"; {rest}" if rest else "")
        joined |= {id(each): None for each in same[1:]} | {id(same[0]): replace(same[0], message=message, hint=hint, fix=None)}
    found = [joined.get(id(each), each) for each in problems]
    return [each for each in found if each is not None]


def _echo(details: ErrorDetails, document: Document, prefix: Path, targets: Collection[tuple[str, ...] | None]) -> bool:
    """Return whether another error covers it already: a field is missing because it is misspelt or in another section, a list
    too short because of its items."""
    if details["type"] == "too_short":
        return bool(document.value((*prefix, *details["loc"])))
    if details["type"] == "missing" and EXTENDS in targets:
        # The document that it names may have the field.
        return True
    return details["type"] == "missing" and names_of((*prefix, *details["loc"])) in targets


def _lost_indents(
    found: Sequence[ErrorDetails], meant: Mapping[Path, Meaning], model: type[BaseModel], document: Document, prefix: Path
) -> list[tuple[Problem, set[Path]]]:
    """Return one problem, with the errors that it covers, for each section whose fields are not below it: an empty one with its fields
    at the top, and a kind with its options next to it."""
    lost: list[tuple[Problem, set[Path]]] = [*_items_by_kind(found, document, prefix), *_split_items(found, document, prefix)]
    lost += _items_outside(meant, model, document, prefix)
    lost += _in_one_home(meant, model, document, prefix)
    # Several names of one section's fields, `ecn_min` and `ecn_max`: one problem.
    same: dict[tuple[Path, str], list[Path]] = {}
    for loc, place in meant.items():
        if place.hint.fix is None and place.target is not None:
            same.setdefault((loc[:-1], place.hint.text), []).append(loc)
    for locs in same.values():
        if len(locs) > 1 and (meant[locs[0]].target or ())[-1:] != ("options",):
            names = listed([str(loc[-1]) for loc in locs])
            message = f"{names} are not fields of {_place((*prefix, *locs[0][:-1]), owner_of(model, locs[0][:-1]) or model)}"
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
    return [*lost, *_beside_an_empty_one(found, meant, document, prefix)]


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
                message = f"{names} are not fields of {_place((*prefix, *section), owner_of(model, section) or model)}"
                hint = f"they belong {f'in `{dotted(home)}`' if home else 'at the top of the document'}"
                yield Problem("HW201", document.name, (*prefix, *locs[0]), message, hint, at_key=True), set(locs)


def _beside_an_empty_one(
    found: Sequence[ErrorDetails], meant: Mapping[Path, Meaning], document: Document, prefix: Path
) -> Iterator[tuple[Problem, set[Path]]]:
    """Yield one problem for each empty section whose fields are beside it."""
    for details in found:
        loc = details["loc"]
        keys = [key for key, place in meant.items() if len(key) == 1 and place.target is not None and place.target[:-1] == loc]
        if details["type"] in _MAPPINGS and details["input"] is None and not prefix and keys:
            names = listed([str(key[-1]) for key in keys])
            message = f"`{dotted(loc)}` is empty, and {names} beside it belong{'s' if len(keys) == 1 else ''} in it"
            hint = f"indent {names} below `{loc[-1]}`"
            yield Problem("HW203", document.name, loc, message, hint, at_key=True), {loc, *keys}


def _items_outside(
    meant: Mapping[Path, Meaning], model: type[BaseModel], document: Document, prefix: Path
) -> Iterator[tuple[Problem, set[Path]]]:
    """Yield one problem for several fields of an item that are beside its list, which is not there: `{kind: shared, every: 2h}` in place
    of `tiers: [{kind: shared, every: 2h}]`."""
    for section in dict.fromkeys(loc[:-1] for loc in meant):
        locs = [loc for loc in meant if loc[:-1] == section]
        owner, around = owner_of(model, section) or model, document.value((*prefix, *section))
        given = {str(loc[-1]): document.value((*prefix, *loc)) for loc in locs}
        for name, info in field_names(owner).items():
            item = model_of(info.annotation)
            is_set = isinstance(around, dict) and name in around
            if len(locs) < _ALIKE or item is None or is_set or not given.keys() <= field_names(item).keys():
                continue
            if accepts(info, [given]):
                message = f"{listed(given)} are not fields of {_place((*prefix, *section), owner)}"
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
            hint = f"write the item as {_short_flow({'kind': kind, **inside})}"
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


def _head_of_kubernetes(head: Sequence[str], document: Document) -> Problem:
    both = " and ".join(f"`{key}`" for key in head)
    message = f"headway has no {both}: the fields of a document are at its top"
    hint = "write `name` at the top, and the fields of `spec` beside it, without their indent"
    return Problem("HW201", document.name, (head[0],), message, hint, at_key=True)


def lacking(name: str, model: type[BaseModel], document: Document) -> Problem:
    """Return the problem of a missing field that its model makes optional, and that is required here."""
    return _missing((name,), model, document, ())


def _problem(
    details: ErrorDetails, model: type[BaseModel], document: Document, prefix: Path, meant: Mapping[Path, Meaning]
) -> Problem:
    loc = details["loc"]
    if loc in meant:
        owner, path = owner_of(model, loc[:-1]) or model, (*prefix, *loc)
        message, hint = f"`{loc[-1]}` is not a field of {_place(path[:-1], owner)}", meant[loc].hint
        return Problem("HW201", document.name, path, message, hint.text, at_key=True, fix=hint.fix)
    if details["type"] == "missing":
        return _missing(loc, model, document, prefix)
    if loc[-1:] == (_KEY,):
        return _wrong_key(details, document, (*prefix, *loc[:-1]))
    return _wrong_value(details, model, document, prefix)


def _removed(key: str, document: Document) -> Span | None:
    """Return where the document sets the field to null, which removes the value that a base has."""
    for number, line in enumerate(document.lines()):
        if found := re.match(rf"{re.escape(key)}:\s*(null|~)\s*(#|$)", line, re.IGNORECASE):
            return Span(number, found.start(1), number, found.end(1))
    return None


def _missing(loc: Path, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    owner, key, path = owner_of(model, loc[:-1]) or model, str(loc[-1]), (*prefix, *loc)
    hint = _about(loc, model, document, path, "add")
    if len(path) == 1 and (removed := _removed(key, document)) is not None:
        message = f"`{key}: null` removes the value of the base, but the field is required"
        if document.value(("extends",)) is None:
            # Without a base, null is no value.
            return Problem(
                "HW202", document.name, (), f"`{key}: null` is no value, and the field is required", hint, span=removed
            )
        return Problem("HW202", document.name, (), message, "leave it out, or write a value", span=removed)
    return Problem("HW202", document.name, path[:-1], f"`{key}` is missing from {_place(path[:-1], owner)}", hint, at_key=True)


def _wrong_key(details: ErrorDetails, document: Document, path: Path) -> Problem:
    """Return the problem of a wrong key of a mapping with free keys."""
    words = form(pattern := details.get("ctx", {}).get("pattern", ""))
    wrong = f"is not {words}" if words else f"must {_bound(details, None) or details['msg']}"
    hint = _of_form(pattern, path[-1])
    message = f"the key `{path[-1]}` of `{dotted(path[:-1])}` {wrong}"
    return Problem("HW204", document.name, path, message, hint and hint.text, at_key=True, fix=hint and hint.fix)


def _wrong_value(details: ErrorDetails, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    loc, context = details["loc"], details.get("ctx", {})
    kind = _NOT_DECIDED if details["input"] == AUTO and details["type"] in {*_TYPES, NOT_A_QUANTITY} else details["type"]
    path = _written(document, (*prefix, *loc))
    name = f"`{dotted(path)}`"
    # The values of a sweep are those of its field.
    info = field_of(model, tuple(str(loc[2]).split(".")) if loc[:2] == _GRID and len(loc) > 2 else loc)
    found = _found(document, path)

    def problem(code: str, message: str, hint: Hint | str | None) -> Problem:
        text, fix = (hint.text, hint.fix) if isinstance(hint, Hint) else (hint, None)
        if path in document.credentials:
            text, fix = _about(loc, model, document, path), None
        elif fix is not None and info is not None and loc[:2] != _GRID and not _is_taken(fix, info, loc):
            # What is refused next mends nothing.
            text, fix = _about(loc, model, document, path), None
        return Problem(code, document.name, path, message, text, fix=fix if path in document.scalars else None)

    if kind == _NOT_DECIDED:
        return problem(
            "HW203", f"{name}: `auto` is not supported here; write the value itself", _about(loc, model, document, path)
        )
    if kind in (MISSING_UNIT, NOT_A_QUANTITY):
        hint = _of_quantity(kind, str(loc[-1]), info, document.value(path))
        advice = hint or f"write a number with its unit, for example {_examples(info) or context['examples']}"
        if kind == MISSING_UNIT:
            return problem("HW213", f"{name} must be {context['what']} with its unit, found {found}", advice)
        return problem("HW204", f"{name} must be {context['what']}, found {found}", advice)
    if kind in _TYPES:
        hint = _of_type(kind, loc, info, document, path)
        return problem(
            "HW203",
            f"{name} must be {_TYPES[kind]}, found {found}",
            hint or _about(loc, model, document, path) or (_of_key(path) if found == "nothing" else None),
        )
    if kind == "literal_error":
        allowed = literals_of(info)
        hint = _told_apart(alias_or_nearest(str(details["input"]), allowed, ""), document, path)
        if len(allowed) == 1:
            also = ", or leave it out" if info is not None and not info.is_required() else ""
            hint = Hint(f"write `{allowed[0]}`{also}", allowed[0])
        # The message has the list already.
        return problem(
            "HW205",
            f"{name} must be one of {listed(allowed)}, found {found}",
            hint if hint.fix or hint.text.startswith("write ") else _about(loc, model, document, path),
        )
    bound = _bound(details, info)
    message = f"{name} must {bound}, found {found}" if bound else f"{name}: {details['msg']}, found {found}"
    hint = (
        _name_in_file(document, path)
        or _with_commas(loc, document.value(path), info)
        or _of_form(context.get("pattern"), document.value(path))
        or _at_limit(details, info, loc)
    )
    if loc[-1] == "weight" and details["input"] == 0:
        hint = Hint("leave the corpus out, or write its share, for example `weight: 0.1`")
    if hint is None and loc[-1] == "code" and loc[0] == "ignore" and (code := nearest(str(details["input"]), CODES)):
        hint = Hint(f"did you mean `{code}`?", code)
    return problem("HW204", message, hint or _about(loc, model, document, path))


def _told_apart(hint: Hint, document: Document, path: Path) -> Hint:
    """Return the hint for a value of an enumeration with what else the section around it needs, or of several the one that it shows."""
    around = document.value(path[:-1])
    if not isinstance(around, dict):
        return hint
    if path[-1] == "transport" and hint.text == "write `roce` or `tcp`":
        is_tcp = around.get("interface") is not None or around.get("role") == "management"
        return Hint(f"write `{(meant := 'tcp' if is_tcp else 'roce')}`", meant)
    if path[-1] == "kind" and hint.fix == "remote" and "url" not in around:
        return Hint("write `kind: remote`, with the bucket as its `url`, for example `url: s3://training/checkpoints`")
    return hint


def _is_taken(text: str, info: FieldInfo, loc: Path) -> bool:
    """Return whether the field takes the value, or the item, that the text has in a document."""
    read, problems = load_bytes("", f"value: {text}".encode())
    value = read.value(("value",))
    if any(isinstance(each, OrRange) or (value == AUTO and isinstance(each, OrAuto)) for each in info.metadata):
        return True
    return not problems and (accepts(info, value) or (isinstance(loc[-1], int) and accepts(info, [value])))


def _of_quantity(kind: str, field: str, info: FieldInfo | None, value: Any) -> Hint | None:
    """Return the quantity that a text or a number without its unit is meant to be."""
    notation = None if info is None else _notation(info.annotation, *info.metadata)
    hint = repair.quantity(notation.name, value) if notation is not None else None
    if kind == MISSING_UNIT and notation is not None and info is not None:
        # A number of bytes is far from what the field usually has.
        near = repair.with_a_unit(notation, value, info.examples, partial(accepts, info))
        hint = hint if near is None or near.text.startswith(f"write `{value}B`") else near
    if notation is not None and notation.name == _TIME and info is not None:
        hint = repair.bare_time(value, partial(accepts, info), None if field == _TIME else info.examples) or hint
    hint = hint if hint is None or hint.fix is None or info is None or accepts(info, hint.fix.strip('"')) else None
    if hint is None and info is not None and not info.is_required() and str(value).strip().lower() in _ALL:
        return Hint(f"leave it out, or write a number with its unit, for example {_examples(info)}")
    if hint is None and notation is not None and info is not None:
        hint = repair.with_a_unit(notation, value, info.examples, partial(accepts, info))
    return hint


def _at_limit(details: ErrorDetails, info: FieldInfo | None, loc: Path) -> Hint | None:
    """Return the nearest value that the field takes, and whether to leave it out is another way."""
    if details["type"] not in _AT_LIMIT or info is None:
        return None
    if (meant := _beyond(details["input"], loc)) is not None:
        return meant
    nearest_value = _AT_LIMIT[details["type"]].format(**_limits(details, info))
    unset = (
        "leave it out, or "
        if details["type"].startswith("greater") and not info.is_required() and info.default is None and loc not in _NEEDED
        else ""
    )
    example = f", for example `{loc[-1]}: {_example(info)}`" if info.examples and isinstance(loc[-1], str) else ""
    return Hint(f"{unset}{nearest_value}{example}")


def _beyond(value: Any, loc: Path) -> Hint | None:
    """Return what a number beyond the limit of this field is meant to be; None if that is unknown."""
    name, section = loc[-1], loc[-2] if len(loc) > 1 else None
    if name == "dscp" and isinstance(value, int) and _DSCPS <= value <= _BYTE:
        # The byte of DSCP and ECN (RFC 3168, section 22), which NCCL_IB_TC and tcpdump write.
        return Hint(
            f"write `{value >> 2}`: {value} is the whole traffic class, of which DSCP is the upper six bits", str(value >> 2)
        )
    if section == "oversubscription" and isinstance(value, int | float) and 0 < value < 1:
        return Hint(
            f"leave it out if `switches` has `leaves` and `spines`, which decide it; else write `{1 / value:.3g}`, "
            "the ports to nodes for each one up"
        )
    if loc == ("gpus",):
        return Hint("write the GPUs of each node, for example `gpus: 8`, and the number of nodes as `nodes`")
    if name == "gpus" and isinstance(value, int) and value % _BOARD == 0 and value > _BOARD:
        return Hint("write the GPUs of one host, for example `gpus: 4`, and those of its rack as `nvlink_domain: 72`")
    return None


def _name_in_file(document: Document, path: Path) -> Hint | None:
    """Return the name of the Cluster document whose file was written for its name."""
    folder, file = document.folder(path), document.value(path)
    if path[0] != "cluster" or folder is None or not isinstance(file, str) or not file.endswith((".yaml", ".yml")):
        return None
    try:
        text = (folder / file).read_bytes()[:_HEAD_BYTES].decode(errors="replace")
    except OSError:
        return None
    found = re.search(r"^name: *[\"']?([a-z0-9][-a-z0-9]*)", text, re.MULTILINE)
    return None if found is None else Hint(f"write `{found[1]}`, the `name` in that document", found[1])


def _of_type(kind: str, loc: Path, info: FieldInfo | None, document: Document, path: Path) -> Hint | None:
    """Return what to write for a value of the wrong type; None if that is unknown."""
    value = document.value(path)
    if isinstance(value, dict | list):
        return _of_collection(kind, loc, info, value)
    if path not in document.scalars or value is None:
        return None
    if str(value).lower() == AUTO and info is not None and any(isinstance(each, OrAuto) for each in info.metadata):
        return Hint(f"write `{AUTO}`", AUTO)
    if kind == "string_type":
        quoted = _in_quotes(document, path, loc)
        # What is refused next mends nothing: `"570"` is no version either.
        is_item = isinstance(loc[-1], int)
        return quoted if is_item or info is None or quoted.fix is None or accepts(info, quoted.fix.strip('"')) else None
    if kind in ("int_type", "int_from_float", "float_type"):
        return _of_number(kind, loc, info, document, value)
    if kind == "bool_type":
        return repair.boolean(value)
    if kind in ("tuple_type", "list_type") and loc[-1] == "nics" and isinstance(value, int) and 0 < value <= _MOST_ADAPTERS:
        names = flow([f"mlx5_{number}" for number in range(value)])
        return Hint(f"write `{names}`, with the names that `ibv_devices` prints", names)
    if kind in ("tuple_type", "list_type"):
        return _accepted_list(repair.lists(value, short_of(info, value), is_command=loc[-1] in ("argv", "run")), info, loc)
    return _of_mapping(loc, info, value) if kind in _MAPPINGS else None


def _of_mapping(loc: Path, info: FieldInfo | None, value: Any) -> Hint | None:
    """Return the section, or the item, that a single value is short for."""
    if (form := _of_section(loc, value)) is not None:
        return form
    if isinstance(value, str) and (pair := _PAIR.fullmatch(value)):
        one = f"{{{pair[1]}: {pair[2]}}}"
        return Hint("put a space after the `:` of each line") if " " in value else Hint(f"write `{one}`", one)
    if ratio := re.fullmatch(r"([0-9.]{1,8}):1", str(value)):
        value = repair.plain_number(ratio[1])
    if (section := fitted(info, value, str(loc[-1]))) != value:
        # Of an item, the field is the list around it.
        section = section[0] if isinstance(loc[-1], int) and isinstance(section, list) else section
        return Hint(f"write `{flow(section)}`", flow(section))
    if (short := _only_required(info, value)) is not None:
        return Hint(f"write `{{{short}: {flow(value)}}}`", f"{{{short}: {flow(value)}}}")
    if value is True and (switched := _all_on(info)) is not None:
        return Hint(f"write for example `{switched}`", switched)
    return _in_example(info, value) if isinstance(value, str) else None


def _of_section(loc: Path, value: Any) -> Hint | None:
    """Return the section that Docker's `/data:/data:ro`, or the code of a problem alone, is short for."""
    if loc == ("model",) and (name := form_repair.preset(value)) in models():
        return Hint(f"write `{{preset: {name}}}`", f"{{preset: {name}}}")
    if loc[0] == "mounts" and (mount := repair.mount(value)) is not None:
        written = flow(mount)
        return Hint(f"write `{written}`", written)
    if loc == ("batch",) and isinstance(value, int | str):
        amount = f"{value} sequences" if isinstance(value, int) else repair.amount(value)
        return (
            None
            if amount is None
            else Hint(f"write `{{global: {amount}, micro: 1, sequence: 4096}}`, with the sequence's length of your own")
        )
    if loc[-1] == "login" and (login := form_repair.login(value)) is not None:
        return Hint(f"write `{login}`", login)
    if loc[0] == "ignore" and re.fullmatch(r"HW[0-9]{3}", str(value)):
        return Hint(f"write `{{code: {value}, reason: ...}}`, with the reason why it may stay")
    return None


def _of_number(kind: str, loc: Path, info: FieldInfo | None, document: Document, value: Any) -> Hint | None:
    """Return the number, the range of nodes or the `auto` that a text or another number is meant to be."""
    if loc[-1] in _IDS and value == "root":
        return Hint("write `0`", "0")
    if loc == ("nodes",) and (ends := re.fullmatch(r"([1-9][0-9]{0,5})\s*(?:[:-]|\.\.)\s*([1-9][0-9]{0,5})", str(value))):
        return Hint(f"write `{{min: {ends[1]}, max: {ends[2]}}}`", f"{{min: {ends[1]}, max: {ends[2]}}}")
    if loc == ("nodes",) and (product := re.fullmatch(r"([1-9][0-9]{0,5})\s*[x*\u00d7]\s*([1-9][0-9]{0,2})", str(value))):
        return Hint(f"write `{product[1]}`, without the GPUs of each", product[1])
    if loc[-1] == "skip_samples" and (samples := _samples_of_steps(value, document)) is not None:
        return samples
    if loc[-1] == "dscp" and (marked := _code_point(str(value).strip().upper())) is not None:
        return Hint(f"write `{marked}`", str(marked))
    if loc == ("steps",) and (steps := repair.steps_of_tokens(value, document)) is not None:
        return Hint(f"write `{steps}`, the steps of so many tokens", str(steps))
    if loc[-1] in ("warmup_steps", "decay_steps") and (share := _share_of_steps(value, document)) is not None:
        return share
    return repair.number(value, whole=kind != "float_type", field=str(loc[-1]))


def _code_point(name: str) -> int | None:
    """Return the DSCP of a name: assured forwarding (RFC 2597), class selectors (RFC 2474), expedited forwarding (RFC 3246)."""
    if assured := re.fullmatch("AF([1-4])([1-3])", name):
        return 8 * int(assured[1]) + 2 * int(assured[2])
    if selector := re.fullmatch("CS([0-7])", name):
        return 8 * int(selector[1])
    return 46 if name == "EF" else None


def _in_example(info: FieldInfo | None, value: str) -> Hint | None:
    """Return the field's example with the text in place of the only one in its options: a path is written for the choice that reads it."""
    example = info.examples[0] if info is not None and info.examples else None
    if not isinstance(example, dict) or not ("/" in value or "*" in value):
        return None
    options = example.get("options", {})
    if len(options) != 1 or not all(isinstance(each, list) and len(each) == 1 for each in options.values()):
        return None
    found = flow({**example, "options": {key: [value] for key in options}})
    return Hint(f"write `{found}`", found)


def _of_collection(kind: str, loc: Path, info: FieldInfo | None, value: dict[str, Any] | list[Any]) -> Hint | None:
    """Return what to write for a mapping or a list where something else belongs."""
    if isinstance(value, dict) and loc == ("nodes",):
        return _range_of(value)
    if isinstance(value, list) and loc == ("nodes",) and len(value) == _ALIKE and all(isinstance(each, int) for each in value):
        return _range_of({"min": value[0], "max": value[1]})
    if isinstance(value, list):
        if kind in _MAPPINGS:
            return _pairs(value)
        # Slurm joins features that a node must all have by `&`.
        joined = ("&" if loc[-1] == "constraint" else ",").join(map(str, value))
        if kind == "string_type" and len(value) > 1 and info is not None and _is_in_form(info, joined):
            return Hint(f"write `{flow(joined)}`", flow(joined))
        return (
            _of_list(kind, value, info, inside=isinstance(loc[-1], int))
            if kind in ("int_type", "float_type", "string_type")
            else None
        )
    if kind == "string_type":
        return _text_of_mapping(value, loc)
    if kind not in ("tuple_type", "list_type") or not value:
        return None
    section = None if info is None else model_of(info.annotation)
    if loc[:2] == _GRID and section is None and (listed_values := _values_of_range(value, info)) is not None:
        return Hint(f"write the values themselves, for example `{flow(listed_values)}`", flow(listed_values))
    if loc[:2] == _GRID and section is not None and field_names(section).keys() >= value.keys():
        return Hint("write " + " and ".join(f"`{loc[-1]}.{key}: {flow(each)}`" for key, each in value.items()))
    found = _accepted_list(repair.lists_of_mapping(value, list(field_names(section)) if section else []), info, loc)
    if found is not None and found.fix == flow([value]):
        return Hint(f"begin it with `- `: a list of one item, {_short_flow([value])}")
    if found is None and section is not None and 2 * len(value.keys() & field_names(section).keys()) > len(value):
        return Hint("begin it with `- `: a list of one item")
    return found


def _text_of_mapping(value: Mapping[str, Any], loc: Path) -> Hint | None:
    """Return the text that YAML has read as a mapping, or the secret that it refers to."""
    if (quoted := _unquoted(value)) is not None:
        return quoted
    if isinstance(loc[-1], int) and len(value) == 1:
        ((key, item),) = value.items()
        if isinstance(item, dict) and len(item) == 1 and next(iter(item.values())) is None:
            # YAML reads the braces of `{seed}` as a mapping.
            item = f"{{{next(iter(item))}}}"
        if not isinstance(item, str | int | float):
            return None
        # Kubernetes names an object by `{name: ...}`; a colon and a blank in a line of shell make a mapping.
        written = str(item).lower() if isinstance(item, bool) else str(item)
        text = written if key == "name" else f"{key}={written}" if str(key).startswith("-") else f"{key}: {written}"
        return Hint(f"write `{flow(text)}`", flow(text))
    secret = _secret_of(value)
    if secret is None:
        return None
    return Hint(f"leave it out here, and write `secrets: [{flow({'name': str(loc[-1]), **secret})}]`")


def _values_of_range(value: Mapping[str, Any], info: FieldInfo | None) -> list[Any] | None:
    """Return the values in a distribution of a search: `{min: 1.0e-4, max: 3.0e-4}`, `{values: [1, 2]}`."""
    inner = next((each for each in value.values() if isinstance(each, list)), None)
    found = inner if inner is not None else [each for each in value.values() if isinstance(each, int | float)]
    return found if found and info is not None and all(accepts(info, each) for each in found) else None


def _unquoted(value: Mapping[str, Any]) -> Hint | None:
    """Return the text in braces that YAML reads as a mapping without a value: `{seed}`, which a script's argument may be."""
    if len(value) != 1 or next(iter(value.values())) is not None:
        return None
    quoted = f'"{{{next(iter(value))}}}"'
    return Hint(f"quote it: `{quoted}`", quoted)


def _range_of(value: Mapping[str, Any]) -> Hint | None:
    """Return the range of nodes that a mapping is meant to be: `{minimum: 4, maximum: 8}`."""
    ends = {str(key).lower()[:3]: each for key, each in value.items() if isinstance(each, int)}
    if not ends.keys() & {"min", "max"}:
        return None
    both = flow({end: ends.get(end, "...") for end in ("min", "max")})
    return Hint(f"write `{both}`" if len(ends) > 1 else f"write both ends: `{both}`", both if len(ends) > 1 else None)


def _accepted_list(candidates: Iterable[Any], info: FieldInfo | None, loc: Path) -> Hint | None:
    """Return the hint for the first of the values that the field accepts: what is refused next mends nothing."""

    def is_taken(value: Any) -> bool:
        if info is None or loc[:2] != _GRID:
            return info is not None and accepts(info, value)
        return isinstance(value, list) and all(accepts(info, each) for each in value)

    found = next((each for each in candidates if is_taken(each)), None)
    return None if found is None else Hint(f"write {_short_flow(found)}", flow(found))


def _secret_of(value: Mapping[str, Any]) -> dict[str, str] | None:
    """Return source and key of the Secret that an entry of Kubernetes' `env` refers to."""
    reference = value.get("valueFrom")
    found = reference.get("secretKeyRef") if isinstance(reference, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not isinstance(found.get("key"), str):
        return None
    return {"source": found["name"], "key": found["key"]}


def _is_in_form(info: FieldInfo, text: str) -> bool:
    """Return whether the field has a form in which commas separate parts, and takes the text."""
    return not accepts(info, "\x00") and accepts(info, text)


def _all_on(info: FieldInfo | None) -> str | None:
    """Return a section whose fields are all true or false with the first two of them on: `overlap: true` says no more."""
    section = None if info is None else model_of(info.annotation)
    fields = {} if section is None else field_names(section)
    on = {name: True for name, each in list(fields.items())[:2] if accepts(each, True)}
    return flow(on) if len(on) == _ALIKE and all(accepts(each, True) for each in fields.values()) else None


def _only_required(info: FieldInfo | None, value: Any) -> str | None:
    """Return the one field of the section that must be set, which the value is most likely meant as: the path of a corpus."""
    section = None if info is None else model_of(info.annotation)
    required = {name: each for name, each in (field_names(section) if section else {}).items() if each.is_required()}
    name = next(iter(required), "")
    is_meant = len(required) == 1 and name not in KIND_OR_PRESET and isinstance(value, str) and accepts(required[name], value)
    return name if is_meant else None


def _of_list(kind: str, items: list[Any], info: FieldInfo | None, *, inside: bool) -> Hint | None:
    """Return what to write for a list in place of one value, which may be `inside` of a list."""
    if len(items) == 1 and info is not None and accepts(info, items[0]):
        return Hint(f"write `{flow(items[0])}`", flow(items[0]))
    if kind in ("int_type", "float_type"):
        # `[0, 1, 2, 3]` are the indices of four devices.
        if kind == "float_type" and not items:
            return None
        if kind == "float_type" or (all(isinstance(each, int) for each in items) and items != list(range(len(items)))):
            return Hint(f"write one number, for example `{items[0]}`; values to compare belong in `sweep`")
        return Hint(f"write `{len(items)}`, the number of them", str(len(items))) if items else None
    joined = ",".join(map(str, items))
    if inside and items and info is not None and accepts(info, [joined]) and not accepts(info, ["\x00"]):
        return Hint(f"write `{flow(joined)}`", flow(joined))
    return Hint("write each as an item of the list around it") if inside and items else None


def _share_of_steps(value: Any, document: Document) -> Hint | None:
    """Return the steps that a share of the run is, `3%` of `steps`."""
    if isinstance(value, float) and 0 < value < 1:
        value = f"{value * 100:g}%"
    steps, share = document.value(("steps",)), re.fullmatch(r"([0-9.]{1,6})\s*%", str(value).strip())
    if share is None:
        return None
    if not isinstance(steps, int) or share[1].count(".") > 1:
        return Hint("write a number of steps")
    found = round(float(share[1]) / 100 * steps)
    return Hint(f"write `{found}`, which is {share[1]} % of {steps} steps", str(found))


def _samples_of_steps(value: Any, document: Document) -> Hint | None:
    """Return the samples of so many steps, `20 steps`, by the job's global batch."""
    steps = re.fullmatch(r"([0-9]{1,12})\s*steps?", str(value).strip())
    found = None if steps is None else repair.samples(int(steps[1]), document)
    if steps is None or found is None:
        return None
    return Hint(f"write `{found}`: {steps[1]} steps of {found // max(1, int(steps[1]))} samples", str(found))


def _short_flow(value: Any) -> str:
    return _shortened(flow(value))


def _shortened(text: str) -> str:
    return f"`{text}`" if len(text) <= _LONGEST_FLOW else f"`{text[:_LONGEST_FLOW]}...`"


def _pairs(items: list[Any]) -> Hint | None:
    """Return the mapping that Kubernetes writes as a list of names and values, and Compose as a list of `NAME=value`."""
    pairs: dict[str, Any] = {}
    for item in items:
        if isinstance(item, dict) and item.keys() == {"name", "value"}:
            pairs[str(item["name"])] = item["value"]
        elif isinstance(item, dict) and len(item) == 1:
            pairs |= item
        elif isinstance(item, str) and "=" in item:
            name, _, pairs[name] = item.partition("=")
        else:
            return None
    return Hint(f"write a mapping: `{flow(pairs)}`") if pairs else None


def _with_commas(loc: Path, value: Any, info: FieldInfo | None) -> Hint | None:
    """Return the partitions with the commas that Slurm has between them, where they are separated by blanks."""
    text = re.sub(r"[\s,;]+", ",", value.strip()) if loc[-1] == "partition" and isinstance(value, str) else ""
    return Hint(f"write `{flow(text)}`", flow(text)) if "," in text and info is not None and accepts(info, text) else None


def _of_form(pattern: Any, value: Any) -> Hint | None:
    """Return the text that has the form, if the value is near to one."""
    if isinstance(value, str) and pattern is not None and value != value.strip() and re.fullmatch(str(pattern), value.strip()):
        return Hint(f"write `{flow(value.strip())}`, without blanks around it", flow(value.strip()))
    fix = _REPAIRS.get(str(pattern))
    hint = fix(value) if fix is not None else None
    return hint if hint is not None and (hint.fix is None or re.search(str(pattern), hint.fix.strip('"'))) else None


def _examples(info: FieldInfo | None) -> str | None:
    """Return the examples of a field, which say more than those of its type."""
    return joined_or([f"`{flow(each)}`" for each in info.examples]) if info is not None and info.examples else None


def _bound(details: ErrorDetails, info: FieldInfo | None) -> str | None:
    """Return what the value must be, a limit of a quantity in its unit; None for an error without a bound."""
    kind, context = details["type"], details.get("ctx", {})
    return _BOUNDS[kind]({**context, **_limits(details, info)}) if kind in _BOUNDS else None


def _limits(details: ErrorDetails, info: FieldInfo | None) -> dict[str, str]:
    """Return the limits of the error, those of a quantity in its unit."""
    notation = None if info is None else _notation(info.annotation, *info.metadata)
    write: Callable[[Any], str] = notation.write if notation else _number
    context = details.get("ctx", {})
    return {name: write(context[name]) for name in _LIMITS if name in context}


def _notation(*annotations: Any) -> Notation | None:
    """Return the notation of the quantity in one of the annotations; None if there is none."""
    for each in annotations:
        inner = notation_of(each.json_schema or {}) if isinstance(each, WithJsonSchema) else _notation(*get_args(each))
        if inner is not None:
            return inner
    return None


def _written(document: Document, path: Path) -> Path:
    """Return the position of the value; of a mapping that is written as its name alone, the name's."""
    return path[:-1] if path not in document.values and path[:-1] in document.scalars else path


def _found(document: Document, path: Path) -> str:
    if document.value(path) is None and path not in document.scalars:
        return "nothing"
    source = document.source(path)
    if source == "":
        return "nothing"
    return f"`{source}`" if path in document.scalars else source


def _form(pattern: str) -> str:
    return f"be {words}" if (words := form(pattern)) else f"have the form `{pattern}`"


def _number(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def _in_quotes(document: Document, path: Path, loc: Path) -> Hint:
    """Return how to write a number or a boolean where text is required."""
    if loc[-1] == "code" and re.fullmatch(r"[0-9]{3}", document.source(path)):
        return Hint(f"write `HW{document.source(path)}`", f"HW{document.source(path)}")
    if loc[-1] == "memory" and document.source(path).isdigit():
        return Hint(f"write `{document.source(path)}Gi` or `{document.source(path)}Mi`")
    key = f"{path[-1]}: " if isinstance(path[-1], str) else ""
    return Hint(f'put it in quotes: `{key}"{document.source(path)}"`', f'"{document.source(path)}"')


def _of_key(path: Path) -> str | None:
    """Return the remedy for an empty value in a mapping with free keys."""
    return f'leave `{path[-1]}` out, or write `{path[-1]}: ""` for an empty text' if isinstance(path[-1], str) else None


def _about(loc: Path, model: type[BaseModel], document: Document, path: Path, verb: str = "write") -> str | None:
    """Return an example of the field at `loc`, at `path` of the document, and what it is; of an item, what its list is."""
    owner, name = holder_of(model, loc)
    if owner is None or name not in field_descriptions(owner):
        return None
    description, info = _as_clause(field_descriptions(owner)[name]), field_names(owner)[name]
    found = example_in(document, path) if loc[-1] == name else None
    if found is not None and accepts(info, found.value):
        return f"{verb} {'' if found.is_the_one else 'for example '}`{name}: {flow(found.value)}`: {description}"
    return f"{verb} for example `{name}: {_example(info)}`: {description}" if loc[-1] == name and info.examples else description


def _as_clause(sentence: str) -> str:
    """Return its first sentence without its full stop and capital; `CPU cores` keeps its own."""
    sentence = sentence.partition(". ")[0]
    first = sentence[:1] if any(each.isupper() for each in sentence.partition(" ")[0][1:]) else sentence[:1].lower()
    return first + sentence[1:].rstrip(".")


def _example(info: FieldInfo) -> str:
    """Return the field's first example in YAML's flow style; of a section, the fields that it must have, if there are any."""
    example, section = (info.examples or [None])[0], model_of(info.annotation)
    if isinstance(example, dict) and section is not None:
        required = {name for name, each in field_names(section).items() if each.is_required()}
        # What else a section may have need not fit this job: a warm-up longer than its run.
        example = {name: value for name, value in example.items() if name in required or "kind" in required} or example
    return flow(example)


def _place(path: Path, owner: type[BaseModel]) -> str:
    return f"`{dotted(path)}`" if path else f"{'an' if owner.__name__[0] in 'AEIOU' else 'a'} {owner.__name__}"
