"""What the long tests counted, kept for whoever wants to see it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path


def record(name: str, counts: Mapping[str, object]) -> None:
    """Puts `counts` under `name` into the file that HEADWAY_SOAK names; without it, nothing is kept."""
    if not (kept := os.environ.get("HEADWAY_SOAK")):
        return
    path = Path(kept)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {name: counts}, indent=2, sort_keys=True) + "\n")
