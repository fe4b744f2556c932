"""`headway run` follows a run, and prints an error if its report cannot be made."""

from pathlib import Path

import pytest

from headway.cli.verbs.run import Tail, _report


def test_follow_waits_for_the_rest_of_an_incomplete_line(tmp_path: Path) -> None:
    path, tail = tmp_path / "metrics.jsonl", Tail(tmp_path.glob, "*.jsonl")
    path.write_text('{"step": 1}\n{"ste{"step": 2}\n{"st')
    assert list(tail.new()) == [{"step": 1}]
    with path.open("a") as file:
        file.write('ep": 3}\n')
    assert list(tail.new()) == [{"step": 3}]
    assert list(tail.new()) == []


def test_failed_report_is_printed_and_does_not_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _report(tmp_path)
    assert "error: no report: " in capsys.readouterr().err
