"""Defines the naive model: one hardware utilization per accelerator and number format, whatever the layout; separate for experts.

`python -m benchmarks.planner.naive [FILE.csv]` writes naive.yaml: the medians over the rows of the file.
"""

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import yaml

from benchmarks.planner.flops import hardware_flops
from benchmarks.planner.rows import OWN_LINE, PUBLISHED, Row, read
from headway.jobspec.catalog.gpus import Gpu
from headway.planner.training import Training

_FILE = Path(__file__).with_name("naive.yaml")
_EIGHT_BITS = {"fp8", "mxfp8"}


def naive_seconds(training: Training, table: Mapping[str, float] | None = None) -> float:
    """Return seconds of a step by the utilizations of the table, or of naive.yaml; an accelerator that no row had is taken as the median of
    its architecture, or of all."""
    table = _table() if table is None else table
    return _seconds_at_peak(training) / next(table[name] for name in _names(training) if name in table)


def _seconds_at_peak(training: Training) -> float:
    return hardware_flops(training) / (training.gpus * _peak_flops(training.gpu, training.formats.compute))


def _peak_flops(gpu: Gpu, compute: str) -> float:
    eight_bits = compute in _EIGHT_BITS or compute == "nvfp4"
    return (gpu.fp8_tflops if eight_bits and gpu.fp8_tflops else gpu.bf16_tflops) * 1e12


def _names(training: Training) -> tuple[str, ...]:
    gpu, kind = training.gpu, "dense" if training.model.experts is None else "experts"
    formats = f"{training.formats.compute} {kind}"
    return f"{gpu.name} {formats}", f"{gpu.arch} {formats}", f"any {formats}", f"any {kind}"


@cache
def _table() -> Mapping[str, float]:
    found: dict[str, float] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return found


def fitted(rows: Iterable[Row]) -> dict[str, float]:
    """Median utilization of the timed rows, by accelerator, by architecture and over all."""
    found = defaultdict[str, list[float]](list)
    for row in rows:
        if row.training is None or not row.timed or row.step_s is None:
            continue
        utilization = _seconds_at_peak(row.training) / row.step_s
        for name in _names(row.training):
            found[name].append(utilization)
    return {name: round(statistics.median(values), 4) for name, values in sorted(found.items())}


def _write(path: Path) -> None:
    rows = [row for row in read([path]) if row.source != OWN_LINE]
    counted = sum(row.timed for row in rows)
    head = f"# Median share of the peak over the {counted} timed rows of {path.name}; of FP8's peak for what has eight bits or four.\n"
    table = "".join(f"{name}: {value}\n" for name, value in fitted(rows).items())
    _FILE.write_text(head + table, encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]) if len(sys.argv) > 1 else PUBLISHED)
