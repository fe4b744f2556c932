"""Tests retention: needed checkpoints are kept, nothing is deleted before the chain records it, and failed deletions are retried."""

import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.checkpoint.bucket import ObjectBucket
from headway.runner.checkpoint.chain import (
    Chain,
    Claim,
    Commit,
    Committed,
    Entry,
    Record,
    Retire,
    SupersededError,
    lineage,
    newest_claim,
    retired,
)
from headway.runner.checkpoint.remote import RemoteRoot
from headway.runner.checkpoint.retention import DirectoryRoot, Retention, RetentionRoot, expired, retire
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Base, CheckpointId

RUN = "run-1"
TIERS = st.sampled_from([("shared",), ("remote",), ("shared", "remote"), ("shared",)])


# --- candidates for deletion ------------------------------------------------------------------------------------------


@dataclass
class History:
    """Records as a run would have written them, without a store."""

    records: list[Record] = field(default_factory=list)
    step: int = 0

    def add(self, entry: Entry) -> None:
        generation = self.generation + isinstance(entry, Claim)
        self.records.append(Record(RUN, len(self.records) + 1, "", generation, 0, "tester", "", 0.0, entry))

    @property
    def generation(self) -> int:
        newest = newest_claim(self.records)
        return newest.generation if newest else 0

    def claim(self, base: Base | None) -> None:
        self.add(Claim(base))
        self.step = base.step if base else 0

    def commit(self, steps: int, tiers: tuple[str, ...]) -> None:
        self.step += steps
        self.add(Commit(self.step, f"hash of {self.step}.g{self.generation}", tiers))

    def retire(self, retention: Retention) -> dict[str, list[CheckpointId]]:
        gone = expired(self.records, retention)
        for tier, checkpoints in gone.items():
            if checkpoints:
                self.add(Retire(tuple(checkpoints), (tier,)))
        return gone

    def stored(self) -> list[Committed]:
        return [committed for committed in lineage(self.records) if committed.tiers]

    def on(self, tier: str) -> list[CheckpointId]:
        return [committed.checkpoint for committed in self.stored() if tier in committed.tiers]


def history_of(*steps: int, tiers: tuple[str, ...] = ("shared",)) -> History:
    history = History()
    history.claim(None)
    for before, step in zip((0, *steps), steps, strict=False):
        history.commit(step - before, tiers)
    return history


events = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(1, 60), TIERS),
        st.tuples(st.just("claim"), st.integers(0, 5), TIERS),
        st.tuples(st.just("retire"), st.just(0), TIERS),
    ),
    max_size=40,
)
retentions = st.builds(
    lambda disk, remote, horizon: Retention({"shared": disk, "remote": remote}, horizon),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 150),
)


@settings(deadline=None)
@given(events, retentions)
def test_each_tier_keeps_the_base_the_newest_and_the_requested_number(
    events: list[tuple[str, int, tuple[str, ...]]], retention: Retention
) -> None:
    history = History()
    history.claim(None)
    for what, number, tiers in [*events, ("retire", 0, ("shared",))]:
        if what == "commit":
            history.commit(number, tiers)
        elif what == "claim":
            stored = history.stored()
            history.claim(stored[number % len(stored)].on(stored[number % len(stored)].tiers[0]) if stored else None)
        else:
            before = {tier: history.on(tier) for tier in retention.keep}
            gone = history.retire(retention)
            needed = needed_in(history)
            for tier, keep in retention.keep.items():
                kept = history.on(tier)
                assert kept[:keep] == before[tier][:keep]
                assert {c for c in before[tier] if c in needed} <= {*kept}
                assert gone[tier] == sorted({*gone[tier]})
                # In addition: the base, and one on each side of the horizon.
                assert len(kept) <= keep + 3
            assert not any(expired(history.records, retention).values())


def needed_in(history: History) -> set[CheckpointId]:
    """The base of the newest claim, and the newest commit."""
    claim = newest_claim(history.records)
    assert claim is not None
    assert isinstance(claim.entry, Claim)
    base = {claim.entry.base.checkpoint} if claim.entry.base else set[CheckpointId]()
    return base | {committed.checkpoint for committed in lineage(history.records)[:1]}


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), TIERS, st.booleans()), min_size=1, max_size=60), retentions)
def test_once_the_run_exceeds_the_horizon_a_checkpoint_beyond_it_exists(
    saves: list[tuple[int, tuple[str, ...], bool]], retention: Retention
) -> None:
    history, horizon = history_of(), retention.horizon_steps
    longest = max(steps for steps, _, _ in saves)
    first = saves[0][0]
    for steps, tiers, retires in saves:
        history.commit(steps, tiers)
        if retires:
            history.retire(retention)
            beyond = [committed.step for committed in history.stored() if committed.step <= history.step - horizon]
            assert bool(beyond) == (first <= history.step - horizon)
    history.retire(retention)
    beyond = [committed.step for committed in history.stored() if committed.step <= history.step - horizon]
    # And it is not older than necessary: a checkpoint is chosen to follow when the previous one crosses the horizon.
    if beyond and all(retires for *_, retires in saves):
        assert history.step - max(beyond) <= 2 * horizon + longest


