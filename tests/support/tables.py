"""Chooses the rows of a long table of cases that `make test-fast` runs."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def slow_after_first(rows: Iterable[Any], kinds_of: Callable[[Any], Iterable[Hashable]]) -> list[Any]:
    """Mark each row `slow` whose kinds all occur in the rows above it."""
    seen: set[Hashable] = set()
    marked: list[Any] = []
    for row in rows:
        kinds = set(kinds_of(row))
        values = row if isinstance(row, tuple) else (row,)
        marked.append(row if kinds - seen else pytest.param(*values, marks=pytest.mark.slow))
        seen |= kinds
    return marked
