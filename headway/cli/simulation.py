"""Simulates the run of a job with the values that options of `headway simulate` give in place of its own."""

import argparse
from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from headway.cli.terminal import progress
from headway.compile import PlannedJob
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.planner.estimate import estimate
from headway.planner.from_plan import EstimateError, training_of
from headway.planner.goodput.defaults import defaults
from headway.planner.goodput.interval import best_interval
from headway.planner.goodput.of_plan import run_of, transfer_of, with_latent_corruption, with_replicas
from headway.planner.goodput.run import SimulatedRun, SimulatedTier
from headway.planner.goodput.simulate import simulate_each
from headway.planner.goodput.spares import best_spares
from headway.planner.goodput.summary import IntervalRow, Summary, over_interval, summarize
from headway.planner.goodput.tiers import Transfer, tier_of
from headway.report import units
from headway.runner import contract

_DAY_S = 86400

T = TypeVar("T")


class Simulation(Struct, frozen=True):
    """A simulated job: its run, the outcome, and for each tier goodput over the interval and the best one."""

    job: str
    cluster: str
    run: SimulatedRun
    summary: Summary
    intervals: Mapping[str, tuple[IntervalRow, ...]]
    best_interval_s: Mapping[str, float]
    best_spares: int


class SimulationError(Exception):
    """The options exclude each other, or the job needs one that is missing."""


def simulate_job(planned: PlannedJob, args: argparse.Namespace) -> Simulation:
    """The job's run with the options' values. Raises UsageError."""
    plan = _resized(planned.plan, args.gpus)
    simulated = _run(plan, planned.cluster, args)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    kinds = [tier.kind for tier in simulated.tiers]
    progress(
        f"simulating {units.count(plan.slots, 'node')} {units.count(len(seeds), 'time')}, and other intervals of checkpoints"
    )
    return Simulation(
        job=plan.name,
        cluster=plan.cluster,
        run=simulated,
        summary=summarize(simulated, simulate_each(simulated, seeds)),
        intervals={kind: over_interval(simulated, kind, seeds) for kind in kinds},
        best_interval_s={kind: best_interval(simulated, kind) for kind in kinds},
        best_spares=best_spares(simulated),
    )


def _run(plan: JobPlan, cluster: ClusterPlan, args: argparse.Namespace) -> SimulatedRun:
    wall_s = None if args.days is None else args.days * _DAY_S
    step_s, checkpoint_bytes = _step(plan, cluster, args)
    # So many checkpoints stay on a tier that an option adds.
    keep = contract.Tier.keep if plan.spec["checkpoint"] is None else int(plan.spec["checkpoint"]["keep"])
    try:
        found = run_of(plan, cluster, step_s, checkpoint_bytes, wall_s)
        found = _with_tiers(found, transfer_of(plan, cluster, checkpoint_bytes), keep, args)
        return _with_replicas(_with_recovery(_with_failures(found, args), args), plan, args)
    except EstimateError as error:
        raise SimulationError(f"{error}; {error.hint}: `--days 30`") from error
    except ValueError as error:
        raise SimulationError(str(error)) from error


def _step(plan: JobPlan, cluster: ClusterPlan, args: argparse.Namespace) -> tuple[float, int]:
    """Seconds of a step and bytes of a checkpoint: as given, else as estimated."""
    step_s, checkpoint_bytes = args.step_time, args.checkpoint_bytes
    if step_s is None or checkpoint_bytes is None:
        try:
            estimated = estimate(training_of(plan, cluster))
        except EstimateError as error:
            if step_s is None:
                raise SimulationError(f"the time of a step is unknown: {error}; set `--step-time 5s`") from error
            return step_s, _bytes_of_model(plan) if checkpoint_bytes is None else checkpoint_bytes
        step_s = estimated.step.seconds if step_s is None else step_s
        checkpoint_bytes = estimated.checkpoint_bytes if checkpoint_bytes is None else checkpoint_bytes
    return step_s, checkpoint_bytes


def _bytes_of_model(plan: JobPlan) -> int:
    if plan.model is None:
        raise SimulationError("the job has no `model`, so the size of a checkpoint is unknown; set `--checkpoint-bytes 1TB`")
    return plan.model.parameters * int(defaults().checkpoints["bytes_per_parameter"])


def _resized(plan: JobPlan, gpus: int | None) -> JobPlan:
    """The plan on so many GPUs. Its ranks and mesh stay: only how many nodes there are to fail is asked."""
    if gpus is None:
        return plan
    if not plan.gpus_per_slot or gpus % plan.gpus_per_slot:
        raise SimulationError(f"`--gpus {gpus}`: the job's nodes have {plan.gpus_per_slot} GPUs each; use a multiple of that")
    return replace(plan, slots=gpus // plan.gpus_per_slot)


def _with_tiers(run: SimulatedRun, transfer: Transfer, keep: int, args: argparse.Namespace) -> SimulatedRun:
    tiers: dict[str, SimulatedTier] = {tier.kind: tier for tier in run.tiers}
    for kind, interval_s in args.every:
        if not interval_s:
            raise SimulationError(f"`--every {kind}=0s`: the interval must be above 0")
        tiers[kind] = replace(tiers.get(kind) or tier_of(kind, interval_s, transfer, keep), interval_s=interval_s)
    for kind, block_s in args.block:
        if kind not in tiers:
            raise SimulationError(f"`--block {kind}=...`: the job has no such tier; add it with `--every {kind}=15m`")
        tiers[kind] = replace(tiers[kind], block_s=block_s)
    return replace(run, tiers=tuple(tiers.values()))


def _with_failures(run: SimulatedRun, args: argparse.Namespace) -> SimulatedRun:
    given = _given(
        node_mtbf_s=args.node_mtbf,
        job_mtbf_s=args.job_mtbf,
        rack_mtbf_s=args.rack_mtbf,
        rack_nodes=args.rack_nodes,
        repair_s=args.repair,
        shape=args.shape,
        age_s=args.node_age,
        detect_s=args.detect,
    )
    failures = replace(run.failures, **given)
    if args.detect is not None:
        failures = replace(failures, causes=tuple(replace(cause, detect_s=args.detect) for cause in failures.causes))
    found = replace(run, failures=failures)
    return found if args.corruption_latency is None else with_latent_corruption(found, args.corruption_latency)


def _with_recovery(run: SimulatedRun, args: argparse.Namespace) -> SimulatedRun:
    given = _given(warm_s=args.warm_restart, cold_s=args.cold_restart, provision_s=args.provision)
    budget = None if args.unlimited_restarts else run.budget
    return replace(run, recovery=replace(run.recovery, **given), budget=budget, **_given(spares=args.spares, pool=args.pool))


def _with_replicas(run: SimulatedRun, plan: JobPlan, args: argparse.Namespace) -> SimulatedRun:
    if not args.drop_replicas:
        return run
    count = plan.run.mesh.dp_replicate
    if count < 2:
        raise SimulationError("`--drop-replicas`: the job has one replica; its layout needs `dp_replicate: 2` or more")
    return with_replicas(run, count)


def _given(**values: T | None) -> dict[str, T]:
    return {name: value for name, value in values.items() if value is not None}
