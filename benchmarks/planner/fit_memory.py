"""Shows the fitted constants of memory.yaml with their rows: each makes the median error of its rows zero.

python -m benchmarks.planner.fit_memory
"""

import statistics
from collections.abc import Callable, Sequence

from msgspec import Struct

from benchmarks.planner.memories import comparable
from benchmarks.planner.rows import Row, read
from headway.planner.memory.ledger import peak
from headway.planner.memory.profiles import constants, profile


class Fitted(Struct, frozen=True):
    """A constant, its value, and which rows with a printed peak it was fitted on."""

    name: str
    value: float
    rows: Callable[[Row], bool]


def fitted() -> tuple[Fitted, ...]:
    """Return those of peaks. `fits` and `fails` were chosen on outcomes: `verdicts` of the score shows them."""
    return (
        Fitted("megatron: fragmented", profile("megatron").fragmented, _of("oellm-jupiter", "megatron", graphs=False)),
        Fitted("megatron-deepspeed: fragmented", profile("megatron-deepspeed").fragmented, _of("bloom", "megatron-deepspeed")),
        Fitted("torchtitan: fused_logits", profile("torchtitan").fused_logits, _compiled_torchtitan),
        Fitted("graphs", constants().graphs, _of("oellm-jupiter", "megatron", graphs=True)),
    )


def _of(source: str, framework: str, *, graphs: bool = False) -> Callable[[Row], bool]:
    def chosen(row: Row) -> bool:
        step = row.training
        return step is not None and (row.source, step.framework, bool(step.kernels.graphs)) == (source, framework, graphs)

    return chosen


def _compiled_torchtitan(row: Row) -> bool:
    return row.source == "torchtitan" and row.training is not None and bool(row.training.kernels.compiled)


def residuals(rows: Sequence[Row], constant: Fitted) -> list[float]:
    """Predicted over measured, less 1, of each of the constant's rows."""
    found = []
    for row in rows:
        if row.peak is not None and row.training is not None and not row.out_of_memory and constant.rows(row):
            found.append(comparable(peak(row.training), row.peak.kind) / row.peak.gib - 1)
    return found


def main() -> None:
    rows = read()
    print(f"{'constant':32} {'value':>12} {'rows':>5} {'median':>8} {'mean size':>10}")
    for constant in fitted():
        off = residuals(rows, constant)
        sizes = [abs(value) for value in off]
        print(
            f"{constant.name:32} {constant.value:12g} {len(off):5} {statistics.median(off):+8.1%} {statistics.fmean(sizes):10.1%}"
        )


if __name__ == "__main__":
    main()
