"""Every journal kind is an event of a report or listed as shown elsewhere, so that a new kind cannot be forgotten."""

import pytest

from headway.report.events import SHOWN_ELSEWHERE, sentence
from headway.runner.contract.journal import JOURNAL_KINDS
from tests.support.entries import example


@pytest.mark.parametrize("kind", JOURNAL_KINDS)
def test_journal_kind_is_an_event_or_is_shown_elsewhere(kind: str) -> None:
    text = sentence(example(JOURNAL_KINDS[kind]))
    assert (text is None) == (kind in SHOWN_ELSEWHERE)


def test_only_journal_kinds_are_shown_elsewhere() -> None:
    assert JOURNAL_KINDS.keys() >= SHOWN_ELSEWHERE
