"""`headway down CLUSTER`: removes everything that headway installed on the cluster's hosts."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.cli.hosts import (
    add_cluster,
    add_consent,
    ask,
    carry_out,
    check_consent,
    check_forgotten,
    print_changes,
    print_failures,
    read_hosts,
    stopping,
)
from headway.infra.host import HostState
from headway.jobspec.notation import counted
from headway.jobspec.suggest import listed

if TYPE_CHECKING:
    from headway.infra.stack import StackOutcome

_SHOWN = 8


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Removes the files named in each host's manifest, /etc/headway/managed.json, and nothing else."
    add_cluster(parser)
    add_consent(parser)


def run(args: argparse.Namespace) -> int:
    """1 for mistakes and for hosts that still hold something, 2 without consent, 3 when a tool is missing."""
    return stopping(lambda: _down(args))


def _down(args: argparse.Namespace) -> int:
    check_consent(args.yes)
    hosts = read_hosts(args.cluster)
    stack = hosts.stack()
    check_forgotten(stack, args.forget, [state.name for state in hosts.states])
    known = {place: name for place, name in stack.hosts().items() if not {place, name} & set(args.forget)}
    # A run that was cut off in its first work on a host has left files there, and the engine's state does not have it.
    others = [state for state in hosts.states if not {state.reach.place, state.name} & {*known, *args.forget}]
    names = sorted([*known.values(), *(state.name for state in others)])
    if not args.yes:
        shown = listed(names[:_SHOWN]) + (" and others" if len(names) > _SHOWN else "")
        ask(f"remove headway's files from {counted(len(names), 'host')}, {shown}?")
    stack.forget(args.forget)
    outcome = carry_out(stack.down, "removing", len(known))
    _sweep(others, outcome)
    print_changes(outcome)
    print_failures(outcome)
    left = f", {len(outcome.failures)} failed; use `--forget NODE` for a host that is gone for good" if outcome.failures else ""
    print(f"{counted(len(names), 'host')}: headway's files were removed from {len(outcome.changes)}{left}", file=sys.stderr)
    return 1 if outcome.failures else 0


def _sweep(others: Sequence[HostState], outcome: "StackOutcome") -> None:
    from headway.infra.stack import HostChange  # noqa: PLC0415 (pulumi is an extra)
    from headway.infra.survey import sweep  # noqa: PLC0415 (paramiko is an extra)

    for state, found in zip(others, sweep(others), strict=True):
        if found.error is not None:
            outcome.failures[state.reach.place] = str(found.error)
        elif found.changes:
            outcome.changes[state.reach.place] = HostChange(state.name, "delete", found.changes)
