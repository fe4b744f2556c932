"""Checks checkpoint tiers: each kind once and in order, with targets that the job's nodes can reach."""

from collections.abc import Iterator
from itertools import pairwise

from headway.jobspec.document import Path
from headway.jobspec.notation import counted, write_parts
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.nodes import NodeGroup
from headway.jobspec.spec.resilience import Checkpoint, Tier
from headway.jobspec.spec.storage import Storage
from headway.jobspec.suggest import listed
from headway.jobspec.units import Interval
from headway.runner.contract import STORED_TIERS, TIER_KINDS


def check_tiers(checkpoint: Checkpoint, steps: int | None = None) -> Iterator[Problem]:
    """Check the tiers against each other."""
    yield from _check_kinds(checkpoint)
    for index, tier in enumerate(checkpoint.tiers):
        yield from _check_url(index, tier)
        yield from _check_keep(index, tier)
    yield from _check_intervals(checkpoint)
    yield from _check_stored(checkpoint, steps)


def check_peer(job: TrainingJob) -> Iterator[Problem]:
    """Check that a copy on another node has such a node."""
    for index, tier in enumerate(job.checkpoint.tiers if job.checkpoint is not None else ()):
        if tier.kind == "peer" and job.nodes == 1:
            message = "a `peer` tier copies to the memory of another node of the job, but the job has one node"
            hint = "use `memory`, which survives a crash of the processes, or set `nodes` to 2 or more"
            yield Problem("HW710", JOB, ("checkpoint", "tiers", index, "kind"), message, hint)


def check_reach(job: TrainingJob, cluster: Cluster, group: NodeGroup) -> Iterator[Problem]:
    """Check that the job's nodes reach the storage of its runs and tiers."""
    yield from _check_runs(cluster, group, ("group",) if job.group is not None else ("cluster",))
    for index, tier in enumerate(job.checkpoint.tiers if job.checkpoint is not None else ()):
        if tier.url is not None and tier.kind == "remote":
            yield from _check_remote(index, tier.url, cluster, group)


def _check_kinds(checkpoint: Checkpoint) -> Iterator[Problem]:
    kinds = [tier.kind for tier in checkpoint.tiers]
    for index, kind in enumerate(kinds):
        if kind in kinds[:index]:
            message = f"a second `{kind}` tier: each kind is allowed once"
            left = listed(name for name in TIER_KINDS if name not in kinds)
            hint = f"remove it; the other kinds are {left}"
            yield Problem("HW704", JOB, ("checkpoint", "tiers", index, "kind"), message, hint)


def _check_url(index: int, tier: Tier) -> Iterator[Problem]:
    path = ("checkpoint", "tiers", index)
    if tier.kind == "remote" and tier.url is None:
        hint = "set its location in an object store of the cluster (`storage`), for example `url: s3://training/checkpoints`"
        yield Problem("HW210", JOB, (*path, "kind"), "a `remote` tier needs `url`", hint)
    if tier.kind != "remote" and tier.url is not None:
        message = f"`url` is only valid in a `remote` tier, not in a `{tier.kind}` tier"
        yield Problem("HW210", JOB, (*path, "url"), message, "leave it out, or make the tier `kind: remote`", at_key=True)


def _check_keep(index: int, tier: Tier) -> Iterator[Problem]:
    if tier.keep is not None and tier.kind not in STORED_TIERS:
        path = ("checkpoint", "tiers", index, "keep")
        message = f"`keep` is not valid in a `{tier.kind}` tier, which holds only the newest checkpoint"
        yield Problem("HW210", JOB, path, message, "leave it out; `shared` and `remote` tiers can keep several", at_key=True)


