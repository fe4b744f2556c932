"""Tests which records may be appended and what they mean: tiers, replica groups, rollbacks, captures in memory, adopted chains."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.runner.checkpoint.chain import (
    Chain,
    ChainError,
    Claim,
    Commit,
    Committed,
    CommittedError,
    MovedError,
    Record,
    Retire,
    SupersededError,
    adoption,
    claims_without_commit,
    lineage,
    newest_base,
    newest_held_base,
    retired,
)
from headway.runner.checkpoint.stores import Store
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Base, CheckpointId
from tests.support.lockstep import Memory

RUN = "run-1"
DISK, REMOTE, BOTH = ("shared",), ("remote",), ("shared", "remote")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return PosixStore(tmp_path)


@pytest.fixture
def chain(store: Store) -> Chain:
    """Generation 1 is in charge."""
    chain = Chain(store, RUN)
    chain.claim(None, 0, "tester")
    return chain


def commit(chain: Chain, step: int, tiers: tuple[str, ...] = DISK, generation: int = 1, **group: int) -> Record:
    return chain.append(Commit(step, f"{step}.{generation}", tiers, **group), generation, 0, "rank 0")


def base(step: int, generation: int = 1, tier: str = "shared") -> Base:
    return Base(step, generation, f"{step}.{generation}", tier)


def retire(chain: Chain, step: int, tiers: tuple[str, ...], generation: int = 1) -> Record:
    return chain.append(Retire((CheckpointId(step, 1),), tiers), generation, 0, "rank 0")


def counting(chain: Chain) -> list[tuple[int, tuple[str, ...]]]:
    return [(committed.step, committed.tiers) for committed in lineage(chain.read())]


# --- tiers ------------------------------------------------------------------------------------------------------------


def test_a_later_commit_of_the_same_checkpoint_adds_its_tier(chain: Chain) -> None:
    commit(chain, 10, REMOTE)
    commit(chain, 20)
    commit(chain, 10, DISK)
    assert counting(chain) == [(20, DISK), (10, BOTH)]


def test_disk_is_preferred_and_remote_serves_what_disk_refused(chain: Chain) -> None:
    commit(chain, 10, DISK)
    commit(chain, 20, ("remote", "shared"))
    records = chain.read()
    refused = set[tuple[CheckpointId, str]]()
    found = []
    while (best := newest_base(records, refused)) is not None:
        found.append(best)
        refused.add((best.checkpoint, best.tier))
    assert found == [base(20), base(20, tier="remote"), base(10)]


def test_a_checkpoint_retired_from_disk_is_still_on_remote(chain: Chain) -> None:
    commit(chain, 10, BOTH)
    commit(chain, 20, BOTH)
    retire(chain, 10, DISK)
    assert counting(chain) == [(20, BOTH), (10, REMOTE)]
    assert retired(chain.read()) == {(CheckpointId(10, 1), "shared")}
    assert newest_base(chain.read(), at_most_step=19) == base(10, tier="remote")


def test_a_checkpoint_retired_everywhere_is_in_the_lineage_but_not_a_base(chain: Chain) -> None:
    commit(chain, 10, BOTH)
    commit(chain, 20)
    retire(chain, 10, BOTH)
    assert counting(chain) == [(20, DISK), (10, ())]
    assert newest_base(chain.read(), at_most_step=19) is None


def test_an_upload_that_ends_after_its_retirement_does_not_restore_it(chain: Chain) -> None:
    commit(chain, 10)
    commit(chain, 20)
    retire(chain, 10, BOTH)
    commit(chain, 10, REMOTE)
    assert counting(chain)[1] == (10, ())


def test_an_existing_commit_is_not_appended_again(chain: Chain) -> None:
    first = commit(chain, 10, BOTH)
    assert commit(chain, 10, BOTH) == commit(chain, 10, REMOTE) == first
    assert len(chain.read()) == 2


def test_a_step_is_not_committed_as_two_checkpoints(chain: Chain, store: Store) -> None:
    commit(chain, 10)
    with pytest.raises(CommittedError, match=r"step-000000010.g000001 is committed with manifest 10.1, not other"):
        Chain(store, RUN).append(Commit(10, "other"), 1, 0, "another writer")
    assert len(chain.read()) == 2


def test_the_next_generation_commits_a_rolled_back_step_again(chain: Chain) -> None:
    commit(chain, 10)
    commit(chain, 20)
    chain.claim(base(10), 0, "tester")
    commit(chain, 20, generation=2)
    assert [(c.step, c.generation) for c in lineage(chain.read())] == [(20, 2), (10, 1)]


def test_neither_the_newest_commit_nor_the_newest_claims_base_is_retired(chain: Chain) -> None:
    for step in (10, 20, 30):
        commit(chain, step)
    with pytest.raises(ValueError, match=r"step-000000030.g000001 is the newest commit and must be kept"):
        retire(chain, 30, DISK)
    chain.claim(base(20), 0, "tester")
    commit(chain, 40, generation=2)
    with pytest.raises(ValueError, match=r"step-000000020.g000001 is the base of the newest claim and must be kept"):
        retire(chain, 20, REMOTE, generation=2)
    retire(chain, 30, DISK, generation=2)  # rolled back
    retire(chain, 10, DISK, generation=2)
    assert counting(chain) == [(40, DISK), (20, DISK), (10, ())]


def test_a_claim_is_kept_if_its_base_was_retired_from_another_tier(chain: Chain, store: Store) -> None:
    for step in (10, 20):
        commit(chain, step, BOTH)
    claimer = Chain(store, RUN)
    claimer.read()
    retire(chain, 10, DISK)
    with pytest.raises(MovedError):
        claimer.claim(base(10), 0, "claimer")
    claimer = Chain(store, RUN)
    claimer.read()
    assert claimer.claim(base(10, tier="remote"), 0, "claimer").entry == Claim(base(10, tier="remote"))


# --- histories that roll back -----------------------------------------------------------------------------------------


def test_a_claim_from_scratch_is_refused_while_a_checkpoint_counts(chain: Chain) -> None:
    commit(chain, 10)
    with pytest.raises(ValueError, match=r"step-000000010.g000001 is valid: only a history that rolls back to step 0"):
        chain.claim(None, 0, "tester")
    assert len(chain.read()) == 2


def test_a_history_rolls_back_to_any_valid_checkpoint(chain: Chain) -> None:
    for step in (10, 20, 30):
        commit(chain, step)
    chosen = newest_base(chain.read(), at_most_step=25)
    assert chosen == base(20)
    chain.claim(chosen, 0, "tester", history_entries=1, rolled_back=True)
    assert counting(chain) == [(20, DISK), (10, DISK)]


def test_a_history_rolls_back_to_step_0_and_stays_there(chain: Chain) -> None:
    commit(chain, 10)
    chain.claim(None, 0, "tester", history_entries=1, rolled_back=True)
    assert newest_base(chain.read()) is None
    # No checkpoint counts, so no base has to be named.
    again = chain.claim(None, 0, "tester", history_entries=1)
    assert (again.generation, counting(chain)) == (3, [])


def test_no_claim_starts_from_a_rolled_back_checkpoint(chain: Chain) -> None:
    for step in (10, 20):
        commit(chain, step)
    chain.claim(base(10), 0, "tester")
    for lost in (base(20), base(20, tier="memory"), base(5, generation=7)):
        with pytest.raises(ValueError, match="is not valid"):
            chain.claim(lost, 0, "tester")


# --- replica groups ---------------------------------------------------------------------------------------------------


@pytest.fixture
def groups(store: Store) -> Chain:
    """Generation 1 has three replica groups."""
    chain = Chain(store, RUN)
    chain.claim(None, 0, "tester", groups=3)
    return chain


def test_a_restarted_group_commits_only_with_its_new_counter(groups: Chain) -> None:
    commit(groups, 10, group=1)
    assert groups.restart(1, 0, 1, 0, "coordinator").entry == Claim(None, (0, 1, 0))
    with pytest.raises(SupersededError, match="group 1 of generation 1 was restarted: its counter is 1, not 0"):
        commit(groups, 20, group=1)
    commit(groups, 20, group=1, counter=1)
    commit(groups, 30, group=2)
    assert counting(groups) == [(30, DISK), (20, DISK), (10, DISK)]


def test_a_step_is_one_checkpoint_whichever_group_commits_it(groups: Chain) -> None:
    first = commit(groups, 10, group=0)
    assert commit(groups, 10, group=2) == first
    with pytest.raises(CommittedError):
        groups.append(Commit(10, "other", group=2), 1, 0, "rank 16")


def test_restarting_a_group_rolls_nothing_back(groups: Chain) -> None:
    commit(groups, 10)
    groups.claim(base(10), 0, "coordinator", groups=3)
    commit(groups, 20, generation=2)
    groups.restart(0, 0, 2, 0, "coordinator")
    assert counting(groups) == [(20, DISK), (10, DISK)]


def test_a_group_restarts_once_from_each_counter(groups: Chain, store: Store) -> None:
    other = Chain(store, RUN)
    other.read()
    groups.restart(1, 0, 1, 0, "quick")
    with pytest.raises(SupersededError, match="quick restarted group 1 of generation 1 first"):
        other.restart(1, 0, 1, 0, "slow")


def test_two_groups_restart_concurrently(groups: Chain, store: Store) -> None:
    other = Chain(store, RUN)
    other.read()
    groups.restart(1, 0, 1, 0, "one")
    assert other.restart(2, 0, 1, 0, "other").entry == Claim(None, (0, 1, 1))


def test_no_group_of_a_superseded_generation_restarts(groups: Chain, store: Store) -> None:
    other = Chain(store, RUN)
    other.read()
    groups.claim(None, 0, "coordinator", groups=3)
    with pytest.raises(SupersededError, match="generation 1 was superseded by 2"):
        other.restart(1, 0, 1, 0, "zombie")


def test_a_claim_that_missed_a_restart_reads_the_chain_again(groups: Chain, store: Store) -> None:
    claimer = Chain(store, RUN)
    claimer.read()
    groups.restart(1, 0, 1, 0, "coordinator")
    with pytest.raises(MovedError):
        claimer.claim(None, 0, "claimer", groups=3)


def test_a_group_that_a_newer_generation_does_not_have_is_superseded(groups: Chain, store: Store) -> None:
    Chain(store, RUN).read()
    groups.claim(None, 0, "coordinator", groups=1)
    with pytest.raises(SupersededError, match="generation 1 was superseded by 2"):
        commit(groups, 10, group=2)


# --- records that are not visible yet ---------------------------------------------------------------------------------


class Hiding(PosixStore):
    """A client of NFS with cached listings: records of others become visible only after some more requests."""

    def __init__(self, directory: Path, hidden: str, times: int) -> None:
        super().__init__(directory)
        self.hidden, self.times, self.listed = hidden, times, True

    def read(self, name: str) -> bytes | None:
        if name == self.hidden and self.times > 0:
            self.times -= 1
            return None
        return super().read(name)

    def names(self) -> list[str]:
        return [name for name in super().names() if self.listed or name != self.hidden or self.times == 0]


def hiding(tmp_path: Path, seq: int, times: int, waited: list[float]) -> tuple[Chain, Hiding]:
    store = Hiding(tmp_path, f"{seq:09d}.json", times)
    return Chain(store, RUN, wait=waited.append), store


def test_a_writer_waits_until_its_claim_is_visible(chain: Chain, tmp_path: Path) -> None:
    """Otherwise it would take the previous claim for the newest and stop."""
    chain.claim(None, 0, "coordinator")
    waited: list[float] = []
    worker, store = hiding(tmp_path, 2, 3, waited)
    store.listed = False
    commit(worker, 10, generation=2)
    assert (len(waited), counting(chain)) == (3, [(10, DISK)])


def test_a_writer_whose_claim_never_appears_is_not_superseded(chain: Chain, tmp_path: Path) -> None:
    chain.claim(None, 0, "coordinator")
    worker, store = hiding(tmp_path, 2, 1000, [])
    store.listed = False
    with pytest.raises(OSError, match=f"{tmp_path} does not show the claim of generation 2"):
        commit(worker, 10, generation=2)


def test_a_listed_record_that_cannot_be_read_is_not_a_gap(chain: Chain, tmp_path: Path) -> None:
    commit(chain, 10)
    commit(chain, 20)
    reader, _ = hiding(tmp_path, 2, 3, [])
    assert reader.read() == chain.read()
    reader, _ = hiding(tmp_path, 2, 1000, [])
    with pytest.raises(OSError, match=f"{tmp_path}/000000002.json exists and cannot be read"):
        reader.read()


def test_a_name_that_is_taken_but_not_yet_visible_is_awaited(chain: Chain, tmp_path: Path) -> None:
    """The other writer's record is read; this one follows it."""
    waited: list[float] = []
    writer, _ = hiding(tmp_path, 2, 3, waited)
    writer.read()
    commit(chain, 10)
    commit(writer, 20)
    assert (len(waited), counting(chain)) == (1, [(20, DISK), (10, DISK)])
    writer, _ = hiding(tmp_path, 4, 1000, [])
    writer.read()
    commit(chain, 30)
    with pytest.raises(OSError, match=f"{tmp_path}/000000004.json exists and cannot be read"):
        commit(writer, 40)


