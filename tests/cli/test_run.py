"""What `headway run` shows while a run goes on, and says when its report cannot be made."""

from pathlib import Path

import pytest

from headway.cli.verbs.run import Tail, _report


def test_following_passes_over_half_a_line_and_takes_the_rest_when_it_comes(tmp_path: Path) -> None:
    path, tail = tmp_path / "metrics.jsonl", Tail(tmp_path.glob, "*.jsonl")
    path.write_text('{"step": 1}\n{"ste{"step": 2}\n{"st')
    assert list(tail.new()) == [{"step": 1}]
    with path.open("a") as file:
        file.write('ep": 3}\n')
    assert list(tail.new()) == [{"step": 3}]
    assert list(tail.new()) == []


def test_a_report_that_cannot_be_made_is_said_and_raises_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _report(tmp_path)
    assert "error: no report: " in capsys.readouterr().err
