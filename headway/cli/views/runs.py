"""Shows runs as a list that fits the terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table

from headway.cli.terminal import fitted_table, stdout_console
from headway.report import units
from headway.report.standing import RunStatus

_LONGEST_CAUSE = 60
# The first part of a JobSet's uid; no number of Slurm's is longer.
_LONGEST_JOB = 8
_TEXTS = ("run", "state", "nodes", "cause")
# The first to go where a terminal is narrow.
_DISPENSABLE = ("loss", "attempt", "job", "steps/s", "nodes", "goodput", "cause")


def print_runs(runs: Sequence[RunStatus], older: int) -> None:
    """Print the list on stdout."""
    console = stdout_console()
    console.print(runs_table(runs, older, console.width))


def runs_table(runs: Sequence[RunStatus], older: int, width: int) -> Table:
    """Return the runs as a table that fits so many columns, with how many are in each state, and the number of older ones that it omits."""
    table, _ = fitted_table(width, [_cells(run) for run in runs], _TEXTS, _DISPENSABLE)
    states = Counter(run.state for run in runs)
    counted = [", ".join(f"{number:,} {state}" for state, number in states.most_common())] if len(runs) > 1 else []
    table.caption = "; ".join([*counted, *([f"{older:,} older: --all"] if older else [])]) or None
    return table


def _cells(run: RunStatus) -> Mapping[str, str]:
    steps = "" if run.step is None else f"{run.step:,}" + (f"/{run.steps:,}" if run.steps else "")
    why = run.cause or run.why
    if run.cause and run.why:
        why = f"{run.why}; {run.cause}"
    return {
        "run": run.run,
        "state": run.state,
        "job": (run.scheduler_job or "")[:_LONGEST_JOB],
        "attempt": "" if run.attempt is None else str(run.attempt),
        "step": steps,
        "steps/s": "" if run.steps_per_s is None else f"{run.steps_per_s:.3g}",
        "loss": "" if run.loss is None else units.loss(run.loss),
        "goodput": "" if run.goodput is None else units.share(run.goodput),
        "nodes": _printable(run.nodes),
        "cause": _shortened(_printable(why)),
    }


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_CAUSE else f"{text[: _LONGEST_CAUSE - 3]}..."
