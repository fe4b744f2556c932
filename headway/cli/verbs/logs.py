"""`headway logs RUN`: prints the first cause of the last failure with its rank's log, then the log asked for, and follows it."""

import argparse
import json
import sys
import time
from collections.abc import Iterator

from headway.cli.site import add_cluster, add_run, known_run, site_of, stopping
from headway.cli.terminal import StopError
from headway.cli.watching import RunWatch
from headway.infra.submit.api_server import ApiRefusalError
from headway.infra.submit.jobsets import JobSetDesk
from headway.infra.submit.runs import Runs
from headway.report.glance import Glance, glance
from headway.report.standing import RunStatus
from headway.runner.contract import RunDirectory

_LINES = 20
_TAIL_BYTES = 64 * 1024
_LOOK_EVERY_S = 1.0
# Of what a pod has printed before it is followed.
_MOST_LINES = 10_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print why a run failed last, the end of the log of the rank that failed first, and then the log asked for."
    )
    add_run(parser)
    add_cluster(parser)
    parser.add_argument("--rank", type=int, metavar="R", default=0, help="the rank whose log is printed (default: %(default)s)")
    parser.add_argument(
        "--lines", type=int, metavar="N", default=_LINES, help="the last lines of each log (default: %(default)s)"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print what is added, over all attempts, until the run has ended"
    )


def run(args: argparse.Namespace) -> int:
    """0; 1 for an unknown run or rank, 3 for what does not answer."""
    return stopping(lambda: _logs(args))


def _logs(args: argparse.Namespace) -> int:
    with site_of(args.cluster, args.run) as site:
        name = known_run(site.runs, args.run)
        watch = RunWatch(site, name)
        (status,) = watch.look()
        logs = _Logs(site.runs, name, args.rank)
        for line in _heading(status, logs.seen):
            print(line)
        wanted = None if logs.seen is None else logs.of_rank(logs.seen.attempt, args.rank)
        failed = logs.of_failure()
        if failed is not None and failed != wanted:
            logs.print_end(failed, args.lines)
        if wanted is None or not logs.exists(wanted):
            wanted = logs.of_job(status.scheduler_job) or wanted
        if site.pods is not None and (wanted is None or not logs.exists(wanted)):
            _print_pods(site.pods, name, args.rank, args.lines)
            if args.follow and not site.has_records:
                _follow_pods(watch, site.pods, name, args.rank)
                return 0
        shown = 0 if wanted is None else logs.print_end(wanted, args.lines)
        sys.stdout.flush()
        if args.follow:
            _follow(watch, logs, wanted, shown)
    return 0


def _heading(status: RunStatus, seen: Glance | None) -> Iterator[str]:
    """The state with its reason, the verdict, and the first cause."""
    why = f" ({status.why})" if status.why else ""
    yield f"run {status.run}: {status.state}{why}"
    if seen is None:
        return
    if seen.verdict is not None:
        yield f"verdict of attempt {seen.attempt}: {seen.verdict.verdict} (exit code {seen.verdict.exit_code}): {seen.verdict.cause}"
        for file in seen.verdict.evidence:
            yield f"evidence: {file}"
    if (failure := seen.failure) is not None:
        rank = "" if failure.rank is None else f", rank {failure.rank}"
        host = f" on {failure.host}" if failure.host else ""
        step = "" if failure.step is None else f", step {failure.step}"
        yield f"first cause of the last failure: {failure.cause}{rank}{host}{step}"


