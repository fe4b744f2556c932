"""`headway down CLUSTER`: the cluster's hosts without anything of headway's."""

import argparse
import sys

from headway.cli.hosts import (
    add_cluster,
    add_consent,
    ask,
    carry_out,
    check_consent,
    counted,
    forget,
    print_changes,
    print_failures,
    read_hosts,
    stopping,
)
from headway.jobspec.suggest import listed


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Removes what the manifest on each host names, /etc/headway/managed.json, and nothing else."
    add_cluster(parser)
    add_consent(parser)


def run(args: argparse.Namespace) -> int:
    """1 for mistakes and for hosts that still hold something, 2 without consent, 3 when a tool is missing."""
    return stopping(lambda: _down(args))


def _down(args: argparse.Namespace) -> int:
    check_consent(args.yes)
    hosts = read_hosts(args.cluster)
    stack = hosts.stack()
    forget(stack, args.forget)
    known = stack.hosts()
    if known and not args.yes:
        ask(f"take headway's files from {counted(len(known), 'host')}, {listed(known)}?")
    outcome = carry_out(stack.down, "removing", len(known))
    print_changes(outcome)
    print_failures(outcome)
    left = f", {len(outcome.failures)} failed; a host that is gone for good: `--forget NODE`" if outcome.failures else ""
    print(f"{counted(len(known), 'host')}: headway's files are gone from {len(outcome.changes)}{left}", file=sys.stderr)
    return 1 if outcome.failures else 0
