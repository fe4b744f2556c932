"""A Document as its spec, or as those of its sections that are valid, so that later checks still find what they can."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from headway.jobspec.document import Document, Path
from headway.jobspec.invalid import describe, unknown_keys
from headway.jobspec.load import load_file
from headway.jobspec.problem import Problem
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.section import API_VERSION
from headway.jobspec.suggest import did_you_mean

MODELS: Mapping[str, type[Cluster] | type[TrainingJob]] = {"Cluster": Cluster, "TrainingJob": TrainingJob}

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True)
class Parsed(Generic[S]):
    """`spec` is whole when `complete`; else only the sections that `has` answers for may be read."""

    document: Document
    spec: S
    complete: bool
    sections: frozenset[str] = field(default_factory=frozenset)

    def has(self, names: tuple[str, ...]) -> bool:
        return self.sections.issuperset(names)


AnyParsed = Parsed[Cluster] | Parsed[TrainingJob]


def read(path: FilePath, name: str | None = None) -> tuple[Document, AnyParsed | None, list[Problem]]:
    """The file's document, its spec and all problems of both; a value that cannot be read is not judged as well."""
    document, unreadable = load_file(path, name)
    parsed, invalid = parse(document)
    places = {problem.span for problem in unreadable if problem.span is not None}
    judged = [problem for problem in invalid if problem.at_key or document.values.get(problem.path) not in places]
    return document, parsed, unreadable + judged


def kind_of(document: Document) -> str | None:
    """The document's `kind`, if it is a known one."""
    kind = document.value(("kind",))
    return kind if isinstance(kind, str) and kind in MODELS else None


def parse(document: Document) -> tuple[AnyParsed | None, list[Problem]]:
    """The spec in the document and its problems. None when its kind or version is unknown, so that no field can be judged."""
    if not isinstance(document.data, dict):
        return None, []
    problems = [*_version_problems(document), *_kind_problems(document)]
    kind = kind_of(document)
    if kind is None or problems:
        return None, problems
    return _parse_as(MODELS[kind], document)


def _parse_as(model: type[Any], document: Document) -> tuple[Parsed[Any], list[Problem]]:
    try:
        spec = model.model_validate_json(json.dumps(document.data))
        return Parsed(document, spec, True, frozenset(model.model_fields)), []
    except ValidationError as error:
        sections = _valid_sections(model, document.data, error)
        partial = model.model_construct(**sections)
        return Parsed(document, partial, False, frozenset(sections)), describe(error, model, document)


def _valid_sections(model: type[BaseModel], data: dict[str, Any], error: ValidationError) -> dict[str, Any]:
    """The top-level fields that are valid once unknown keys are taken out."""
    unknown = unknown_keys(error)
    known = _without(data, unknown)
    bad = {details["loc"][0] for details in error.errors() if details["loc"] not in unknown}
    sections = {}
    for name, info in model.model_fields.items():
        key = info.alias or name
        if key in bad:
            continue
        if key in known:
            adapter: TypeAdapter[Any] = TypeAdapter(cast("Any", Annotated[info.annotation, info]))
            sections[name] = adapter.validate_json(json.dumps(known[key]), strict=True)
        else:
            sections[name] = info.get_default(call_default_factory=True)
    return sections


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
        return [Problem("HW202", document.name, (), "the document lacks `apiVersion`", f"begin with `apiVersion: {API_VERSION}`")]
    message = f"unknown apiVersion {_shown(document, 'apiVersion')}"
    return [Problem("HW206", document.name, ("apiVersion",), message, f"this headway reads `{API_VERSION}`")]


def _kind_problems(document: Document) -> list[Problem]:
    if kind_of(document) is not None:
        return []
    if "kind" not in document.data:
        return [Problem("HW202", document.name, (), "the document lacks `kind`", "add `kind: TrainingJob` or `kind: Cluster`")]
    hint = did_you_mean(str(document.value(("kind",))), MODELS, "kinds of document")
    return [Problem("HW207", document.name, ("kind",), f"unknown kind of document {_shown(document, 'kind')}", hint)]


def _shown(document: Document, key: str) -> str:
    source = document.source((key,))
    return f"`{source}`" if (key,) in document.scalars else source
