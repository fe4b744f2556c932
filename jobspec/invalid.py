"""Turns Pydantic's errors into problems: what was found, what was expected, where, and what to do."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, get_args

from msgspec.structs import replace
from pydantic import BaseModel, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headway.jobspec import aliases, form_repair, repair
from headway.jobspec.codes import CODES
from headway.jobspec.document import Document, Path, Span, clipped, dotted
from headway.jobspec.example import example_in, head_of, name_in
from headway.jobspec.fitting import accepts
from headway.jobspec.flow import flow, shortened
from headway.jobspec.forms import form
from headway.jobspec.load import load_bytes
from headway.jobspec.misplaced import head_of_kubernetes, misplaced_fields, section_name
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
from headway.jobspec.suggest import Hint, as_clause, joined_or, listed, nearest
from headway.jobspec.type_repair import GRID, of_type, share_of_steps
from headway.jobspec.units import MISSING_UNIT, NOT_A_QUANTITY, parse_amount
from headway.jobspec.unknown import (
    EXTENDS,
    HEAD,
    Meaning,
    OtherKinds,
    alias_or_similar,
    meanings,
    names_of,
    of_no_kind,
)
from headway.runner.contract import TIER_KINDS


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
    "too_short": lambda bound: f"have at least {counted(bound['min_length'], 'item')}",
    "too_long": lambda bound: f"have at most {counted(bound['max_length'], 'item')}",
}
_LIMITS = ("gt", "ge", "lt", "le")
_TIME = "time"
# Items of one list with the same mistake.
_ALIKE = 2
# Words for all that there is.
_ALL = frozenset(("all", "max", "maximum", "default", "any", "everything", "full"))
# Words for no value.
_NOTHING = frozenset(("none", "null", "nil", "undefined"))
_DSCPS, _BYTE, _BOARD = 64, 255, 4
_GROUP = ("group",)
_TIERS = ("checkpoint", "tiers")
# Of groups that a job is to span.
_ONE_GROUP = (
    "write one of them; if their nodes differ in processors, memory or Slurm's features only, describe them as one group in the cluster's "
    "document, with the least `cpus` and `host_memory`, and choose by `scheduler.slurm.constraint` where it matters"
)

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


class _Found(NamedTuple):
    """A problem, and what its hint ends with: what is to be done once it is mended."""

    problem: Problem
    after: str | None = None


def describe(
    error: ValidationError, model: type[BaseModel], document: Document, prefix: Path = (), others: OtherKinds = of_no_kind
) -> list[Problem]:
    """Return one problem per mistake. `prefix` is the path of the model's data in the document."""
    found = error.errors(include_url=False)[:MAX_PROBLEMS]
    more = error.error_count() - len(found)
    meant = meanings(found, model, document, prefix, others)
    if not prefix and (head := [key for key in HEAD if (key,) in meant]):
        found = [
            details for details in found if details["type"] != "missing" and details["loc"] not in {(each,) for each in head}
        ]
        problems = [head_of_kubernetes(head, document)]
    else:
        lost = misplaced_fields(found, meant, model, document, prefix)
        problems = [problem for problem, _ in lost]
        covered = {loc for _, locs in lost for loc in locs}
        found = [details for details in found if details["loc"] not in covered]
    targets = {place.target for place in meant.values()}
    judged = [
        _problem(details, model, document, prefix, meant) for details in found if not _echo(details, document, prefix, targets)
    ]
    return capped([*problems, *_once_for_items(judged, document)], document.name, more)


def _once_for_items(judged: Sequence[_Found], document: Document) -> list[Problem]:
    """Return the problems with one in place of those that all items of a list have, `root@10.0.0.11` and `root@10.0.0.12`, if each can be
    mended: that is one mistake."""
    alike: dict[tuple[Path, str], list[_Found]] = {}
    for each in judged:
        path = each.problem.path
        if path and isinstance(path[-1], int) and each.problem.fix is not None and not each.problem.at_key:
            alike.setdefault((path[:-1], each.problem.code), []).append(each)
    joined: dict[int, Problem | None] = {}
    for (path, _), same in alike.items():
        items = document.value(path)
        if len(same) < _ALIKE or not isinstance(items, list) or len(same) < len(items):
            continue
        first, fixes = same[0].problem, {each.problem.path[-1]: each.problem.fix for each in same}
        written = f"[{', '.join(str(fixes[index]) for index in range(len(items)))}]"
        after = next((each.after for each in same if each.after is not None), None)
        hint = Hint(f"write {shortened(written)}", after=after).whole
        message = f"{first.message}, and {len(same) - 1} more"
        joined |= {id(each): None for each in same[1:]} | {id(same[0]): replace(first, message=message, hint=hint, fix=None)}
    found = [joined.get(id(each), each.problem) for each in judged]
    return [problem for problem in found if problem is not None]