# --- records that break a rule ----------------------------------------------------------------------------------------

CLAIM = Claim(None)
FORBIDDEN = [
    ([(1, Commit(10, "a"))], "is of generation 1, and nobody was in charge"),
    ([(1, CLAIM), (2, Commit(10, "a"))], "is of generation 2, and 1 was in charge"),
    ([(2, CLAIM), (1, CLAIM)], "claims generation 1 after 2"),
    ([(1, CLAIM), (1, CLAIM)], "claims generation 1 again without restarting a replica group"),
    ([(1, CLAIM), (1, Claim(None, (2,)))], "claims generation 1 again without restarting a replica group"),
    ([(1, CLAIM), (1, Claim(None, (0, 1)))], "claims generation 1 again without restarting a replica group"),
    ([(1, Claim(Base(10, 1, "a")))], "starts generation 1 from a checkpoint of generation 1"),
    ([(1, CLAIM), (1, Commit(10, "a")), (1, Commit(10, "b"))], "commits step 10 again, as another checkpoint"),
    ([(1, CLAIM), (1, Commit(10, "a", counter=1))], "is of group 0 as counted 1, which is not its counter"),
    ([(1, CLAIM), (1, Commit(10, "a", group=1))], "is not a chain record: tuple index out of range"),
    ([(0, CLAIM)], "claims generation 0 after 0"),
]


