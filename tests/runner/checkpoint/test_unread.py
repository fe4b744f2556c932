"""Tests that unreadable data does not count as damaged: it is retried, then named, and nothing is concluded from it."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway import checkpoint
from headway.runner.checkpoint.authority import UnreadError, of_directory, refuse_unread
from headway.runner.checkpoint.chain import Chain, Claim, lineage
from headway.runner.checkpoint.format import RefusedError, chunk_hash
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.ranks import PeerError, Ranks
from headway.runner.checkpoint.sources import DirectorySource, PatientSource
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Base, Mesh
from tests.support.layouts import on_all_ranks

ERRORS = (errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT, errno.ENOTCONN, errno.ELOOP)


# --- a custom loop ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with steps 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    with checkpoint.open(folder, tiers={"shared": 10}) as run:
        run.load({"a": torch.zeros(2)})
        for step in (10, 20, 30):
            run.save(step, {"a": torch.full((2,), float(step))})
    return folder


@pytest.fixture
def saved(saved_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, whose reader has no patience."""
    monkeypatch.setenv("HEADWAY_READ_PATIENCE_S", "0")
    return Path(shutil.copytree(saved_once, tmp_path / "run"))


def checkpoints(run: Path) -> Path:
    return run / "shared/checkpoints"


def begun(run: Path) -> int:
    with checkpoint.open(run, tiers={"shared": 10}) as session:
        return session.load({"a": torch.zeros(2)})


def counting(run: Path) -> list[int]:
    return [committed.step for committed in lineage(Chain(PosixStore(run / "shared/chain"), run.name).read())]


def loops(folder: Path) -> Callable[[], None]:
    """Replace each checkpoint by a symlink to itself; return a function that restores them."""
    names = [path.name for path in folder.iterdir()]
    for name in names:
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(name)

    def back() -> None:
        for name in names:
            (folder / name).unlink()
            (folder.parent / name).rename(folder / name)

    return back


def unmounted(folder: Path) -> Callable[[], None]:
    """As if the file system were not mounted."""
    folder.rename(folder.with_name("elsewhere"))

    def back() -> None:
        folder.with_name("elsewhere").replace(folder)

    return back


def emptied(folder: Path) -> Callable[[], None]:
    """Like an empty mount point."""
    unmounted(folder)
    folder.mkdir()

    def back() -> None:
        folder.rmdir()
        folder.with_name("elsewhere").rename(folder)

    return back


@pytest.mark.slow
@pytest.mark.parametrize(("trouble", "expected"), [(loops, errno.ELOOP), (unmounted, errno.ENOENT), (emptied, errno.ENOENT)])
def test_a_briefly_unavailable_store_costs_a_start_and_no_step(
    saved: Path, trouble: Callable[[Path], Callable[[], None]], expected: int
) -> None:
    back = trouble(checkpoints(saved))
    run = checkpoint.open(saved, tiers={"shared": 10})
    with pytest.raises(checkpoint.UnreadError) as caught:
        run.load({"a": torch.zeros(2)})
    assert caught.value.errno == expected
    assert Path(caught.value.filename).name == "manifest.json"
    # It would take the place of the unreadable one.
    with pytest.raises(checkpoint.UnreadError):
        run.save(40, {"a": torch.zeros(2)}, now=True)
    run.close()
    back()
    assert counting(saved) == [30, 20, 10]
    assert begun(saved) == 30
    assert {path.name for path in checkpoints(saved).iterdir()} == {f"step-{step:09d}.g000001" for step in (10, 20, 30)}


