"""`headway profile RUN`: traces some steps of a running job of the builtin trainer."""

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from headway.cli.terminal import fail, progress
from headway.jobspec.units import parse_seconds
from headway.report import units
from headway.report.directory import RunError, find_run, read_run
from headway.report.trace import trace_times
from headway.runner.contract import ProfileRequest, RunDirectory, to_json
from headway.runs import searched

_POLL_S = 0.2
_MOST_STEPS = 100


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The job goes on; the traced steps and the one after them take longer. Open a trace at https://ui.perfetto.dev. "
        "Traces are below `profiles/` of the run."
    )
    parser.add_argument("run", metavar="RUN", help="a run directory, or its name under $HEADWAY_RUNS (default: ./runs)")
    parser.add_argument("--steps", type=_steps, default=3, metavar="N", help="number of steps (default: %(default)s)")
    parser.add_argument("--ranks", type=_ranks, default=(0,), metavar="0,8", help="ranks to trace (default: 0)")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=900.0,
        metavar="TIME",
        help="how long to wait for the traces before the request is withdrawn (default: 15m)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the traces' paths. 1 when the run cannot be traced or a rank has no trace, 3 when the run's folder cannot be written."""
    try:
        directory = find_run(args.run, searched(os.environ))
        records = read_run(directory)
    except RunError as error:
        return fail(str(error), 1)
    newest = max(records.attempts, default=None)
    if newest is None or newest in records.verdicts:
        return fail(f"the run `{records.handle.run}` is not running: only steps to come can be traced", 1)
    if records.handle.trainer != "builtin":
        return fail(f"the run is one of the trainer `{records.handle.trainer}`; use torch.profiler in its script", 1)
    if beyond := [rank for rank in args.ranks if rank >= records.handle.world_size]:
        return fail(f"there is no rank {beyond[0]}: the run has {units.count(records.handle.world_size, 'rank')}", 1)
    files = RunDirectory(directory, newest)
    request = ProfileRequest(datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f"), args.steps, args.ranks)
    try:
        files.profiles.mkdir(exist_ok=True)
        if not _published(files.profile_request, request):
            return fail(f"another profile is under way; wait for it, or remove `{files.profile_request}`", 1)
    except OSError as error:
        return fail(f"`{files.profiles}` cannot be written: {error.strerror}", 3)
    progress(f"waiting for {units.count(args.steps, 'step')} of {units.count(len(args.ranks), 'rank')}")
    try:
        missing = _missing(files, request, time.monotonic() + args.timeout)
    finally:
        files.profile_request.unlink(missing_ok=True)
    for rank in args.ranks:
        _show(files, request, rank)
    if missing:
        names = ", ".join(map(str, missing))
        return fail(f"no trace of rank {names}: the run has ended, does not step, or could not write", 1)
    return 0


def _published(file: Path, request: ProfileRequest) -> bool:
    """Write the request, whole or not at all; False if there is another."""
    temporary = file.with_name(f".{request.name}.tmp")
    temporary.write_text(to_json(request))
    try:
        file.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _missing(files: RunDirectory, request: ProfileRequest, until: float) -> list[int]:
    """Wait for the traces; return the ranks without one when the time is over, the attempt has ended, or all have one or failed."""
    while True:
        open_ranks = [rank for rank in request.ranks if not request.trace(files.profiles, rank).exists()]
        waiting = [rank for rank in open_ranks if not request.failure(files.profiles, rank).exists()]
        if not waiting or time.monotonic() > until or files.verdict.exists():
            return open_ranks
        time.sleep(_POLL_S)


def _show(files: RunDirectory, request: ProfileRequest, rank: int) -> None:
    trace, failure = request.trace(files.profiles, rank), request.failure(files.profiles, rank)
    if failure.exists():
        print(failure.read_text(errors="replace"), file=sys.stderr)
    if not trace.exists():
        return
    print(trace)
    try:
        times = trace_times(trace)
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        print(f"the trace cannot be read: {error}", file=sys.stderr)
        return
    if times is not None and times.seconds > 0:
        shares = [units.share(each / times.seconds) for each in (times.compute_s, times.communication_s, times.exposed_s)]
        print(f"  GPU of rank {rank}: computes {shares[0]}, communicates {shares[1]}, of which exposed {shares[2]} of the time")


def _steps(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= _MOST_STEPS):
        raise argparse.ArgumentTypeError(f"`{text}`: expected a whole number from 1 to {_MOST_STEPS}")
    return int(text)


def _ranks(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"`{text}`: expected ranks such as `0,8`")
    return tuple(dict.fromkeys(map(int, parts)))


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}`: expected a time such as `30s` or `15m`") from None