def test_the_oldest_is_deleted_first_and_tiers_have_separate_limits() -> None:
    history = history_of(10, 20, 30, 40, 50, tiers=("shared", "remote"))
    assert history.retire(Retention({"shared": 2, "remote": 4})) == {
        "shared": [CheckpointId(10, 1), CheckpointId(20, 1), CheckpointId(30, 1)],
        "remote": [CheckpointId(10, 1)],
    }


def test_the_longest_lived_tier_keeps_one_on_each_side_of_the_horizon() -> None:
    history = history_of(10, 20, 30, 40, tiers=("shared", "remote"))
    history.commit(60, ("shared",))  # step 100
    gone = history.retire(Retention({"shared": 1, "remote": 1}, horizon_steps=75))
    assert gone == {"shared": [CheckpointId(step, 1) for step in (10, 20, 30, 40)], "remote": [CheckpointId(10, 1)]}
    assert history.on("remote") == [
        CheckpointId(40, 1),
        CheckpointId(30, 1),
        CheckpointId(20, 1),
    ]  # newest, before, beyond the horizon


def test_the_newest_verified_sound_checkpoint_is_kept_at_any_age() -> None:
    history = history_of(10, 20, 30, 40, tiers=("shared", "remote"))
    history.commit(60, ("shared",))  # step 100
    gone = history.retire(Retention({"shared": 1, "remote": 1}, sound_step=25))
    assert gone == {
        "shared": [CheckpointId(step, 1) for step in (10, 20, 30, 40)],
        "remote": [CheckpointId(10, 1), CheckpointId(30, 1)],
    }
    assert history.on("remote") == [CheckpointId(40, 1), CheckpointId(20, 1)]


def test_the_base_is_kept_at_any_age() -> None:
    history = history_of(10, 20)
    history.claim(lineage(history.records)[1].on("shared"))  # step 10; 20 is rolled back
    for _ in range(5):
        history.commit(10, ("shared",))
        history.retire(Retention({"shared": 2}))
    assert history.on("shared") == [CheckpointId(60, 2), CheckpointId(50, 2), CheckpointId(10, 1)]


def test_rolled_back_checkpoints_are_deleted_once_enough_new_ones_exist() -> None:
    history = history_of(10, 20, 30)
    history.claim(lineage(history.records)[2].on("shared"))
    retention = Retention({"shared": 2})
    rolled_back = []
    for _ in range(6):  # steps 15 to 40
        history.commit(5, ("shared",))
        gone = history.retire(retention)["shared"]
        rolled_back.append([each.step for each in gone if each.generation == 1 and each.step > 10])
    assert rolled_back == [[], [], [20], [], [30], []]


def test_checkpoints_rolled_back_by_mistake_stay_until_the_run_is_as_far() -> None:
    history = history_of(10, 20, 1000)
    history.claim(lineage(history.records)[1].on("shared"))
    for _ in range(50):
        history.commit(5, ("shared",))
        assert CheckpointId(1000, 1) not in history.retire(Retention({"shared": 2}))["shared"]


def test_a_tier_that_the_run_no_longer_has_is_left_unchanged() -> None:
    history = history_of(10, 20, 30, tiers=("shared", "remote"))
    assert history.retire(Retention({"shared": 1})) == {"shared": [CheckpointId(10, 1), CheckpointId(20, 1)]}


# --- deletion ---------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A chain on disk, and its checkpoints."""

    root: Path
    chain: Chain
    checkpoints: Path

    @classmethod
    def at(cls, root: Path) -> "Run":
        for name in ("chain", "checkpoints"):
            (root / name).mkdir()
        return cls(root, Chain(PosixStore(root / "chain"), RUN), root / "checkpoints")

    def fresh_chain(self) -> Chain:
        """The chain as another process would read it."""
        return Chain(PosixStore(self.root / "chain"), RUN)

    def claim(self, base: Base | None = None) -> None:
        self.chain.read()
        self.chain.claim(base, 0, "tester")

    def commit(self, step: int, tiers: tuple[str, ...] = ("shared",)) -> None:
        generation = self.generation()
        if "shared" in tiers:
            self.make(CheckpointId(step, generation).directory)
        self.chain.append(Commit(step, xxhash.xxh3_128_hexdigest(b"{}"), tiers), generation, 0, "tester")

    def generation(self) -> int:
        newest = newest_claim(self.chain.read())
        assert newest is not None
        return newest.generation

    def newest_step(self) -> int:
        return max((committed.step for committed in lineage(self.chain.read())), default=0)

    def counting_on_disk(self) -> list[CheckpointId]:
        return [committed.checkpoint for committed in lineage(self.chain.read()) if "shared" in committed.tiers]

    def make(self, name: str) -> None:
        (self.checkpoints / name).mkdir()
        (self.checkpoints / name / "manifest.json").write_text("{}")
        (self.checkpoints / name / "data-0-0.bin").write_bytes(b"data")

    def names(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.iterdir())

    def retire(self, keep: int = 1, roots: dict[str, RetentionRoot] | None = None) -> tuple[str, ...]:
        roots = roots or {"shared": DirectoryRoot(self.checkpoints)}
        return retire(self.chain, roots, Retention(dict.fromkeys(roots, keep)), self.generation(), 0).failures


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.at(tmp_path)


