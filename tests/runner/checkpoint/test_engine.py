"""Tests the saver of one rank with a real keeper: what blocks, what fails, and what never does."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest
import torch
import xxhash

from headway.runner.checkpoint.chain import Chain, SupersededError, lineage, newest_base
from headway.runner.checkpoint.commit import memory_manifest
from headway.runner.checkpoint.engine import Saver
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.keeper.link import KeeperLink, start_keeper
from headway.runner.checkpoint.layout import RankState
from headway.runner.checkpoint.load import Loader
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.restore import open_base
from headway.runner.checkpoint.save_reports import SaveOutcome
from headway.runner.checkpoint.setup import connector, saver_of
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Base, Checkpoint, CheckpointId, Mesh, Tier

pytestmark = pytest.mark.slow

DISK = Checkpoint((Tier("shared", every_steps=1),))
BOTH = Checkpoint((Tier("memory", every_steps=1), Tier("shared", every_steps=1)))


class Rank:
    """A run of one rank with its keeper."""

    def __init__(self, root: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keeper = start_keeper()
        monkeypatch.setenv("HEADWAY_KEEPER", self.keeper)
        (root / "chain").mkdir()
        (root / "checkpoints").mkdir()
        self.chain, self.checkpoint = Chain(PosixStore(root / "chain"), "run-1"), checkpoint
        self.generation = 0
        self.place = CheckpointLocation(root / "checkpoints", "run-1", 0, 0, 1, Mesh())
        self.claim()

    def claim(self) -> None:
        # A separate chain: the saver may still be retiring through the other one.
        chain = Chain(PosixStore(self.place.root.parent / "chain"), "run-1")
        record = chain.claim(newest_base(chain.read()), 0, "tester")
        self.place = CheckpointLocation(self.place.root, "run-1", record.generation, 0, 1, Mesh())

    def connect(self) -> KeeperLink:
        return connector(lambda: self.place, self.checkpoint, Ranks())()

    def saver(self) -> Saver:
        return saver_of(self.place, self.chain, Ranks(), self.checkpoint, self.connect)

    def steps(self) -> list[int]:
        return [committed.step for committed in lineage(self.chain.read())]


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, DISK, monkeypatch)


def state(step: int, numbers: int = 1000) -> RankState:
    return RankState({"w": torch.full((numbers,), float(step))}, {"step": step})


def ended(saver: Saver) -> dict[tuple[int, str], str | None]:
    """Every save so far, by step and tier, with the error of those that failed."""
    saver.wait()
    return {(outcome.step, outcome.tier): outcome.error for outcome in saver.outcomes()}


def keeper_of(rank: Rank) -> int:
    """The process that listens on the keeper's name."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if rank.keeper.encode() in words and b"--standalone" in words:
            return int(entry.name)
    raise LookupError("no keeper runs")


def test_successive_saves_wait_for_a_buffer_and_none_is_lost(rank: Rank) -> None:
    with closing(rank.saver()) as saver:
        for step in range(1, 9):
            saver.save(step, state(step, 1 << 18), {"shared"})
        assert ended(saver) == {(step, tier): None for step in range(1, 9) for tier in ("memory", "shared")}
    assert rank.steps() == list(range(8, 0, -1))
    base = newest_base(rank.chain.read())
    assert base is not None
    found = {"w": torch.zeros(1 << 18)}
    Loader(open_base(rank.place, base, Ranks(), rank.connect), found, Ranks()).load()
    assert set(found["w"].tolist()) == {8.0}


def test_a_dead_keepers_saves_fail_and_the_next_save_goes_to_a_new_keeper(rank: Rank) -> None:
    with closing(rank.saver()) as saver:
        saver.save(1, state(1), {"shared"})
        assert ended(saver)[1, "shared"] is None
        os.kill(keeper_of(rank), signal.SIGKILL)
        saver.save(2, state(2), {"shared"})
        lost = ended(saver)[2, "shared"]
        assert lost is not None
        assert "keeper" in lost
        start_keeper(rank.keeper)
        saver.save(3, state(3), {"shared"})
        assert ended(saver)[3, "shared"] is None
    assert rank.steps() == [3, 1]


def test_a_state_of_another_shape_gets_separate_buffers(rank: Rank) -> None:
    with closing(rank.saver()) as saver:
        for step, numbers in ((1, 10), (2, 50_000), (3, 10)):
            saver.save(step, state(step, numbers), {"shared"})
        assert set(ended(saver).values()) == {None}
    assert rank.steps() == [3, 2, 1]


def test_a_superseded_saver_fails_at_its_next_call_and_commits_nothing(rank: Rank) -> None:
    saver = rank.saver()
    saver.save(1, state(1), {"shared"})
    assert ended(saver)[1, "shared"] is None
    rank.claim()
    saver.save(2, state(2), {"shared"})
    with pytest.raises(SupersededError):
        saver.wait()
    with pytest.raises(SupersededError):
        saver.outcomes()
    saver.close()
    assert rank.steps() == [1]


def test_an_unwritable_disk_fails_only_that_save_and_is_reported(rank: Rank) -> None:
    blocked = rank.place.root / f".tmp-{rank.place.checkpoint(2).directory}"
    with closing(rank.saver()) as saver:
        saver.save(1, state(1), {"shared"})
        blocked.write_text("a file where the folder should be")
        saver.save(2, state(2), {"shared"})
        saver.save(3, state(3), {"shared"})
        found = ended(saver)
    assert (found[1, "shared"], found[3, "shared"]) == (None, None)
    assert found[2, "shared"] is not None
    assert "File exists" in found[2, "shared"]
    assert rank.steps() == [3, 1]


def test_a_capture_in_memory_is_restored_by_the_next_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, BOTH, monkeypatch)
    # Another client on the node, so that the keeper outlives the worker.
    keeps = rank.connect()
    with closing(rank.saver()) as saver:
        saver.save(5, state(5), {"memory"})
        assert ended(saver) == {(5, "memory"): None}
    (held,) = keeps.held()
    assert (held.rank, held.step, held.generation) == (0, 5, 1)
    assert rank.steps() == []
    manifest = memory_manifest("run-1", CheckpointId(5, 1), Mesh(), [held.part_xxh3_128])
    base = Base(5, 1, xxhash.xxh3_128_hexdigest(manifest), "memory")
    rank.claim()
    found = {"w": torch.zeros(1000)}
    reader = open_base(rank.place, base, Ranks(), rank.connect)
    Loader(reader, found, Ranks()).load()
    assert set(found["w"].tolist()) == {5.0}
    assert reader.objects(0) == {"step": 5}
    with pytest.raises(RefusedError, match="not in memory"):
        open_base(rank.place, Base(4, 1, base.manifest_xxh3_128, "memory"), Ranks(), rank.connect)
    keeps.close()


def test_outcomes_have_their_duration_and_bytes_written(rank: Rank) -> None:
    with closing(rank.saver()) as saver:
        saver.save(1, state(1), {"shared"})
        saver.wait()
        (memory, shared) = sorted(saver.outcomes(), key=lambda outcome: outcome.tier)
    assert isinstance(shared, SaveOutcome)
    assert (memory.tier, shared.tier, shared.bytes) == ("memory", "shared", 4096)
    assert 0 < memory.seconds <= shared.seconds
