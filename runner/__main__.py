"""One process a node: `python -m headway.runner RUN_JSON --attempt N [--node I]` supervises the node's part of a run.

The hosts come in HEADWAY_NODES, comma-separated in node order; without it there is one node, this machine.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headway.runner.agent.supervisor import Supervisor
from headway.runner.contract import RecordError, RunConfig, from_json
from headway.runner.rundir import RunDirectory

LOOPBACK = "127.0.0.1"


def _node_from_scheduler() -> int:
    """The place in the allocation, as Slurm and Kubernetes name it."""
    return int(os.environ.get("SLURM_NODEID") or os.environ.get("JOB_COMPLETION_INDEX") or 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headway.runner", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run_json", type=Path, metavar="RUN_JSON")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--node", type=int, default=_node_from_scheduler())
    arguments = parser.parse_args(argv)
    try:
        config = from_json(RunConfig, arguments.run_json.read_text())
    except (OSError, RecordError) as error:
        print(f"headway.runner: {arguments.run_json}: {error}", file=sys.stderr)
        return 2
    hosts = os.environ.get("HEADWAY_NODES", LOOPBACK).split(",")
    if len(hosts) < config.slots:
        print(f"headway.runner: {config.slots} nodes are needed, and HEADWAY_NODES names {len(hosts)}", file=sys.stderr)
        return 2
    directory = RunDirectory.of(arguments.run_json, arguments.attempt)
    return Supervisor(config, directory, arguments.node, hosts[arguments.node], hosts_coordinator=arguments.node == 0).serve()


if __name__ == "__main__":
    sys.exit(main())
