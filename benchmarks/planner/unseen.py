"""Evaluates fits on rows that they did not see: sources by residuals.csv, scales and models by leave-one-out.json, one part per fit."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.planner.residuals import Residual, read_residuals
from benchmarks.planner.spread import Pair, errors, mean_of_groups

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


def sources(residuals: Sequence[Residual] | None = None) -> Mapping[str, Any]:
    """Return the errors of rows whose source no constant saw: of dense models, and under `experts` of those with experts; each `pooled`,
    as `mean_over_sources` and `by_source`, and `naive` the first two of the naive model."""
    found = [row for row in (read_residuals() if residuals is None else residuals) if row.left_out == "source"]
    return _errors([row for row in found if not row.ep]) | {"experts": _errors([row for row in found if row.ep])}


def _errors(residuals: Sequence[Residual]) -> dict[str, Any]:
    ours, naive = defaultdict[str, list[Pair]](list), defaultdict[str, list[Pair]](list)
    for row in residuals:
        ours[row.source].append((math.exp(-row.planner), 1.0))
        naive[row.source].append((math.exp(-row.naive), 1.0))
    by_source = {source: mean_of_groups({source: pairs}) for source, pairs in sorted(ours.items())}
    return _means(ours) | {"rows": len(residuals), "by_source": by_source, "naive": _means(naive)}


def _means(groups: Mapping[str, Sequence[Pair]]) -> dict[str, Any]:
    pooled = errors(pair for group in groups.values() for pair in group)
    return {"pooled": pooled.mean if pooled else None, "mean_over_sources": mean_of_groups(groups)}
