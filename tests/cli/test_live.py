"""`headway run` prints the journal while it waits; no line, with few fields or none, ends it."""

import json
from typing import Any

import pytest

from headway.cli.views.live import journal_words
from headway.report.events import NOT_EVENTS
from headway.runner.contract.journal import JOURNAL_KINDS, Entry, Excluded, Failure, Hang, LostNode, Rebound, Straggler, line_of
from tests.support.entries import example

# Kinds that the progress bar or the end of the command shows.
SILENT = NOT_EVENTS - {"start", "loaded", "failure", "refused", "preempted"}


def written(entry: Entry) -> Any:
    """Return the line as it is read from a file."""
    return json.loads(json.dumps(line_of(entry, 0.0, 2, 0)))


@pytest.mark.parametrize("kind", JOURNAL_KINDS.values(), ids=lambda kind: str(kind.KIND))
def test_journal_line_with_only_required_fields_is_described_or_skipped(kind: type[Entry]) -> None:
    words = journal_words(written(example(kind)))
    assert (words is None) == (kind.KIND in SILENT)
    assert "None" not in str(words or "")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (Failure("killed by SIGKILL", rank=1, step=90), "step 90: rank 1 failed (killed by SIGKILL)"),
        (Failure("lost", node=2), "node 2 failed (lost)"),
        (Failure("hang in compute"), "the generation failed (hang in compute)"),
        (LostNode("no heartbeat", node=1, host="n1"), "n1 (node 1) was lost: no heartbeat"),
        (Excluded("Xid 79", node=1), "node 1 was excluded: Xid 79"),
        (
            Hang((), "data", 31.0, "rank 1 waits for a batch"),
            "all ranks were stuck, none of them alone in data for 31.0 s: rank 1 waits for a batch",
        ),
        (Straggler(3, 1.5, 0.3), "rank 3 takes 1.50 times as long per step as the others (0.30 s)"),
        (Rebound(1, before=1, to=2), "slot 1 runs on node 2, in place of node 1"),
    ],
)
def test_event_is_described_with_its_location_and_reason(entry: Entry, words: str) -> None:
    assert journal_words(written(entry)) == words


@pytest.mark.parametrize("line", [{}, {"kind": "failure", "wall": 1.0}, {"kind": 3}, {"kind": "of tomorrow", "wall": 1.0}])
def test_unreadable_line_is_skipped(line: dict[str, Any]) -> None:
    assert journal_words(line) is None
