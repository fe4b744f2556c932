"""Turns a job's plan into the training step to be estimated."""

from collections.abc import Mapping
from typing import Any

from headway.jobspec.catalog.gpus import Gpu
from headway.jobspec.catalog.nics import nics
from headway.jobspec.notation import counted
from headway.jobspec.plan import ClusterPlan, GroupPlan, JobPlan
from headway.planner.framework import Framework
from headway.planner.search.frameworks import abilities, sharding_of
from headway.planner.training import Degrees, Formats, Kernels, Network, Overlaps, Training

# A Gbit/s in bytes a second.
_GBPS = 1e9 / 8
_DEFAULT_FRAMEWORK: Framework = "torchtitan"
# By kind of trainer; those of scripts of unknown code are not among them.
OWN_PROFILES: Mapping[str, Framework] = {
    "builtin": "headway",
    "torchtitan": "torchtitan",
    "megatron": "megatron",
    "deepspeed": "deepspeed",
}


class EstimateError(Exception):
    """A plan has too little information for an estimate; the text is the reason, `hint` the remedy, `path` the field to change,
    if it is known."""

    def __init__(self, reason: str, hint: str, path: tuple[str, ...] | None = None) -> None:
        super().__init__(reason)
        self.hint = hint
        self.path = path


def framework_of(plan: JobPlan) -> Framework:
    """Return the profile by which the job's trainer is estimated: its own, or that of a script's options (torchtitan's
    by default)."""
    trainer = plan.spec["trainer"]
    if (own := OWN_PROFILES.get(trainer["kind"])) is not None:
        is_fsdp = own == "megatron" and plan.spec["layout"]["sharding"] in ("gradients", "parameters")
        return "megatron-fsdp" if is_fsdp else own
    framework: Framework = trainer["options"].get("framework") or _DEFAULT_FRAMEWORK
    return framework


def states_framework(plan: JobPlan) -> bool:
    """Return whether the framework of the job's steps is known, and not assumed."""
    trainer = plan.spec["trainer"]
    return trainer["kind"] in OWN_PROFILES or "framework" in trainer["options"]


def training_of(plan: JobPlan, cluster: ClusterPlan, *, for_memory: bool = False) -> Training:
    """Return the job's step; one `for_memory` may have a network of unknown speed, and no time. Raises EstimateError."""
    group = cluster.group(plan.group)
    if group.gpu is None:
        reason = f"the nodes of group `{group.name}` have no GPU, and the planner only models GPUs"
        raise EstimateError(reason, "set `gpu` of the cluster's group to a model of docs/models.md")
    gpu = _known(group)
    if plan.model is None:
        hint = "set `model: {preset: llama-3.1-8b}`, a config.json, or its sizes"
        if plan.spec["trainer"]["kind"] == "script" and plan.run.batch is None:
            hint = f"leave it out: the script lays itself out; or {hint}, and `batch`"
        raise EstimateError("the job has no `model`", hint)
    if plan.run.batch is None:
        raise EstimateError("the job has no `batch`", "set `batch: {global: 1024 sequences, micro: 1, sequence: 8192}`")
    framework, batch = framework_of(plan), plan.run.batch
    degrees = _degrees(plan, framework)
    return Training(
        model=plan.model,
        gpu=gpu,
        network=network_of(cluster, group, 1 if for_memory else plan.slots),
        degrees=degrees,
        micro=batch.micro_sequences,
        accumulation=batch.global_sequences // (batch.micro_sequences * degrees.dp),
        sequence=batch.sequence_length,
        framework=framework,
        supposed=not states_framework(plan),
        formats=_formats(plan.spec["precision"], framework),
        recompute=plan.spec["recompute"] or "none",
        recomputed_parts=abilities(framework).selective if plan.spec["recompute"] == "selective" else (),
        kernels=Kernels(compiled=plan.spec["compile"]),
        overlaps=Overlaps(**plan.spec["overlap"]),
    )


def counted_nodes(nodes: int, group: GroupPlan) -> str:
    """Return the words of a hint for `nodes` nodes; if the group has fewer for jobs, with their number."""
    available = group.count - group.held_back
    return counted(nodes, "node") + (f" (`{group.name}` has {available} for jobs)" if nodes > available else "")


def network_of(cluster: ClusterPlan, group: GroupPlan, nodes: int) -> Network:
    """Return the network of the GPUs of `nodes` nodes of the group, whose model is known. Raises EstimateError."""
    fabric = cluster.scale_out
    transport = "tcp" if fabric is None else fabric.transport
    adapter_bytes_s = _adapter_gbps(group, transport) * _GBPS
    if nodes > 1 and not adapter_bytes_s and group.nvlink_domain < nodes * group.gpus:
        reason = f"the speed of the adapters of group `{group.name}` is unknown"
        hint = "set `nic: ConnectX-7` (docs/models.md) or `nic_speed: 400Gb/s` in the cluster's group"
        if transport == "tcp":
            hint = "set the speed of the Ethernet port in the cluster's group, for example `nic_speed: 100Gb/s`"
        raise EstimateError(reason, hint)
    adapters = max(1, len(group.nics))
    return Network(
        gpus_per_node=group.gpus,
        scale_up_domain=group.nvlink_domain,
        scale_up_bytes_s=_known(group).scale_up_gb_s * 1e9 / 2,
        scale_out_bytes_s=adapters * adapter_bytes_s / group.gpus,
        adapters_per_node=adapters,
        transport=transport,
        oversubscription=1.0 if fabric is None else fabric.leaf_oversubscription,
    )


def _known(group: GroupPlan) -> Gpu:
    gpu = group.known_gpu
    if gpu is None:
        hint = "use a model of docs/models.md, or describe it with `gpu_model` in the cluster's group"
        raise EstimateError(f"the catalogue does not have the GPU `{group.gpu}`", hint)
    return gpu


def _adapter_gbps(group: GroupPlan, transport: str) -> float:
    """Return the speed of one adapter on the transport, 0 if neither the group nor the catalogue has it."""
    if group.nic_gbps is not None:
        return group.nic_gbps
    known = nics().get(group.nic or "")
    return 0.0 if known is None else known.gbps.get(transport, 0)


def _degrees(plan: JobPlan, framework: Framework) -> Degrees:
    layout, mesh = plan.spec["layout"], plan.mesh
    chunks = layout["virtual_stages"]
    return Degrees(
        pp=mesh.pp,
        chunks=chunks,
        schedule=layout["schedule"] or ("Interleaved1F1B" if chunks > 1 else "1F1B"),
        dp_replicate=mesh.dp_replicate,
        dp_shard=mesh.dp_shard,
        cp=mesh.cp,
        tp=mesh.tp,
        sequence_parallel=mesh.tp > 1 if layout["sequence_parallel"] is None else layout["sequence_parallel"],
        ep=layout["ep"],
        sharding=sharding_of(framework, layout["sharding"] or abilities(framework).sharding, mesh.pp),
    )


def _formats(precision: Mapping[str, Any], framework: Framework) -> Formats:
    """Return the formats. By default the builtin trainer computes in fp32, and all others in bf16; its optimizer's moments have the
    parameters' format."""
    compute = precision["compute"] or ("fp32" if framework == "headway" else "bf16")
    moments = precision["parameters"] if framework == "headway" else None
    return Formats(compute, precision["parameters"], precision["reduce"], moments=moments)
