"""Maps a layout's groups of ranks to the links that carry their traffic: NVLink, rails, or the network between far nodes."""

from collections.abc import Iterator

from msgspec import Struct

from headway.planner.training import Degrees, Network


class Placement(Struct, frozen=True):
    """The groups of one axis: so many ranks, `stride` ranks apart, of which `per_node` are on each node; `over` is what joins them."""

    axis: str
    ranks: int
    stride: int
    per_node: int
    over: str


def placements(degrees: Degrees, network: Network) -> Iterator[Placement]:
    """Return the placement of each axis with more than one rank, from the innermost on; `ep` crosses them. Ranks are
    numbered as Degrees has it, and fill nodes in order."""
    stride = 1
    for axis in ("tp", "cp", "dp_shard", "dp_replicate", "pp"):
        ranks: int = getattr(degrees, axis)
        if ranks > 1:
            per_node = min(ranks, max(1, network.gpus_per_node // stride))
            yield Placement(axis, ranks, stride, per_node, _over(stride, ranks, network))
        stride *= ranks
    if degrees.ep > 1:
        yield Placement("ep", degrees.ep, 1, min(degrees.ep, network.gpus_per_node), _over(1, degrees.ep, network))


def _over(stride: int, ranks: int, network: Network) -> str:
    """Return the connection. Ranks that are whole nodes apart have the same place on them, and so the same rail."""
    if network.scale_up_domain % (stride * ranks) == 0:
        return "NVLink"
    if stride % network.gpus_per_node == 0:
        return "one rail each"
    return "NVLink and rails"
