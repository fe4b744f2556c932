"""Computes the time of collectives: a latency that grows with the ranks, and bytes over the bandwidth that NCCL reaches."""

import math
from functools import lru_cache

from msgspec import Struct

from headway.jobspec.catalog.gpus import Gpu
from headway.planner.speed.speed import LinkSpeed, NetworkSpeed, Speed
from headway.planner.training import Degrees, Network

_US = 1e-6


class Group(Struct, frozen=True):
    """Ranks that communicate: `size` in all, each `local` of them in one scale-up domain."""

    size: int
    local: int

    @property
    def domains(self) -> int:
        """Scale-up domains that the group is spread over."""
        return -(-self.size // self.local)


class Groups(Struct, frozen=True):
    """The groups of a rank by mesh dimension. `tp` is innermost, then `cp`, `dp_shard`, `dp_replicate`, `pp`; `ep` folds over the inner
    three, and `expert_dp` are the ranks that hold the same experts."""

    tp: Group
    cp: Group
    shard: Group
    replicate: Group
    data: Group
    ep: Group
    expert_dp: Group
    pp: Group


@lru_cache(maxsize=4096)
def groups_of(degrees: Degrees, network: Network) -> Groups:
    """Return where the groups of the layout lie."""
    tp, cp, shard, replicate = degrees.tp, degrees.cp, degrees.dp_shard, degrees.dp_replicate
    inner = shard * cp * tp
    experts = degrees.ep * degrees.expert_tp
    domain = network.scale_up_domain
    return Groups(
        tp=_group(tp, 1, domain),
        cp=_group(cp, tp, domain),
        shard=_group(shard * cp, tp, domain),
        replicate=_group(replicate, inner, domain),
        data=_group(shard * cp * replicate, tp, domain),
        ep=_group(degrees.ep, degrees.expert_tp, domain),
        expert_dp=_group(max(1, inner * replicate // experts), experts, domain),
        pp=_group(degrees.pp, inner * replicate, domain),
    )


def _group(size: int, stride: int, domain: int) -> Group:
    """`size` ranks, `stride` apart."""
    return Group(size, max(1, min(size, domain // stride)))


class Links(Struct, frozen=True):
    """The links of a rank as collectives see them. Bytes are those of the whole buffer, so what an all-gather leaves on each rank."""

    up: LinkSpeed
    out: NetworkSpeed
    up_bytes_s: float
    out_bytes_s: float
    oversubscription: float

    def all_reduce(self, group: Group, size: float, messages: float = 1.0) -> float:
        """2 (n-1)/n of the bytes leave each rank (nccl-tests: doc/PERFORMANCE.md), in so many messages; NVSwitch can add on the way
        (NVLS)."""
        if group.size == 1:
            return 0.0
        share = 2 * (group.size - 1) / group.size
        if group.domains == 1:
            return messages * 2 * self._around(group) + size * share / (self.up_bytes_s * self.up.in_switch)
        tree = self.up.latency_us + 2 * (self.out.hop_us * math.log2(group.domains) + self.up.hop_us * (group.local - 1))
        return messages * min(2 * self._around(group), tree * _US) + size * share / self._rate(group)

    def all_gather(self, group: Group, size: float, messages: float = 1.0) -> float:
        """(n-1)/n of the bytes reach each rank, in so many messages; a reduce-scatter costs the same."""
        if group.size == 1:
            return 0.0
        return messages * self._around(group) + size * (group.size - 1) / group.size / self._rate(group)

    def all_to_all(self, group: Group, size: float) -> float:
        """`size` bytes of each rank go in equal parts to all ranks. Inside and beyond a domain they go at the same time."""
        if group.size == 1:
            return 0.0
        beyond = size * (group.size - group.local) / group.size
        inside = size * (group.local - 1) / group.size
        seconds = max(
            inside / (self.up_bytes_s * self.up.all_to_all),
            beyond * self.oversubscription / (self.out_bytes_s * self.out.all_to_all),
        )
        return self._around(group) + seconds

    def send(self, group: Group, size: float) -> float:
        """Return the seconds to send to a neighbour in the group: one pair in `local` of them is in two domains, and
        the slowest decides."""
        if group.size == 1:
            return 0.0
        if group.domains == 1:
            return self.up.latency_us * _US + size / self.up_bytes_s
        return (self.up.latency_us + self.out.hop_us) * _US + size / self.out_bytes_s

    def _rate(self, group: Group) -> float:
        """Return the rate of a ring: in and out of a domain it has the adapters of all its ranks there."""
        if group.domains == 1:
            return self.up_bytes_s
        return min(self.up_bytes_s, group.local * self.out_bytes_s)

    def _around(self, group: Group) -> float:
        """Latency of a ring: one hop after the other, some of them between domains (NVIDIA/nccl: src/graph/tuning.cc)."""
        hops = self.up.hop_us * (group.size - group.domains) + self.out.hop_us * (group.domains - 1)
        return (self.up.latency_us + hops) * _US


@lru_cache(maxsize=256)
def links_of(gpu: Gpu, network: Network, speed: Speed) -> Links:
    """Return the links of a GPU on this network."""
    up, out = speed.link(gpu), speed.network(network.transport)
    return Links(
        up=up,
        out=out,
        up_bytes_s=network.scale_up_bytes_s * up.bandwidth,
        out_bytes_s=max(1.0, network.scale_out_bytes_s * out.bandwidth),
        oversubscription=network.oversubscription,
    )
