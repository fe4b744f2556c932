"""Tests the chain: every record exists once and in order, one generation is in charge at a time, and no returned commit is lost."""

import errno
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from headway.runner.checkpoint.chain import (
    Chain,
    ChainError,
    Claim,
    Commit,
    Committed,
    End,
    MovedError,
    Record,
    Retire,
    SupersededError,
    claims_without_commit,
    lineage,
    newest_base,
    newest_claim,
)
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Base, CheckpointId

RUN = "run-1"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "chain"
    path.mkdir()
    return path


def chain_of(directory: Path) -> Chain:
    return Chain(PosixStore(directory), RUN, wait=lambda _: None)


def opened(directory: Path) -> Chain:
    chain = chain_of(directory)
    chain.read()
    return chain


def claim(chain: Chain, base: Base | None = None) -> int:
    chain.read()
    return chain.claim(base, attempt=0, holder="tester", rolled_back=base is None).generation


def commit(chain: Chain, step: int, generation: int) -> Base:
    digest = f"{step}.{generation}"
    chain.append(Commit(step, digest), generation, attempt=0, holder="tester")
    return Base(step, generation, digest)


def ids(committed: list[Committed]) -> list[tuple[int, int]]:
    return [(each.step, each.generation) for each in committed]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# --- appending --------------------------------------------------------------------------------------------------------


def test_records_are_numbered_without_gaps_and_hold_the_previous_hash(directory: Path) -> None:
    chain = opened(directory)
    generation = claim(chain)
    commit(chain, 10, generation)
    commit(chain, 20, generation)
    chain.append(Retire((CheckpointId(10, 1),)), generation, 0, "tester")
    chain.append(End("completed"), generation, 0, "tester")
    assert files(directory) == [f"{n:09d}.json" for n in (1, 2, 3, 4, 5)]
    previous = b""
    for seq, path in enumerate(sorted(directory.iterdir()), 1):
        data = json.loads(path.read_bytes())
        assert (data["seq"], data["run"], data["prev_xxh3_128"]) == (seq, RUN, xxhash.xxh3_128_hexdigest(previous))
        previous = path.read_bytes()


def test_appended_records_are_read_back_equal(directory: Path) -> None:
    chain = opened(directory)
    base = Base(7, 1, "cd", tier="memory")
    written = [
        chain.claim(None, 3, "one", groups=2, history_entries=1),
        chain.append(Commit(4, "ab", ("shared", "remote")), 1, 3, "rank 0"),
    ]
    written += [chain.append(Commit(6, "ef", group=1), 1, 3, "rank 8"), chain.restart(1, 0, 1, 3, "one")]
    written += [chain.append(Retire((CheckpointId(4, 1),), ("remote",)), 1, 3, "rank 0")]
    written += [chain.claim(base, 4, "two", history_entries=2, rolled_back=True), chain.append(End("stop"), 2, 4, "two")]
    assert chain_of(directory).read() == chain.read() == written
    assert [record.kind for record in written] == ["claim", "commit", "commit", "claim", "retire", "claim", "end"]
    assert written[3].entry == Claim(None, (0, 1), 1)
    assert written[5].entry == Claim(base, (0,), 2, rolled_back=True)


def test_nothing_is_appended_before_the_first_claim(directory: Path) -> None:
    with pytest.raises(OSError, match="does not show the claim of generation 1"):
        commit(opened(directory), 10, 1)
    assert files(directory) == []


def test_a_superseded_generation_cannot_append(directory: Path) -> None:
    zombie, other = opened(directory), opened(directory)
    claim(zombie)
    base = commit(zombie, 10, 1)
    claim(other, base)
    before = files(directory)
    for entry in (Commit(20, "x"), Retire((base.checkpoint,)), End("completed")):
        with pytest.raises(SupersededError, match="generation 1 was superseded by 2"):
            zombie.append(entry, 1, 0, "zombie")
    assert files(directory) == before


def test_a_view_of_the_chain_claims_only_once(directory: Path) -> None:
    slow, quick = opened(directory), opened(directory)
    quick.claim(None, 0, "quick")
    with pytest.raises(SupersededError, match="quick claimed generation 1 first"):
        slow.claim(None, 0, "slow")
    assert files(directory) == ["000000001.json"]