class _Logs:
    """The logs of a run, by their paths below the folder of runs, and among them those of one rank.

    Raises StopError for a rank that the run does not have, as soon as its number of ranks is known.
    """

    def __init__(self, runs: Runs, name: str, rank: int) -> None:
        self._runs, self._name, self._rank = runs, name, rank
        self.look()

    def look(self) -> None:
        """Read the run's records: before its runner has started, they do not say which ranks there are."""
        self._directory: RunDirectory = self._runs.fetch(self._name)
        self.seen: Glance | None = glance(self._directory)
        ranks = self.seen.world_size if self.seen is not None else None
        if self._rank < 0 or (ranks is not None and self._rank >= ranks):
            known = "" if ranks is None else f"; the run has ranks 0 to {ranks - 1}"
            raise StopError(1, f"there is no rank {self._rank}{known}")

    def of_rank(self, attempt: int | None, rank: int) -> str | None:
        """The log of a rank that headway has started; None before the first start."""
        if self.seen is None or self.seen.procs_per_slot is None or attempt is None:
            return None
        return f"{self._name}/attempts/{attempt}/logs/{rank // self.seen.procs_per_slot}/{rank}.log"

    def of_failure(self) -> str | None:
        """The log of the rank that failed first in the newest failure."""
        failure = self.seen.failure if self.seen is not None else None
        if self.seen is None or failure is None or failure.rank is None:
            return None
        attempt = self.seen.attempt if failure.attempt is None else failure.attempt
        return self.of_rank(attempt, failure.rank)

    def of_job(self, job: str | None) -> str | None:
        """The log of the scheduler's job, where its submission has put it."""
        numbers = self._directory.submission_numbers()
        if not numbers or job is None:
            return None
        try:
            folder = json.loads(self._directory.request(numbers[-1]).read_text())["folder"]
        except (OSError, ValueError, KeyError):
            return None
        path = f"{folder}/{self._name}-{job}.out"
        return path if self.exists(path) else None

    def newest(self) -> str | None:
        """The log of the rank asked for in the newest attempt that has one."""
        if self.seen is None or self.seen.procs_per_slot is None:
            self.look()
        attempts = [int(each) for each in self._runs.files(f"{self._name}/attempts") if each.isdecimal()]
        paths = (self.of_rank(attempt, self._rank) for attempt in sorted(attempts, reverse=True))
        return next((path for path in paths if path is not None and self.exists(path)), None)

    def exists(self, path: str) -> bool:
        return self._runs.read(path, 0, 0)[1] > 0

    def print_end(self, path: str, lines: int) -> int:
        """Print the last lines; return the size of the log up to which they go."""
        content, size = self._runs.read(path, -_TAIL_BYTES)
        shown = content.decode(errors="replace").splitlines()[-lines:] if lines > 0 else []
        print(f"--- {path}{'' if size else ' (nothing yet)'}")
        for line in shown:
            print(line)
        return max(0, size - _TAIL_BYTES) + len(content)

    def read(self, path: str, start: int) -> tuple[bytes, int]:
        return self._runs.read(path, start)


def _print_pods(pods: JobSetDesk, name: str, rank: int, lines: int) -> None:
    """Print the end of the output of a pod that has failed and of the rank's pod, for ranks whose logs this machine does not see."""
    failed, wanted = pods.pods_to_read(name, rank)
    for pod in [*failed[:1], *([wanted] if wanted is not None and wanted not in failed[:1] else [])]:
        print(f"--- pod {pod.columns['name']} on {pod.columns.get('node', '')}: {pod.columns['status']}")
        try:
            for piece in pods.log(pod, lines):
                sys.stdout.write(piece.decode(errors="replace"))
        except ApiRefusalError as error:
            print(f"(nothing yet: {error})")
    sys.stdout.flush()


def _follow_pods(watch: RunWatch, pods: JobSetDesk, name: str, rank: int) -> None:
    """Print what the rank's pod prints, and then that of each further attempt, until the run has ended."""
    shown = ""
    while True:
        _, pod = pods.pods_to_read(name, rank)
        if pod is not None and pod.columns["name"] != shown:
            try:
                # The end of the first one has been printed.
                for piece in pods.log(pod, _MOST_LINES if shown else 0, follow=True):
                    sys.stdout.write(piece.decode(errors="replace"))
                    sys.stdout.flush()
                shown = pod.columns["name"]
            except ApiRefusalError:
                # It has not started.
                pass
        (status,) = watch.look()
        if status.has_ended:
            print(f"run {status.run}: {status.state}")
            return
        time.sleep(_LOOK_EVERY_S)


def _follow(watch: RunWatch, logs: _Logs, path: str | None, at: int) -> None:
    """Print what the log gains from `at` on, and then that of each further attempt, until the run has ended."""
    while True:
        (status,) = watch.look()
        at = _print_more(logs, path, at)
        newest = logs.newest()
        if newest is not None and newest != path:
            print(f"--- {newest}")
            path, at = newest, _print_more(logs, newest, 0)
        elif status.has_ended:
            print(f"run {status.run}: {status.state}")
            return
        time.sleep(_LOOK_EVERY_S)


def _print_more(logs: _Logs, path: str | None, at: int) -> int:
    if path is None:
        return at
    content, _ = logs.read(path, at)
    if content:
        sys.stdout.write(content.decode(errors="replace"))
        sys.stdout.flush()
    return at + len(content)
