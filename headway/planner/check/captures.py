"""Checks checkpoint captures against the memory of the job's nodes: the limit that the job sets, and what a node has."""

import math
from collections.abc import Iterator

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.units import format_bytes
from headway.planner.memory.captures import CaptureMemory, captures_of

_LIMIT = ("checkpoint", "host_memory")


def check_captures(plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check captures. States of unknown size, and scripts that may save to storage by themselves, are not checked."""
    limit, node = plan.run.checkpoint.host_memory_bytes, cluster.group(plan.group).host_memory_bytes
    captures = captures_of(plan, cluster)
    if limit is not None and node is not None and limit > node:
        message = f"`host_memory` is {format_bytes(limit)}, but a node of `{plan.group}` has {format_bytes(node)}"
        hint = f"use at most {format_bytes(node)}, or leave it out"
        if captures is not None and captures.node_bytes > node:
            hint = f"use more nodes, or nodes with more memory: {_taken(captures)}{_or_less(captures, node)}"
        yield Problem("HW711", JOB, _LIMIT, message, hint)
        return
    if captures is None:
        return
    if limit is not None and captures.node_bytes > limit:
        message = f"{_taken(captures)}, but `host_memory` is {format_bytes(limit)}"
        yield Problem(
            "HW711", JOB, _LIMIT, message, f"use at least {_rounded_up(captures.node_bytes)}{_or_less(captures, limit)}"
        )
    elif node is not None and captures.beside_bytes <= node < captures.node_bytes + captures.beside_bytes > node:
        beside = f"; everything else takes {format_bytes(captures.beside_bytes)}" if captures.beside_bytes else ""
        message = f"{_taken(captures)}{beside}, but a node of `{plan.group}` has {format_bytes(node)} (`host_memory`)"
        hint = f"use more nodes, so that each rank's part is smaller{_or_less(captures, node - captures.beside_bytes)}"
        yield Problem("HW711", JOB, ("checkpoint", "tiers"), message, hint)


def _rounded_up(size: float) -> str:
    """Return a number of bytes that is not below the size, in whole MiB or GiB."""
    unit = 1 << 30 if size >= 10 << 30 else 1 << 20
    return f"{math.ceil(size / unit)}{'GiB' if unit == 1 << 30 else 'MiB'}"


def _taken(captures: CaptureMemory) -> str:
    copies = f" and {captures.ranks} x {captures.copies} copies for another node" if captures.copies else ""
    return (
        f"checkpoints take {format_bytes(captures.node_bytes)} of a node's memory: {captures.ranks} ranks x {captures.buffers} captures "
        f"of {format_bytes(captures.rank_bytes)}{copies}"
    )


def _or_less(captures: CaptureMemory, room: int) -> str:
    """Return what is left without copies of another node's, if that fits."""
    alone = captures.rank_bytes * captures.ranks * captures.buffers
    if not captures.copies or alone > room:
        return ""
    return f"; without the `peer` tier it would be {format_bytes(alone)}"
