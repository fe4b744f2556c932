"""Parses a Document into its spec, or into its valid sections, so that later checks find as much as they can."""

import copy
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Annotated, Any, Generic, TypeVar, cast, get_args

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import BaseModel, TypeAdapter, ValidationError

from headway.jobspec.auto import find_auto, with_values
from headway.jobspec.compose import Composed, Load, compose
from headway.jobspec.document import Document, Path, Span
from headway.jobspec.load import load_file
from headway.jobspec.problem import MAX_PROBLEMS, Problem
from headway.jobspec.short import with_node_range, with_trainer
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fields import field_names, field_of
from headway.jobspec.spec.inventory import Inventory
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.section import API_VERSION
from headway.jobspec.suggest import joined_or, listed
from headway.jobspec.sweep import with_first_point

MODELS: Mapping[str, type[Cluster] | type[TrainingJob] | type[Inventory]] = {
    "Cluster": Cluster,
    "TrainingJob": TrainingJob,
    "Inventory": Inventory,
}

# `apiVersion` as names are compared.
_VERSION = "apiversion"
_GROUP = f"{API_VERSION.partition('/')[0]}/"
# The code of a missing field.
_MISSING = "HW202"
# An anchor, an alias or a merge key.
_ANCHOR = "HW106"
# A second document, and a text after the end of the first one.
_CUT_OFF = ("HW105", "HW112")
_LEADING_ZERO = "HW110"
# Fields that another kind of document has, from which on the kind is what is wrong.
_OF_ANOTHER = 3
_NUMBERS = (_LEADING_ZERO, "HW111")

S = TypeVar("S", bound=BaseModel)


class Parsed(Struct, Generic[S], frozen=True):
    """`spec` is whole when `complete`; else only the sections for which `has` is true may be read.

    `undecided` are the places of values that are `auto`, if nothing else keeps the spec from being whole: it has
    stand-ins there.
    """

    document: Document
    spec: S
    complete: bool
    sections: frozenset[str] = field(default_factory=frozenset)
    undecided: tuple[Path, ...] = ()

    def has(self, names: tuple[str, ...]) -> bool:
        return self.sections.issuperset(names)


AnyParsed = Parsed[Cluster] | Parsed[TrainingJob] | Parsed[Inventory]


def read(path: FilePath, load: Load = load_file) -> tuple[Document, AnyParsed | None, list[Problem]]:
    """Return the file's document with its bases, its spec and the problems of all; `load` reads files.

    An unreadable value is not judged as well, and a document with an incomplete base has no spec.
    """
    document, unreadable = load(path)
    if len(unreadable) > MAX_PROBLEMS or not isinstance(document.data, dict) or _head_problems(document):
        return document, None, unreadable + _head_problems(document)
    composed = _composed(document, load)
    composed = replace(composed, document=with_node_range(with_trainer(with_first_point(composed.document))))
    parsed, invalid = parse(composed.document)
    unreadable = [*unreadable, *composed.problems]
    places = {(problem.document, problem.span) for problem in unreadable}
    judged = [problem for problem in invalid if problem.at_key or _place(composed.document, problem) not in places]
    judged = [problem for problem in judged if not _is_merged(problem, composed.document, unreadable)]
    unreadable = [_for_its_field(problem, composed.document) for problem in unreadable]
    if not composed.whole:
        return composed.document, None, unreadable + said_only(judged)
    if any(problem.code in _CUT_OFF for problem in unreadable):
        # What is missing here may be after the line that ends this document.
        return composed.document, None, unreadable + said_only(judged)
    return composed.document, parsed, unreadable + judged


def _is_merged(problem: Problem, document: Document, unreadable: Iterable[Problem]) -> bool:
    """Return whether the field is missing from a mapping with a merge key, which would bring it."""
    first = document.values.get(problem.path)
    if problem.code != _MISSING or first is None:
        return False
    last = max(span for path, span in document.values.items() if path[: len(problem.path)] == problem.path)
    return any(each.code == _ANCHOR and each.span is not None and first[:2] <= each.span[:2] <= last[:2] for each in unreadable)


def _for_its_field(problem: Problem, document: Document) -> Problem:
    """Return the problem of an unreadable number with the hint for a field that takes no text."""
    kind = kind_of(document)
    path = next((path for path, span in document.values.items() if span == problem.span), None)
    if problem.code not in _NUMBERS or problem.document != document.name or kind is None or path is None:
        return problem
    info = field_of(MODELS[kind], path)
    if problem.fix is not None or info is None or str in _types_of(info.annotation):
        return problem
    digits = document.source(path).lstrip("0") or "0"
    if problem.code == _LEADING_ZERO and digits.isdecimal():
        return replace(problem, hint=f"write `{digits}`", fix=digits)
    return replace(problem, hint="write a number")


