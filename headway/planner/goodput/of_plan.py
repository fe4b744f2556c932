"""Turns a job's plan on a cluster into the run to simulate, with published numbers where the documents set none."""

import math
from collections.abc import Iterator

from msgspec.structs import replace

from headway.jobspec.plan import ClusterPlan, GroupPlan, JobPlan
from headway.planner.from_plan import EstimateError
from headway.planner.goodput.defaults import Defaults, defaults
from headway.planner.goodput.run import (
    FailureCause,
    FailureModel,
    Recovery,
    Replicas,
    RestartBudget,
    SimulatedRun,
    SimulatedTier,
)
from headway.planner.goodput.tiers import Transfer, tier_of
from headway.runner.contract import Timeout

_BYTES_S_OF_A_GBPS = 1e9 / 8
_HANG = "hang"
_CORRUPTION = "silent corruption"


def run_of(
    plan: JobPlan, cluster: ClusterPlan, step_s: float, checkpoint_bytes: int, wall_s: float | None = None
) -> SimulatedRun:
    """Return the job as a run with steps of `step_s` seconds and checkpoints of so many bytes: all of its steps, or
    `wall_s` seconds of them.

    Raises EstimateError for a job without `steps` when there is no `wall_s` either.
    """
    if plan.run.steps is None and wall_s is None:
        raise EstimateError("the job has no `steps`", "set `steps: 100000`, or the length of the run")
    group, known, restart = cluster.group(plan.group), defaults(), plan.run.restart
    recovery = known.recovery
    return SimulatedRun(
        nodes=plan.slots,
        gpus_per_node=plan.gpus_per_slot,
        step_s=step_s,
        work_s=plan.run.steps * step_s if plan.run.steps is not None and wall_s is None else math.inf,
        wall_s=math.inf if wall_s is None else wall_s,
        failures=_failures(plan, cluster, group, known),
        recovery=Recovery(recovery["warm_s"], recovery["cold_s"], recovery["provision_s"]),
        tiers=_tiers(plan, step_s, transfer_of(plan, cluster, checkpoint_bytes)),
        spares=int(plan.spec["resilience"]["spares"]),
        pool=group.held_back,
        budget=RestartBudget(restart.budget, restart.refill_steps, restart.no_progress),
        assumed=tuple(_assumed(plan, cluster, group, known)),
    )


def transfer_of(plan: JobPlan, cluster: ClusterPlan, checkpoint_bytes: int) -> Transfer:
    """Return what one of the job's checkpoints moves, and over what."""
    group, known = cluster.group(plan.group), defaults().checkpoints
    gbps = group.nic_gbps or known["adapter_gbps"]
    storage, default = cluster.shared_storage, known["storage_bytes_s"] * plan.slots
    write_bytes_s = storage.write_bytes_s if storage else None
    read_bytes_s = storage.read_bytes_s if storage else None
    return Transfer(
        stored_bytes=checkpoint_bytes,
        node_bytes=checkpoint_bytes * plan.run.mesh.dp_replicate / plan.slots,
        copy_bytes_s=known["snapshot_bytes_s"] * max(1, group.gpus),
        adapters_bytes_s=gbps * max(1, len(group.nics)) * _BYTES_S_OF_A_GBPS,
        write_bytes_s=write_bytes_s or default,
        read_bytes_s=read_bytes_s or default,
    )


def with_replicas(run: SimulatedRun, count: int) -> SimulatedRun:
    """Return the run with so many data-parallel replicas that continue without each other, as fault-tolerant HSDP does."""
    stall_s = float(defaults().replicas["stall_s"])
    return replace(run, replicas=Replicas(count, stall_s, run.recovery.cold_s))


def with_latent_corruption(run: SimulatedRun, latent_s: float) -> SimulatedRun:
    """Return the run where silent data corruption is noticed only after `latent_s` seconds of training on wrong numbers."""
    causes = tuple(replace(cause, latent_s=latent_s) if cause.name == _CORRUPTION else cause for cause in run.failures.causes)
    return replace(run, failures=replace(run.failures, causes=causes))


def _failures(plan: JobPlan, cluster: ClusterPlan, group: GroupPlan, known: Defaults) -> FailureModel:
    seen = cluster.failures
    return FailureModel(
        node_mtbf_s=seen.node_mtbf_s or known.node_mtbf_s(group.gpu, group.gpus),
        causes=tuple(_causes(plan, group, known)),
        job_mtbf_s=seen.job_mtbf_s,
        rack_mtbf_s=seen.rack_mtbf_s,
        rack_nodes=_rack_nodes(group, known),
        repair_s=seen.repair_s or known.repair["seconds"],
        detect_s=_timeout(plan, "agent").floor_s,
    )


def _causes(plan: JobPlan, group: GroupPlan, known: Defaults) -> Iterator[FailureCause]:
    """Return the causes. Hangs are noticed when a collective times out, all other failures when an agent does not
    answer any more."""
    for name, weight in known.weights(group.gpus).items():
        timeout = _timeout(plan, "collective" if name == _HANG else "agent")
        if weight:
            yield FailureCause(name, weight, known.causes[name].replaced, timeout.floor_s)


def _timeout(plan: JobPlan, name: str) -> Timeout:
    return plan.run.timeouts[name]


def _rack_nodes(group: GroupPlan, known: Defaults) -> int:
    if group.gpus and group.nvlink_domain > group.gpus:
        return group.nvlink_domain // group.gpus
    return int(known.rack_nodes["nodes"])


def _tiers(plan: JobPlan, step_s: float, transfer: Transfer) -> tuple[SimulatedTier, ...]:
    return tuple(tier_of(tier.kind, tier.interval_s(step_s), transfer, tier.keep) for tier in plan.run.checkpoint.tiers)


def _assumed(plan: JobPlan, cluster: ClusterPlan, group: GroupPlan, known: Defaults) -> Iterator[str]:
    """Return the assumptions that no document replaces, as text, each with its source."""
    seen, storage = cluster.failures, cluster.shared_storage
    if seen.node_mtbf_s is None:
        days, rate = known.node_mtbf_s(group.gpu, group.gpus) / 86400, known.rate(group.gpu)
        yield f"a node fails every {days:.0f} days ({rate.source})"
    if seen.repair_s is None:
        yield f"a replaced node is repaired after {known.repair['seconds'] / 86400:.0f} days ({known.repair['source']})"
    for name in ("warm", "cold"):
        yield f"a {name} restart takes {known.recovery[f'{name}_s']} s ({known.recovery[f'{name}_source']})"
    if storage is None or storage.write_bytes_s is None:
        total = known.checkpoints["storage_bytes_s"] * plan.slots / 1e9
        yield f"storage takes {total:g} GB/s, 1 GB/s for each node (https://arxiv.org/abs/2407.21783, section 3.3.1)"
