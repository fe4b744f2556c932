"""`headway preview CLUSTER`: shows what `up` would change on the cluster's hosts."""

import argparse
import sys

from headway.cli.hosts import (
    add_cluster,
    add_without,
    carry_out,
    check_known,
    look,
    print_changes,
    print_failures,
    read_hosts,
    stopping,
)
from headway.jobspec.notation import counted


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exits with 0 if every host is up to date, with 1 if `up` would change something."
    add_cluster(parser)
    add_without(parser)


def run(args: argparse.Namespace) -> int:
    """1 when there are changes or mistakes, 2 for an unknown node, 3 when a host cannot be reached or a tool is missing."""
    return stopping(lambda: _preview(args))


def _preview(args: argparse.Namespace) -> int:
    hosts = read_hosts(args.cluster)
    check_known(args.without, [state.name for state in hosts.states], "--without")
    states = [state for state in hosts.states if state.name not in args.without]
    stack = hosts.stack(args.without)
    found = look(states)
    outcome = carry_out(stack.preview, "looking", len(states))
    print_changes(outcome, found)
    print_failures(outcome)
    changed = counted(len(outcome.changes), "host") if outcome.changes else "none"
    print(f"{counted(len(states), 'host')} checked, {changed} to be changed", file=sys.stderr)
    return 1 if outcome.changes or outcome.failures else 0