class Unruly(Chain):
    """Appends any record."""

    def write(self, generation: int, entry: Claim | Commit) -> None:
        record = self._next(entry, generation, 0, "unruly")
        self._store.create(f"{record.seq:09d}.json", record.to_bytes())
        self._records.append(record)
        self._last = record.to_bytes()


@pytest.mark.parametrize(("entries", "message"), FORBIDDEN)
def test_a_record_that_breaks_a_rule_stops_every_reader(
    entries: list[tuple[int, Claim | Commit]], message: str, store: Store
) -> None:
    unruly = Unruly(store, RUN)
    for generation, entry in entries:
        unruly.write(generation, entry)
    with pytest.raises(ChainError) as refused:
        Chain(store, RUN).read()
    assert str(refused.value) == f"{store}/{len(entries):09d}.json {message}"


# --- captures in memory -----------------------------------------------------------------------------------------------


def holding(*captures: tuple[int, int]) -> dict[CheckpointId, str]:
    return {CheckpointId(step, generation): f"m{step}.{generation}" for step, generation in captures}


def test_the_newest_capture_of_the_newest_generation_is_a_base(chain: Chain) -> None:
    commit(chain, 10)
    found = newest_held_base(chain.read(), holding((10, 1), (14, 1), (12, 1)))
    assert found == Base(14, 1, "m14.1", "memory")