class Crash(BaseException):
    """The process dies here."""


class WatchedRoot(DirectoryRoot):
    """Reads the chain again before each deletion, and crashes in the middle of deletion `crash_at`, counted from 1."""

    def __init__(self, run: Run, crash_at: int = 0) -> None:
        super().__init__(run.checkpoints)
        self._run, self._crash_at, self.deleted = run, crash_at, list[str]()

    def delete(self, name: str) -> None:
        assert name in {checkpoint.directory for checkpoint, tier in retired(self._run.fresh_chain().read()) if tier == "shared"}
        self.deleted.append(name)
        if len(self.deleted) == self._crash_at:
            (self._run.checkpoints / name / "manifest.json").unlink()
            raise Crash
        super().delete(name)


@settings(max_examples=25, deadline=None)
@given(events, retentions, st.integers(0, 2))
def test_valid_checkpoints_exist_and_retired_ones_are_finally_deleted(
    events: list[tuple[str, int, tuple[str, ...]]], retention: Retention, crash_at: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="headway-retention-") as root:
        run = Run.at(Path(root))
        run.claim()
        for what, number, tiers in events:
            stored = [committed for committed in lineage(run.chain.read()) if committed.tiers]
            if what == "commit":
                run.commit(run.newest_step() + number, tiers)
            elif what == "claim":
                chosen = stored[number % len(stored)] if stored else None
                run.claim(chosen.on(chosen.tiers[0]) if chosen else None)
            else:
                with suppress(Crash):
                    retire(run.chain, {"shared": WatchedRoot(run, crash_at)}, retention, run.generation(), 0)
            assert {c.directory for c in run.counting_on_disk()} <= {*run.names()}
        retire(run.chain, {"shared": WatchedRoot(run)}, retention, run.generation(), 0)
        named = {checkpoint.directory for checkpoint, _ in retired(run.chain.read())}
        assert not named & {*run.names()}
        assert {c.directory for c in run.counting_on_disk()} <= {*run.names()}


@pytest.mark.parametrize("trouble", ["away", "torn", "empty"])
def test_nothing_is_deleted_until_the_newest_commit_is_visible(run: Run, trouble: str) -> None:
    run.claim()
    for step in (10, 20, 30):
        run.commit(step)
    newest = run.checkpoints / CheckpointId(30, 1).directory
    if trouble == "torn":
        (newest / "manifest.json").write_text("{")
    else:
        newest.rename(run.root / "aside")
    if trouble == "empty":
        newest.mkdir()
    before = run.names()
    (failure,) = run.retire()
    assert failure.startswith("shared: older checkpoints are kept, since the newest could not be confirmed: ")
    assert "step-000000030.g000001/manifest.json" in failure
    assert (run.names(), retired(run.chain.read())) == (before, set())


def test_deletions_are_recorded_on_the_chain_first(run: Run) -> None:
    run.claim()
    for step in (10, 20, 30):
        run.commit(step)
    root = WatchedRoot(run)
    done = retire(run.chain, {"shared": root}, Retention({"shared": 1}), 1, 0)
    assert done.checkpoints == {"shared": (CheckpointId(10, 1), CheckpointId(20, 1))}
    assert root.deleted == ["step-000000010.g000001", "step-000000020.g000001"]
    assert run.names() == ["step-000000030.g000001"]
    assert done.failures == ()


def test_an_earlier_writers_pending_deletions_are_completed_by_the_next(run: Run) -> None:
    run.claim()
    for step in (10, 20):
        run.commit(step)
    run.chain.append(Retire((CheckpointId(10, 1),)), 1, 0, "a writer that is killed here")
    run.claim(lineage(run.chain.read())[0].on("shared"))
    assert run.retire() == ()
    assert run.names() == ["step-000000020.g000001"]


