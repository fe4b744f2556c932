"""Shares what `up`, `preview` and `down` need: loading a cluster's document as a stack, and printing the state of its hosts."""

import argparse
import importlib.util
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from headway.cli.terminal import StopError
from headway.cli.views.problems import print_problems
from headway.compile import compile_documents
from headway.infra.host import FileChange, ForeignFileError, HostState
from headway.infra.providers import PROVIDERS
from headway.infra.reach import Reach
from headway.jobspec.notation import counted
from headway.jobspec.suggest import listed

if TYPE_CHECKING:
    from headway.infra.stack import ClusterStack, StackOutcome
    from headway.infra.survey import HostSurvey

Report = Callable[[str, str], None]

_SYMBOL = {"missing": "+", "changed": "~", "mode": "~", "extra": "-"}
_NEEDED = ("pulumi", "paramiko")


class ClusterHosts(Struct, frozen=True):
    """A cluster's name, the folder of its document, what its hosts are to hold, and how others are reached."""

    cluster: str
    folder: Path
    states: list[HostState]
    others: Reach

    def stack(self, without: Collection[str] = ()) -> "ClusterStack":
        """Raises StopError with 3 when the engine is not there, with 1 when it does not work."""
        from headway.infra.stack import ClusterStack, NoEngineError, StackError  # noqa: PLC0415 (pulumi is an extra)

        try:
            return ClusterStack(self.cluster, self.folder, self.states, self.others, without)
        except NoEngineError as error:
            raise StopError(3, str(error)) from error
        except StackError as error:
            raise StopError(1, str(error)) from error


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """The argument that all three have."""
    parser.add_argument("cluster", type=Path, metavar="CLUSTER", help="a Cluster document with a `provider`")


def add_without(parser: argparse.ArgumentParser) -> None:
    """For hosts that do not answer now."""
    help_text = "skip this node: neither read nor change it; repeatable"
    parser.add_argument("--without", action="append", default=[], metavar="NODE", help=help_text)


def add_consent(parser: argparse.ArgumentParser) -> None:
    """For what changes hosts."""
    parser.add_argument("--yes", action="store_true", help="skip the confirmation (required without a terminal)")
    help_text = "first remove this node (or ADDRESS:PORT), which is gone for good, from the state; repeatable"
    parser.add_argument("--forget", action="append", default=[], metavar="NODE", help=help_text)


def read_hosts(file: Path) -> ClusterHosts:
    """The hosts of the cluster's document. Raises StopError with 1 for mistakes in it, with 3 when a library is missing."""
    compiled = compile_documents([file], kinds=("Cluster",))
    print_problems(compiled.problems, sys.stderr)
    if compiled.problems.errors:
        raise StopError(1)
    planned = compiled.clusters[0]
    if planned.provider is None or planned.plan.provider is None:
        raise StopError(1, f"`{planned.plan.name}` has no `provider`, so its hosts cannot be reached")
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise StopError(3, f"this needs {' and '.join(missing)}; install headway with its extra `infra`")
    kind = PROVIDERS[planned.plan.provider]
    try:
        states = kind.hosts(planned.provider, planned.plan, planned.files(), file.parent)
    except ValueError as error:
        raise StopError(1, str(error)) from error
    return ClusterHosts(planned.plan.name, file.parent, states, kind.reach(planned.provider, file.parent))


def check_known(nodes: Collection[str], known: Collection[str], option: str) -> None:
    """Raises StopError with 2 for a node that is not there."""
    for node in nodes:
        if node not in known:
            raise StopError(
                2, f"`{option} {node}`: there is no such node; there are {listed(sorted(known)) if known else 'none'}"
            )


def look(states: Sequence[HostState]) -> "Mapping[str, HostSurvey]":
    """Return the facts of each host, by its place.

    Raises StopError if one cannot be reached (3), or if another tool's files are in the way (1).
    """
    from headway.infra.survey import survey  # noqa: PLC0415 (paramiko is an extra)

    found = dict(zip((state.reach.place for state in states), survey(states), strict=True))
    errors = [each.error for each in found.values() if each.error is not None]
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    if errors:
        foreign = any(isinstance(error, ForeignFileError) for error in errors)
        message = f"nothing was changed: {counted(len(states), 'host')} checked, {len(errors)} with errors"
        raise StopError(1 if foreign else 3, message)
    return found


def carry_out(work: "Callable[[Report | None], StackOutcome]", title: str, hosts: int) -> "StackOutcome":
    """Return the result of `work`, with progress on a terminal. Raises StopError with 1 if the engine does not work."""
    from headway.infra.stack import StackError  # noqa: PLC0415

    try:
        with _progress(title, hosts) as report, _interrupts_for_the_engine():
            return work(report)
    except StackError as error:
        raise StopError(1, str(error)) from error


@contextmanager
def _interrupts_for_the_engine() -> Iterator[None]:
    """An interrupt at the terminal comes to the engine too, which stops in order and unlocks the stack: we wait for that."""

    def handle(_number: int, _frame: object) -> None:
        print("stopping: finishing the changes in progress; the rest is left for the next run", file=sys.stderr)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(title: str, hosts: int) -> "Iterator[Report | None]":
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[host]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=hosts, host="")

        def report(host: str, op: str) -> None:
            progress.update(task, advance=0 if op == "refresh" else 1, host=f"{host} checked" if op == "refresh" else host)

        yield report


def print_changes(outcome: "StackOutcome", found: "Mapping[str, HostSurvey] | None" = None) -> None:
    """Each change on stdout: + missing, ~ changed, - extra, ! of a unit or of the host.

    Of a host that is new to the engine it knows nothing; what was `found` there does.
    """
    for place, change in sorted(outcome.changes.items(), key=lambda item: item[1].host):
        looked_at = (found or {}).get(place) if change.op == "create" else None
        for each in looked_at.changes if looked_at else change.changes:
            print(_line(change.host, each))


def print_failures(outcome: "StackOutcome") -> None:
    """Print the failures on stderr."""
    for _, reason in sorted(outcome.failures.items()):
        print(f"error: {reason}", file=sys.stderr)


def _line(host: str, change: FileChange) -> str:
    note = "" if change.what in {"missing", "changed", "extra"} else f" ({change.what})"
    return f"{_SYMBOL.get(change.what, '!')} {host}:{change.subject}{note}"


def check_consent(yes: bool) -> None:
    """Raise StopError with 2 if there is no terminal to ask on and no --yes."""
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise StopError(2, "cannot ask for confirmation without a terminal; pass `--yes`")


def ask(question: str) -> None:
    """Raises StopError unless the answer is yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise StopError(1, "nothing was changed")


def check_forgotten(stack: "ClusterStack", nodes: Collection[str], others: Collection[str] = ()) -> None:
    """Raises StopError with 2 for a node, by name or `ADDRESS:PORT`, that is neither in the state nor one of the `others`."""
    if nodes:
        known = stack.hosts()
        check_known(nodes, {*known, *known.values(), *others}, "--forget")


def stopping(verb: Callable[[], int]) -> int:
    """The verb's exit code, also when it stops on its way."""
    try:
        return verb()
    except StopError as stop:
        if str(stop):
            print(f"error: {stop}", file=sys.stderr)
        return stop.code