def _echo(details: ErrorDetails, document: Document, prefix: Path, targets: Collection[tuple[str, ...] | None]) -> bool:
    """Return whether another error covers it already: a field is missing because it is misspelt or in another section, a list
    too short because of its items."""
    if details["type"] == "too_short":
        return bool(document.value((*prefix, *details["loc"])))
    if details["type"] == "missing" and EXTENDS in targets:
        # The document that it names may have the field.
        return True
    return details["type"] == "missing" and names_of((*prefix, *details["loc"])) in targets


def lacking(name: str, model: type[BaseModel], document: Document) -> Problem:
    """Return the problem of a missing field that its model makes optional, and that is required here."""
    return _missing((name,), model, document, ())


def _problem(
    details: ErrorDetails, model: type[BaseModel], document: Document, prefix: Path, meant: Mapping[Path, Meaning]
) -> _Found:
    loc = details["loc"]
    if (*prefix, *loc) == _GROUP and isinstance(groups := document.value(_GROUP), list):
        message = f"a job runs on one group of nodes, found {len(groups)}: each rank has the same GPUs, processors and adapters"
        return _Found(Problem("HW203", document.name, _GROUP, message, _ONE_GROUP))
    if loc in meant:
        owner, path = owner_of(model, loc[:-1]) or model, (*prefix, *loc)
        message, hint = f"`{loc[-1]}` is not a field of {section_name(path[:-1], owner)}", meant[loc].hint
        return _Found(Problem("HW201", document.name, path, message, hint.text, at_key=True, fix=hint.fix))
    if details["type"] == "missing":
        return _Found(_missing(loc, model, document, prefix))
    if loc[-1:] == (_KEY,):
        return _Found(_wrong_key(details, document, (*prefix, *loc[:-1])))
    return _wrong_value(details, model, document, prefix)


def _removed(key: str, document: Document) -> Span | None:
    """Return where the document sets the field to null, which removes the value that a base has."""
    for number, line in enumerate(document.lines()):
        if line.startswith(key) and (found := re.match(rf"{re.escape(key)}:\s*(null|~)\s*(#|$)", line, re.IGNORECASE)):
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
    return Problem(
        "HW202", document.name, path[:-1], f"`{key}` is missing from {section_name(path[:-1], owner)}", hint, at_key=True
    )


def _wrong_key(details: ErrorDetails, document: Document, path: Path) -> Problem:
    """Return the problem of a wrong key of a mapping with free keys."""
    words = form(pattern := details.get("ctx", {}).get("pattern", ""))
    wrong = f"is not {words}" if words else f"must {_bound(details, None) or details['msg']}"
    hint = _of_form(pattern, path[-1])
    message = f"the key `{path[-1]}` of `{dotted(path[:-1])}` {wrong}"
    return Problem("HW204", document.name, path, message, hint and hint.whole, at_key=True, fix=hint and hint.fix)


