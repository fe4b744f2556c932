"""Computes the mesh from a layout and the number of ranks: the open degree takes the remaining ranks."""

from headway.jobspec.spec.layout import Layout
from headway.runner.contract import Mesh


class MeshError(ValueError):
    """The degrees do not multiply to the number of ranks."""


def resolve_mesh(layout: Layout, world_size: int) -> Mesh:
    """Return the mesh of `world_size` ranks. Raises MeshError."""
    others = layout.pp * layout.dp_replicate * layout.cp * layout.tp
    left, rest = divmod(world_size, others)
    if layout.dp_shard is None and rest:
        raise MeshError(f"the degrees multiply to {others}, which does not divide {world_size} ranks")
    if layout.dp_shard is not None and others * layout.dp_shard != world_size:
        raise MeshError(f"the degrees multiply to {others * layout.dp_shard}, but there are {world_size} ranks")
    dp_shard = left if layout.dp_shard is None else layout.dp_shard
    return Mesh(layout.pp, layout.dp_replicate, dp_shard, layout.cp, layout.tp)
