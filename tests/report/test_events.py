"""Every journal kind is an event of a report or listed as none, so that a new kind cannot be forgotten."""

import pytest

from headway.report.events import NOT_EVENTS, sentence
from headway.runner.contract.journal import JOURNAL_KINDS, Entry, Undead, Unread
from tests.support.entries import example


@pytest.mark.parametrize("kind", JOURNAL_KINDS)
def test_journal_kind_is_an_event_or_listed_as_none(kind: str) -> None:
    text = sentence(example(JOURNAL_KINDS[kind]))
    assert (text is None) == (kind in NOT_EVENTS)


def test_only_journal_kinds_are_listed() -> None:
    assert JOURNAL_KINDS.keys() >= NOT_EVENTS


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Undead(ranks=(2, 3), states=("D", "D"), nodes=(1,)), "SIGKILL does not end ranks 2, 3 (state D)"),
        (
            Unread(
                step=1200, generation=4, name="rank-0.bin", reason="Input/output error", tier="shared", rank=0, node=1, host="n1"
            ),
            "n1 (node 1) could not read the checkpoint of step 1,200 (shared): Input/output error; this is not counted as damage",
        ),
    ],
)
def test_alarms_are_events(entry: Entry, text: str) -> None:
    assert sentence(entry) == text
