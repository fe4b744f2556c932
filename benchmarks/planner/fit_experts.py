"""Fits the constants of experts.yaml to published runs of models with experts.

python -m benchmarks.planner.fit_experts [--write] [--leave-one-out]

Coordinate descent on the logarithms of the constants. It minimises the mean over sources of their mean error, where an error counts
less beyond `_FAR`, and a constant's distance from what it is to be without any rows (`START`).
"""

import argparse
import copy
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.planner import unseen
from benchmarks.planner.rows import Row, read
from headway.planner.speed import speed
from headway.planner.speed.experts import speed as experts_speed
from headway.planner.speed.step import step_time

_FAR = 0.4
_PULL = 0.004
_STEPS = (0.3, 0.1, 0.04, 0.015)


class Start(Struct, frozen=True):
    """The prior of a constant without any rows, and by which factor (as a logarithm) it may well be off."""

    value: float
    spread: float


START: Mapping[str, Start] = {
    "staged": Start(0.33, 0.5),
    "crowding": Start(0.7, 0.7),
    "hidden": Start(0.8, 0.3),
    "message_us.uccl": Start(2.0, 1.0),
    "message_us.nvshmem": Start(1.0, 1.0),
    "proxy_us.uccl": Start(600, 0.7),
    "proxy_us.nvshmem": Start(500, 0.7),
    "depth": Start(0.5, 0.7),
    "scattered": Start(45, 0.7),
    "operation_us": Start(75, 0.7),
    "processors.Hopper efa": Start(1.8, 0.5),
    "queue": Start(2.0, 0.3),
    "late": Start(4.0, 1.0),
}
USUAL: Mapping[str, float] = {name: start.value for name, start in START.items()}
"""Values without any rows."""


def timed(rows: Sequence[Row]) -> list[Row]:
    """Return those that count: of models with experts, complete, with a step's time."""
    return [row for row in rows if row.moe and row.timed]


def errors(rows: Sequence[Row], values: Mapping[str, float], known: speed.Speed | None = None) -> dict[str, list[float]]:
    """Logarithms of estimated over measured step time, by source; all other constants are those of `known`, or the committed ones."""
    constants = with_values(speed.constants() if known is None else known, values)
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.training is not None and row.step_s is not None:
            found[row.source].append(math.log(step_time(row.training, constants).seconds / row.step_s))
    return found


def with_values(known: speed.Speed, values: Mapping[str, float]) -> speed.Speed:
    """Return the constants with other ones of models with experts."""
    return replace(known, experts=experts_speed.speed_of(tables_with(values)))


def tables_with(values: Mapping[str, float]) -> dict[str, Any]:
    """Return the tables of experts.yaml with other values."""
    tables = copy.deepcopy(experts_speed.read())
    for name, value in values.items():
        table = tables
        for part in name.split("."):
            table = table[part]
        table["value"] = value
    return tables


def cost(rows: Sequence[Row], values: Mapping[str, float], known: speed.Speed | None = None) -> float:
    """Return what the fit minimises."""
    sources = errors(rows, values, known).values()
    mean = statistics.mean(statistics.mean(robust(error) for error in of_source) for of_source in sources)
    return mean + _PULL * sum((math.log(values[name] / start.value) / start.spread) ** 2 for name, start in START.items())


def robust(error: float) -> float:
    """Return the size of an error, beyond `_FAR` a part of it."""
    far = max(0.0, abs(error) - _FAR)
    return abs(error) - 0.7 * far


def fit(rows: Sequence[Row], values: Mapping[str, float], known: speed.Speed | None = None) -> dict[str, float]:
    """Constants near `values` that no single change of theirs makes better; all other constants as in `errors`."""
    best, least = dict(values), cost(rows, values, known)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for name in START:
                for direction in (step, -step):
                    trial = {**best, name: _bounded(name, best[name] * math.exp(direction))}
                    found = cost(rows, trial, known)
                    if found < least - 1e-5:
                        best, least, improved = trial, found, True
    return best


def _bounded(name: str, value: float) -> float:
    return min(value, 0.97) if name == "hidden" else value


def written(text: str, values: Mapping[str, float]) -> str:
    """Return the text of experts.yaml with these values."""
    lines, section = [], ""
    for line in text.splitlines():
        head = re.match(r"( *)([^:#]+):", line)
        if head and not head[1]:
            section = head[2]
        name = "" if head is None else head[2] if not head[1] else f"{section}.{head[2].strip()}"
        changed = re.sub(r"value: [\d.]+", f"value: {values[name]:.3g}", line) if name in values else line
        lines.append(changed)
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row], values: Mapping[str, float]) -> None:
    means = []
    for source, found in sorted(errors(rows, values).items()):
        sizes = [abs(math.exp(error) - 1) for error in found]
        means.append(statistics.mean(sizes))
        bias = math.exp(statistics.median(found)) - 1
        print(f"{source:16} {len(found):4} rows  mean {means[-1]:6.1%}  bias {bias:+6.1%}")
    print(f"{'mean of sources':16} {len(rows):4} rows  mean {statistics.mean(means):6.1%}")


def left_out(rows: Sequence[Row], values: Mapping[str, float], group: Callable[[Row], str]) -> dict[str, list[float]]:
    """Errors of each group, as logarithms by source, under constants that were fitted without it."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for name in sorted({group(row) for row in rows}):
        others = fit([row for row in rows if group(row) != name], values)
        found = errors([row for row in rows if group(row) == name], others)
        for source, of_source in found.items():
            by_source[source] += of_source
    return by_source


def summary(by_source: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the mean error of each source, and the mean over sources."""
    means = {source: statistics.mean(abs(math.exp(error) - 1) for error in found) for source, found in sorted(by_source.items())}
    return {"mean_over_sources": statistics.mean(means.values()), "by_source": means}


def _leave_out(rows: Sequence[Row], values: Mapping[str, float]) -> None:
    """Write the scores of rows that a fit did not see; those of unseen sources are in residuals.csv."""
    report = {"models": summary(left_out(rows, values, _model))}
    unseen.write({"experts": report})
    print(json.dumps(report, indent=1))


def _model(row: Row) -> str:
    return f"{row.source} {row.model} {row.gpu}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Fits the constants of experts.yaml.")
    parser.add_argument("--write", action="store_true", help="rewrite experts.yaml")
    parser.add_argument("--leave-one-out", action="store_true", help="also fit without each model of a source, and predict it")
    chosen = parser.parse_args()
    rows = timed(read())
    found = fit(rows, USUAL)
    for name, value in found.items():
        print(f"{name:24} {value:10.3f}")
    _table(rows, found)
    if chosen.write:
        file = experts_speed.FILE
        file.write_text(written(file.read_text(encoding="utf-8"), found), encoding="utf-8")
    if chosen.leave_one_out:
        _leave_out(rows, USUAL)


if __name__ == "__main__":
    main()
