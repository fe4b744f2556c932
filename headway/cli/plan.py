"""A job as a readable account of its plan: ranks, mesh, environment, files."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.documents import PlannedJob, load_job_plan
from headway.jobspec.plan import JobPlan, to_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_RANKS_SHOWN = 32
_PIPE_WIDTH = 130


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=Path, metavar="JOB", help="a TrainingJob document")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="a Cluster document, not the first that the job names")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, as `render` writes it to plan.json")


def run(args: argparse.Namespace) -> int:
    """Prints the plan. 1 when the documents have errors."""
    planned = load_job_plan(args.job, args.cluster)
    if planned is None:
        return 1
    if args.json:
        sys.stdout.write(to_json(planned.plan))
    else:
        _print(planned)
    return 0


def _print(planned: PlannedJob) -> None:
    from rich.console import Console  # noqa: PLC0415 (only a plan for people needs it)

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    plan = planned.plan
    console.print(f"[bold]{plan.name}[/] on [bold]{plan.cluster}[/] ({plan.scheduler}), spec {plan.spec_hash[:8]}")
    console.print(f"runs in {plan.runs}", markup=False)
    nodes = "1 node" if plan.slots == 1 else f"{plan.slots} nodes"
    _section(console, f"{plan.world_size} ranks: {nodes} x {plan.procs_per_slot}, {plan.backend}", _mesh(plan))
    _section(console, "ranks", _ranks(plan))
    _print_environment(console, plan)
    console.print("\n[bold]files[/] (`headway render`)")
    for path in sorted(planned.files()):
        console.print(f"  {path}", soft_wrap=True)


def _section(console: "Console", title: str, table: "Table") -> None:
    console.print(f"\n[bold]{title}[/]")
    console.print(table)


def _table(*columns: str) -> "Table":
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _mesh(plan: JobPlan) -> "Table":
    table = _table("axis", *plan.mesh.axes)
    table.add_row("degree", *map(str, plan.mesh.shape))
    return table


def _ranks(plan: JobPlan) -> "Table":
    table = _table("rank", "slot", "local rank", *plan.mesh.axes)
    for rank in plan.ranks[:_RANKS_SHOWN]:
        table.add_row(str(rank.rank), str(rank.slot), str(rank.local_rank), *map(str, rank.coords))
    if plan.world_size > _RANKS_SHOWN:
        table.add_row("...", f"{plan.world_size - _RANKS_SHOWN} more; --json has all")
    return table


def _print_environment(console: "Console", plan: JobPlan) -> None:
    console.print("\n[bold]environment of every rank[/]")
    for variable in plan.env:
        console.print(f"  {variable.name}={variable.value}", markup=False, soft_wrap=True)
        console.print(f"      {variable.reason}", markup=False, soft_wrap=True)
        console.print(f"      {variable.source}", markup=False, soft_wrap=True, style="dim")
