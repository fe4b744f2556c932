"""Computes what data-parallel ranks exchange for one pipeline stage: gathered parameters and reduced gradients."""

from msgspec import Struct

from headway.planner.speed.collectives import Group, Groups, Links
from headway.planner.speed.speed import Profile
from headway.planner.training import Training

_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
# Of a parameter in a matrix product, with which ranks gather it.
_GATHERED = 2.0


class Exchange(Struct, frozen=True):
    """Seconds on the links for one set of parameters: gathered, and its gradients reduced (and added up over replicas)."""

    gather: float
    reduce: float
    gathered_bytes: float
    reduced_bytes: float

    def plus(self, other: "Exchange") -> "Exchange":
        """Return one after the other."""
        return Exchange(
            self.gather + other.gather,
            self.reduce + other.reduce,
            self.gathered_bytes + other.gathered_bytes,
            self.reduced_bytes + other.reduced_bytes,
        )


NO_EXCHANGE = Exchange(0.0, 0.0, 0.0, 0.0)


def gradient_bytes(training: Training, profile: Profile) -> float:
    """Return bytes of a gradient that is exchanged."""
    chosen = training.formats.reduce
    return profile.reduce if chosen is None else _BYTES[chosen]


def dense_exchange(training: Training, parameters: float, profile: Profile, links: Links, groups: Groups) -> Exchange:
    """Return the exchange of `parameters` that all ranks of a stage hold in part (already divided by the tensor-parallel ranks)."""
    return exchange(training, parameters, profile, links, (groups.shard, groups.replicate, groups.data))


def expert_exchange(training: Training, parameters: float, profile: Profile, links: Links, groups: Groups) -> Exchange:
    """Return the exchange of the experts of one rank: the ranks that hold the same ones exchange them."""
    alone = Group(1, 1)
    return exchange(training, parameters, profile, links, (groups.expert_dp, alone, groups.expert_dp))


def exchange(
    training: Training, parameters: float, profile: Profile, links: Links, groups: tuple[Group, Group, Group]
) -> Exchange:
    """Return the exchange over the ranks that split, those that replicate the splits, and both together.

    Without splits the gradients are all-reduced; with them they are reduced and scattered, and the parameters gathered (arXiv 1910.02054,
    section 7).
    """
    shard, replicate, both = groups
    slow, bucket = 1 / profile.exchange, profile.bucket_mb * 1e6
    gathered, reduced = _GATHERED * parameters, gradient_bytes(training, profile) * parameters
    if training.degrees.sharding == "none" or shard.size == 1:
        whole = both if training.degrees.sharding == "none" else replicate
        share = 2 * (whole.size - 1) / whole.size
        return Exchange(0.0, slow * links.all_reduce(whole, reduced, reduced / bucket), 0.0, share * reduced)
    share = (shard.size - 1) / shard.size
    across = 2 * (replicate.size - 1) / replicate.size
    added = links.all_reduce(replicate, reduced / shard.size, reduced / shard.size / bucket)
    return Exchange(
        gather=slow * links.all_gather(shard, gathered, gathered / bucket),
        reduce=slow * (links.all_gather(shard, reduced, reduced / bucket) + added),
        gathered_bytes=share * gathered,
        reduced_bytes=share * reduced + across * reduced / shard.size,
    )
