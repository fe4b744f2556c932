"""Prints the results of a simulation on a terminal."""

import math
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table

from headway.cli.simulation import Simulation
from headway.cli.terminal import bar, print_line, print_table, stdout_console
from headway.planner.goodput.run import SimulatedRun
from headway.planner.goodput.simulate import TimeBucket
from headway.planner.goodput.summary import IntervalRow, SampleSpread, Summary
from headway.report import units

# Columns that a narrow terminal can do without, the first of them first.
_DISPENSABLE = ("by the formula", "lost, beside the worst")
_SAME = 1e-9

_Facts = Iterator[tuple[str, str]]


def print_simulation(simulation: Simulation) -> None:
    """Prints the account on stdout; it reads without colour."""
    console = stdout_console()
    run, summary = simulation.run, simulation.summary
    gpus = f" x {run.gpus_per_node} GPUs" if run.gpus_per_node else ""
    nodes = f"{units.count(run.nodes, 'node')}{gpus}, {units.count(run.spares, 'spare')}, {run.pool:,} in the pool"
    console.print(f"[bold]{simulation.job}[/] on [bold]{simulation.cluster}[/]: {nodes}")
    console.print(f"{_length(run)}; simulated {units.count(summary.runs, 'time')}", markup=False)
    low, mean, high = (units.share(share) for share in (summary.goodput.low, summary.goodput.mean, summary.goodput.high))
    console.print(f"\n[bold]goodput {mean} ({low} to {high} in nine runs of ten)[/]")
    for name, value in _facts(run, summary):
        print_line(console, f"{name}: {value}", hang=2)
    console.print("\n[bold]where the time goes[/]", _buckets(summary.shares, console), sep="\n")
    if summary.failures:
        console.print("\n[bold]what fails[/], in one run", _causes(summary.failures, console), sep="\n")
    for kind, rows in simulation.intervals.items():
        _print_tier(console, run, kind, rows, simulation.best_interval_s[kind])
    if simulation.intervals:
        console.print("\nThe formula does not model waiting for nodes or a restart budget.")
    console.print()
    print_line(console, _spares(run, simulation.best_spares), hang=2)
    if run.assumed:
        console.print("\n[bold]from publications[/], as the documents do not set it")
        for line in run.assumed:
            print_line(console, f"  {line}", hang=4)


def _print_tier(console: Console, run: SimulatedRun, kind: str, rows: tuple[IntervalRow, ...], best_s: float) -> None:
    tier = run.tier(kind)
    cost = f"a save stops training for {units.seconds(tier.block_s)}, can be read after {units.seconds(tier.write_s)}"
    console.print(f"\n[bold]checkpoints on {kind}[/] every {units.seconds(tier.interval_s)}; {cost}")
    best = f"best every {units.seconds(best_s)} of training ({units.count(max(1, round(best_s / run.step_s)), 'step')})"
    if best_s >= run.length_s:
        best = "best only at the end: the work lost without these checkpoints costs less than writing them"
    console.print(best, markup=False)
    print_table(console, _intervals(rows, tier.interval_s, console), ("every", "lost, beside the worst"), _DISPENSABLE)


def _length(run: SimulatedRun) -> str:
    if math.isinf(run.work_s):
        return f"{units.seconds(run.wall_s)} of steps of {units.seconds(run.step_s)}"
    steps = (
        f"{round(run.work_s / run.step_s):,} steps of {units.seconds(run.step_s)}: {units.seconds(run.work_s)} without failures"
    )
    return steps if math.isinf(run.wall_s) else f"{steps}, for {units.seconds(run.wall_s)} at most"


def _facts(run: SimulatedRun, summary: Summary) -> _Facts:
    if run.spares:
        yield "counting the job's spares", units.share(summary.of_held)
    hours = f", {units.count(round(summary.gpu_hours), 'GPU-hour')}" if run.gpus_per_node else ""
    ended = "it takes" if summary.finished == summary.runs or not math.isfinite(run.work_s) else "it ends after"
    yield ended, f"{units.seconds(summary.wall_s.mean)}{hours}"
    if math.isfinite(run.work_s):
        yield "done", f"{summary.finished} of {units.count(summary.runs, 'run')}"
    if summary.out_of_restarts:
        yield (
            "ended early",
            f"{summary.out_of_restarts} of {units.count(summary.runs, 'run')}: `resilience.restart.budget` was exhausted",
        )
    if summary.interruptions.mean:
        every = units.seconds(summary.wall_s.mean / summary.interruptions.mean)
        yield (
            "failures",
            f"{_numbers(summary.interruptions)} per run, one every {every}; each costs {units.seconds(summary.lost_s)}",
        )
        yield "nodes replaced", f"{_numbers(summary.replaced)} a run; {_numbers(summary.nodes_used)} nodes are used"
    if summary.from_scratch:
        yield "back to the first step", f"{summary.from_scratch:.2g} times a run: no checkpoint was left"


def _spares(run: SimulatedRun, best: int) -> str:
    held = f"{units.count(run.spares, 'spare')} and a pool of {run.pool:,}"
    if best <= run.spares:
        return f"spares: {held} are enough; the job is short of a node for less than 0.5 % of the time"
    return f"spares: {held} are too few; with {units.count(best, 'spare')} the job is short of a node for less than 0.5 % of the time"


def _buckets(shares: Mapping[TimeBucket, float], console: Console) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for bucket, share in shares.items():
        if share > 0:
            table.add_row(f"  {bucket}", units.share(share), bar(share, console))
    return table


def _causes(failures: Mapping[str, float], console: Console) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    total = sum(failures.values())
    for name, number in failures.items():
        table.add_row(f"  {name}", f"{number:.1f}", bar(number / total, console))
    return table


def _intervals(rows: tuple[IntervalRow, ...], own_s: float, console: Console) -> list[dict[str, str]]:
    most = max(1 - row.goodput.mean for row in rows) or 1.0
    return [
        {
            "every": units.seconds(row.interval_s)
            + (" (the job's)" if math.isclose(row.interval_s, own_s, rel_tol=_SAME) else ""),
            "goodput": units.share(row.goodput.mean),
            "nine of ten runs": f"{units.share(row.goodput.low)} to {units.share(row.goodput.high)}",
            "by the formula": units.share(row.expected),
            "lost, beside the worst": bar((1 - row.goodput.mean) / most, console),
        }
        for row in rows
    ]


def _numbers(spread: SampleSpread) -> str:
    if spread.low == spread.high == spread.mean:
        return f"{spread.mean:,.0f}"
    return f"{spread.mean:,.1f} ({spread.low:,.0f} to {spread.high:,.0f})"
