"""What `headway run` shows while a run goes on, and says when its report cannot be made."""

from pathlib import Path
from typing import Any

import pytest

from headway.cli.verbs.run import Tail, _report, _words


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


HANG = {"kind": "hang", "section": "data", "why": "rank 1 alone waits for a batch"}
LOST = {"kind": "lost", "node": 1, "host": "n2", "why": "its connection ended, and ranks elsewhere have ended"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (HANG, "hang in data: rank 1 alone waits for a batch"),
        ({"kind": "straggler", "rank": 3, "ratio": 1.5}, "rank 3 takes 1.50 times as long per step as the others"),
        (LOST, "lost node 1 (n2): its connection ended, and ranks elsewhere have ended"),
        ({"kind": "rebound", "slot": 1, "from": 1, "to": 2}, "slot 1 moved to node 2"),
        ({"kind": "takeover", "node": 1, "term": 2}, "node 1 has taken over as coordinator"),
        ({"kind": "standby", "node": 1}, None),
    ],
)
def test_whoever_watches_reads_what_the_journal_says(line: dict[str, Any], words: str | None) -> None:
    assert _words(line) == words
