"""Tests the chain under many writers, one store operation at a time: crashes anywhere, lost and late requests, stale reads, zombies.

Writers may stop between any two of their operations for any time. The checks apply to the records in the store.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from headway.runner.checkpoint.authority import UnreadError, refuse_unread
from headway.runner.checkpoint.chain import (
    Chain,
    Claim,
    Commit,
    CommittedError,
    MovedError,
    Record,
    Retire,
    SupersededError,
    lineage,
    newest_base,
    newest_claim,
    newest_held_base,
    retired,
)
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.stores import Store
from headway.runner.checkpoint.stores.object_store import ObjectStore
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Base, CheckpointId, Mesh
from tests.support.lockstep import FAULTS, Crash, Memory, Writer

RUN = "run-1"
PLACE = CheckpointLocation(Path("checkpoints"), RUN, 1, 0, 1, Mesh())
GROUPS = 2
# Number of histories to try; `make soak` sets more.
EXAMPLES = int(os.environ.get("HEADWAY_EXAMPLES", "60"))

at = st.integers(0, 99)
faults = st.one_of(st.just("none"), st.sampled_from(FAULTS))
# A job runs to its end, or it does some operations, meets a fault (or none), and continues or stops there.
hows = st.one_of(st.none(), st.none(), st.tuples(st.integers(0, 3), faults, st.booleans()))
How = tuple[int, str, bool] | None
some_tier = st.sampled_from(["shared", "remote"])
tiers = st.sampled_from([("shared",), ("shared",), ("remote",), ("shared", "remote")])


@dataclass
class Process:
    """A writer and its view: its generation, its group's counter, its current step, its last reading."""

    writer: Writer
    generation: int = 0
    group: int = 0
    counter: int = 0
    step: int = 0
    seen: list[Record] | None = None
    job: "Job | None" = None


@dataclass(frozen=True)
class Job:
    """The next operation of a process; `known` is the number of records that it had read."""

    kind: str
    entry: Any = None
    known: int = 0


@dataclass
class Remembered:
    """Records whose append returned and, by holder, the bases that its claim had refused."""

    returned: list[Record] = field(default_factory=list)
    refused: dict[str, set[tuple[CheckpointId, str]]] = field(default_factory=dict)