def test_a_claim_does_not_roll_back_commits_made_after_its_base_is_chosen(directory: Path) -> None:
    worker, claimer = opened(directory), opened(directory)
    claim(worker)
    base = newest_base(claimer.read())
    late = commit(worker, 10, 1)
    with pytest.raises(MovedError, match="generation 2 was to start from the state at record 1"):
        claimer.claim(base, 0, "claimer")
    assert claimer.claim(newest_base(claimer.read()), 0, "claimer").entry == Claim(late)


def test_a_claim_from_a_base_retired_meanwhile_is_refused(directory: Path) -> None:
    worker, claimer = opened(directory), opened(directory)
    claim(worker)
    old = commit(worker, 10, 1)
    commit(worker, 20, 1)
    claimer.read()
    worker.append(Retire((old.checkpoint,)), 1, 0, "worker")
    with pytest.raises(MovedError):
        claimer.claim(old, 0, "claimer")


def test_a_claim_is_kept_although_another_checkpoint_was_retired_meanwhile(directory: Path) -> None:
    worker, claimer = opened(directory), opened(directory)
    claim(worker)
    old, new = commit(worker, 10, 1), commit(worker, 20, 1)
    claimer.read()
    worker.append(Retire((old.checkpoint,)), 1, 0, "worker")
    assert claimer.claim(new, 0, "claimer").seq == 5


# --- many writers -----------------------------------------------------------------------------------------------------


