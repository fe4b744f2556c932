"""Implements the verbs that read checkpoints in place: ls, verify, adopt. They need no torch, so they answer at once."""

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headway.runner.checkpoint.chain import Record, lineage
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.interop.root import is_rooted, open_reader
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.tools.adopt import (
    VerifiedDirectory,
    contradicted,
    found_again,
    newest_generation,
    readable,
    survey,
)
from headway.runner.checkpoint.tools.inspect import (
    FileRefusal,
    InspectedRun,
    Progress,
    chosen,
    lost_chain,
    open_run,
    rows,
    run_and_step,
    standing,
    verify,
)
from headway.runner.checkpoint.tools.say import FINE, FOUND, USAGE, say, say_error
from headway.runner.contract import Base


def ls(args: argparse.Namespace) -> int:
    """Print every checkpoint of a run: `checkpoint` lines."""
    run = open_run(args.run)
    records, damaged = readable(run)
    for row in rows(run, records):
        say("checkpoint", **dataclasses.asdict(row))
    damaged = damaged or lost_chain(run, records)
    if damaged is not None:
        say("damaged", reason=damaged)
    return FINE if damaged is None else FOUND


def verify_all(args: argparse.Namespace) -> int:
    """Read every byte: `opened`, `progress`, `refused` and `verified` lines of each checkpoint."""
    codes = [_verified(name, opened) for name, opened in _opened(args)]
    return max(codes, default=FINE)


def _opened(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Reader]]]:
    if is_rooted(Path(args.place)):
        yield args.place, lambda: open_reader(Path(args.place))
        return
    place, at = run_and_step(args.place)
    run = open_run(place)
    records = run.chain().read()
    newest = chosen(run, records, at if args.step is None else args.step)
    for base in standing(records) if args.all else [newest]:
        yield base.checkpoint.directory, _reader_of(run, base)


def _reader_of(run: InspectedRun, base: Base) -> Callable[[], Reader]:
    return lambda: run.reader(base)


def _verified(name: str, opened: Callable[[], Reader]) -> int:
    say("opened", name=name)
    refused = 0
    try:
        last = Progress(0, 0)
        for found in verify(opened()):
            if isinstance(found, FileRefusal):
                refused += 1
                say("refused", checkpoint=name, name=found.name, reason=found.reason)
            else:
                last = _say_progress(last, found)
    except RefusedError as error:
        refused += 1
        say("refused", checkpoint=name, name=error.name, reason=error.reason)
    if not refused:
        say("verified", checkpoint=name, bytes=last.done)
    return FOUND if refused else FINE


def _say_progress(last: Progress, now: Progress) -> Progress:
    """Print each hundredth, so that a checkpoint of a million chunks does not print a million lines."""
    if now.done == now.of or now.done * 100 // max(1, now.of) > last.done * 100 // max(1, last.of):
        say("progress", **dataclasses.asdict(now))
    return now


def adopt(args: argparse.Namespace) -> int:
    """Verify all checkpoints, print what would count (`found` and `plan` lines), and with --yes rebuild the chain: `adopted`."""
    run = open_run(args.run)
    records, damaged = readable(run)
    if damaged is None and records:
        say_error(f"the chain of run `{run.name}` is intact, with {len(records)} records: there is nothing to adopt")
        return USAGE
    found = [_judged(records, seen) for seen in survey(run) if isinstance(seen, VerifiedDirectory)]
    for seen in found:
        say("found", directory=seen.directory, refused=dataclasses.asdict(seen.refused) if seen.refused else None)
    committed = [seen.committed for seen in found if seen.committed is not None]
    say(
        "plan",
        damaged=damaged or "the chain is empty",
        records=len(records),
        checkpoints=len(committed),
        refused=len(found) - len(committed),
    )
    if not args.yes:
        return FINE if committed else FOUND
    old = found_again(run, records, committed, newest_generation(run))
    newest = next(iter(lineage(run.chain().read())), None)
    say("adopted", moved_to=str(old), newest=newest.checkpoint.directory if newest else None)
    return FINE


def _judged(records: Sequence[Record], seen: VerifiedDirectory) -> VerifiedDirectory:
    """Combine what was found with the readable records."""
    if seen.committed is None or (refused := contradicted(records, seen.committed)) is None:
        return seen
    return VerifiedDirectory(seen.directory, None, refused)