def test_captures_of_earlier_generations_count_up_to_the_next_ones_base(chain: Chain) -> None:
    commit(chain, 10)
    claimed = newest_held_base(chain.read(), holding((14, 1)))
    chain.claim(claimed, 0, "tester")  # and it dies before its first capture
    assert newest_held_base(chain.read(), holding((12, 1), (14, 1), (16, 1))) == claimed
    assert newest_base(chain.read()) == base(10)
    chain.claim(newest_base(chain.read()), 0, "tester")  # the memory is lost
    assert newest_held_base(chain.read(), holding((12, 1), (14, 1), (16, 1))) is None
    assert newest_held_base(chain.read(), holding((9, 1), (14, 1), (15, 2))) == Base(9, 1, "m9.1", "memory")


def test_captures_that_were_rolled_back_refused_or_unclaimed_do_not_count(chain: Chain) -> None:
    commit(chain, 10)
    chain.claim(base(10), 0, "tester")
    records = chain.read()
    assert newest_held_base(records, holding((14, 1), (20, 3))) is None
    assert newest_held_base(records, {}) is None
    assert newest_held_base([], holding((14, 1))) is None
    held = holding((14, 2), (12, 2))
    assert newest_held_base(records, held, {(CheckpointId(14, 2), "memory")}) == Base(12, 2, "m12.2", "memory")


