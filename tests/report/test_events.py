"""Every kind of the journal is an event of a report, or is known to be shown elsewhere: a new kind cannot be forgotten in silence."""

import dataclasses
from typing import Any, get_origin, get_type_hints

import pytest

from headway.report.events import SHOWN_ELSEWHERE, _told
from headway.runner.contract.journal import JOURNAL_KINDS, Entry

PLAIN: dict[Any, Any] = {int: 1, float: 1.0, str: "x", tuple: ()}


def example(kind: type[Entry]) -> Entry:
    """A line with a value for every field that must have one."""
    hints = get_type_hints(kind)
    needed = [each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING]
    values: dict[str, Any] = {name: PLAIN.get(get_origin(hints[name]) or hints[name]) for name in needed}
    return kind(**values)


@pytest.mark.parametrize("kind", JOURNAL_KINDS)
def test_a_kind_of_the_journal_is_an_event_or_is_shown_elsewhere(kind: str) -> None:
    told = _told(example(JOURNAL_KINDS[kind]))
    assert (told is None) == (kind in SHOWN_ELSEWHERE)
    assert told is None or told[0] == kind


def test_only_kinds_of_the_journal_are_shown_elsewhere() -> None:
    assert JOURNAL_KINDS.keys() >= SHOWN_ELSEWHERE
