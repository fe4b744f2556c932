"""Directories that are not a run are rejected, with the file and the field in the error."""

import json
import re
from pathlib import Path

import pytest

from headway.report.directory import RunError, find_run, read_run

from . import run_directory as build
from .run_directory import RunDirectory


def error_of(run: Path) -> str:
    with pytest.raises(RunError) as caught:
        read_run(run)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_a_torn_last_line_is_skipped_in_every_file(runs: Path) -> None:
    build.one_failure(runs / "run")
    whole = read_run(runs / "run")
    append(runs / "run" / "metrics.jsonl", '{"wall": 1763710000.0, "mono')
    append(runs / "run" / "ledger.jsonl", '{"schema": "headway.ledg')
    append(runs / "run" / "shared" / "journal" / "000002.jsonl", '{"wall": 17637')
    assert read_run(runs / "run") == whole


def test_a_torn_last_line_may_end_inside_a_character(runs: Path) -> None:
    build.one_failure(runs / "run")
    whole = read_run(runs / "run")
    with (runs / "run" / "shared" / "journal" / "000002.jsonl").open("ab") as file:
        file.write('{"cause": "é'.encode()[:-1])
    assert read_run(runs / "run") == whole


def test_complete_last_line_counts_even_without_its_newline(runs: Path) -> None:
    build.clean_run(runs / "run")
    metrics = runs / "run" / "metrics.jsonl"
    metrics.write_text(metrics.read_text(encoding="utf-8").removesuffix("\n"), encoding="utf-8")
    assert len(read_run(runs / "run").metrics) == 40


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl", "shared/journal/000001.jsonl"])
def test_truncated_line_before_the_last_is_an_error_at_its_line(runs: Path, name: str) -> None:
    build.clean_run(runs / "run")
    path = runs / "run" / name
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(['{"wall": 17\n', *lines]), encoding="utf-8")
    assert f"{path}:1: " in error_of(runs / "run")


def test_error_of_a_metrics_line_with_a_wrong_type_names_the_field(runs: Path) -> None:
    run = build.clean_run(runs / "run")
    run.append("metrics.jsonl", [run.metrics_line(1.0) | {"step": "41"}])
    assert f"{runs / 'run' / 'metrics.jsonl'}:41: `step`: " in error_of(runs / "run")


def test_error_of_a_journal_entry_names_the_missing_field(runs: Path) -> None:
    run = build.clean_run(runs / "run")
    run.journal("committed", step=50)
    assert "field 'save_s' is missing" in error_of(runs / "run")


def test_journal_line_without_a_kind_is_rejected(runs: Path) -> None:
    run = build.clean_run(runs / "run")
    run.append("shared/journal/000001.jsonl", [{"wall": 1.0}])
    assert "`kind`: expected a string, found None" in error_of(runs / "run")


def test_journal_entry_of_an_unknown_kind_is_skipped(runs: Path) -> None:
    run = build.clean_run(runs / "run")
    run.journal("spare_joined", node=7)
    assert len(read_run(runs / "run").journal[1]) == 10


@pytest.mark.parametrize(("name", "schema"), [("handle.json", "headway.handle/1"), ("ledger.jsonl", "headway.ledger/1")])
def test_unknown_schema_is_rejected_by_name(runs: Path, name: str, schema: str) -> None:
    build.clean_run(runs / "run")
    path = runs / "run" / name
    path.write_text(path.read_text(encoding="utf-8").replace(schema, "headway.other/9"), encoding="utf-8")
    assert f"schema `headway.other/9` is unknown; expected `{schema}`" in error_of(runs / "run")


def test_verdict_with_another_structure_is_rejected_with_its_file(runs: Path) -> None:
    build.clean_run(runs / "run")
    path = runs / "run" / "attempts" / "0" / "verdict.json"
    path.write_text(json.dumps({"schema": "headway.verdict/1", "run": "run"}), encoding="utf-8")
    assert error_of(runs / "run").startswith(f"{path}: Verdict: field ")


def test_directory_without_a_handle_is_not_a_run(runs: Path) -> None:
    assert error_of(runs) == f"`{runs}` is not a run: it has no handle.json; expected a directory created by `headway run`"


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\x00", "[" * 100_000])
def test_handle_that_is_not_a_json_object_is_rejected(runs: Path, text: str) -> None:
    RunDirectory(runs / "run")
    (runs / "run" / "handle.json").write_text(text, encoding="utf-8")
    assert str(runs / "run" / "handle.json") in error_of(runs / "run")


def test_a_run_is_found_by_its_path_and_by_its_name(runs: Path) -> None:
    RunDirectory(runs / "quickstart-1a2b3c4d-0")
    expected = runs / "quickstart-1a2b3c4d-0"
    assert find_run("quickstart-1a2b3c4d-0", [runs]) == expected
    assert find_run(str(expected), [runs / "elsewhere"]) == expected


def test_first_folder_with_the_name_is_used_and_runs_come_first(runs: Path) -> None:
    first, second = runs / "first", runs / "second"
    (first / "run").mkdir(parents=True)
    (second / "run").mkdir(parents=True)
    assert find_run("run", [first, second]) == first / "run"
    (second / "run" / "handle.json").write_text("{}")
    assert find_run("run", [first, second]) == second / "run"
    (first / "run" / "handle.json").write_text("{}")
    assert find_run("run", [first, second]) == first / "run"


def test_error_of_an_unknown_name_lists_the_searched_folders(runs: Path) -> None:
    where = f"no run `nowhere`: neither a directory nor a name under `{runs}`, `{runs}/more`;"
    with pytest.raises(RunError, match=re.escape(where)):
        find_run("nowhere", [runs, runs / "more"])
