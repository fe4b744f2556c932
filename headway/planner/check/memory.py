"""Checks a job's step against the memory of its GPUs, by the planner's ledger."""

import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from headway.jobspec.plan import ClusterPlan, GroupPlan, JobPlan
from headway.jobspec.problem import CLUSTER, JOB, Problem, Severity
from headway.jobspec.units import format_bytes
from headway.planner.from_plan import EstimateError, counted_nodes, states_framework, training_of
from headway.planner.memory.host import HostLoad, host_bytes_per_node
from headway.planner.memory.ledger import GIB, peak
from headway.planner.training import Training

# A parameter and its gradient in bf16, and Adam's two moments in 8 bits (arXiv 2110.02861).
_LEAST_BYTES = 6
# Hosts of GPUs have at most a few TiB.
_MOST_HOST_BYTES = 16 << 40
# A step of a framework that headway assumes counts as too large from this multiple of the memory on.
_BEYOND_DOUBT = 1.5
_NO_LIMITS: Mapping[tuple[str, ...], Collection[Any]] = MappingProxyType({})
# No shorter sequence is proposed.
_SHORT_SEQUENCE = 4096


def check_memory(
    plan: JobPlan, cluster: ClusterPlan, limits: Mapping[tuple[str, ...], Collection[Any]] = _NO_LIMITS
) -> Iterator[Problem]:
    """Warn if the step does not fit; no error, since a profile may be less exact than a user's measurement.

    `limits` are the values that the job's trainer allows, by the field: no other is proposed.

    Of a script of an unknown framework parameters, gradients and Adam's moments are counted, in the smallest usual formats and split
    over all ranks of a replica: without offloading no framework needs less. By the profile that is assumed for it, a step does not fit
    if it takes half as much again as there is.
    """
    if plan.model is None or plan.run.batch is None or not plan.gpus_per_slot:
        return
    try:
        training = training_of(plan, cluster, for_memory=True)
        is_known = states_framework(plan)
        if not is_known and (least := list(_check_least(training, plan, cluster.group(plan.group)))):
            yield from least
            return
        use = peak(training)
    except (EstimateError, ValueError):
        return
    if use.verdict != "does not fit" or not (is_known or use.needed > _BEYOND_DOUBT * use.capacity):
        return
    from headway.planner.memory.hints import STILL_TOO_LARGE, hints  # noqa: PLC0415 (most steps fit)

    held = f"{use.needed / GIB:.1f} GiB of {use.capacity / GIB:.1f} GiB"
    whose = f"the profile `{training.framework}`" + ("" if is_known else ", which is assumed where `framework` names none")
    message = f"a step does not fit into the memory of its GPUs ({training.gpu.name}): {held}, by {whose}"
    hint = "; or ".join(
        each
        for each in hints(training, use, lambda changed: _is_allowed(changed, training, limits))
        if not each.endswith(STILL_TOO_LARGE)
    )
    shorter = None if hint or training.micro > 1 else _shorter(training)
    path = ("batch", "micro" if shorter is None else "sequence")
    hint = hint or _more(training, plan, cluster.group(plan.group))
    if shorter is not None:
        hint = f"set `sequence: {shorter}` or less; or {hint}"
    yield Problem("HW427", JOB, path, message, f"{hint}; `headway plan --estimate` shows what uses it", Severity.WARNING)


def _is_allowed(changed: Training, training: Training, limits: Mapping[tuple[str, ...], Collection[Any]]) -> bool:
    """Return whether the trainer allows each value of the changed training that is not the job's."""
    for path, allowed in limits.items():
        new, old = (getattr(each if path[0] != "layout" else each.degrees, path[-1], None) for each in (changed, training))
        if new != old and new not in allowed:
            return False
    return True


