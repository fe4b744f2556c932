"""The fitted constants of speed.yaml: `python -m benchmarks.planner.fit` writes them; `--leave-one-out` shows how they do on rows that
they did not see.
"""

import argparse
import itertools
import json
import math
import re
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.planner import unseen
from benchmarks.planner.least_squares import OWN_LINE, Fit, training_of
from benchmarks.planner.rows import Row, read
from benchmarks.planner.spread import mean_of_groups
from headway.planner.speed import speed
from headway.planner.speed.calibrate import distance
from headway.planner.speed.step import step_time
from headway.planner.training import Training

_OWN_STRIDE = 24
# What an error counts as at most where errors are multiplied.
_FAR_OFF = 0.3


def rows_to_fit() -> list[Row]:
    """Timed rows of dense models; of the source with a line of its own, some."""
    timed = [row for row in read() if row.timed and not row.moe]
    own = [row for row in timed if row.source == OWN_LINE]
    return [row for row in timed if row.source != OWN_LINE] + own[::_OWN_STRIDE]


def left_out(rows: Sequence[Row], fold_of: Callable[[Row], str]) -> dict[str, list[tuple[Row, float]]]:
    """Return each fold's rows with their errors under constants that were fitted to the rows of all other folds."""
    tables = speed.read()
    found = dict[str, list[tuple[Row, float]]]()
    for fold in sorted({fold_of(row) for row in rows}):
        fit = Fit([row for row in rows if fold_of(row) != fold], tables)
        known = fit.speed(fit.solve(rounds=3))
        hidden = [row for row in rows if fold_of(row) == fold and row.source != OWN_LINE]
        found[fold] = [(row, math.log(step_time(training_of(row), known).seconds / (row.step_s or math.nan))) for row in hidden]
    return found


def _by_scale(row: Row) -> str:
    """Return one of five folds: rows of one source, model, accelerator and number of GPUs are together."""
    return _fold(f"{row.source} {row.model} {row.gpu} {training_of(row).gpus}")


def _by_model(row: Row) -> str:
    """Return one of five folds: rows of one source and model are together."""
    return _fold(f"{row.source} {row.model}")


def _fold(key: str) -> str:
    return str(zlib.crc32(key.encode()) % 5)


def _summary(found: Mapping[str, Sequence[tuple[Row, float]]]) -> dict[str, Any]:
    by_source = dict[str, list[tuple[float, float]]]()
    for pairs in found.values():
        for row, error in pairs:
            by_source.setdefault(row.source, []).append((math.exp(error), 1.0))
    means = {source: mean_of_groups({source: pairs}) for source, pairs in sorted(by_source.items())}
    return {"mean_over_sources": mean_of_groups(by_source), "by_source": means}


def _likeness(pairs: Sequence[tuple[Row, float]], length: float) -> dict[str, float]:
    """Standard deviations of what errors of one source, model and accelerator share, of what only like layouts share besides, and of what
    each has alone: from the products of the errors of two layouts far from each other, of two near, and of one with itself."""
    groups = dict[tuple[str, str, str], list[tuple[Training, float]]]()
    for row, error in pairs:
        limited = max(-_FAR_OFF, min(_FAR_OFF, error))
        groups.setdefault((row.source, row.model, row.gpu), []).append((training_of(row), limited))
    far, near, same = [], [], []
    for group in groups.values():
        products = [(distance(one, other), x * y) for (one, x), (other, y) in itertools.combinations(group, 2)]
        far.extend(_mean([product for apart, product in products if apart >= length]))
        near.extend(_mean([product for apart, product in products if apart <= 1]))
        same.extend(_mean([error**2 for _, error in group]))
    shared, similar, own = (statistics.fmean(found) for found in (far, near, same))
    return {
        "shared": round(math.sqrt(max(shared, 1e-4)), 3),
        "similar": round(math.sqrt(max(similar - shared, 1e-4)), 3),
        "own": round(math.sqrt(max(own - similar, 1e-4)), 3),
    }


def _mean(values: Sequence[float]) -> list[float]:
    return [statistics.fmean(values)] if values else []


def _write(values: Mapping[tuple[str, ...], str]) -> None:
    """The values into speed.yaml, by their paths, line by line: what is around them stays."""
    lines = speed.FILE.read_text(encoding="utf-8").splitlines()
    path: list[str] = []
    for number, line in enumerate(lines):
        named = re.match(r"( *)([\w-]+):", line)
        if named is None:
            continue
        path[len(named[1]) // 2 :] = [named[2]]
        if tuple(path) in values:
            lines[number] = re.sub(r"value: (\[[^]]*\]|[^,}]+)", f"value: {values[tuple(path)]}", line, count=1)
    speed.FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner.fit", description=__doc__)
    parser.add_argument(
        "--leave-one-out", action="store_true", help="fit without each source in turn, and without fifths of all groups"
    )
    rows = rows_to_fit()
    if parser.parse_args().leave_one_out:
        _leave_out(rows)
        return
    fit = Fit(rows, speed.read())
    moved = fit.solve(rounds=8)
    _write({one.path: f"{one.decoded(float(value)):.4g}" for one, value in zip(fit.constants, moved, strict=True)})
    print(json.dumps(_summary({"": list(zip(rows, fit.errors(moved).tolist(), strict=True))}), indent=1))


def _leave_out(rows: Sequence[Row]) -> None:
    """Write the results on rows that a fit did not see: the scores, and how alike errors are on an unknown cluster."""
    sources, scales, models = left_out(rows, lambda row: row.source), left_out(rows, _by_scale), left_out(rows, _by_model)
    likeness = _likeness(_pairs(sources), speed.constants().likeness["distance"])
    _write({("likeness", name): str(value) for name, value in likeness.items()})
    report = {"scales": _summary(scales), "models": _summary(models)}
    unseen.write(report)
    print(json.dumps(report, indent=1))


def _pairs(found: Mapping[str, Sequence[tuple[Row, float]]]) -> list[tuple[Row, float]]:
    return [pair for fold in found.values() for pair in fold]


if __name__ == "__main__":
    main()
