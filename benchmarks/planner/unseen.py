"""Evaluates fits on rows that they did not see: leave-one-out.json, one part per fit."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("leave-one-out.json")


def read() -> Mapping[str, Any] | None:
    """Return all parts; None where no fit was measured yet. Raises OSError, ValueError."""
    if not FILE.is_file():
        return None
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(parts: Mapping[str, Any]) -> None:
    """These parts; others stay as they are. Raises OSError, ValueError."""
    FILE.write_text(json.dumps({**(read() or {}), **parts}, indent=1) + "\n", encoding="utf-8")