class ChainMachine(RuleBasedStateMachine):
    """Runs on a store in memory; subclasses provide another one."""

    def open_store(self) -> Store:
        return Memory()

    @initialize()
    def begin(self) -> None:
        self.store = self.open_store()
        self.late: list[tuple[str, bytes]] = []
        self.truth = Chain(self.store, RUN)
        self.processes: list[Process] = []
        self.remembered = Remembered()
        self.tries = 0
        for _ in range(3):
            self.open()
        self.look(0, None)
        self.claim(0, set(), "shared", 0, None)
        self.join()

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for process in self.processes:
            process.writer.crash()
        while self.late:
            self.land(0)
        self.the_last_writer_can_continue()

    def the_last_writer_can_continue(self) -> None:
        chain = Chain(self.store, RUN)
        records = chain.read()
        assert records == self.records()
        base = newest_base(records)
        claimed = chain.claim(base, 0, "last", rolled_back=base is None)
        assert chain.append(Commit(10_000, "last"), claimed.generation, 0, "last") == self.records()[-1]

    def records(self) -> list[Record]:
        return self.truth.read()

    # --- operations ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.processes) < 5)
    @rule()
    def open(self) -> None:
        name = f"process {len(self.processes)}"
        self.processes.append(Process(Writer(name, self.store, RUN, self.late)))

    @precondition(lambda self: self.late)
    @rule(at=at)
    def land(self, at: int) -> None:
        """A request that its sender gave up arrives."""
        self.store.create(*self.late.pop(at % len(self.late)))

    @precondition(lambda self: self.busy())
    @rule(at=at, fault=faults)
    def advance(self, at: int, fault: str) -> None:
        self.one_step(self.busy()[at % len(self.busy())], fault)

    @precondition(lambda self: self.busy())
    @rule(at=at)
    def finish(self, at: int) -> None:
        process = self.busy()[at % len(self.busy())]
        while process.writer.busy:
            self.one_step(process, "none")

    @rule(at=at, how=hows)
    def look(self, at: int, how: How) -> None:
        process = self.idle(at)
        process.seen = None
        self.start(process, Job("look"), lambda chain: chain.read(), how)

    @precondition(lambda self: any(p.seen is not None for p in self.free()))
    @rule(at=at, refuses=st.sets(st.integers(0, 3), max_size=2), tier=some_tier, held=st.integers(0, 3), how=hows)
    def claim(self, at: int, refuses: set[int], tier: str, held: int, how: How) -> None:
        """Claim from the newest checkpoint that was not refused, or from a newer capture in memory."""
        process, seen, holder = self.claimer(at)
        counting = lineage(seen)
        refused = {(counting[i].checkpoint, tier) for i in refuses if i < len(counting)}
        base = newest_base(seen, refused)
        if held and (claimed := newest_claim(seen)) is not None and base == newest_base(seen):
            capture = CheckpointId((base.step if base else 0) + held, claimed.generation)
            base = newest_held_base(seen, {capture: "held"}) or base
        if base is None and counting:
            # The run stops here: checkpoints exist and none verifies.
            return
        self.remembered.refused[holder] = refused
        self.start(process, Job("claim", base, len(seen)), lambda chain: chain.claim(base, 0, holder, groups=GROUPS), how)

    @precondition(lambda self: any(p.seen is not None for p in self.free()))
    @rule(at=at, damaged=st.integers(0, 2), how=hows)
    def meet_a_read_error(self, at: int, damaged: int, how: How) -> None:
        """After several damaged bases comes an unreadable one: the next claim excludes only the damaged ones."""
        process, seen, holder = self.claimer(at)
        refused = set[tuple[CheckpointId, str]]()
        for unread in (*[None] * damaged, errno.EIO):
            base = newest_base(seen, refused)
            if base is None:
                return  # the run stops here
            try:
                refuse_unread(PLACE, base, RefusedError(base.checkpoint, "part-0.json", "", unread), Ranks())
            except UnreadError:
                break
            refused.add((base.checkpoint, base.tier))
        assert base is not None
        assert newest_base(seen, refused) == base
        self.remembered.refused[holder] = refused
        self.start(process, Job("claim", base, len(seen)), lambda chain: chain.claim(base, 0, holder, groups=GROUPS), how)

    @precondition(lambda self: any(p.seen is not None for p in self.free()))
    @rule(at=at, to=st.integers(0, 12), how=hows)
    def roll_back(self, at: int, to: int, how: How) -> None:
        """The history rolls back to step `to`."""
        process, seen, holder = self.claimer(at)
        base = newest_base(seen, at_most_step=to)
        job = Job("claim", base, len(seen))

        def act(chain: Chain) -> Record:
            return chain.claim(base, 0, holder, groups=GROUPS, history_entries=1, rolled_back=True)

        self.start(process, job, act, how)

    def claimer(self, at: int) -> tuple[Process, list[Record], str]:
        able = [p for p in self.free() if p.seen is not None]
        process, self.tries = able[at % len(able)], self.tries + 1
        seen, process.seen = process.seen or [], None
        return process, seen, f"{process.writer.name} try {self.tries}"

    @rule()
    def join(self) -> None:
        """A writer without another task works for the generation in charge, as its coordinator has ordered."""
        records = self.records()
        newest, base = newest_claim(records), newest_base(records)
        for number, process in enumerate(self.free()):
            if newest is not None and isinstance(newest.entry, Claim):
                group = number % GROUPS
                process.generation, process.group, process.counter = newest.generation, group, newest.entry.groups[group]
                process.step = base.step if base else 0

    @rule(at=at, steps=st.sampled_from([1, 1, 2, 3, 0]), tiers=tiers, other=st.sampled_from(["", "", "", "other"]), how=hows)
    def commit(self, at: int, steps: int, tiers: tuple[str, ...], other: str, how: How) -> None:
        process = self.of_generation(at)
        process.step += steps
        digest = f"{process.step}.{process.generation}{other}"
        self.append(process, Commit(process.step, digest, tiers, process.group, process.counter), how)

    @rule(at=at, tier=some_tier, how=hows)
    def retire(self, at: int, tier: str, how: How) -> None:
        """The oldest valid one, but neither the newest nor the base of the claim."""
        records = self.records()
        newest = newest_claim(records)
        base = newest.entry.base if newest and isinstance(newest.entry, Claim) else None
        old = [
            c.checkpoint for c in lineage(records)[1:] if tier in c.tiers and (base is None or c.checkpoint != base.checkpoint)
        ]
        if old:
            self.append(self.of_generation(at), Retire((old[-1],), (tier,)), how)

    def append(self, process: Process, entry: Commit | Retire, how: How) -> None:
        process.seen, generation, holder = None, process.generation, process.writer.name
        self.start(process, Job("append", entry), lambda chain: chain.append(entry, generation, 0, holder), how)

    @rule(at=at, group=st.integers(0, GROUPS - 1), how=hows)
    def restart(self, at: int, group: int, how: How) -> None:
        """As the process last read it for its own group; for another group as it was at first."""
        process = self.of_generation(at)
        generation, holder, process.seen = process.generation, process.writer.name, None
        counter = process.counter if group == process.group else 0
        job = Job("restart", (group, counter))
        self.start(process, job, lambda chain: chain.restart(group, counter, generation, 0, holder), how)

    def busy(self) -> list[Process]:
        return [p for p in self.processes if p.writer.busy]

    def free(self) -> list[Process]:
        return [p for p in self.processes if not p.writer.busy]

    def idle(self, at: int) -> Process:
        if not self.free():
            self.open()
        return self.free()[at % len(self.free())]

    def of_generation(self, at: int) -> Process:
        """Mostly one of the generation in charge, otherwise any."""
        newest = newest_claim(self.records())
        current = [p for p in self.free() if newest is not None and p.generation == newest.generation]
        return current[at % len(current)] if current and at % 5 else self.idle(at)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def start(self, process: Process, job: Job, act: Callable[[Chain], Any], how: How) -> None:
        process.job = job
        if process.writer.start(act):
            self.ended(process)
        operations, fault, goes_on = how or (0, "none", True)
        for each in ["none"] * operations + [fault]:
            if process.writer.busy:
                self.one_step(process, each)
        while goes_on and process.writer.busy:
            self.one_step(process, "none")

    def one_step(self, process: Process, fault: str) -> None:
        if process.writer.step(fault):
            self.ended(process)

    def ended(self, process: Process) -> None:
        """Every error has its reason."""
        job, result = process.job, process.writer.result
        assert job is not None
        match result:
            case Crash():
                self.processes.remove(process)
            case OSError():
                assert process.writer.wire.failed
            case SupersededError():
                assert self.superseded(process, job)
            case MovedError():
                assert self.moved(job)
            case CommittedError():
                assert self.standing(job.entry.step, process.generation) not in (None, job.entry.manifest_xxh3_128)
            case ValueError():  # still needed by its last reading
                assert isinstance(job.entry, Retire)
            case BaseException():
                raise result
            case _ if job.kind == "look":
                process.seen = result
            case _:
                self.succeeded(process, job, result)

    def succeeded(self, process: Process, job: Job, record: Record) -> None:
        self.remembered.returned.append(record)
        if job.kind == "claim":
            process.generation, process.group, process.counter = record.generation, 0, 0
            process.step = job.entry.step if job.entry else 0
        if job.kind == "restart" and isinstance(record.entry, Claim):
            process.group, counter = job.entry
            process.counter = record.entry.groups[process.group]
            assert process.counter == counter + 1

    def superseded(self, process: Process, job: Job) -> bool:
        records = self.records()
        newest = newest_claim(records)
        match job.kind, job.entry:
            case "claim", _:
                before = newest_claim(records[: job.known])
                return newest is not None and newest.generation > (before.generation if before else 0)
            case "append", Commit(group=group, counter=counter):
                current = newest and newest.generation == process.generation and isinstance(newest.entry, Claim)
                return not current or newest.entry.groups[group] != counter  # type: ignore[union-attr]
            case "restart", (group, counter):
                current = newest and newest.generation == process.generation and isinstance(newest.entry, Claim)
                return not current or newest.entry.groups[group] != counter  # type: ignore[union-attr]
        return newest is None or newest.generation != process.generation

    def moved(self, job: Job) -> bool:
        since = self.records()[job.known :]
        lost = job.entry is not None and (job.entry.checkpoint, job.entry.tier) in retired(since)
        return lost or any(isinstance(r.entry, Commit | Claim) for r in since)

    def standing(self, step: int, generation: int) -> str | None:
        commits = [r.entry for r in self.records() if r.generation == generation and isinstance(r.entry, Commit)]
        return next((c.manifest_xxh3_128 for c in commits if c.step == step), None)

    # --- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def returned_records_are_stored_in_their_place(self) -> None:
        records = self.records()
        assert all(records[record.seq - 1] == record for record in self.remembered.returned)

    @invariant()
    def stored_records_obey_the_rules(self) -> None:
        model = Model(self.remembered.refused)
        for record in self.records():
            model.take(record)
        assert [(c.checkpoint, c.manifest_xxh3_128, set(c.tiers)) for c in lineage(self.records())] == model.counting()