def test_a_superseded_writer_retires_and_deletes_nothing(run: Run) -> None:
    run.claim()
    for step in (10, 20):
        run.commit(step)
    other = run.fresh_chain()
    other.claim(lineage(other.read())[0].on("shared"), 0, "somebody else")
    with pytest.raises(SupersededError):
        retire(run.chain, {"shared": DirectoryRoot(run.checkpoints)}, Retention({"shared": 1}), 1, 0)
    assert run.names() == ["step-000000010.g000001", "step-000000020.g000001"]


def test_abandoned_saves_are_deleted_and_those_in_progress_are_kept(run: Run) -> None:
    run.claim()
    run.commit(10)
    run.claim(lineage(run.chain.read())[0].on("shared"))
    run.commit(30)
    gone = [
        ".tmp-step-000000020.g000001",  # the previous generation was writing it
        "step-000000015.g000001",  # it was renamed but not committed
        ".tmp-stale-step-000000012.g000001-1763755200000000000",
        # Of this generation, which has committed a later step since.
        ".tmp-step-000000020.g000002",
        "step-000000025.g000002",
    ]
    stays = [
        ".tmp-stale-step-000000030.g000002-1763755200000000000",  # after the next commit
        ".tmp-step-000000040.g000002",
        "step-000000040.g000002",
        # A newer claim exists that this reading of the chain did not show.
        ".tmp-step-000000010.g000003",
        "step-000000010.g000003",
        ".tmp-notes",
        "step-10",
        "step-000000020.g000001.moved",
    ]
    for name in (*gone, *stays):
        run.make(name)
    assert run.retire(keep=3) == ()
    assert run.names() == sorted(["step-000000010.g000001", "step-000000030.g000002", *stays])


def test_a_failed_deletion_is_logged_and_the_rest_are_deleted(run: Run) -> None:
    run.claim()
    for step in (10, 20, 30):
        run.commit(step)
    run.make("aside")
    (run.checkpoints / "step-000000010.g000001").rename(run.root / "aside")
    (run.checkpoints / "step-000000010.g000001").write_text("a file where a directory was")
    (failure,) = run.retire()
    assert failure.startswith("shared: step-000000010.g000001 stays: [Errno 20] Not a directory")
    assert run.names() == ["aside", "step-000000010.g000001", "step-000000030.g000001"]
    (run.checkpoints / "step-000000010.g000001").unlink()
    assert run.retire() == ()


def test_an_unavailable_store_is_logged_and_only_named_deletions_happen(run: Run) -> None:
    run.claim()
    for step in (10, 20):
        run.commit(step)
    (run.root / "chain").rename(run.root / "away")
    done = retire(run.chain, {"shared": DirectoryRoot(run.checkpoints)}, Retention({"shared": 1}), 1, 0)
    assert done.checkpoints == {}
    assert len(done.failures) == 1
    assert "retired checkpoints are kept: " in done.failures[0]
    assert run.names() == ["step-000000010.g000001", "step-000000020.g000001"]
    (run.root / "away").rename(run.root / "chain")
    assert run.retire() == ()
    assert run.names() == ["step-000000020.g000001"]


def test_each_tier_deletes_its_own_and_an_outage_of_one_is_reported(
    run: Run, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.claim()
    for step in (10, 20):
        run.commit(step, ("shared", "remote"))
        for name in ("manifest.json", "data-0-0.bin"):
            ObjectBucket(bucket).put(f"{RUN}/{CheckpointId(step, 1).directory}/{name}", b"{}")
    ObjectBucket(bucket).put(f"{RUN}/{CheckpointId(15, 1).directory}/data-0-0.bin", b"no manifest came")
    remote = RemoteRoot(bucket, RUN)
    with monkeypatch.context() as outage:
        outage.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        away = RemoteRoot(bucket, RUN, retries=0)
    (failure,) = run.retire(roots={"shared": DirectoryRoot(run.checkpoints), "remote": away})
    why = (
        f"[Errno 5] HTTP error: error sending request: Connection refused: '{bucket}/{RUN}/step-000000020.g000001/manifest.json'"
    )
    assert failure == f"remote: older checkpoints are kept, since the newest could not be confirmed: {why}"
    assert run.names() == ["step-000000020.g000001"]
    assert remote.names() == [CheckpointId(step, 1).directory for step in (10, 15, 20)]
    assert run.retire(roots={"remote": remote}) == ()
    assert remote.names() == [CheckpointId(20, 1).directory]
    assert len(ObjectBucket(bucket).names(RUN)) == 2


def test_a_lane_retires_only_from_its_own_tier(run: Run) -> None:
    run.claim()
    for step in (10, 20):
        run.commit(step, ("shared", "remote"))
    retention = Retention({"shared": 1, "remote": 1})
    done = retire(run.chain, {"shared": DirectoryRoot(run.checkpoints)}, retention, 1, 0)
    assert done.checkpoints == {"shared": (CheckpointId(10, 1),)}
    assert retired(run.chain.read()) == {(CheckpointId(10, 1), "shared")}
