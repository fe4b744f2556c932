"""Ranks as processes over gloo: gathering, failing together, and a sharded checkpoint that one process then reads."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.runner.checkpoint.chain import Chain, newest_base
from headway.runner.checkpoint.load import Loader
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import DirectorySource
from headway.runner.checkpoint.stores.posix import PosixStore

SCRIPT = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from headway.runner.checkpoint.chain import Chain, SupersededError
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.layout import RankState
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Mesh
from tests.support.saves import save

root, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=world)
ranks, found = Ranks(rank, world), {}

def outcome(raising, only=None):
    def step():
        if rank in raising:
            raise raising[rank]
    try:
        ranks.together(step, only)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "fine"

found["gathered"] = [data.hex() for data in ranks.gather(bytes([rank, 255 - rank]))]
found["fine"] = outcome({})
found["one fails"] = outcome({1: OSError("no space")})
found["one is superseded"] = outcome({0: SupersededError("generation 2 was first")})
found["only the first, who is fine"] = outcome({1: OSError("never raised")}, only=0)
found["only the first, who fails"] = outcome({0: OSError("no space")}, only=0)

mesh = init_device_mesh("cpu", (world,))
sharded = distribute_tensor(torch.arange(21.0).reshape(7, 3), mesh, [Shard(0)])
place = CheckpointLocation(root / "checkpoints", "run-1", 1, 0, 1, Mesh(dp_shard=world))
found["bytes"] = save(place, Chain(PosixStore(root / "chain"), "run-1"), ranks, 5, RankState({"w": sharded}, {"rank": rank}), keep=2).bytes
(root / f"{rank}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


def run_ranks(root: Path, world_size: int) -> list[dict[str, Any]]:
    """Runs SCRIPT as `world_size` processes; what each found."""
    arguments = [[sys.executable, "-c", SCRIPT, str(root), str(rank), str(world_size)] for rank in range(world_size)]
    ranks = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for argv in arguments]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, "\n".join(errors)
    return [json.loads((root / f"{rank}.json").read_text()) for rank in range(world_size)]


@pytest.mark.slow
def test_two_processes_gather_fail_and_save_together(tmp_path: Path) -> None:
    (tmp_path / "chain").mkdir()
    Chain(PosixStore(tmp_path / "chain"), "run-1").claim(None, 0, "tester")
    first, second = run_ranks(tmp_path, 2)
    superseded = "SupersededError: a newer generation has claimed the run"
    assert first["gathered"] == second["gathered"] == ["00ff", "01fe"]
    assert (first["fine"], second["fine"]) == ("fine", "fine")
    assert (first["one fails"], second["one fails"]) == ("PeerError: rank 1 failed", "OSError: no space")
    assert first["one is superseded"] == "SupersededError: generation 2 was first"
    assert second["one is superseded"] == superseded
    assert first["only the first, who is fine"] == second["only the first, who is fine"] == "fine"
    assert first["only the first, who fails"] == "OSError: no space"
    assert second["only the first, who fails"] == "PeerError: rank 0 failed"
    assert first["bytes"] == second["bytes"] == 8192
    base = newest_base(Chain(PosixStore(tmp_path / "chain"), "run-1").read())
    assert base is not None
    reader = Reader(DirectorySource(tmp_path / "checkpoints" / base.checkpoint.directory), "run-1", base)
    whole = torch.zeros(7, 3)
    Loader(reader, {"w": whole}, Ranks()).load()
    assert torch.equal(whole, torch.arange(21.0).reshape(7, 3))
    assert [reader.objects(rank) for rank in (0, 1)] == [{"rank": 0}, {"rank": 1}]
