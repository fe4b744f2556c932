"""Checks a run's checkpoints against its storage and the length of an attempt: room, the time to write one, and how often."""

from collections.abc import Iterator
from itertools import pairwise

from headway.jobspec.document import Path
from headway.jobspec.notation import counted, write_duration
from headway.jobspec.plan import ClusterPlan, JobPlan, StoragePlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.units import format_bytes
from headway.planner.from_plan import EstimateError, training_of
from headway.planner.memory.ledger import checkpoint_bytes
from headway.planner.training import Training
from headway.runner.contract import STORED_TIERS, TIER_KINDS, Tier

# The time of a step is an estimate.
_CLEARLY = 2


def check_checkpoints(plan: JobPlan, cluster: ClusterPlan, *, keeps_all: bool = False) -> Iterator[Problem]:
    """Warn of checkpoints that do not fit; no error, since their size and the time of a step are estimates. No old one is removed
    if the trainer `keeps_all`."""
    # The time of a step is unknown without the network's speed, the size of a checkpoint is not.
    training, timed = _training(plan, cluster, for_memory=True), _training(plan, cluster)
    for index, tier in enumerate(plan.run.checkpoint.tiers):
        path, storage = ("checkpoint", "tiers", index), _storage(tier, cluster)
        if training is not None and storage is not None:
            extra = 2 if plan.run.checkpoint.horizon_steps else 1
            if keeps_all:
                yield from _check_all(path, tier, plan.run.steps, checkpoint_bytes(training), storage)
            else:
                yield from _check_room(path, tier.keep, extra, checkpoint_bytes(training), storage)
            yield from _check_writing(path, tier, checkpoint_bytes(training), timed, storage)
    yield from _check_attempt(plan, timed)
    yield from _check_order(plan, timed)