def _types_of(annotation: Any) -> set[Any]:
    """Return the types in an annotation."""
    return {annotation}.union(*map(_types_of, get_args(annotation)))


def kind_of(document: Document) -> str | None:
    """Return the document's `kind`, if it is a known one."""
    kind = document.value(("kind",))
    return kind if isinstance(kind, str) and kind in MODELS else None


def is_partial(document: Document) -> bool:
    """Return whether the document is only a base for others."""
    return ("partial",) in document.values and document.value(("partial",)) is not False


def said_only(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems without those of fields that another document can add: all missing fields, but not in the
    items of a list."""
    return [problem for problem in problems if problem.code != _MISSING or any(isinstance(key, int) for key in problem.path)]


def parse(document: Document) -> tuple[AnyParsed | None, list[Problem]]:
    """Return the spec in the document and its problems. None when its kind or version is unknown, so that no field can
    be judged.

    In a partial document no section counts as whole, and missing fields are no problem.
    """
    kind, problems = kind_of(document), _head_problems(document)
    if kind is None or problems:
        return None, problems
    model = MODELS[kind]
    parsed, problems = parse_job(document) if model is TrainingJob else _parse_as(model, document)
    if is_partial(document):
        return replace(parsed, complete=False, sections=frozenset(), undecided=()), said_only(problems)
    return parsed, problems


def parse_job(document: Document) -> tuple[Parsed[TrainingJob], list[Problem]]:
    """Return the spec of a known TrainingJob, which is no base for others, and its problems; stand-ins replace `auto`.

    A section with an `auto` does not count as whole before that is decided; the rest of it is judged.
    """
    stand_ins = find_auto(document, TrainingJob)
    parsed, problems = _parse_as(TrainingJob, with_values(document, stand_ins))
    if not stand_ins:
        return parsed, problems
    sections = parsed.sections - {str(path[0]) for path in stand_ins}
    undecided = tuple(stand_ins) if parsed.complete else ()
    return Parsed(document, parsed.spec, False, sections, undecided), problems


def _head_problems(document: Document) -> list[Problem]:
    """Yield the reasons why the document cannot be judged at all."""
    return [*_version_problems(document), *_kind_problems(document)] if isinstance(document.data, dict) else []


def _composed(document: Document, load: Load) -> Composed:
    kind = kind_of(document)
    extensible = kind is not None and "extends" in MODELS[kind].model_fields
    return compose(document, load) if extensible else Composed(document, [], True)


def _place(document: Document, problem: Problem) -> tuple[str, Span | None]:
    return document.origin(problem.path).name, document.values.get(problem.path)


def _parse_as(model: type[Any], document: Document) -> tuple[Parsed[Any], list[Problem]]:
    try:
        spec = model.model_validate_json(json.dumps(document.data))
        return Parsed(document, spec, True, frozenset(model.model_fields)), []
    except ValidationError as error:
        from headway.jobspec.invalid import describe  # noqa: PLC0415 (most documents are valid)

        sections = _valid_sections(model, document, error) if error.error_count() <= MAX_PROBLEMS else {}
        incomplete = model.model_construct(**sections)
        return Parsed(document, incomplete, False, frozenset(sections)), describe(error, model, document)


def _valid_sections(model: type[BaseModel], document: Document, error: ValidationError) -> dict[str, Any]:
    """Return the top-level fields that are valid once unknown keys are taken out, but those that an unknown key is meant to set."""
    from headway.jobspec.unknown import is_unknown, misread_sections  # noqa: PLC0415 (most documents are valid)

    errors = error.errors(include_url=False)
    unknown = [details["loc"] for details in errors if is_unknown(details)]
    known = _without(document.data, unknown)
    bad = {details["loc"][0] for details in errors if details["loc"] and details["loc"] not in unknown}
    bad |= misread_sections(error, model, document)
    if "run" in bad:
        # Whatever it runs, it is not the default trainer.
        bad.add("trainer")
    sections = {}
    for name, info in model.model_fields.items():
        key = info.alias or name
        if key in bad:
            continue
        if key in known:
            sections[name] = _section(model, name).validate_json(json.dumps(known[key]), strict=True)
        else:
            sections[name] = info.get_default(call_default_factory=True)
    return sections


@cache
def _section(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    """Return the reader of one field of the model."""
    info = model.model_fields[name]
    return TypeAdapter(cast("Any", Annotated[info.annotation, info]))


def _without(data: dict[str, Any], paths: list[Path]) -> dict[str, Any]:
    cleaned = copy.deepcopy(data)
    for path in paths:
        owner: Any = cleaned
        for segment in path[:-1]:
            owner = owner[segment]
        del owner[path[-1]]
    return cleaned


def _version_problems(document: Document) -> list[Problem]:
    version = document.value(("apiVersion",))
    if version == API_VERSION:
        return []
    if "apiVersion" not in document.data:
        if (around := _wrapper(document)) is not None:
            message = f"all fields are inside `{around}`, but they belong at the top of the document"
            hint = f"remove `{around}:`, and the indent of the lines below it"
            return [Problem("HW201", document.name, (around,), message, hint, at_key=True)]
        from headway.jobspec.aliases import squeezed  # noqa: PLC0415 (most documents are valid)

        versions = [key for key, value in document.data.items() if isinstance(value, str) and value.startswith(_GROUP)]
        if (
            near := next((key for key in document.data if squeezed(str(key)) == _VERSION), next(iter(versions), None))
        ) is not None:
            message = f"`{near}` is not a field of a document"
            return [Problem("HW201", document.name, (near,), message, "write `apiVersion`", at_key=True, fix="apiVersion")]
        return [
            Problem(
                "HW202", document.name, (), "`apiVersion` is missing from the document", f"begin with `apiVersion: {API_VERSION}`"
            )
        ]
    message = f"unknown apiVersion {_shown(document, 'apiVersion')}"
    return [Problem("HW206", document.name, ("apiVersion",), message, f"this headway reads `{API_VERSION}`", fix=API_VERSION)]


def _wrapper(document: Document) -> str | None:
    """Return the only field of a document that has a whole one in it."""
    ((name, inside),) = document.data.items() if len(document.data) == 1 else (("", None),)
    return str(name) if isinstance(inside, dict) and "apiVersion" in inside else None


def _kind_problems(document: Document) -> list[Problem]:
    if (kind := kind_of(document)) is not None:
        return _fields_of_another(document, kind)
    if _wrapper(document) is not None:
        return []
    if "kind" not in document.data:
        named = [key for key, value in document.data.items() if isinstance(value, str) and value in MODELS]
        if (near := next((key for key in document.data if str(key).lower() == "kind"), next(iter(named), None))) is not None:
            message = f"`{near}` is not a field of a document"
            return [Problem("HW201", document.name, (near,), message, "write `kind`", at_key=True, fix="kind")]
        return [Problem("HW202", document.name, (), "`kind` is missing from the document", f"add {_kinds_of(document.data)}")]
    from headway.jobspec.unknown import alias_or_nearest  # noqa: PLC0415 (most documents are valid)

    hint = alias_or_nearest(str(document.value(("kind",))), MODELS, "kinds of document")
    message = f"unknown kind of document {_shown(document, 'kind')}"
    return [Problem("HW207", document.name, ("kind",), message, hint.text, fix=hint.fix)]


def _fields_of_another(document: Document, kind: str) -> list[Problem]:
    """Return a problem of a document with fields of another kind, and none that its own kind alone has: each would be an unknown one."""
    names = {str(key) for key in document.data}
    strange = names - field_names(MODELS[kind]).keys()
    others = [name for name, model in MODELS.items() if name != kind and names <= field_names(model).keys()]
    if len(strange) < _OF_ANOTHER or len(others) != 1:
        return []
    shown = f"{listed(sorted(strange)[:_OF_ANOTHER])}{' and others' if len(strange) > _OF_ANOTHER else ''}"
    message = f"{shown} are fields of a {others[0]}, not of a {kind}"
    return [Problem("HW211", document.name, ("kind",), message, f"write `{others[0]}`", fix=others[0])]


def _kinds_of(data: Mapping[str, Any]) -> str:
    """Return the kind of document that the most of the fields are of; of several, all."""
    shared = {name: len(data.keys() & field_names(model).keys()) for name, model in MODELS.items()}
    most = max(shared.values())
    return joined_or([f"`kind: {name}`" for name, count in shared.items() if count == most])


def _shown(document: Document, key: str) -> str:
    source = document.source((key,))
    return f"`{source}`" if (key,) in document.scalars else source
