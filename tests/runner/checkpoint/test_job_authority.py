"""Tests what a custom loop in a job reports about a base that it could not load."""

import errno
import json
import mmap
import socket
from pathlib import Path

import pytest

from headway.runner.checkpoint.authority import NothingVerifiesError, OfJob, UnreadError
from headway.runner.checkpoint.chain import Chain
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.ranks import PeerError, Ranks
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Base, HeartbeatPage, Mesh
from headway.runner.worker import Worker

BASE = Base(20, 1, "ab", "shared")


@pytest.mark.parametrize("refused", [True, False], ids=["it found damage", "another rank failed"])
def test_only_a_rank_that_found_damage_refuses_the_base(refused: bool, tmp_path: Path) -> None:
    said, events = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with said, events:
        said.settimeout(0)
        page = HeartbeatPage(memoryview(mmap.mmap(-1, HeartbeatPage.bytes_for(1))))
        worker = Worker(0, 0, 2, 2, 0, "", BASE, page, events)
        place = CheckpointLocation(tmp_path, "run-1", 2, 0, 2, Mesh(dp_shard=2), None)
        authority = OfJob(place, Chain(PosixStore(tmp_path), "run-1"), BASE, worker, Ranks())
        error = RefusedError(BASE.checkpoint, "part-0.json", "gone") if refused else PeerError("rank 1 failed")
        with pytest.raises(NothingVerifiesError):
            authority.refuse(BASE, error)
        if not refused:
            with pytest.raises(BlockingIOError):
                said.recv(1 << 16)
            return
        facts = {"what": "refused", "rank": 0, "step": 20, "generation": 1, "tier": "shared"}
        assert json.loads(said.recv(1 << 16)) == facts | {"name": "part-0.json", "reason": "gone"}


def test_a_rank_that_cannot_read_the_base_reports_it_and_refuses_nothing(tmp_path: Path) -> None:
    said, events = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with said, events:
        page = HeartbeatPage(memoryview(mmap.mmap(-1, HeartbeatPage.bytes_for(1))))
        worker = Worker(0, 0, 1, 2, 0, "", BASE, page, events)
        place = CheckpointLocation(tmp_path, "run-1", 2, 0, 1, Mesh(), None)
        authority = OfJob(place, Chain(PosixStore(tmp_path), "run-1"), BASE, worker, Ranks())
        error = RefusedError(BASE.checkpoint, "part-0.json", "Stale file handle", unread=errno.ESTALE)
        with pytest.raises(UnreadError, match=r"Stale file handle on .*/step-000000020\.g000001/part-0\.json"):
            authority.refuse(BASE, error)
        facts = {"what": "unread", "rank": 0, "step": 20, "generation": 1, "tier": "shared"}
        assert json.loads(said.recv(1 << 16)) == facts | {"name": "part-0.json", "reason": "Stale file handle"}