@pytest.mark.slow
@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize("called", ["read", "read_into"])
def test_no_file_error_counts_as_damage(saved: Path, number: int, called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(DirectorySource, called, fails)
        with pytest.raises(checkpoint.UnreadError, match=os.strerror(number)):
            begun(saved)
    assert begun(saved) == 30


@pytest.mark.slow
def test_a_load_that_could_not_read_can_be_retried(saved: Path) -> None:
    back = loops(checkpoints(saved))
    with checkpoint.open(saved, tiers={"shared": 10}) as run:
        with pytest.raises(checkpoint.UnreadError):
            run.load({"a": torch.zeros(2)})
        back()
        state = {"a": torch.zeros(2)}
        assert run.load(state) == 30
        assert run.save(40, state)
    assert counting(saved) == [40, 30, 20, 10]


@pytest.mark.slow
def test_a_missing_file_among_present_ones_is_damage(saved: Path) -> None:
    (checkpoints(saved) / "step-000000030.g000001/manifest.json").unlink()
    assert begun(saved) == 20
    shutil.rmtree(checkpoints(saved) / "step-000000020.g000001")
    assert begun(saved) == 10


@pytest.mark.slow
def test_a_claim_after_a_read_error_refuses_nothing(saved: Path) -> None:
    back = loops(checkpoints(saved))
    for _ in range(3):
        with pytest.raises(checkpoint.UnreadError):
            begun(saved)
    back()
    records = Chain(PosixStore(saved / "shared/chain"), saved.name).read()
    bases = [record.entry.base for record in records if isinstance(record.entry, Claim)]
    assert [base and base.step for base in bases] == [None, 30, 30, 30]


# --- several ranks ----------------------------------------------------------------------------------------------------

BASE = Base(20, 1, "ab")


@pytest.mark.slow
def test_if_one_rank_cannot_read_all_ranks_name_the_file(tmp_path: Path) -> None:
    place = CheckpointLocation(tmp_path, "run", 1, 0, 1, Mesh(dp_shard=3))
    errors: list[Exception] = [
        RefusedError(BASE.checkpoint, "data-0-0.bin", "changed"),
        PeerError("rank 2 failed"),
        RefusedError(BASE.checkpoint, "data-2-0.bin", "Input/output error", unread=errno.EIO),
    ]
    found = on_all_ranks(3, lambda ranks: refuse_unread(place, BASE, errors[ranks.rank], ranks))
    for error in found:
        assert isinstance(error, UnreadError)
        assert (error.errno, error.filename) == (errno.EIO, str(tmp_path / "step-000000020.g000001/data-2-0.bin"))


def test_damage_alone_is_not_a_read_error(tmp_path: Path) -> None:
    error = RefusedError(BASE.checkpoint, "data-0-0.bin", "changed")
    refuse_unread(CheckpointLocation(tmp_path, "run", 1, 0, 1, Mesh()), BASE, error, Ranks())


@pytest.mark.slow
def test_ranks_that_see_another_run_in_the_directory_claim_nothing(tmp_path: Path) -> None:
    """As if the file system were mounted on the first node only."""
    work = [tmp_path / str(rank) for rank in range(2)]
    found = on_all_ranks(2, lambda ranks: of_directory(work[ranks.rank], ranks, None))
    for error in found:
        assert isinstance(error, UnreadError)
    assert not list((tmp_path / "0/shared/chain").iterdir())


# --- patience ---------------------------------------------------------------------------------------------------------


class Flaky:
    """A source that fails this many times before it answers. Time passes only in `wait`."""

    def __init__(self, failures: int, number: int = errno.EIO) -> None:
        self.failures, self.number, self.asked, self.waits = failures, number, 0, list[float]()

    def read(self, name: str) -> bytes:
        self.asked += 1
        if self.asked <= self.failures:
            raise OSError(self.number, os.strerror(self.number), name)
        return b"all"

    def read_into(self, name: str, offset: int, out: memoryview, seed: int = 0) -> str:
        out[:] = self.read(name)[offset:]
        return chunk_hash(out, seed)

    def is_gone(self, _: str, error: OSError) -> bool:
        return error.errno == errno.ENOENT

    def __str__(self) -> str:
        return "flaky"


def test_a_transient_error_is_awaited_and_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    flaky = Flaky(3)
    source = PatientSource(flaky, 20.0, flaky.waits.append)
    assert source.read("a") == b"all"
    assert flaky.waits == [0.25, 0.5, 1.0]
    assert capsys.readouterr().err == "flaky/a: Input/output error; tried again for 20 s\n"


def test_a_persistent_error_is_awaited_once_and_not_for_each_file() -> None:
    flaky = Flaky(10**6)
    source = PatientSource(flaky, 20.0, flaky.waits.append)
    for name in ("a", "b", "c"):
        with pytest.raises(OSError, match="Input/output"):
            source.read_into(name, 0, memoryview(bytearray(3)))
    assert sum(flaky.waits) == 20.0
    assert flaky.asked == len(flaky.waits) + 3


def test_a_successful_read_restores_the_patience() -> None:
    flaky = Flaky(3)
    source = PatientSource(flaky, 2.0, flaky.waits.append)
    source.read("a")
    flaky.asked = 0
    assert source.read("a") == b"all"


@pytest.mark.slow
def test_a_missing_file_is_not_awaited() -> None:
    flaky = Flaky(9, errno.ENOENT)
    with pytest.raises(FileNotFoundError):
        PatientSource(flaky, 20.0, flaky.waits.append).read("a")
    assert flaky.waits == []