class Model:
    """The meaning of a chain in its plainest form: a list of valid checkpoints, whose end claims cut off."""

    def __init__(self, refused: dict[str, set[tuple[CheckpointId, str]]]) -> None:
        self.refused = refused
        self.generation = 0
        self.groups: tuple[int, ...] = ()
        self.base: Base | None = None
        self.manifests: dict[CheckpointId, str] = {}
        self.tiers: dict[CheckpointId, set[str]] = {}
        self.gone: set[tuple[CheckpointId, str]] = set()
        self.path: list[CheckpointId] = []

    def take(self, record: Record) -> None:
        match record.entry:
            case Claim(base, groups, _, rolled_back):
                self.claim(record, base, groups, rolled_back)
            case Commit(step, digest, tiers, group, counter):
                assert (record.generation, counter) == (self.generation, self.groups[group])
                checkpoint = CheckpointId(step, record.generation)
                assert self.manifests.setdefault(checkpoint, digest) == digest
                self.tiers.setdefault(checkpoint, set()).update(tiers)
                self.path = sorted({*self.path, checkpoint}, key=lambda c: (c.generation, c.step))
            case Retire(checkpoints, tiers):
                assert record.generation == self.generation
                assert not {*checkpoints} & {self.path[-1], self.base.checkpoint if self.base else None}
                self.gone |= {(checkpoint, tier) for checkpoint in checkpoints for tier in tiers}

    def claim(self, record: Record, base: Base | None, groups: tuple[int, ...], rolled_back: bool) -> None:
        if record.generation == self.generation:
            assert sum(groups) == sum(self.groups) + 1
            self.groups = groups
            return
        assert record.generation == self.generation + 1
        assert groups == (0,) * GROUPS
        kept = [c for c in self.path if base is not None and (c.generation, c.step) <= (base.generation, base.step)]
        if base is not None and base.tier != "memory":
            assert base.checkpoint in kept
            assert base.tier in self.left(base.checkpoint)
        dropped = {(c, tier) for c in self.path if c not in kept for tier in self.left(c)}
        assert rolled_back or dropped <= self.refused[record.holder]
        self.generation, self.groups, self.base, self.path = record.generation, groups, base, kept

    def left(self, checkpoint: CheckpointId) -> set[str]:
        return {tier for tier in self.tiers[checkpoint] if (checkpoint, tier) not in self.gone}

    def counting(self) -> list[tuple[CheckpointId, str, set[str]]]:
        return [(c, self.manifests[c], self.left(c)) for c in reversed(self.path)]


