"""Checks a document by itself: loads its file and bases, parses it, and applies the rules that need no other document."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeGuard

from msgspec import Struct

from headway.compile.options import (
    data_options,
    fields_needed,
    provider_options,
    scheduler_options,
    switch_options,
    trainer_options,
)
from headway.jobspec.check.cluster import check_cluster
from headway.jobspec.check.inventory import check_inventory
from headway.jobspec.check.job import check_job
from headway.jobspec.check.needs import check_needs
from headway.jobspec.check.secrets import check_secrets
from headway.jobspec.check.ssh_files import check_ssh_files
from headway.jobspec.check.unfilled import check_unfilled
from headway.jobspec.compose import Load
from headway.jobspec.document import Document
from headway.jobspec.ignore import accepted, check_codes
from headway.jobspec.load import load_bytes
from headway.jobspec.parse import AnyParsed, Parsed, is_partial, kind_of, parse, read, said_only
from headway.jobspec.problem import CLUSTER, JOB, Problem, capped, locate
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.inventory import Inventory
from headway.jobspec.spec.job import TrainingJob
from headway.templates.schedulers import SCHEDULERS


class CheckedDocument(Struct, frozen=True):
    """A document with its bases, its spec, and what is wrong with it by itself.

    `parsed` is None if the document's kind or version is unknown, or if a part of its bases is missing.
    """

    document: Document
    parsed: AnyParsed | None
    problems: tuple[Problem, ...]

    @property
    def has_errors(self) -> bool:
        return any(problem.is_error for problem in self.problems)


def check_document(path: Path, load: Load) -> CheckedDocument:
    """The document in the file, parsed and checked by itself; `load` reads the file and its bases."""
    document, parsed, unreadable = read(path, load)
    judged = [] if parsed is None else list(check_spec(parsed))
    # What cannot be read, as an alias, is not judged as a value as well.
    unread = {problem.span for problem in unreadable if problem.span is not None}
    judged = [problem for problem in judged if problem.at_key or document.values.get(problem.path) not in unread]
    judged = capped(said_only(judged) if is_partial(document) else judged, document.name)
    unfilled = check_unfilled(document) if not unreadable or parsed is not None else ()
    further = capped([*check_secrets(document), *unfilled], document.name)
    found = [*unreadable, *further, *locate(judged, {JOB: document.name, CLUSTER: document.name})]
    return CheckedDocument(document, parsed, tuple(accepted(found, document, document.name)))


def problems_left(name: str, text: str) -> int | None:
    """Return the number of errors of a document with this text, in a file of that name, without those that another document may mend; None
    if it cannot be read."""
    document, unreadable = load_bytes(name, text.encode())
    parsed, invalid = parse(document) if isinstance(document.data, dict) else (None, [])
    if parsed is None:
        return None
    judged = [] if invalid else list(check_spec(parsed))
    return len(unreadable) + len(said_only([*invalid, *(each for each in judged if each.is_error)]))


def check_spec(parsed: AnyParsed) -> Iterator[Problem]:
    """Yield the problems of the spec by itself: rules over several fields, and the options of the kinds that it chooses."""
    document = parsed.document
    if not is_inventory(parsed) and parsed.has(("ignore",)):
        yield from check_codes(document)
    if is_cluster(parsed):
        yield from check_cluster(parsed)
        yield from check_ssh_files(document)
        scheduler, problems = scheduler_options(document)
        yield from problems + provider_options(document)[1]
        if scheduler is not None:
            yield from SCHEDULERS[str(document.value(("scheduler", "kind")))].check_options(scheduler)
        for _, problems in switch_options(document).values():
            yield from problems
    elif is_job(parsed):
        yield from check_job(parsed)
        yield from trainer_options(document)[1] + data_options(document)[1]
        yield from check_needs(parsed, fields_needed(document))
    elif is_inventory(parsed):
        yield from check_inventory(parsed)


def check_kind(parsed: AnyParsed, kinds: Collection[str]) -> Iterator[Problem]:
    """An error if the document is not of one of the kinds, or if it is only a base for others and so has no plan."""
    document = parsed.document
    if is_partial(document):
        message = "this document is partial: it is meant to be extended and has no plan"
        yield Problem("HW211", document.name, ("partial",), message, "use a document that extends it")
    elif (kind := str(kind_of(document))) not in kinds:
        message = f"this is {'an' if kind == 'Inventory' else 'a'} {kind}; expected a {' or '.join(kinds)}"
        yield Problem("HW211", document.name, ("kind",), message, "use another file")


def is_cluster(parsed: AnyParsed) -> TypeGuard[Parsed[Cluster]]:
    """Whether the document is a Cluster."""
    return isinstance(parsed.spec, Cluster)


def is_job(parsed: AnyParsed) -> TypeGuard[Parsed[TrainingJob]]:
    """Whether the document is a TrainingJob."""
    return isinstance(parsed.spec, TrainingJob)


def is_inventory(parsed: AnyParsed) -> TypeGuard[Parsed[Inventory]]:
    """Whether the document is an Inventory."""
    return isinstance(parsed.spec, Inventory)