def _shorter(training: Training) -> int | None:
    """Return the longest of the halved sequences with which a step fits; None if none of a usual length does."""
    tokens = training.sequence // 2
    while tokens >= _SHORT_SEQUENCE and peak(replace(training, sequence=tokens)).verdict == "does not fit":
        tokens //= 2
    return tokens if tokens >= _SHORT_SEQUENCE else None


def _more(training: Training, plan: JobPlan, group: GroupPlan) -> str:
    """Return the remedy where no setting is enough on these GPUs: the nodes that are, if any number is."""
    from headway.planner.memory.hints import ranks_needed  # noqa: PLC0415 (most steps fit)

    found = ranks_needed(training)
    if found is None:
        return "use GPUs with more memory, or split the model further: by `tp`, `pp` or `cp`"
    factor, words = found
    return f"use {counted_nodes(plan.slots * factor, group)} with {words}"


def check_host_memory(plan: JobPlan, cluster: ClusterPlan, index: int) -> Iterator[Problem]:
    """Warn if a node of the group, the cluster's `index`-th, has less memory than the job's processes take without any checkpoint."""
    node = cluster.group(plan.group).host_memory_bytes
    try:
        needed = host_bytes_per_node(training_of(plan, cluster, for_memory=True), HostLoad(staged=0), plan.procs_per_slot)
    except (EstimateError, ValueError):
        return
    if node is not None and needed > node:
        ranks = f"{plan.procs_per_slot} rank{'' if plan.procs_per_slot == 1 else 's'} with data loaders"
        message = f"{ranks} take about {format_bytes(needed)} of host memory, but a node has {format_bytes(node)}"
        # A unit too small is a likelier mistake than a number.
        meant = format_bytes(node * 1024) if needed <= node * 1024 <= _MOST_HOST_BYTES else f"{-(-needed // GIB)}GiB"
        hint = f"correct `host_memory`, for example to `{meant}`, or run on larger nodes"
        yield Problem("HW429", CLUSTER, ("node_groups", index, "host_memory"), message, hint, Severity.WARNING)


def _more_slots(training: Training, plan: JobPlan, group: GroupPlan, ratio: int) -> str:
    """Return the nodes, and the change if they are not enough, with which parameters and moments fit, and the step by the assumed
    profile."""
    degrees = training.degrees
    recomputed = replace(training, recompute="full", recomputed_share=1.0, recomputed_parts=())
    for changed, words in ((training, ""), (recomputed, " with `recompute: full`")):
        for factor in range(ratio, 16 * ratio):
            batch = replace(changed, accumulation=max(1, training.accumulation // factor))
            use = peak(replace(batch, degrees=replace(degrees, dp_shard=degrees.dp_shard * factor)))
            if use.needed <= _BEYOND_DOUBT * use.capacity:
                return f"use at least {counted_nodes(plan.slots * factor, group)}{words}"
    return f"use at least {counted_nodes(plan.slots * ratio, group)}, and split the model further by `tp`, `pp` or `cp`"


def _check_least(training: Training, plan: JobPlan, group: GroupPlan) -> Iterator[Problem]:
    needed = training.model.parameters * _LEAST_BYTES / (training.gpus / training.degrees.dp_replicate)
    room = training.gpu.memory_bytes
    if needed > room:
        message = (
            f"parameters, gradients and Adam's moments alone take {needed / GIB:.1f} GiB of each GPU, in {_LEAST_BYTES} bytes a parameter, "
            f"but `{training.gpu.name}` has "
            f"{room / GIB:.1f} GiB"
        )
        ratio = math.ceil(needed / room)
        path, hint = ("nodes",), f"{_more_slots(training, plan, group, ratio)}, or use larger GPUs"
        if training.degrees.dp_replicate % ratio == 0:
            shards = training.degrees.dp_shard * ratio
            path, hint = ("layout",), f"set `dp_shard: {shards}` or more, with fewer replicas, or use larger GPUs"
        yield Problem("HW427", JOB, path, message, hint, Severity.WARNING)
