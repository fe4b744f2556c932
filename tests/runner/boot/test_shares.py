"""Tests verification by all ranks together: each reads a share, and rank 0 decides. The ranks are forks that share a store."""

import dataclasses
import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import FileStore, HashStore
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from headway.runner.boot import files, limitations, records, saved, shares
from headway.runner.boot.dcp import ScriptWriter, saved_by, saving_of
from headway.runner.boot.records import differ, registry_of
from headway.runner.boot.shares import VerificationShare, verify_first
from tests.runner.boot.test_saved import names, save
from tests.support.worker import VERIFY_S, Booted, booted, flip

RANKS = 4
BLOCKS = 64


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Booted]:
    monkeypatch.setattr(shares, "SHARE_BYTES", 1)
    monkeypatch.setattr(records, "BLOCK_BYTES", 1)
    monkeypatch.setattr(records, "BLOCKS", BLOCKS)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(RANKS))
    with booted(tmp_path / "run", RANKS) as found:
        yield found
    limitations._seen.clear()


@contextmanager
def others(boot: Booted, store: Path, prepare: Callable[[int], None] = lambda _: None) -> Iterator[None]:
    """The other ranks, each a fork that verifies; all have ended when the block is left."""
    pids = [_fork(boot, rank, store, prepare) for rank in range(1, RANKS)]
    try:
        yield
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        pids.clear()
        assert statuses == [0] * (RANKS - 1)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork(boot: Booted, rank: int, store: Path, prepare: Callable[[int], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            prepare(rank)
            local = rank % int(os.environ["LOCAL_WORLD_SIZE"])
            verify_first(dataclasses.replace(boot.worker, rank=rank, local_rank=local), FileStore(str(store), RANKS), VERIFY_S)
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def verify(boot: Booted, tmp_path: Path, prepare: Callable[[int], None] = lambda _: None) -> None:
    """All ranks enter the verification."""
    with others(boot, tmp_path / "store", prepare):
        verify_first(boot.worker, FileStore(str(tmp_path / "store"), RANKS), VERIFY_S)


def test_every_block_is_read_once_and_evenly_by_all_ranks(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "ckpt/step-10.pt", os.urandom(100_000))
    save(tmp_path / "ckpt/step-20.pt", os.urandom(100_000))
    save(tmp_path / "other/state.pt", os.urandom(300_000))
    log = tmp_path / "read"

    def noting(path: Path, size: int, blocks: Sequence[str], first: int) -> bool:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {path.name} {first} {first + len(blocks)}\n")
        return differ(path, size, blocks, first)

    monkeypatch.setattr(shares, "differ", noting)
    verify(boot, tmp_path)
    read: dict[str, list[int]] = {}
    by_rank: dict[str, int] = {}
    for pid, name, first, end in map(str.split, log.read_text().splitlines()):
        read.setdefault(name, []).extend(range(int(first), int(end)))
        by_rank[pid] = by_rank.get(pid, 0) + (int(end) - int(first)) * (3 if name == "state.pt" else 1)
    assert {name: sorted(blocks) for name, blocks in read.items()} == {
        "step-20.pt": list(range(BLOCKS)),
        "state.pt": list(range(BLOCKS)),
    }
    assert sorted(by_rank.values()) == pytest.approx([BLOCKS] * RANKS, abs=3)
    assert boot.said() == []


@pytest.mark.parametrize("at", [0, 40_000, 99_999])
def test_damage_in_any_share_is_refused_and_the_previous_is_verified_too(at: int, tmp_path: Path, boot: Booted) -> None:
    files = [save(tmp_path / f"ckpt/step-{step}.pt", os.urandom(100_000)) for step in (10, 20, 30)]
    flip(files[1])
    flip(files[2], at)
    verify(boot, tmp_path)
    assert names(tmp_path / "ckpt") == ["step-10.pt"]
    assert [note["path"] for note in boot.said()] == [str(files[2]), str(files[1])]


def save_in_torchs_format(path: Path) -> None:
    given: dict[str, Any] = {"state_dict": {"w": torch.arange(50_000)}, "storage_writer": FileSystemWriter(path), "no_dist": True}
    saving = saving_of(**given)
    assert saving is not None
    saved_by(saving, _save_state_dict(**given))
    files.settle()


def save_in_headways_format(path: Path) -> None:
    dcp_save({"w": torch.arange(50_000)}, storage_writer=ScriptWriter(path), no_dist=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("save", [save_in_torchs_format, save_in_headways_format])
@pytest.mark.parametrize("name", ["a", "b"])
def test_dcp_directories_are_divided_among_ranks(name: str, save: Callable[[Path], None], tmp_path: Path, boot: Booted) -> None:
    for each in ("a", "b"):
        save(tmp_path / each / "step-10")
        save(tmp_path / each / "step-20")
    flip(max((tmp_path / name / "step-20").iterdir(), key=lambda path: path.stat().st_size))
    verify(boot, tmp_path)
    assert {each: names(tmp_path / each) for each in ("a", "b")} == {
        each: ["step-10"] if each == name else ["step-10", "step-20"] for each in ("a", "b")
    }


def test_rank_0_verifies_files_that_another_rank_sees_differently(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each node had a file of that name on its own disk."""
    path = save(tmp_path / "ckpt/step-10.pt", os.urandom(100_000))
    flip(path)
    verify(boot, tmp_path, lambda _: monkeypatch.setattr(shares, "_mark", lambda _: (0, 0, 0)))
    assert names(tmp_path / "ckpt") == []


def test_small_files_are_verified_by_rank_0_alone(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SHARE_BYTES", 1 << 20)
    flip(save(tmp_path / "ckpt/step-10.pt", os.urandom(100_000)))
    verify(boot, tmp_path, lambda _: monkeypatch.setattr(shares, "verify_share", lambda _: os._exit(7)))
    assert names(tmp_path / "ckpt") == []


def test_a_rank_that_does_not_respond_is_not_awaited_forever(
    tmp_path: Path, boot: Booted, capfd: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "ckpt/step-10.pt", os.urandom(100_000))
    verify_first(boot.worker, HashStore(), 0.2)
    said = capfd.readouterr().err
    assert all(f"rank {rank} did not verify its share of the checkpoint in time" in said for rank in range(1, RANKS))
    assert names(tmp_path / "ckpt") == ["step-10.pt"]


def test_a_rank_gets_the_remaining_time(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    store, given_s = HashStore(), list[float]()
    lead = shares._Lead(store, 2, 7.0)
    lead._tell({1: [VerificationShare(0, records.FILE, str(tmp_path / "a"), (0, 0, 0), 0, 1)]})
    store.set("headway/shares/1/1", "null")
    monkeypatch.setattr(shares, "_verify_in_time", lambda _, seconds: given_s.append(seconds))
    shares._follow(dataclasses.replace(boot.worker, rank=1), store, timedelta(seconds=60))
    (left_s,) = given_s
    assert 0 < left_s <= 7


def test_a_share_that_was_not_read_in_time_leaves_the_state_unknown(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "ckpt/step-10.pt", os.urandom(100_000))
    store = HashStore()
    for rank in range(1, RANKS):
        store.set(f"headway/shares/{rank}/0/found", "null" if rank == 2 else "[]")
    (verdict,) = shares._Lead(store, RANKS, VERIFY_S).judged(saved.units(registry_of(boot.worker), None))
    assert verdict.state is saved.SavedState.UNKNOWN


def test_damage_in_one_share_outweighs_an_unreadable_other_share(tmp_path: Path, boot: Booted) -> None:
    save(tmp_path / "ckpt/step-10.pt", os.urandom(100_000))
    store = HashStore()
    for rank, state in enumerate(("unread", "damaged", "failed"), 1):
        store.set(f"headway/shares/{rank}/0/found", f'[[0, "{state}", "why"]]')
    (verdict,) = shares._Lead(store, RANKS, VERIFY_S).judged(saved.units(registry_of(boot.worker), None))
    assert verdict.state is saved.SavedState.DAMAGED


def test_an_unreadable_registry_stops_no_rank(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setattr(shares, "_has_registry", lambda _: (_ for _ in ()).throw(OSError(errno.ESTALE, "Stale file handle")))
    save(tmp_path / "ckpt/step-10.pt")
    verify(boot, tmp_path)
    assert names(tmp_path / "ckpt") == ["step-10.pt"]


@pytest.mark.parametrize("seen", [True, False], ids=["also seen by rank 0", "only its own"])
def test_a_node_verifies_its_own_saves_that_are_not_yet_verified(
    seen: bool, tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    save(tmp_path / "ckpt/step-10.pt")
    save(tmp_path / "ckpt/step-20.pt")
    if not seen:
        flip(tmp_path / "ckpt/step-20.pt")
        monkeypatch.setattr(saved, "units", lambda registry, host, units=saved.units: units(registry, host) if host else [])
    verify(boot, tmp_path, lambda _: monkeypatch.setattr(saved, "_put_in_place", None) if seen else None)
    assert names(tmp_path / "ckpt") == (["step-10.pt", "step-20.pt"] if seen else ["step-10.pt"])


lengths = st.lists(st.tuples(st.integers(1, BLOCKS), st.integers(0, 1 << 40)), max_size=20)


@given(lengths, st.integers(1, 50), st.sampled_from([0, 1 << 26]))
def test_shares_are_complete_and_of_similar_size(lengths: list[tuple[int, int]], ranks: int, least: int) -> None:
    pieces = [
        (VerificationShare(at, "file", str(at), (0, 0, 0), 0, blocks), length) for at, (blocks, length) in enumerate(lengths)
    ]
    given_out = shares.shares(pieces, ranks, least)
    blocks = [(piece.number, block) for share in given_out for piece in share for block in range(piece.first, piece.end)]
    assert blocks == [(at, block) for at, (count, _) in enumerate(lengths) for block in range(count)]
    one = {at: length / count for at, (count, length) in enumerate(lengths)}
    sizes = [sum((piece.end - piece.first) * one[piece.number] for piece in share) for share in given_out]
    even = max(sum(length for _, length in lengths) / ranks, least)
    assert max(sizes) <= even + 2 * max(one.values(), default=0) + BLOCKS * len(lengths)
