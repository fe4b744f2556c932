"""Supervises one node's part of a run: `python -m headway.runner RUN_JSON --attempt N [--node I] [--open]`, one process per node.

The hosts come in HEADWAY_NODES, comma-separated in node order: those that compute, then spares. Without it there is one node, this
machine. A node that knows nothing of the others has its own host in HEADWAY_HOST.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.runner.agent.affinity import cpus_of_ranks
from headway.runner.agent.launch import Torchrun
from headway.runner.agent.listening import LOOPBACK, interface_of, listen, reachable_address
from headway.runner.agent.supervisor import Supervisor
from headway.runner.contract import Exit, RecordError, RunConfig, RunDirectory, from_json, read_verdict
from headway.runner.goodput.closing import closing_line
from headway.runner.rundir import open_submitted

# Kubernetes' DNS learns a pod's name when the pod has started, and may hold the address of one before it for its records' 30 s.
OWN_NAME_S = 60.0
POLL_S = 0.2
CPUS = "HEADWAY_CPUS"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def _node_from_scheduler() -> int:
    """The place in the allocation, as Slurm and Kubernetes name it."""
    return int(os.environ.get("SLURM_NODEID") or os.environ.get("JOB_COMPLETION_INDEX") or 0)


def own_host(node: int, needed: int, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return this node's host name, and the problem with the scheduler's variables."""
    if "HEADWAY_HOST" in environment:
        return environment["HEADWAY_HOST"], ""
    hosts = environment.get("HEADWAY_NODES", LOOPBACK).split(",")
    if len(hosts) < needed:
        return "", f"{needed} nodes are needed, but HEADWAY_NODES lists {len(hosts)}"
    if node >= len(hosts):
        return "", f"this is node {node}, but HEADWAY_NODES lists {len(hosts)}, counted from 0"
    return hosts[node], ""


def own_address(host: str, environment: Mapping[str, str]) -> str:
    """Return where this node listens for the others. The plan sets gloo's interface to that of the management network (srun(1):
    SLURM_LAUNCH_NODE_IPADDR is the address from which this task was launched)."""
    if host == LOOPBACK:
        # All nodes are processes of this machine.
        return host
    others = [other for other in environment.get("HEADWAY_NODES", "").split(",") if other not in ("", host)]
    return reachable_address(host, others, environment.get(GLOO_INTERFACE, ""), environment.get("SLURM_LAUNCH_NODE_IPADDR", ""))


def await_own_name(host: str, patience_s: float) -> str:
    """Returns when `host` is a name of this machine, so that others find here what listens there; else what is wrong with it."""
    until = time.monotonic() + patience_s
    while True:
        try:
            listen(host).close()
        except OSError as error:
            # No such name yet, or an address of another machine.
            if time.monotonic() > until:
                return f"after {patience_s:.0f} s `{host}` does not resolve to this machine: {error}"
        else:
            return ""
        time.sleep(POLL_S)


def keep_what_was_passed_on() -> None:
    """Remove the variables that came through exec (the endpoint's name, standbys): no worker may inherit them."""
    for descriptor in Path("/proc/self/fd").iterdir():
        if int(descriptor.name) > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.set_inheritable(int(descriptor.name), False)


def binds_ranks(config: RunConfig) -> bool:
    """Return whether each rank is bound to the processors near its GPU: a job's are, those of `headway torchrun` run as under torchrun."""
    return config.backend == "nccl" and Torchrun.of(config) is None


def main(argv: Sequence[str] | None = None) -> int:
    signal.signal(
        signal.SIGTERM,
        lambda *_: sys.exit(Exit.PREEMPTED),
        # Until the supervisor takes it; in a pod it has no default.
    )
    parser = argparse.ArgumentParser(prog="python -m headway.runner", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run_json", type=Path, metavar="RUN_JSON")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--node", type=int)
    parser.add_argument("--open", action="store_true", help="first complete the attempt that a batch script has begun")
    arguments = parser.parse_args(argv)
    is_scheduled = arguments.node is None
    node = _node_from_scheduler() if is_scheduled else arguments.node
    directory = RunDirectory.of(arguments.run_json, arguments.attempt)
    try:
        if arguments.open:
            open_submitted(directory)
        config = from_json(RunConfig, arguments.run_json.read_text())
    except (OSError, RecordError) as error:
        print(f"headway.runner: {arguments.run_json}: {error}", file=sys.stderr)
        return 2
    host, wrong = own_host(node, config.min_slots or config.slots, os.environ)
    if wrong:
        print(f"headway.runner: {wrong}", file=sys.stderr)
        return 2
    keep_what_was_passed_on()
    if binds_ranks(config) and CPUS not in os.environ and (cpus := cpus_of_ranks(config.procs_per_slot, os.environ)):
        os.environ[CPUS] = json.dumps(cpus)
    if ended := read_verdict(directory):
        # A pod that comes again when the others are done.
        return ended.exit_code
    hosts_coordinator = node == 0
    address = own_address(host, os.environ)
    if is_scheduled and address != host and GLOO_INTERFACE not in os.environ and (name := interface_of(address)):
        # gloo would listen where this machine's name leads: nowhere, or to itself (ProcessGroupGloo.cpp, createDefaultDevice).
        os.environ[GLOO_INTERFACE] = name
    if hosts_coordinator and (wrong := await_own_name(address, OWN_NAME_S)):
        print(f"headway.runner: {wrong}", file=sys.stderr)
        return Exit.RETRY_ELSEWHERE
    code = Supervisor(config, directory, node, host, hosts_coordinator=hosts_coordinator, address=address).serve()
    if hosts_coordinator and is_scheduled:
        # If a person started the run, the parent process reports it.
        with contextlib.suppress(OSError):
            print(f"headway: {closing_line(directory.root)}", file=sys.stderr)
    # The file wins over the code; a pod has no script around it to look.
    verdict = read_verdict(directory)
    return verdict.exit_code if verdict else code


if __name__ == "__main__":
    sys.exit(main())
