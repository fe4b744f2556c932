"""Builds run.json from a job and its mesh: all of the runner's configuration."""

import dataclasses

from pydantic import BaseModel

from headway.jobspec.plan import GroupPlan
from headway.jobspec.resolve.batch import global_sequences
from headway.jobspec.resolve.domains import partner_segment
from headway.jobspec.resolve.history import resolve_history
from headway.jobspec.resolve.model import ModelSizes, as_decoder
from headway.jobspec.spec.batch import Batch
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.resilience import Checkpoint, Corruption, Tier, Timeouts
from headway.jobspec.spec.training import Optimizer
from headway.jobspec.units import Interval
from headway.runner import contract


def resolve_run(
    job: TrainingJob,
    group: GroupPlan,
    mesh: contract.Mesh,
    *,
    spec_hash: str,
    cluster: str,
    together: int | None,
    domains: tuple[contract.Domain, ...],
    peer_dscp: int | None,
    model: ModelSizes | None,
    data: BaseModel | None,
) -> contract.RunConfig:
    """Return the runner's configuration, with the options of the data as their owner filled them in; the trainer's come
    later.

    It has a model if the builtin trainer could build it; other trainers have models of their own. `together` are the
    nodes that must come from one of the NVLink `domains`, whose hosts may be known; `peer_dscp` marks copies of
    checkpoints. Suspects are recorded by the name of the `cluster`.
    """
    return contract.RunConfig(
        slots=job.nodes,
        procs_per_slot=group.procs,
        mesh=mesh,
        trainer=contract.Trainer(job.trainer.kind),
        spec_hash=spec_hash,
        seed=job.seed,
        steps=job.steps,
        backend=group.backend,
        model=None if model is None else _decoder(model),
        data=None if job.data is None or data is None else contract.Data(job.data.kind, data.model_dump(mode="json")),
        batch=None if job.batch is None else _batch(job.batch),
        optimizer=None if job.optimizer is None else _optimizer(job.optimizer),
        checkpoint=contract.Checkpoint() if job.checkpoint is None else _checkpoint(job.checkpoint, job.resilience.corruption),
        history=resolve_history(job),
        restart=contract.Restart(**job.resilience.restart.model_dump()),
        timeouts=_timeouts(job.resilience.timeouts),
        grace_s=job.resilience.grace,
        spares=job.resilience.spares,
        min_slots=None if job.min_nodes == job.nodes else job.min_nodes,
        corruption=None if job.resilience.corruption is None else _corruption(job.resilience.corruption),
        replica_recovery=job.resilience.replica_recovery,
        notify=None if job.resilience.notify is None else contract.Notify(job.resilience.notify.webhook_env),
        limits=contract.Limits(job.limits.run.time, job.limits.run.gpu_hours if group.gpus else None),
        domains=domains,
        peak_tflops=None if group.known_gpu is None else float(group.known_gpu.bf16_tflops),
        segment_required=together is not None,
        segment_slots=together or 1,
        cluster=cluster,
        partner_segment=partner_segment(group, job.nodes, together),
        peer_dscp=peer_dscp,
    )


def _decoder(sizes: ModelSizes) -> contract.Model | None:
    decoder = as_decoder(sizes)
    return decoder if isinstance(decoder, contract.Model) else None


def _batch(batch: Batch) -> contract.Batch:
    return contract.Batch(global_sequences(batch), batch.micro_sequences, batch.sequence_length)


def _optimizer(optimizer: Optimizer) -> contract.Optimizer:
    fields = {field.name for field in dataclasses.fields(contract.Optimizer)}
    return contract.Optimizer(**optimizer.model_dump(include=fields))


def _checkpoint(checkpoint: Checkpoint, checks: Corruption | None) -> contract.Checkpoint:
    tiers = tuple(_tier(tier, checkpoint.keep) for tier in checkpoint.tiers)
    return contract.Checkpoint(tiers, max(checkpoint.horizon or 0, _looks_back(checks)), checkpoint.host_memory)


def _looks_back(checks: Corruption | None) -> int:
    """Return how many steps may have been wrong when a check finds out, where that is known."""
    intervals = () if checks is None else (checks.compare, checks.replay)
    return max((every.steps for every in intervals if every is not None and every.steps is not None), default=0)


def _corruption(checks: Corruption) -> contract.Corruption | None:
    if (checks.compare, checks.replay, checks.grad_norm_factor) == (None, None, None):
        return None
    return contract.Corruption(_every(checks.compare), _every(checks.replay), checks.grad_norm_factor)


def _every(interval: Interval | None) -> contract.Every | None:
    return None if interval is None else contract.Every(interval.steps, interval.seconds)


def _tier(tier: Tier, keep: int) -> contract.Tier:
    """Memory, this node's or another's, holds the newest capture alone."""
    stays = tier.keep or keep if tier.kind in contract.STORED_TIERS else 1
    return contract.Tier(tier.kind, tier.every.steps, tier.every.seconds, stays, tier.url)


def _timeouts(timeouts: Timeouts) -> dict[str, contract.Timeout]:
    """Return the timeouts. The spec has the minimum; the runner has the factor by which a section may exceed its usual time."""
    said = timeouts.model_dump()
    return {name: contract.Timeout(said[name], default.factor) for name, default in contract.DEFAULT_TIMEOUTS.items()}
