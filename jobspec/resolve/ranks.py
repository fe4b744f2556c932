"""Lists the ranks of a mesh over slots: rank order is layout order, and a slot's ranks are consecutive."""

from headway.jobspec.plan import Rank
from headway.runner.contract import Mesh, coordinates


def resolve_ranks(mesh: Mesh, procs_per_slot: int) -> tuple[Rank, ...]:
    """Return every rank with its slot, its place there and its coordinates, in the order of the mesh's axes."""
    return tuple(_rank(mesh, procs_per_slot, rank) for rank in range(mesh.world_size))


def _rank(mesh: Mesh, procs_per_slot: int, rank: int) -> Rank:
    slot, local_rank = divmod(rank, procs_per_slot)
    return Rank(rank, slot, local_rank, tuple(coordinates(mesh, rank).values()))
