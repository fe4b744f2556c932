"""Measures the planning of a save of many tensors, each sharded over many simulated ranks."""

import json
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from headway.runner.checkpoint.commit import memory_manifest
from headway.runner.checkpoint.layout import Planner
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.contract import CheckpointId, Mesh

RANKS, TENSORS = 1024, 1024
_COLUMNS, _CACHED_ROUNDS = 4, 5


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _shards() -> dict[str, torch.Tensor]:
    """Return what the first of the ranks holds: a row of each tensor. No process group is behind the mesh: nothing can
    be sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp_shard",))
    row = torch.ones(1, _COLUMNS)
    return {f"layers.{number}.weight": DTensor.from_local(row, mesh, [Shard(0)], run_check=False) for number in range(TENSORS)}


def ours(shards: dict[str, torch.Tensor]) -> tuple[float, list[float]]:
    """Return seconds of one rank's plan and of the first rank's manifest of all: the first time, and with the plan
    kept.

    Every rank plans for itself at the same time, so this is what a save waits for.
    """
    planner = Planner(_AllAlike(0, RANKS))
    parts = [f"{rank:032x}" for rank in range(RANKS)]

    def plan() -> None:
        planner.plan(shards, whole=True)
        memory_manifest("run", CheckpointId(1, 1), Mesh(dp_shard=RANKS), parts)

    return _seconds(plan), [_seconds(plan) for _ in range(_CACHED_ROUNDS)]


def peer(shards: dict[str, torch.Tensor]) -> tuple[float, list[float]]:
    """Return seconds of one rank's plan and of the first rank's plan for all, for which DCP has all ranks wait: first,
    and with plans cached.

    Gathering the plans of all ranks and scattering what is decided is not counted.
    """
    planner, plans = _CachingPlanner(enable_plan_caching=True), [_plan_of(rank) for rank in range(RANKS)]
    unchanged = [SavePlan([], usable=False) for _ in range(RANKS)]

    def plan(found: list[SavePlan]) -> None:
        planner.set_up_planner(shards, is_coordinator=True)
        planner.create_local_plan()
        mine, _ = planner.create_global_plan(found)
        planner.finish_plan(mine[0])

    return _seconds(lambda: plan(plans)), [_seconds(lambda: plan(unchanged)) for _ in range(_CACHED_ROUNDS)]


class _AllAlike(Ranks):
    """The other ranks report what this one reports; no store is behind the group."""

    def meet(self, data: bytes) -> list[bytes]:
        return [data] * self.world_size


class _CachingPlanner(DefaultSavePlanner):
    """Plans are cached under the planner's class name (torch 2.13, planner.py)."""


def _plan_of(rank: int) -> SavePlan:
    """Return what `create_local_plan` gives on that rank."""
    names = [f"layers.{number}.weight" for number in range(TENSORS)]
    return SavePlan([_write_item(name, rank) for name in names], planner_data={name: (name,) for name in names})


def _write_item(name: str, rank: int) -> WriteItem:
    offset, shape = torch.Size([rank, 0]), torch.Size([RANKS, _COLUMNS])
    chunk = ChunkStorageMetadata(offset, torch.Size([1, _COLUMNS]))
    return WriteItem(
        MetadataIndex(name, offset), WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, TensorProperties(), shape)
    )


def main() -> None:
    """Prints both as a JSON object: [first, with the plan kept] in seconds."""
    shards = _shards()
    print(json.dumps({"ours": ours(shards), "peer": peer(shards)}))


if __name__ == "__main__":
    main()
