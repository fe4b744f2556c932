"""Tests ranks as processes over gloo: gathering, failing together, and a sharded checkpoint that one process then reads."""

import json
from pathlib import Path

import pytest
import torch

from headway.runner.checkpoint.chain import Chain, newest_base
from headway.runner.checkpoint.load import Loader
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import DirectorySource
from headway.runner.checkpoint.stores.posix import PosixStore
from tests.support.worlds import run_world


@pytest.mark.slow
def test_two_processes_gather_fail_and_save_together(tmp_path: Path) -> None:
    (tmp_path / "chain").mkdir()
    Chain(PosixStore(tmp_path / "chain"), "run-1").claim(None, 0, "tester")
    run_world("tests.support.ranks.gathering", 2, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
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
