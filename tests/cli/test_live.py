"""What `headway run` prints while it waits: no line of a journal, with few facts or none, ends it."""

from typing import Any

import pytest

from headway.cli.views.live import journal_words
from headway.runner.contract.journal import JOURNAL_KINDS, Entry, Excluded, Failure, LostNode, line_of
from tests.support.entries import example


@pytest.mark.parametrize("kind", JOURNAL_KINDS.values(), ids=lambda kind: str(kind.KIND))
def test_a_line_of_any_kind_with_the_fewest_facts_has_words_or_none(kind: type[Entry]) -> None:
    words = journal_words(line_of(example(kind), 0.0, 2, 0))
    assert words is None or "None" not in words


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (Failure("killed by SIGKILL", rank=1, step=90), "step 90: rank 1 failed (killed by SIGKILL)"),
        (Failure("lost", node=2), "node 2 failed (lost)"),
        (Failure("hang in compute"), "the generation failed (hang in compute)"),
        (LostNode("no heartbeat", node=1, host="n1"), "n1 (node 1) was lost: no heartbeat"),
        (Excluded("Xid 79", node=1), "node 1 was excluded: Xid 79"),
    ],
)
def test_a_failure_has_its_place(entry: Entry, words: str) -> None:
    assert journal_words(line_of(entry, 0.0, 2, 0)) == words


@pytest.mark.parametrize("line", [{}, {"kind": "failure", "wall": 1.0}, {"kind": 3}, {"kind": "of tomorrow", "wall": 1.0}])
def test_a_line_that_cannot_be_read_has_no_words(line: dict[str, Any]) -> None:
    assert journal_words(line) is None
