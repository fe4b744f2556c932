"""Ranks that gather, fail and save together, and write what each found into `RANK.json`."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from headway.runner.checkpoint.chain import Chain, SupersededError
from headway.runner.checkpoint.layout import RankState
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Mesh
from tests.support.saves import save
from tests.support.worlds import join, leave


def outcome(ranks: Ranks, raising: Mapping[int, Exception], only: int | None = None) -> str:
    """How a step ends that these ranks raise an error in."""

    def step() -> None:
        if ranks.rank in raising:
            raise raising[ranks.rank]

    try:
        ranks.together(step, only)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


def main() -> None:
    root, rank, world = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join(world, "meet")
    ranks = Ranks(rank, world)
    mesh = init_device_mesh("cpu", (world,))
    sharded = distribute_tensor(torch.arange(21.0).reshape(7, 3), mesh, [Shard(0)])
    place = CheckpointLocation(root / "checkpoints", "run-1", 1, 0, 1, Mesh(dp_shard=world))
    state, chain = RankState({"w": sharded}, {"rank": rank}), Chain(PosixStore(root / "chain"), "run-1")
    found = {
        "gathered": [data.hex() for data in ranks.gather(bytes([rank, 255 - rank]))],
        "fine": outcome(ranks, {}),
        "one fails": outcome(ranks, {1: OSError("no space")}),
        "one is superseded": outcome(ranks, {0: SupersededError("generation 2 was first")}),
        "only the first, who is fine": outcome(ranks, {1: OSError("never raised")}, only=0),
        "only the first, who fails": outcome(ranks, {0: OSError("no space")}, only=0),
        "bytes": save(place, chain, ranks, 5, state, keep=2).bytes,
    }
    (root / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
