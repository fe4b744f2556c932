"""Stores the counts of the long tests."""

import json
import os
from collections.abc import Mapping
from pathlib import Path


def record(name: str, counts: Mapping[str, object]) -> None:
    """Write `counts` under `name` into the file that HEADWAY_SOAK names; without it, store nothing."""
    if not (kept := os.environ.get("HEADWAY_SOAK")):
        return
    path = Path(kept)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {name: counts}, indent=2, sort_keys=True) + "\n")
