"""Every kind of the journal is an event of a report, or is known to be shown elsewhere: a new kind cannot be forgotten in silence."""

import pytest

from headway.report.events import SHOWN_ELSEWHERE, sentence
from headway.runner.contract.journal import JOURNAL_KINDS
from tests.support.entries import example


@pytest.mark.parametrize("kind", JOURNAL_KINDS)
def test_a_kind_of_the_journal_is_an_event_or_is_shown_elsewhere(kind: str) -> None:
    told = sentence(example(JOURNAL_KINDS[kind]))
    assert (told is None) == (kind in SHOWN_ELSEWHERE)


def test_only_kinds_of_the_journal_are_shown_elsewhere() -> None:
    assert JOURNAL_KINDS.keys() >= SHOWN_ELSEWHERE
