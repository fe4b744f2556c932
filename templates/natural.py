"""Sorts names with numbers in them as people do: swp8 before swp16."""

import re
from functools import cache


@cache
def natural(key: str) -> list[tuple[int, str]]:
    """Return what to sort the name by."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", key)]
