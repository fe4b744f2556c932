"""`headway run JOB`: runs the job on this machine, follows it to its end, and prints what it took."""

import argparse
import getpass
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headway.cli.documents import load_job_plan
from headway.cli.terminal import fail
from headway.cli.views.live import journal_words
from headway.infra.submit.local import Kill, LocalError, LocalRun, start
from headway.jobspec.plan import JobPlan
from headway.jobspec.resolve.placement import runs_of_user
from headway.report.directory import RunError
from headway.report.page import write_page
from headway.report.summary import summarize
from headway.report.terminal import print_summary
from headway.runner.contract import Exit, RunDirectory

POLL_S, SELDOM_S = 0.02, 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=Path, metavar="JOB", help="a TrainingJob document")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="a Cluster document (default: the first that the job names)")
    parser.add_argument("--resume", metavar="RUN", help="resume this run of the same job from its newest checkpoint")
    parser.add_argument(
        "--kill",
        type=_kill,
        action="append",
        default=[],
        metavar="RANK@STEP",
        help="inject a fault: send SIGKILL to the worker of RANK once its heartbeat shows STEP completed steps; repeatable",
    )


def _kill(text: str) -> Kill:
    if (found := re.fullmatch(r"(\d+)@(\d+)", text)) is None:
        raise argparse.ArgumentTypeError(f"`{text}` is not RANK@STEP, `1@90` for one")
    return Kill(int(found[1]), int(found[2]))


def run(args: argparse.Namespace) -> int:
    """Return the runner's exit code; 1 if the documents have errors, 2 for an unknown rank, 3 if something is missing on this machine."""
    planned = load_job_plan(args.job, args.cluster)
    if planned is None:
        return 1
    plan = planned.plan
    if plan.code["commit"] != "HEAD":
        return fail(
            f"{args.job} pins commit {plan.code['commit']}, but `run` starts what is in this directory; check it out here", 1
        )
    if reason := _impossible(args.kill, plan):
        return fail(reason, 2)
    try:
        local = start(plan, Path(os.environ.get("HEADWAY_RUNS") or runs_of_user(plan.runs, getpass.getuser())), args.resume)
    except LocalError as error:
        return fail(str(error), 3)
    with _saving_on_interrupt(local):
        left = follow(local, plan.run.last_step, args.kill)
    code = local.exit_code()
    _report(local.directory.root)
    for kill in left:
        print(
            f"`--kill {kill.rank}@{kill.step}` was not carried out: the worker never showed {kill.step} completed steps",
            file=sys.stderr,
        )
    if code == Exit.PREEMPTED:
        print(f"to resume: headway run {args.job} --resume {local.directory.root.name}", file=sys.stderr)
    return code


def _report(directory: Path) -> None:
    """The summary and the page; what is wrong with them does not change how the run has ended."""
    page = RunDirectory(directory).report
    try:
        summary = summarize(directory)
        print_summary(summary)
        write_page(summary, page)
        print(f"report: {page}", file=sys.stderr)
    except (RunError, OSError) as error:
        print(f"error: no report: {error}", file=sys.stderr)


def _impossible(kills: list[Kill], plan: JobPlan) -> str | None:
    """Why a fault can never happen."""
    for kill in kills:
        if kill.rank >= plan.world_size:
            return f"`--kill {kill.rank}@{kill.step}`: there are ranks 0 to {plan.world_size - 1}"
        if plan.run.last_step is not None and kill.step >= plan.run.last_step:
            return (
                f"`--kill {kill.rank}@{kill.step}`: the job has {plan.run.last_step} steps, and its workers exit after the last"
            )
    return None


@contextmanager
def _saving_on_interrupt(local: LocalRun) -> Iterator[None]:
    """The first interrupt saves and stops; a second one ends every process of the run."""
    numbers, heard = (signal.SIGINT, signal.SIGTERM), list[int]()

    def handle(number: int, _: Any) -> None:
        heard.append(number)
        if len(heard) == 1:
            print("saving and stopping; interrupt again to stop at once", file=sys.stderr)
            local.interrupt()
        else:
            local.end()

    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def follow(local: LocalRun, steps: int | None, kills: list[Kill]) -> list[Kill]:
    """Show the run's progress on a terminal until it has ended, and execute `kills` on the way. Return those left over."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"))
    metrics = Tail(local.directory.root.glob, local.directory.metrics.name)
    journal = Tail(local.directory.journals.glob, "*.jsonl")
    pending = list(kills)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=steps, loss="-")
        while local.alive:
            pending = [kill for kill in pending if not local.kill(kill)]
            # Elsewhere nothing is shown, and reading the files would only take CPU time from the ranks.
            if console.is_terminal:
                for line in journal.new():
                    if words := journal_words(line):
                        progress.console.print(words, markup=False)
                for line in metrics.new():
                    progress.update(task, description="training", completed=line["step"], loss=f"{line['loss']:.4f}")
            # `--kill` has to hit its step. Without one, frequent polls only take CPU time from the ranks.
            time.sleep(POLL_S if pending else SELDOM_S)
    return pending


class Tail:
    """The lines that JSONL files have got since the last look."""

    def __init__(self, glob: Callable[[str], Iterator[Path]], pattern: str) -> None:
        self._glob, self._pattern, self._read = glob, pattern, dict[Path, int]()

    def new(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self._glob(self._pattern)):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for raw in file:
                    if not raw.endswith(b"\n"):  # its writer is not done with it
                        break
                    self._read[path] = self._read.get(path, 0) + len(raw)
                    with suppress(ValueError):
                        # Half a line of a writer that was killed.
                        yield json.loads(raw)
