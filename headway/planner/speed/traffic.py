"""Counts what one rank sends in a step, by mesh dimension."""

from collections.abc import Mapping

from headway.planner.speed.collectives import Groups
from headway.planner.speed.cost import ACTIVATION
from headway.planner.speed.data_parallel import Exchange
from headway.planner.speed.experts.exchange import sent_bytes
from headway.planner.training import Training


def sent(
    training: Training, groups: Groups, blocks: tuple[int, int], exchange: Exchange, each_microbatch: bool
) -> Mapping[str, float]:
    """Return the bytes that a rank sends with so many blocks, and so many of them with experts; dimensions that send nothing are left out.

    `exchange` is of all parameters of the rank, once; `each_microbatch` whether gradients are exchanged after every one.
    """
    degrees, count = training.degrees, training.accumulation
    stream = ACTIVATION * training.tokens_per_rank * training.model.hidden
    keys = 2 * ACTIVATION * training.tokens_per_rank * max(training.model.kv_heads / degrees.tp, 1) * training.model.head_dim
    passes = 3 if training.recompute == "full" else 2
    rounds = count if degrees.sharding == "parameters" else 1
    gathers = 2 * rounds if degrees.sharding == "parameters" else 1
    reduces = rounds if each_microbatch else 1
    found = {
        "tp": count * blocks[0] * passes * 2 * 2 * stream * (degrees.tp - 1) / degrees.tp,
        "cp": count * blocks[0] * 3 * (degrees.cp - 1) * keys,
        "ep": count * blocks[1] * passes * 2 * sent_bytes(training, groups.ep),
        "pp": 2 * count * degrees.chunks * stream / degrees.tp if degrees.pp > 1 else 0.0,
        "dp": gathers * exchange.gathered_bytes + reduces * exchange.reduced_bytes,
    }
    return {name: value for name, value in found.items() if value}
