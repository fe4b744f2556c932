"""Asks Slurm which nodes of a cluster's plan run jobs."""

import re
from collections.abc import Iterator, Sequence

from headway.infra.push.protection import NodesInUse
from headway.infra.submit.scheduler import JobState, ScheduledJob
from headway.infra.submit.shell import CommandError, CommandShell
from headway.infra.submit.slurm import Slurm
from headway.jobspec.plan import ClusterPlan
from headway.templates.schedulers.slurm.node_names import expanded, names_in_slurm
from headway.templates.schedulers.slurm.options import SlurmOptions

# A suspended job continues, and one that is ending saves.
_RUNNING = (JobState.RUNNING, JobState.SUSPENDED, JobState.ENDING)
# States of nodes on which something runs (sinfo(1), NODE STATE CODES).
_BUSY = frozenset({"allocated", "mixed", "completing", "draining", "failing"})
# Slurm hides other users' jobs with `PrivateData=jobs`, and not the state of their nodes.
_HIDDEN = "that squeue does not list for you"


def read_in_use(shell: CommandShell, options: SlurmOptions, plan: ClusterPlan) -> NodesInUse:
    """Return which nodes run which jobs, in two requests. Raises CommandError if Slurm does not answer."""
    jobs = [job for job in Slurm(shell).jobs() if job.state in _RUNNING and job.nodes]
    states = dict(_states(shell))
    by_node: dict[str, list[str]] = {}
    for job in jobs:
        for name in expanded(job.nodes):
            by_node.setdefault(name, []).append(_words(job))
    for name, state in states.items():
        if state in _BUSY and name not in by_node:
            by_node[name] = [_HIDDEN]
    names = names_in_slurm(plan, options.node_names)
    known = {node: name for node, name in names.items() if name in states or name in by_node}
    if names and not known:
        there, wanted = _some(sorted(states)), _some(sorted(names.values()))
        raise CommandError(
            f"no node of `{plan.name}` is known to Slurm, which has {there}; the plan has {wanted}; set `node_names`"
        )
    return NodesInUse(
        {node: tuple(by_node[name]) for node, name in known.items() if name in by_node},
        unknown=frozenset(set(names) - set(known)),
        everywhere=tuple(dict.fromkeys(job for found in by_node.values() for job in found)),
    )


def _words(job: ScheduledJob) -> str:
    return f"{job.number} ({job.name}, {job.user})"


def _states(shell: CommandShell) -> Iterator[tuple[str, str]]:
    """Yield each node and its state, without the sign behind it: one that is busy counts more than a second line about it."""
    done = shell.run(["sinfo", "--noheader", "--Node", "--all", "--format=%N|%T"])
    if done.code:
        raise CommandError(f"sinfo: {done.reason}")
    for line in sorted(done.output.splitlines(), key=lambda line: _state(line) in _BUSY):
        yield line.partition("|")[0].strip(), _state(line)


def _state(line: str) -> str:
    return re.sub(r"[^a-z]", "", line.partition("|")[2].lower())


def _some(names: Sequence[str]) -> str:
    return f"`{'`, `'.join(names[:3])}`{' and others' if len(names) > 3 else ''}" if names else "none"
