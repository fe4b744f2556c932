"""Replaces each `auto` of a job with its value, in place in its document; no other byte of it changes."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any

from headway.cli.in_place import PinError, write_in_place
from headway.cli.terminal import fail, progress
from headway.cli.views.problems import print_problems
from headway.compile import PlannedJob, Sources, compile_documents
from headway.jobspec.auto import rewritten, with_values
from headway.jobspec.compose import compose
from headway.jobspec.document import Document, Path, dotted
from headway.jobspec.flow import flow
from headway.jobspec.load import load_bytes
from headway.jobspec.notation import counted

_BOM = "\ufeff"


def pin_job(job_file: FilePath, cluster_file: FilePath | None) -> int:
    """Decide and write every `auto` of the job. Return 1, and write nothing, on errors or if a base leaves the value open."""
    sources = Sources()
    job = sources.read(job_file).parsed
    if job is not None and job.undecided:
        progress(f"deciding {counted(len(job.undecided), 'open value')}")
    compiled = compile_documents([job_file], cluster_file, kinds=("TrainingJob",), first_only=True, sources=sources)
    print_problems(compiled.problems, sys.stderr)
    if compiled.problems.errors:
        return 1
    try:
        return _pin(compiled.jobs[0], sources)
    except PinError as error:
        return fail(str(error), 1)


def _pin(planned: PlannedJob, sources: Sources) -> int:
    document = planned.job.document
    own = {path: each for path, each in planned.decisions.items() if document.origin(path) is document}
    if own:
        _write(document, {path: each.value for path, each in own.items()}, sources)
    for path, decision in own.items():
        print(f"{dotted(path)}: {flow(decision.value)}  # {decision.reason}")
    done = f"{counted(len(own), 'value')} pinned in {document.name}, for the cluster `{planned.plan.cluster}`"
    print(done if own else f"nothing is `auto` in {document.name}", file=sys.stderr)
    inherited = [path for path in planned.decisions if path not in own]
    if inherited:
        _report_inherited(inherited, document)
    return 1 if inherited else 0


def _report_inherited(paths: Iterable[Path], document: Document) -> None:
    """Report an `auto` in a base: other jobs extend it too, and may get other values."""
    values = {}
    for path in paths:
        base = document.origin(path)
        place = document.values[path]
        print(f"error: {base.name}:{place.line + 1}:{place.column + 1} leaves `{dotted(path)}` open", file=sys.stderr)
        whole = path[: next((depth for depth, key in enumerate(path) if isinstance(key, int)), len(path))]
        values[whole] = document.value(whole)
    print(f"other documents that extend it may get other values; set it in {document.name}:", file=sys.stderr)
    for path, value in values.items():
        print(f"  {_nested(path, value)}", file=sys.stderr)


def _nested(path: Path, value: Any) -> str:
    """Return the value as a line of a document; a mapping adds to the base's, a list replaces it."""
    for key in reversed(path[1:]):
        value = {key: value}
    return f"{path[0]}: {flow(value)}"


def _write(document: Document, values: Mapping[Path, Any], sources: Sources) -> None:
    """Writes the document with the values. Raises PinError when it would not be read as that, and when it cannot be written."""
    file = FilePath(document.name)
    try:
        before = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise PinError(f"{file} cannot be read: {error}") from error
    head = _BOM if before.startswith(_BOM) else ""
    if before.removeprefix(_BOM) != document.text:
        raise PinError(f"{file} has changed meanwhile; pin it again")
    text = rewritten(document, values)
    after, unreadable = load_bytes(document.name, text.encode())
    undecided = sources.read(file).document
    if unreadable or compose(after, sources.load).document.data != with_values(undecided, values).data:
        shown = ", ".join(f"`{dotted(path)}: {flow(value)}`" for path, value in values.items())
        because = "because of what it extends or how `auto` is written there; edit it by hand"
        raise PinError(f"{file} would change in other places too with {shown}, {because}")
    write_in_place(file, head + text)