def _check_order(plan: JobPlan, training: Training | None) -> Iterator[Problem]:
    """Warn of a tier that is written more often than one that is lost sooner, where one counts steps and the other one time:
    `check_tiers` compares those that count the same."""
    tiers = plan.run.checkpoint.tiers
    order = sorted(range(len(tiers)), key=lambda index: TIER_KINDS.index(tiers[index].kind))
    for near, far in pairwise(order):
        if (tiers[near].every_s is None) == (tiers[far].every_s is None):
            continue
        sooner, later = _interval_s(tiers[near], training), _interval_s(tiers[far], training)
        if sooner is not None and later is not None and later * _CLEARLY < sooner:
            message = (
                f"the `{tiers[far].kind}` tier is written every {write_duration(later)}, and the `{tiers[near].kind}` tier, which it "
                f"outlives, every {write_duration(sooner)}: the checkpoint in `{tiers[near].kind}` is never newer"
            )
            rarely = write_duration(-(-int(sooner * 2) // 60) * 60)
            if tiers[far].every_steps is not None:
                rarely = counted(max(1, round(sooner * 2 / later) * (tiers[far].every_steps or 1)), "step")
            hint = f"save to `{tiers[far].kind}` less often, for example `every: {rarely}`, or to `{tiers[near].kind}` more often"
            path = ("checkpoint", "tiers", far, "every")
            yield Problem("HW707", JOB, path, message, hint, Severity.WARNING)


def _check_room(path: Path, keep: int, extra: int, size: int, storage: StoragePlan) -> Iterator[Problem]:
    """`extra` checkpoints are there in addition to those to keep: one is written before the oldest is deleted, and one may be older."""
    needed = size * (keep + extra)
    if storage.capacity_bytes is not None and needed > storage.capacity_bytes:
        older = ", one older than the `horizon`" if extra > 1 else ""
        message = (
            f"{keep} checkpoints of {format_bytes(size)}{older} and the one being written take {format_bytes(needed)}, but "
            f"`{storage.name}` has {format_bytes(storage.capacity_bytes)}"
        )
        most = storage.capacity_bytes // size - extra
        larger = f"use a larger storage, or correct its `capacity` (`storage` of the cluster, `{storage.name}`)"
        hint = f"set `keep: {most}`, or {larger}" if most >= 2 else larger
        yield Problem("HW714", JOB, path, message, hint, Severity.WARNING, at_key=True)


def _check_all(path: Path, tier: Tier, steps: int | None, size: int, storage: StoragePlan) -> Iterator[Problem]:
    """Warn if all checkpoints of the run do not fit; those that are saved by time are not counted."""
    count = 0 if steps is None or not tier.every_steps else steps // tier.every_steps
    if storage.capacity_bytes is not None and count * size > storage.capacity_bytes:
        message = (
            f"the trainer removes no checkpoint: {count} of {format_bytes(size)} take {format_bytes(count * size)}, "
            f"but `{storage.name}` has {format_bytes(storage.capacity_bytes)}"
        )
        fitting = storage.capacity_bytes // size
        hint = "use a larger storage, or remove old ones during the run"
        if steps is not None and fitting >= 2:
            hint += f", or save less often, for example `every: {-(-steps // fitting)} steps`"
        yield Problem("HW714", JOB, (*path, "every"), message, hint, Severity.WARNING)


def _check_writing(path: Path, tier: Tier, size: int, timed: Training | None, storage: StoragePlan) -> Iterator[Problem]:
    interval = None if storage.write_bytes_s is None else _interval_s(tier, timed)
    if storage.write_bytes_s is None or interval is None:
        return
    writing = size / storage.write_bytes_s
    if writing > interval:
        message = (
            f"writing a checkpoint of {format_bytes(size)} to `{storage.name}` takes {write_duration(writing)}, and one is due "
            f"every {write_duration(interval)}"
        )
        rarely = write_duration(-(-int(writing * 2) // 60) * 60)
        if tier.every_steps is not None:
            rarely = f"{-(-int(writing * 2 / interval * tier.every_steps) // 100) * 100} steps"
        hint = (
            f"save less often, for example `every: {rarely}`, or correct `write` of `{storage.name}` in the cluster's `storage`"
        )
        yield Problem("HW715", JOB, (*path, "every"), message, hint, Severity.WARNING)


def _check_attempt(plan: JobPlan, training: Training | None) -> Iterator[Problem]:
    """Warn if no tier that outlives an attempt saves within one: only what ranks save in the grace time would be kept."""
    limit = plan.spec["limits"]["attempt"]["time"]
    kept = [(index, tier) for index, tier in enumerate(plan.run.checkpoint.tiers) if tier.kind in STORED_TIERS]
    # An attempt that ends before its nodes have joined has a problem of its own.
    if limit is None or not kept or limit <= max(plan.run.grace_s, plan.run.timeout_s("join")):
        return
    intervals = {index: _interval_s(tier, training) for index, tier in kept}
    if any(interval is None or interval < limit for interval in intervals.values()):
        return
    if plan.run.steps is not None and training is not None and plan.run.steps * _step_s(training) < limit:
        return
    index = min(intervals, key=lambda each: intervals[each] or 0)
    message = (
        f"an attempt of {write_duration(limit)} ends before its first checkpoint after {write_duration(intervals[index] or 0)}"
    )
    often, steps = write_duration(max(60, limit // 600 * 60)), plan.run.checkpoint.tiers[index].every_steps
    if steps is not None:
        # Ten times in an attempt, in a round number of steps.
        fitting = max(1, int(steps * limit / (intervals[index] or limit) / 10))
        often = counted(fitting // 10 * 10 or fitting, "step")
    hint = f"save more often, for example `every: {often}`, or raise `limits.attempt.time`"
    yield Problem("HW716", JOB, ("checkpoint", "tiers", index, "every"), message, hint, Severity.WARNING)


def _training(plan: JobPlan, cluster: ClusterPlan, *, for_memory: bool = False) -> Training | None:
    try:
        return training_of(plan, cluster, for_memory=for_memory)
    except (EstimateError, ValueError):
        return None


def _step_s(training: Training) -> float:
    from headway.planner.estimate import estimate  # noqa: PLC0415 (few intervals have to be turned into a time)

    return estimate(training).step.seconds


def _interval_s(tier: Tier, training: Training | None) -> float | None:
    """Return the seconds between two checkpoints; None where they are counted in steps of unknown length."""
    if tier.every_s is not None:
        return tier.every_s
    try:
        return None if training is None else tier.interval_s(_step_s(training))
    except (EstimateError, ValueError):
        return None


def _storage(tier: Tier, cluster: ClusterPlan) -> StoragePlan | None:
    """Return the storage of the tier: the runs' file system, or the object store whose bucket and prefix begin its URL."""
    if tier.kind == "shared":
        return cluster.shared_storage
    if tier.kind == "remote" and tier.url is not None:
        return next(
            (each for each in cluster.storage if each.url is not None and tier.url.startswith(each.url.rstrip("/"))), None
        )
    return None