def machine_settings(examples: int, steps: int) -> settings:
    # A store of real parts responds at its own pace, so Hypothesis's measure of slowness does not apply.
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=[HealthCheck.too_slow])


TestChainMachine = pytest.mark.slow(ChainMachine.TestCase)
TestChainMachine.settings = machine_settings(EXAMPLES, 60)


class PosixMachine(ChainMachine):
    def open_store(self) -> Store:
        self.directory = Path(tempfile.mkdtemp(prefix="headway-chain-"))
        return PosixStore(self.directory)

    def teardown(self) -> None:
        try:
            super().teardown()
            assert not list(self.directory.glob(".tmp-*"))
        finally:
            shutil.rmtree(self.directory)


TestPosixMachine = pytest.mark.slow(PosixMachine.TestCase)
TestPosixMachine.settings = machine_settings(max(EXAMPLES // 4, 1), 60)


@pytest.mark.slow
def test_a_chain_in_s3_holds_the_same_invariants(bucket: str) -> None:
    numbers = iter(range(1_000_000))

    class S3Machine(ChainMachine):
        def open_store(self) -> Store:
            return ObjectStore(f"{bucket}/{next(numbers)}")

    run_state_machine_as_test(S3Machine, settings=machine_settings(max(EXAMPLES // 6, 1), 50))
