"""Prints a job's checkpoints as lines of its plan: each tier's interval and bytes, and the node memory that captures take."""

from collections.abc import Iterator

from headway.jobspec.notation import write_interval
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.units import Interval, format_bytes
from headway.planner.memory.captures import CaptureMemory, captures_of
from headway.report import units
from headway.runner.contract import CAPTURED_TIERS, Tier

WHERE = {"memory": "in memory", "peer": "with a peer", "shared": "in shared storage", "remote": "in remote storage"}


def checkpoint_facts(plan: JobPlan, cluster: ClusterPlan) -> Iterator[tuple[str, str]]:
    """Names and what is planned; bytes as far as the size of the state is known."""
    captures = captures_of(plan, cluster)
    for tier in plan.run.checkpoint.tiers:
        yield f"checkpoints {WHERE[tier.kind]}", ", ".join(_tier(tier, captures))
    if plan.run.checkpoint.horizon_steps:
        yield "one older checkpoint", f"at least {units.count(plan.run.checkpoint.horizon_steps, 'step')} behind the newest"
    if captures is not None:
        yield "memory for checkpoints", _memory(captures, plan, cluster)


def _tier(tier: Tier, captures: CaptureMemory | None) -> Iterator[str]:
    yield f"every {write_interval(Interval(tier.every_steps, tier.every_s))}"
    yield "the newest stays" if tier.kind in CAPTURED_TIERS else f"{tier.keep} stay"
    if captures is not None and tier.kind in CAPTURED_TIERS:
        yield f"{format_bytes(captures.rank_bytes * captures.ranks)} a node"
    elif captures is not None:
        yield f"{format_bytes(captures.stored_bytes)} each"
    if tier.url is not None:
        yield tier.url


def _memory(captures: CaptureMemory, plan: JobPlan, cluster: ClusterPlan) -> str:
    limit, node = plan.run.checkpoint.host_memory_bytes, cluster.group(plan.group).host_memory_bytes
    whole = limit or node
    of_all = "" if whole is None else f" of {format_bytes(whole)}"
    copies = f" and {captures.copies} copies of another node's" if captures.copies else ""
    return f"{format_bytes(captures.node_bytes)}{of_all} a node: {captures.buffers} captures{copies}"
