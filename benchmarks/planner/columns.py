"""Parses the columns of a published row into numbers, and explains why a row is left out."""

import math
import re
from typing import Literal

Lacks = Literal["", "fine-tuning", "hybrid model", "not printed", "recompute not known", "layout", "not understood"]
"""The missing part of a row that does not count: nothing, or the kind of it."""


class LeftOutError(Exception):
    """A row is no training that the planner could estimate; the text is the reason."""

    def __init__(self, lacks: Lacks, reason: str) -> None:
        super().__init__(reason)
        self.lacks: Lacks = lacks


def whole(text: str | None) -> int | None:
    """Return a column that holds a whole number; None where it is empty or holds something else."""
    found = re.fullmatch(r"\s*(\d+)(?:\.0*)?\s*", text or "")
    return int(found[1]) if found else None


def number(text: str | None) -> float | None:
    """Return a column that holds a number; None where it is empty or holds something else."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if math.isfinite(found) else None