def _wrong_value(details: ErrorDetails, model: type[BaseModel], document: Document, prefix: Path) -> _Found:
    loc, context = details["loc"], details.get("ctx", {})
    kind = _NOT_DECIDED if details["input"] == AUTO and details["type"] in {*_TYPES, NOT_A_QUANTITY} else details["type"]
    path = _written(document, (*prefix, *loc))
    name = f"`{dotted(path)}`"
    # The values of a sweep are those of its field.
    info = field_of(model, tuple(str(loc[2]).split(".")) if loc[:2] == GRID and len(loc) > 2 else loc)
    found = _found(document, path)
    left = _left(details, document.value(path))

    def problem(code: str, message: str, hint: Hint | str | None) -> _Found:
        hint = (
            _in_place_of(left, info, document, path) if left is not None else _without_comment(document.value(path), info) or hint
        )
        text, fix, after = (hint.whole, hint.fix, hint.after) if isinstance(hint, Hint) else (hint, None, None)
        refused = fix is not None and info is not None and loc[:2] != GRID and not _is_taken(fix, info, loc)
        # What is refused next mends nothing.
        if refused or path in document.credentials:
            text, fix, after = _about(loc, model, document, path), None, None
        # A block of several lines is not replaced by its first one.
        span = document.values.get(path) if path in document.scalars else None
        fix = fix if span is not None and span.line == span.end_line else None
        return _Found(Problem(code, document.name, path, message, text, fix=fix), after)

    if kind == _NOT_DECIDED:
        return problem(
            "HW203", f"{name}: `auto` is not supported here; write the value itself", _about(loc, model, document, path)
        )
    if kind in (MISSING_UNIT, NOT_A_QUANTITY):
        hint = _of_whole_sequences(_of_quantity(kind, str(loc[-1]), info, document.value(path)), document, path)
        if loc[-1] == "every" and (share := share_of_steps(document.value(path), document)) is not None and share.fix is not None:
            hint = Hint(f"write `{share.fix} steps`, {share.text.partition(', ')[2]}", f"{share.fix} steps")
        advice = hint or f"write a number with its unit, for example {_examples(info) or context['examples']}"
        if kind == MISSING_UNIT:
            return problem("HW213", f"{name} must be {context['what']} with its unit, found {found}", advice)
        return problem("HW204", f"{name} must be {context['what']}, found {found}", advice)
    if kind in _TYPES:
        hint = of_type(kind, loc, info, document, path)
        return problem(
            "HW203",
            f"{name} must be {_TYPES[kind]}, found {found}",
            hint or _about(loc, model, document, path) or (_of_key(path) if document.value(path) is None else None),
        )
    if kind == "literal_error":
        allowed = literals_of(info)
        hint = _told_apart(str(details["input"]), allowed, document, path)
        if len(allowed) == 1:
            also = ", or leave it out" if info is not None and not info.is_required() else ""
            hint = Hint(f"write `{allowed[0]}`{also}", allowed[0])
        message = f"{name} must be one of {listed(allowed)}, found {found}"
        return problem("HW205", message, hint or _about(loc, model, document, path))
    bound = _bound(details, info)
    message = f"{name} must {bound}, found {found}" if bound else f"{name}: {details['msg']}, found {found}"
    hint = (
        _no_value(document.value(path), info)
        or _name_in_file(document, path)
        or _with_commas(loc, document.value(path), info)
        or _two_items(context.get("pattern"), path, document.value(path))
        or _of_form(context.get("pattern"), document.value(path))
        or _at_limit(details, info, loc)
    )
    if loc[-1] == "weight" and details["input"] == 0:
        hint = Hint("leave the corpus out, or write its share, for example `weight: 0.1`")
    if hint is None and loc[-1] == "code" and loc[0] == "ignore" and (code := nearest(str(details["input"]), CODES)):
        hint = Hint(f"did you mean `{code}`?", code)
    # The values of a sweep have no example.
    empty = _some(loc, document) if details["type"] == "too_short" else None
    return problem("HW204", message, hint or _about(loc, model, document, path) or empty)


def _left(details: ErrorDetails, value: Any) -> str | None:
    """Return what is left to be filled in. A shell's `$NAME` is near to the name of a variable, and a `{name}` to a text in quotes."""
    is_name = details.get("ctx", {}).get("pattern") == _pattern(EnvName)
    left = None if is_name or details["type"] in ("string_type", "dict_type", "model_type") else repair.unfilled(value)
    # A list of arguments is filled in, also where it is written as one line.
    is_command = details["type"] == "tuple_type" and details["loc"][-1] in ("argv", "run")
    return None if is_command and left is not None and left.startswith("{") else left


def _some(loc: Path, document: Document) -> str:
    """Return what to write for an empty list: of a sweep, the value that the job has and others."""
    own = document.value(tuple(str(loc[-1]).split("."))) if loc[:2] == GRID else None
    if isinstance(own, int) and not isinstance(own, bool):
        return f"write one value or more, for example `{loc[-1]}: {flow([own, own + 1])}`"
    return "write one item or more" if own is None else f"write one value or more, for example `{loc[-1]}: {flow([own])}`"


def _without_comment(value: Any, info: FieldInfo | None) -> Hint | None:
    """Return the value before a comment of another language, `4 // nodes`, if the field takes it."""
    found = re.fullmatch(r"(\S.*?)\s+(?://+|--|;|/\*|%)\s*(.*?)(?:\s*\*/)?", value) if isinstance(value, str) else None
    if found is None or info is None or accepts(info, value) or not accepts(info, repair.plain_number(found[1])):
        return None
    text = f"{found[1]} # {found[2]}"
    return Hint(f"write `{text}`: a comment begins with `#`", text)


