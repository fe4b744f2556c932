"""Reads a run directory into typed records, or reports which file and line a runner did not write."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from pydantic import BaseModel, TypeAdapter, ValidationError

from headway.report.records import Handle, LedgerLine
from headway.runner.contract import MetricsLine, RecordError, RunDirectory, Verdict, from_json
from headway.runner.contract.journal import Entry, read_entry

_METRICS_LINE = TypeAdapter(MetricsLine)

R = TypeVar("R", bound=BaseModel)


class RunError(ValueError):
    """A directory is not a run, or a file of it cannot be understood; the message is one line for people."""


class RunRecords(Struct, frozen=True):
    """The records of a run directory for a report; `journal` is keyed by generation, `verdicts` by attempt."""

    handle: Handle
    metrics: tuple[MetricsLine, ...]
    ledger: tuple[LedgerLine, ...]
    journal: Mapping[int, tuple[Entry, ...]]
    attempts: tuple[int, ...]
    verdicts: Mapping[int, Verdict]


def find_run(name: str, folders: Sequence[Path]) -> Path:
    """The run directory `name`, or the first one of that name in `folders`. Raises RunError when there is none."""
    found = [path for path in (Path(name), *(folder / name for folder in folders)) if path.is_dir()]
    if not found:
        where = ", ".join(f"`{folder}`" for folder in folders)
        raise RunError(f"no run `{name}`: neither a directory nor a name under {where}; pass a run directory or set HEADWAY_RUNS")
    # A script may keep folders of such names too: TensorBoard's lie in ./runs.
    return next((path for path in found if RunDirectory(path).handle.is_file()), found[0])


def read_run(directory: Path) -> RunRecords:
    """The records in `directory`. Raises RunError for a directory that is no run and for a line that is not what a runner writes.

    A last line without its newline that cannot be read is skipped: its writer was killed, or is still writing.
    """
    files = RunDirectory(directory)
    try:
        return RunRecords(
            handle=_read_handle(files),
            metrics=tuple(_read_metrics(files.metrics)),
            ledger=tuple(_read_ledger(files.ledger)),
            journal={generation: tuple(_read_entries(path)) for generation, path in files.journal_files().items()},
            attempts=files.attempt_numbers(),
            verdicts=_read_verdicts(files),
        )
    except OSError as error:
        raise RunError(f"`{error.filename}` cannot be read: {error.strerror}") from None


def _read_handle(files: RunDirectory) -> Handle:
    path = files.handle
    if not path.is_file():
        raise RunError(f"`{files.root}` is not a run: it has no {path.name}; expected a directory created by `headway run`")
    return _record(Handle, _json(path.read_bytes(), str(path)), str(path), Handle.SCHEMA)


def _read_metrics(path: Path) -> Iterator[MetricsLine]:
    for text, where, torn in _lines(path):
        try:
            yield _METRICS_LINE.validate_json(text, strict=True)
        except ValidationError as error:
            if not torn:
                raise RunError(f"{where}: {_reason(error)}; expected a metrics line") from None


def _read_ledger(path: Path) -> Iterator[LedgerLine]:
    for data, where in _objects(path):
        yield _record(LedgerLine, data, where, LedgerLine.SCHEMA)


def _read_entries(path: Path) -> Iterator[Entry]:
    for data, where in _objects(path):
        try:
            yield read_entry(data)
        except RecordError as error:
            raise RunError(f"{where}: {error}") from None


def _read_verdicts(files: RunDirectory) -> dict[int, Verdict]:
    paths = {attempt: files.at(attempt).verdict for attempt in files.attempt_numbers()}
    return {attempt: _read_verdict(path) for attempt, path in paths.items() if path.is_file()}


def _read_verdict(path: Path) -> Verdict:
    try:
        return from_json(Verdict, path.read_text(encoding="utf-8"))
    except (RecordError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: {error}") from None


def _lines(path: Path) -> Iterator[tuple[bytes, str, bool]]:
    """Each line, `file:line`, and whether it may be torn, as only a last line without its newline may. No file: no lines."""
    if not path.is_file():
        return
    *whole, rest = path.read_bytes().split(b"\n")
    for number, text in enumerate(whole, start=1):
        yield text, f"{path}:{number}", False
    if rest:
        yield rest, f"{path}:{len(whole) + 1}", True


def _objects(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    for text, where, torn in _lines(path):
        try:
            yield _json(text, where), where
        except RunError:
            if not torn:
                raise


def _json(text: bytes, where: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise RunError(f"{where}: expected a JSON object, found {type(data).__name__}")
    return data


def _record(kind: type[R], data: dict[str, Any], where: str, schema: str | None) -> R:
    if schema is not None and data.get("schema") != schema:
        raise RunError(f"{where}: schema `{data.get('schema')}` is unknown; expected `{schema}`")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise RunError(f"{where}: {_reason(error)}") from None


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"`{place}`: {first['msg']}" if place else first["msg"]