def racing(writers: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` to `work(writers - 1)` in threads that start together, and raise their errors here."""
    gate, errors = threading.Barrier(writers), list[BaseException]()

    def run(number: int) -> None:
        try:
            gate.wait(30)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]


def test_racing_threads_append_every_record_once(directory: Path) -> None:
    claim(opened(directory))

    def work(writer: int) -> None:
        chain = opened(directory)
        for n in range(25):
            commit(chain, writer * 100 + n, 1)

    racing(4, work)
    records = chain_of(directory).read()
    assert [record.seq for record in records] == list(range(1, 102))
    steps = [record.entry.step for record in records if isinstance(record.entry, Commit)]
    assert sorted(steps) == sorted(writer * 100 + n for writer in range(4) for n in range(25))
    assert len(files(directory)) == 101  # no temporary file remains


def test_racing_processes_append_every_record_once(directory: Path) -> None:
    """Separate processes share nothing but the directory."""
    claim(opened(directory))
    children = []
    for writer in range(3):
        if (pid := os.fork()) == 0:
            try:
                chain = opened(directory)
                for n in range(20):
                    commit(chain, writer * 100 + n, 1)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    steps = [record.entry.step for record in chain_of(directory).read() if isinstance(record.entry, Commit)]
    assert sorted(steps) == sorted(writer * 100 + n for writer in range(3) for n in range(20))


def test_one_of_racing_claims_wins_for_each_view_of_the_chain(directory: Path) -> None:
    won: list[int] = []

    def work(number: int) -> None:
        chain = chain_of(directory)
        for _ in range(10):
            chain.read()
            try:
                won.append(chain.claim(None, number, f"writer {number}").generation)
            except SupersededError:
                continue

    racing(4, work)
    generations = [record.generation for record in chain_of(directory).read()]
    assert generations == sorted(won) == list(range(1, len(won) + 1))


@pytest.mark.slow
def test_a_concurrent_reader_sees_a_prefix_without_gaps(directory: Path) -> None:
    done = threading.Event()
    claim(opened(directory))

    def work(number: int) -> None:
        if number == 0:
            chain = opened(directory)
            for step in range(150):
                commit(chain, step, 1)
            done.set()
            return
        while not done.is_set():
            records = chain_of(directory).read()
            assert [record.seq for record in records] == list(range(1, len(records) + 1))

    racing(3, work)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def long_chain(directory: Path) -> Path:
    chain = opened(directory)
    claim(chain)
    for step in (10, 20, 30):
        commit(chain, step, 1)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(ChainError) as refused:
        chain_of(directory).read()
    return str(refused.value)


def test_a_gap_is_named(long_chain: Path) -> None:
    (long_chain / "000000002.json").unlink()
    assert refusal(long_chain) == f"{long_chain}/000000002.json is missing, but 000000004.json exists"


def test_a_chain_without_its_first_record_is_named(long_chain: Path) -> None:
    (long_chain / "000000001.json").unlink()
    assert f"{long_chain}/000000001.json is missing" in refusal(long_chain)


@pytest.mark.slow
def test_every_changed_byte_is_detected_by_the_next_record_at_the_latest(long_chain: Path) -> None:
    for path in sorted(long_chain.iterdir())[:-1]:
        raw, following = path.read_bytes(), f"{int(path.stem) + 1:09d}.json"
        for at in range(len(raw)):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
            message = refusal(long_chain)
            assert path.name in message or following in message
        path.write_bytes(raw)
    assert len(chain_of(long_chain).read()) == 4


def test_a_record_of_another_run_is_named(long_chain: Path, tmp_path: Path) -> None:
    message = f"{long_chain}/000000001.json is record 1 of run 'run-1'; expected 1 of 'run-2'"
    with pytest.raises(ChainError) as refused:
        Chain(PosixStore(long_chain), "run-2").read()
    assert str(refused.value) == message


def test_swapped_records_are_named(long_chain: Path) -> None:
    first, second = long_chain / "000000002.json", long_chain / "000000003.json"
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    assert refusal(long_chain) == f"{first} is record 3 of run 'run-1'; expected 2 of 'run-1'"


def test_a_record_with_another_predecessor_is_named(long_chain: Path) -> None:
    last = chain_of(long_chain).read()[-1]
    (long_chain / "000000005.json").write_bytes(replace(last, seq=5, prev_xxh3_128="0" * 32).to_bytes())
    assert "000000005.json does not follow the previous record" in refusal(long_chain)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b"[]", b"1", b"null", b"\xff", b'{"schema": "headway.chain/1"}', b'{"schema": "headway.chain/2"}'],
)
def test_a_file_that_is_not_a_record_is_named(raw: bytes, long_chain: Path) -> None:
    (long_chain / "000000005.json").write_bytes(raw)
    assert f"{long_chain}/000000005.json is not a chain record" in refusal(long_chain)


@pytest.mark.parametrize("damage", [{"kind": "vote"}, {"tiers": None}, {"step": None, "kind": "claim"}, {"kind": "retire"}])
def test_a_record_with_an_unknown_shape_is_named(damage: dict[str, object], long_chain: Path) -> None:
    path = long_chain / "000000004.json"
    path.write_bytes(json.dumps({**json.loads(path.read_bytes()), **damage}).encode())
    assert f"{path} is not a chain record" in refusal(long_chain)


def test_appending_to_a_damaged_chain_is_refused(long_chain: Path) -> None:
    (long_chain / "000000002.json").unlink()
    before = files(long_chain)
    with pytest.raises(ChainError):
        chain_of(long_chain).append(Commit(40, "x"), 1, 0, "tester")
    assert files(long_chain) == before


def test_files_not_named_like_records_are_ignored(long_chain: Path) -> None:
    for name in (".tmp-000000005.json.abc", "000000005.json.tmp", "0000000005.json", "5.json", "README"):
        (long_chain / name).write_text("x")
    assert len(chain_of(long_chain).read()) == 4


# --- crashes and unknown outcomes -------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process dies here."""


def test_a_crash_before_the_link_leaves_no_record(long_chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise Crash

    monkeypatch.setattr(os, "link", crash)
    # A dead process removes nothing.
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(Crash):
        commit(opened(long_chain), 40, 1)
    monkeypatch.undo()
    leftover = [name for name in files(long_chain) if name.startswith(".tmp-")]
    assert len(leftover) == 1
    assert [record.seq for record in chain_of(long_chain).read()] == [1, 2, 3, 4]
    commit(opened(long_chain), 40, 1)
    assert ids(lineage(chain_of(long_chain).read()))[0] == (40, 1)


def test_an_error_before_the_link_leaves_the_chain_unchanged(long_chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    chain, before = opened(long_chain), files(long_chain)
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="no space"):
        commit(chain, 40, 1)
    monkeypatch.undo()
    assert files(long_chain) == before
    commit(chain, 40, 1)


@pytest.mark.parametrize("error", [FileExistsError(errno.EEXIST, "exists"), OSError(errno.EIO, "input/output error")])
def test_a_link_that_succeeded_despite_an_error_counts_as_appended(
    error: OSError, long_chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        raise error

    chain = opened(long_chain)
    monkeypatch.setattr(os, "link", link)
    commit(chain, 40, 1)
    claim(chain)
    monkeypatch.undo()
    assert [record.kind for record in chain_of(long_chain).read()[4:]] == ["commit", "claim"]


def test_an_unknown_outcome_is_a_failure_if_another_writer_was_first(long_chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, real, failed = opened(long_chain), os.link, list[Path]()

    def link(source: Path, target: Path) -> None:
        if not failed:
            failed.append(target)
            monkeypatch.setattr(os, "link", real)
            commit(other, 40, 1)
            raise OSError(errno.EIO, "input/output error")
        real(source, target)

    chain = opened(long_chain)
    monkeypatch.setattr(os, "link", link)
    commit(chain, 50, 1)
    assert failed == [long_chain / "000000005.json"]
    assert ids(lineage(chain_of(long_chain).read()))[:2] == [(50, 1), (40, 1)]


# --- lineage ----------------------------------------------------------------------------------------------------------


def test_the_lineage_follows_base_pointers(directory: Path) -> None:
    chain = opened(directory)
    claim(chain)
    first = [commit(chain, step, 1) for step in (10, 20, 30)]
    claim(chain, first[1])
    second = [commit(chain, step, 2) for step in (30, 40)]
    claim(chain, second[1])
    commit(chain, 50, 3)
    assert ids(lineage(chain.read())) == [(50, 3), (40, 2), (30, 2), (20, 1), (10, 1)]


def test_rolled_back_checkpoints_stay_rolled_back(directory: Path) -> None:
    chain = opened(directory)
    claim(chain)
    first = [commit(chain, step, 1) for step in (10, 20, 30)]
    claim(chain, first[0])
    claim(chain, newest_base(chain.read()))
    assert ids(lineage(chain.read())) == [(10, 1)]
    assert newest_base(chain.read(), {(first[0].checkpoint, "shared")}) is None


def test_a_base_skipped_by_two_claims_in_a_row_does_not_return(directory: Path) -> None:
    chain = opened(directory)
    claim(chain)
    old = commit(chain, 10, 1)
    claim(chain, old)
    commit(chain, 20, 2)
    claim(chain, old)  # 20 of generation 2 did not verify
    commit(chain, 15, 3)
    assert ids(lineage(chain.read())) == [(15, 3), (10, 1)]


def test_a_claim_from_scratch_has_an_empty_lineage(directory: Path) -> None:
    chain = opened(directory)
    claim(chain)
    commit(chain, 10, 1)
    claim(chain, None)
    assert lineage(chain.read()) == []


def test_an_empty_chain_has_no_lineage(directory: Path) -> None:
    records = opened(directory).read()
    assert (lineage(records), newest_base(records), newest_claim(records), claims_without_commit(records)) == ([], None, None, 0)


def test_retired_and_refused_checkpoints_are_excluded(directory: Path) -> None:
    chain = opened(directory)
    claim(chain)
    bases = [commit(chain, step, 1) for step in (10, 20, 30, 40)]
    chain.append(Retire((bases[0].checkpoint, bases[2].checkpoint)), 1, 0, "tester")
    records = chain.read()
    assert newest_base(records) == bases[3]
    assert newest_base(records, {(bases[3].checkpoint, "shared")}) == bases[1]
    assert newest_base(records, {(bases[3].checkpoint, "shared"), (bases[1].checkpoint, "shared")}) is None


def test_claims_without_a_commit_are_counted_from_the_newest(directory: Path) -> None:
    chain, counts = opened(directory), []
    for saves in (False, False, True, False, False):
        generation = claim(chain)
        counts.append(claims_without_commit(chain.read()))
        if saves:
            commit(chain, 10, generation)
            counts.append(claims_without_commit(chain.read()))
    assert counts == [1, 2, 3, 0, 1, 2]


def test_a_record_is_one_line_of_json_with_its_schema(directory: Path) -> None:
    record: Record = opened(directory).claim(None, 2, "somebody")
    raw = (directory / "000000001.json").read_bytes()
    assert raw == record.to_bytes()
    assert raw.count(b"\n") == 1
    found = json.loads(raw)
    assert (found["schema"], found["kind"], found["generation"], found["base"]) == ("headway.chain/2", "claim", 1, None)
