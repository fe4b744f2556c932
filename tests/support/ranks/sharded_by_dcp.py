"""Runs ranks that save a model sharded by FSDP and tensor parallelism through torch's DCP, or load it; rank 0 writes all values."""

import json
import os
import sys
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from headway.runner.checkpoint.interop.dcp import StorageReader, StorageWriter
from tests.support.worlds import join, leave


def make(mesh: DeviceMesh, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 6))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters())


def state(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    return {**dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)), "step": step}


def values(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    slots = {f"{n}.{k}": optimizer.state[p][k] for n, p in model.named_parameters() for k in ("exp_avg", "exp_avg_sq")}
    return {name: tensor.full_tensor().tolist() for name, tensor in (dict(model.named_parameters()) | slots).items()}


def saved(root: Path, mesh: DeviceMesh) -> list[Any]:
    model, optimizer = make(mesh, 3)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    save(state(model, optimizer, 1), storage_writer=StorageWriter(f"{root}/sync"))
    saving = async_save(state(model, optimizer, 1), storage_writer=StorageWriter(f"{root}/async"))
    assert isinstance(saving, Future)
    saving.result()
    return [1, values(model, optimizer)] * 2


def loaded(root: Path, mesh: DeviceMesh) -> list[Any]:
    found = []
    for place in ("sync", "async"):
        model, optimizer = make(mesh, 5)
        into = state(model, optimizer, 0)
        load(into, storage_reader=StorageReader(f"{root}/{place}"))
        set_state_dict(model, optimizer, model_state_dict=into["model"], optim_state_dict=into["optimizer"])
        found += [into["step"], values(model, optimizer)]
    return found


def main() -> None:
    root, way, tp, world = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(os.environ["WORLD_SIZE"])
    warnings.simplefilter("ignore")
    join(world, "meet")
    mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
    found = {"save": saved, "load": loaded}[way](root, mesh)
    if dist.get_rank() == 0:
        (root / f"{way}.json").write_text(json.dumps(found))
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