def test_a_capture_used_as_a_base_counts_as_progress_once(chain: Chain) -> None:
    """Generation 2 starts from a capture of generation 1; 3 and 4 start from the same one, because 2 and 3 captured nothing."""
    counts = [claims_without_commit(chain.read())]
    for _ in range(3):
        chain.claim(newest_held_base(chain.read(), holding((14, 1))), 0, "tester")
        counts.append(claims_without_commit(chain.read()))
    assert counts == [1, 1, 2, 3]


# --- adopted chains ---------------------------------------------------------------------------------------------------


def found_on_disk(*checkpoints: tuple[int, int]) -> list[Committed]:
    return [Committed(step, generation, f"{step}.{generation}", DISK) for step, generation in checkpoints]


def adopted(tmp_path: Path, entries: list[tuple[int, Claim | Commit]]) -> Chain:
    (tmp_path / "anew").mkdir()
    chain = Chain(PosixStore(tmp_path / "anew"), RUN)
    chain.begin(entries, 3, "tester")
    return Chain(PosixStore(tmp_path / "anew"), RUN)


def test_a_lost_chain_is_rebuilt_from_the_checkpoints_that_verify(tmp_path: Path) -> None:
    chain = adopted(tmp_path, adoption([], found_on_disk((10, 1), (20, 1), (30, 3), (40, 3))))
    assert [(c.step, c.generation) for c in lineage(chain.read())] == [(40, 3), (30, 3), (20, 1), (10, 1)]
    assert newest_base(chain.read()) == base(40, 3)
    assert chain.claim(base(40, 3), 4, "coordinator").generation == 5


def test_a_step_rewritten_by_a_later_generation_was_rolled_back(tmp_path: Path) -> None:
    chain = adopted(tmp_path, adoption([], found_on_disk((10, 1), (20, 1), (30, 1), (25, 2))))
    assert [(c.step, c.generation) for c in lineage(chain.read())] == [(25, 2), (20, 1), (10, 1)]


def test_readable_records_of_the_old_chain_take_precedence(chain: Chain, tmp_path: Path) -> None:
    for step in (10, 20, 30):
        commit(chain, step)
    retire(chain, 10, DISK)
    chain.claim(base(20), 0, "tester", history_entries=2)
    commit(chain, 40, generation=2)
    entries = adoption(chain.read(), found_on_disk((10, 1), (20, 1), (30, 1), (40, 2), (50, 4)), newest_generation=6)
    assert [generation for generation, _ in entries] == [1, 1, 2, 2, 4, 4, 7]
    assert entries[-1] == (7, Claim(base(50, 4), history_entries=2))
    again = adopted(tmp_path, entries)
    assert [(c.step, c.generation) for c in lineage(again.read())] == [(50, 4), (40, 2), (20, 1)]


def test_without_any_checkpoint_an_adopted_chain_starts_from_scratch(tmp_path: Path) -> None:
    chain = adopted(tmp_path, adoption([], [], newest_generation=5))
    assert [(r.generation, r.entry) for r in chain.read()] == [(6, Claim(None))]


def test_no_chain_is_rebuilt_where_one_exists(chain: Chain, store: Store) -> None:
    with pytest.raises(ChainError, match="already holds a chain"):
        Chain(store, RUN).begin(adoption([], found_on_disk((10, 1))), 3, "tester")


@given(st.sets(st.tuples(st.integers(1, 30), st.integers(1, 6)), max_size=12), st.integers(0, 8))
def test_every_adopted_chain_obeys_the_rules(found: set[tuple[int, int]], newest: int) -> None:
    """Its newest generation is the highest, its last checkpoint counts, and steps grow along its lineage."""
    store = Memory()
    Chain(store, RUN).begin(adoption([], found_on_disk(*found), newest), 0, "tester")
    chain = Chain(store, RUN)
    counting = lineage(chain.read())
    assert chain.read()[-1].generation == max([newest, *(generation for _, generation in found)]) + 1
    assert [c.step for c in counting] == sorted({c.step for c in counting}, reverse=True)
    last = max(found, key=lambda at: (at[1], at[0]), default=None)
    assert [(c.step, c.generation) for c in counting[:1]] == ([last] if last else [])
