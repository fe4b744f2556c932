"""Computes the node memory of checkpoint captures: those of its own ranks, and copies held for another node."""

from msgspec import Struct

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.planner.from_plan import EstimateError, training_of
from headway.planner.memory.host import HostLoad, host_bytes_per_node
from headway.planner.memory.ledger import checkpoint_bytes

# Of the builtin trainer: a parameter and AdamW's two moments of it, in one format (runner/train/state.py).
_BUILTIN_BYTES = {None: 12, "fp32": 12, "bf16": 6}


class CaptureMemory(Struct, frozen=True):
    """Bytes of one checkpoint of the run and of one rank's part of it; `ranks` of a node have `buffers` captures each, and the node holds
    `copies` of each of another node's ranks. `beside_bytes` is what else the job needs of the node's memory, as far as it is known."""

    stored_bytes: int
    rank_bytes: float
    ranks: int
    buffers: int
    copies: int
    beside_bytes: int = 0

    @property
    def node_bytes(self) -> float:
        """The memory that all captures and copies take of one node's memory."""
        return self.rank_bytes * self.ranks * (self.buffers + self.copies)


def is_captured(plan: JobPlan) -> bool:
    """Return whether it is certain that a rank's state is captured in memory before it is written; a script may save to
    storage by itself."""
    tiers = plan.run.checkpoint.tiers
    return bool(tiers) and (plan.run.trainer.kind == "builtin" or any(tier.kind != "shared" for tier in tiers))


def host_load(plan: JobPlan) -> HostLoad:
    """Return what a rank keeps of checkpoints in host memory; one copy on its way to storage where nothing more is known."""
    saved = plan.run.checkpoint
    return HostLoad(staged=saved.buffers if is_captured(plan) else min(1, len(saved.tiers)), peers=saved.copies)


def captures_of(plan: JobPlan, cluster: ClusterPlan) -> CaptureMemory | None:
    """Return those of the job; None where it may have none, or if the size of its state is unknown."""
    if plan.model is None or not is_captured(plan):
        return None
    try:
        training = training_of(plan, cluster, for_memory=True)
        stored = checkpoint_bytes(training)
        beside = host_bytes_per_node(training, HostLoad(staged=0), plan.procs_per_slot)
    except (EstimateError, ValueError):
        if plan.run.trainer.kind != "builtin":
            return None
        stored, beside = plan.model.parameters * _BUILTIN_BYTES[plan.spec["precision"]["parameters"]], 0
    part = stored * plan.mesh.dp_replicate / plan.world_size
    saved = plan.run.checkpoint
    return CaptureMemory(stored, part, plan.procs_per_slot, saved.buffers, saved.copies, beside)