def _check_stored(checkpoint: Checkpoint, steps: int | None) -> Iterator[Problem]:
    """Check that some tier outlives the nodes' memory, which is lost when the job releases the nodes."""
    if not any(tier.kind in STORED_TIERS for tier in checkpoint.tiers):
        kinds = listed(dict.fromkeys(tier.kind for tier in checkpoint.tiers))
        message = f"checkpoints in {kinds} alone are lost with the allocation: the next attempt would start at step 0"
        often = max((tier.every.steps or 0 for tier in checkpoint.tiers), default=0)
        # Not more often than the other tiers, as `_check_intervals` would report.
        every = counted(max(often, 1000 if steps is None else max(1, min(1000, steps // 10))), "step")
        if often == 0 and (times := [tier.every.seconds for tier in checkpoint.tiers if tier.every.seconds]):
            every = write_parts(max(*times, 1800.0))
        hint = f"add a persistent tier: `{{kind: shared, every: {every}}}`"
        yield Problem("HW709", JOB, ("checkpoint", "tiers"), message, hint)


def _check_intervals(checkpoint: Checkpoint) -> Iterator[Problem]:
    """Report a tier that is lost sooner and written less often than another: it is useless."""
    ordered = sorted(enumerate(checkpoint.tiers), key=lambda item: TIER_KINDS.index(item[1].kind))
    for (index, near), (_, far) in pairwise(ordered):
        if near.kind != far.kind and _is_longer(near.every, far.every):
            message = f"the `{near.kind}` tier is written less often than the `{far.kind}` tier, which outlives it"
            path = ("checkpoint", "tiers", index, "every")
            hint = f"write it as often, or remove it: the checkpoint in `{far.kind}` is never older"
            yield Problem("HW707", JOB, path, message, hint, Severity.WARNING)


def _is_longer(one: Interval, other: Interval) -> bool:
    """Return whether the interval is longer. Steps and times cannot be compared before the run is measured."""
    if one.steps is not None and other.steps is not None:
        return one.steps > other.steps
    return one.seconds is not None and other.seconds is not None and one.seconds > other.seconds


def _check_runs(cluster: Cluster, group: NodeGroup, at: Path) -> Iterator[Problem]:
    """Check the first shared file system, which holds the runs (`resolve_runs`), including checkpoints of the `shared` tier."""
    shared = [storage for storage in cluster.storage if storage.shared and storage.path is not None]
    known = {nodes.name for nodes in cluster.node_groups}
    # A group that the cluster does not have is its own problem, in the cluster's document.
    if shared and not _reaches(shared[0], group) and known.issuperset(shared[0].groups):
        message = (
            f"the nodes `{group.name}` do not reach `{shared[0].name}`, the storage of `{cluster.name}` that holds the runs: "
            f"it is for {listed(shared[0].groups)}"
        )
        hint = (
            f"add `{group.name}` to `groups` of `{shared[0].name}` if its nodes mount it, or run on one of those groups: `group`"
        )
        yield Problem("HW706", JOB, at, message, hint)


def _check_remote(index: int, url: str, cluster: Cluster, group: NodeGroup) -> Iterator[Problem]:
    # A `path` in place of the `url` is a problem of the cluster's document, and so is a group that it does not have.
    stores = {
        place: storage for storage in cluster.storage if storage.kind == "object" and (place := storage.url or storage.path)
    }
    known = {nodes.name for nodes in cluster.node_groups}
    around = [storage for prefix, storage in stores.items() if _is_inside(url, prefix)]
    if any(_reaches(storage, group) or not known.issuperset(storage.groups) for storage in around):
        return
    if around:
        message = f"the nodes `{group.name}` of `{cluster.name}` do not reach `{around[0].name}`, which is for {listed(around[0].groups)}"
    else:
        message = f"`{url}` is not in any object store of `{cluster.name}`"
    usable = [prefix for prefix, storage in stores.items() if _reaches(storage, group)]
    hints = [f"use one that these nodes reach: {listed(usable)}"] if usable else []
    if around:
        hints.append(f"add `{group.name}` to `groups` of `{around[0].name}` if its nodes reach it")
    hint = ", or ".join(hints) or "add it to the cluster's `storage`: `{kind: object, url: ...}`"
    yield Problem("HW705", JOB, ("checkpoint", "tiers", index, "url"), message, hint)


def _reaches(storage: Storage, group: NodeGroup) -> bool:
    return not storage.groups or group.name in storage.groups


def _is_inside(url: str, prefix: str) -> bool:
    """Return whether the URL is the prefix or below it, by whole segments of the path."""
    return f"{url.rstrip('/')}/".startswith(f"{prefix.rstrip('/')}/")
