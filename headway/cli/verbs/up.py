"""`headway up CLUSTER`: brings the cluster's hosts to the state that its document describes."""

import argparse
import sys
from typing import TYPE_CHECKING

from headway.cli.hosts import (
    add_cluster,
    add_consent,
    add_without,
    ask,
    carry_out,
    check_consent,
    check_forgotten,
    check_known,
    look,
    print_changes,
    print_failures,
    read_hosts,
    stopping,
)
from headway.jobspec.notation import counted

if TYPE_CHECKING:
    from headway.infra.stack import StackOutcome


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Only headway's own files are changed. Where one would replace a file that is not headway's, nothing is changed."
    )
    add_cluster(parser)
    add_consent(parser)
    add_without(parser)


def run(args: argparse.Namespace) -> int:
    """1 for mistakes and for hosts that could not be changed, 2 without consent, 3 when a host or a tool cannot be reached."""
    return stopping(lambda: _up(args))


def _up(args: argparse.Namespace) -> int:
    check_consent(args.yes)
    hosts = read_hosts(args.cluster)
    check_known(args.without, [state.name for state in hosts.states], "--without")
    states = [state for state in hosts.states if state.name not in args.without]
    places = [state.reach.place for state in states]
    stack = hosts.stack(args.without)
    found = look(states)
    check_forgotten(stack, args.forget)
    if not args.yes:
        planned = carry_out(lambda report: stack.preview(report, args.forget), "looking", len(states))
        print_changes(planned, found)
        if planned.failures or not (planned.changes or args.forget):
            return _ended(planned, places)
        ask(f"change {counted(len(planned.changes), 'host')}?")
    stack.forget(args.forget)
    outcome = carry_out(stack.up, "changing", len(states))
    if args.yes:
        print_changes(outcome, found)
    return _ended(outcome, places)


def _ended(outcome: "StackOutcome", places: list[str]) -> int:
    print_failures(outcome)
    for place in outcome.failures:
        if place not in places:
            print(f"`{place}` is no longer part of this cluster; use `--forget {place}` if it is gone for good", file=sys.stderr)
    changed = f"{len(outcome.changes)} changed" if outcome.changes else "no changes"
    failed = f", {len(outcome.failures)} failed" if outcome.failures else ""
    print(f"{counted(len(places), 'host')}: {changed}{failed}", file=sys.stderr)
    return 1 if outcome.failures else 0
