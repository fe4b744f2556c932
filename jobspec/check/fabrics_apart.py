"""Checks that fabrics with switches have no address, loopback or AS number in common.

A node has adapters on several of them, so that one network in two fabrics leads its packets into the wrong one; and a router that connects
them later would find each number twice.
"""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network

from msgspec import Struct

from headway.jobspec.problem import CLUSTER, Problem
from headway.jobspec.resolve.links import last_asn
from headway.jobspec.resolve.sizes import SizeError, sizes_of
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.nodes import NodeGroup
from headway.jobspec.suggest import joined_and

_POOLS = ("loopbacks", "addresses")
_WORDS = {"asn": "AS numbers", "loopbacks": "loopbacks", "addresses": "addresses"}
# Where free ones are looked for: private AS numbers of RFC 6996, and networks of RFC 1918 from the last one down, since the first ones
# are often those of management.
_FIRST_ASN, _ASN_STEP, _LAST_ASN = 4_200_000_000, 100_000, 4_294_967_294
_PRIVATE = IPv4Network("10.0.0.0/8")
_TRIES = 1024


class _Numbers(Struct, frozen=True):
    """AS numbers and pools of one fabric; what is not valid by itself is missing."""

    fabric: Fabric
    asns: range
    pools: dict[str, IPv4Network]


def check_numbers_apart(cluster: Cluster) -> Iterator[Problem]:
    """Check each fabric with switches against those before it; InfiniBand's have no such numbers."""
    before: list[_Numbers] = []
    for index, fabric in enumerate(cluster.fabrics):
        if fabric.switches is None or fabric.transport == "infiniband":
            continue
        own = _numbers_of(fabric, cluster.node_groups)
        for other in before:
            shared = list(_shared(own, other))
            if shared:
                what = joined_and([_WORDS[key] for key in shared])
                message = f"`{fabric.name}` and `{other.fabric.name}` have {what} in common"
                hint = f"give the switches of one of them others: {_free(own, before, shared, cluster)}"
                yield Problem("HW514", CLUSTER, ("fabrics", index, "switches"), message, hint, at_key=True)
                break
        before.append(own)


def _numbers_of(fabric: Fabric, groups: Sequence[NodeGroup]) -> _Numbers:
    switches = fabric.switches
    assert switches is not None  # noqa: S101 (for mypy: the caller asks for switched fabrics only)
    pools = {key: network for key in _POOLS if (network := _network(getattr(switches, key))) is not None}
    try:
        return _Numbers(fabric, range(switches.asn, last_asn(switches, sizes_of(fabric, groups)) + 1), pools)
    except SizeError:
        return _Numbers(fabric, range(0), pools)


def _network(text: str) -> IPv4Network | None:
    try:
        return IPv4Network(text)
    except ValueError:
        return None


def _shared(own: _Numbers, other: _Numbers) -> Iterator[str]:
    """Yield the settings of `own` whose numbers the other fabric has too."""
    if _overlap(own.asns, other.asns):
        yield "asn"
    for key, network in own.pools.items():
        if any(network.overlaps(each) for each in other.pools.values()):
            yield key


def _overlap(first: range, second: range) -> bool:
    return bool(first) and bool(second) and first[0] <= second[-1] and second[0] <= first[-1]


def _free(own: _Numbers, before: Sequence[_Numbers], keys: Sequence[str], cluster: Cluster) -> str:
    """Return the settings with numbers that no fabric and no host has, as far as there are some."""
    taken = [network for other in before for network in other.pools.values()]
    taken += [network for key, network in own.pools.items() if key not in keys]
    hosts = [host.partition(":")[0] for nodes in cluster.node_groups for host in nodes.hosts]
    taken += [IPv4Network(host) for host in hosts if _network(host) is not None]
    found = []
    for key in keys:
        if key == "asn":
            number = _free_asn(len(own.asns), [other.asns for other in before])
            found.append(f"`asn: {number}`" if number is not None else "another `asn`")
        else:
            network = _free_network(own.pools[key].prefixlen, taken)
            found.append(f"`{key}: {network}`" if network is not None else f"other `{key}`")
            taken += [network] if network is not None else []
    return joined_and(found)


def _free_asn(count: int, taken: Sequence[range]) -> int | None:
    for first in range(_FIRST_ASN, _LAST_ASN - count, _ASN_STEP):
        if not any(_overlap(range(first, first + count), each) for each in taken):
            return first
    return None


def _free_network(prefix: int, taken: Sequence[IPv4Network]) -> IPv4Network | None:
    if prefix < _PRIVATE.prefixlen:
        return None
    size, last = 1 << (32 - prefix), int(_PRIVATE.broadcast_address) + 1
    for number in range(1, min(_TRIES, _PRIVATE.num_addresses // size) + 1):
        network = IPv4Network((IPv4Address(last - number * size), prefix))
        if not any(network.overlaps(each) for each in taken):
            return network
    return None