def _in_place_of(left: str, info: FieldInfo | None, document: Document, path: Path) -> str:
    """Return what to write for a variable that nothing fills in, with a value that the field takes."""
    found = example_in(document, path)
    example = "" if info is None or not info.examples or not isinstance(path[-1], str) else f"{path[-1]}: {_example(info)}"
    if found is not None and info is not None and accepts(info, found.value):
        example = f"{path[-1]}: {flow(found.value)}"
    return f"write the value in place of `{clipped(left)}`, which nothing fills in" + (
        f": for example `{example}`" if example else ""
    )


def _told_apart(value: str, allowed: Sequence[str], document: Document, path: Path) -> Hint | None:
    """Return the hint for a value of an enumeration, with what else the section around it needs, or of several the one that it shows; None
    where none resembles it."""
    around, hint = document.value(path[:-1]), alias_or_similar(value, allowed)
    if not isinstance(around, dict):
        return hint
    if path[-1] == "transport" and aliases.values(value, allowed) == ["roce", "tcp"]:
        is_tcp = around.get("interface") is not None or around.get("role") == "management"
        return Hint(f"write `{(meant := 'tcp' if is_tcp else 'roce')}`", meant)
    classes = around.get("classes")
    carried = [each.get("carries") for each in classes if isinstance(each, dict)] if isinstance(classes, list) else []
    if path[-1] == "congestion" and hint is not None and isinstance(classes, list) and "ecn" in value.lower():
        lossless = [each for each in classes if isinstance(each, dict) and each.get("lossless") is True and each.get("ecn")]
        if lossless:
            return Hint("write `pfc-ecn`, which the classes are for", "pfc-ecn")
    if path[-1] == "role" and "storage" in carried:
        return Hint("write `storage`, which its class carries", "storage")
    if path[:2] == _TIERS and hint is not None and hint.fix in TIER_KINDS:
        # Each kind is there once: of those that are not, the one that is in order here.
        tiers = document.value(_TIERS)
        kinds = [each.get("kind") if isinstance(each, dict) else None for each in tiers] if isinstance(tiers, list) else []
        here = path[2] if isinstance(path[2], int) else 0
        if hint.fix in kinds:
            before = [TIER_KINDS.index(each) for each in kinds[:here] if each in TIER_KINDS]
            after = [TIER_KINDS.index(each) for each in kinds[here + 1 :] if each in TIER_KINDS]
            span = TIER_KINDS[max(before, default=-1) + 1 : min(after, default=len(TIER_KINDS))]
            if len(span) == 1:
                return Hint(f"write `{span[0]}`, the kind that is missing at this place", span[0])
    if path[-1] == "kind" and hint is not None and hint.fix == "remote" and "url" not in around:
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
    meant: list[str] = []
    if notation is not None and info is not None:
        meant = repair.units_meant(notation, value, info.examples, partial(accepts, info))
    # A number of bytes is far from what the field usually has.
    if kind == MISSING_UNIT and notation is not None and meant and meant[0] != "B":
        hint = repair.with_a_unit(notation, value, meant)
    if notation is not None and notation.name == _TIME and info is not None:
        hint = repair.bare_time(value, partial(accepts, info), None if field == _TIME else info.examples) or hint
    hint = hint if hint is None or hint.fix is None or info is None or accepts(info, hint.fix.strip('"')) else None
    if hint is None and info is not None and not info.is_required() and str(value).strip().lower() in _ALL:
        return Hint(f"leave it out, or write a number with its unit, for example {_examples(info)}")
    return repair.with_a_unit(notation, value, meant) if hint is None and notation is not None and meant else hint


def _of_whole_sequences(hint: Hint | None, document: Document, path: Path) -> Hint | None:
    """Return the hint for a number of tokens with the binary prefix, where only that gives whole sequences: `4M` is `4Mi tokens`."""
    length = document.value((*path[:-1], "sequence"))
    found = re.fullmatch(r"([0-9]+?)(M|G|k|000000|000)? tokens", hint.fix) if hint is not None and hint.fix is not None else None
    if found is None or path[-1:] != ("global",) or not isinstance(length, int) or length < 1:
        return hint
    prefix = {"M": "Mi", "000000": "Mi", "G": "Gi", "k": "Ki", "000": "Ki"}.get(found[2] or "", "")
    text = f"{found[1]}{prefix} tokens"
    if not prefix or parse_amount(str(found[0])).tokens is None or (parse_amount(str(found[0])).tokens or 0) % length == 0:
        return hint
    return Hint(f"write `{text}`", text) if (parse_amount(text).tokens or 0) % length == 0 else hint


def _at_limit(details: ErrorDetails, info: FieldInfo | None, loc: Path) -> Hint | None:
    """Return the nearest value that the field takes, and whether to leave it out is another way."""
    value = details["input"]
    is_negative = isinstance(value, int | float) and value < 0 and value != -1
    if is_negative and info is not None and details["type"].startswith("greater") and accepts(info, -value):
        return Hint(f"write `{flow(-value)}`, without the sign", flow(-value))
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


def _no_value(value: Any, info: FieldInfo | None) -> Hint | None:
    """Return that a field whose text means no value, `None` of Python, is left out."""
    is_none = isinstance(value, str) and value.strip().lower() in _NOTHING
    return Hint("leave it out") if is_none and info is not None and not info.is_required() else None


def _name_in_file(document: Document, path: Path) -> Hint | None:
    """Return the name of the Cluster document whose file was written for its name."""
    folder, file = document.folder(path), document.value(path)
    if path[0] != "cluster" or folder is None or not isinstance(file, str) or not file.endswith((".yaml", ".yml")):
        return None
    try:
        found = name_in(head_of(folder / file))
    except OSError:
        return None
    return None if found is None else Hint(f"write `{found}`, the `name` in that document", found)


def _with_commas(loc: Path, value: Any, info: FieldInfo | None) -> Hint | None:
    """Return the partitions with the commas that Slurm has between them, where they are separated by blanks."""
    text = re.sub(r"[\s,;]+", ",", value.strip()) if loc[-1] == "partition" and isinstance(value, str) else ""
    return Hint(f"write `{flow(text)}`", flow(text)) if "," in text and info is not None and accepts(info, text) else None


def _two_items(pattern: Any, path: Path, value: Any) -> Hint | None:
    """Return the items of a list in brackets that a comma is missing between."""
    parts = value.split() if isinstance(value, str) and pattern is not None and isinstance(path[-1], int) else []
    items = [each for each in parts if each != "-"]
    if parts[1:2] == ["-"] and len(parts) == 2 * len(items) - 1 and all(re.search(str(pattern), each) for each in items):
        # Deeper lines with a dash continue the text before them.
        return Hint(f"indent the `- ` of {listed(items[1:])} like that of the first item")
    if len(parts) < _ALIKE or not all(re.search(str(pattern), each) for each in parts):
        return None
    return Hint(f"write `{', '.join(parts)}`, with a comma between them")


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


def _of_key(path: Path) -> str | None:
    """Return the remedy for an empty value in a mapping with free keys."""
    return f'leave `{path[-1]}` out, or write `{path[-1]}: ""` for an empty text' if isinstance(path[-1], str) else None


def _about(loc: Path, model: type[BaseModel], document: Document, path: Path, verb: str = "write") -> str | None:
    """Return an example of the field at `loc`, at `path` of the document, and what it is; of an item, what its list is."""
    owner, name = holder_of(model, loc)
    if owner is None or name not in field_descriptions(owner):
        return None
    description, info = as_clause(field_descriptions(owner)[name]), field_names(owner)[name]
    found = example_in(document, path) if loc[-1] == name else None
    if found is not None and accepts(info, found.value):
        return f"{verb} {'' if found.is_the_one else 'for example '}`{name}: {flow(found.value)}`: {description}"
    return f"{verb} for example `{name}: {_example(info)}`: {description}" if loc[-1] == name and info.examples else description


def _example(info: FieldInfo) -> str:
    """Return the field's first example in YAML's flow style; of a section, the fields that it must have, if there are any."""
    example, section = (info.examples or [None])[0], model_of(info.annotation)
    if isinstance(example, dict) and section is not None:
        required = {name for name, each in field_names(section).items() if each.is_required()}
        # What else a section may have need not fit this job: a warm-up longer than its run.
        example = {name: value for name, value in example.items() if name in required or "kind" in required} or example
    return flow(example)
