"""The chain under many holders, stale readings, zombies and crashes: what returned stands, and who is superseded is out."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.runner.checkpoint.chain import (
    Base,
    Chain,
    CheckpointId,
    Claim,
    Commit,
    MovedError,
    Record,
    Retire,
    SupersededError,
    lineage,
    newest_base,
    newest_claim,
    retired,
)

RUN = "run-1"
_link = os.link


class Crash(BaseException):
    """The process ends here."""


def crash_before(_source: Path, _target: Path) -> None:
    raise Crash


def crash_after(source: Path, target: Path) -> None:
    _link(source, target)
    raise Crash


def power_loss(_source: Path, target: Path) -> None:
    """The name was made, and not yet synced when the machine went down: it never was. Only its temporary file stays."""
    target.with_name(f".tmp-{target.name}.lost").write_bytes(b"{")
    raise Crash


def fail_before(_source: Path, _target: Path) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


def fail_after(source: Path, target: Path) -> None:
    _link(source, target)
    raise OSError(errno.EIO, "input/output error")


def answer_lost(source: Path, target: Path) -> None:
    """link() over NFS: done, the answer lost, sent again, and the second answer says EEXIST."""
    _link(source, target)
    raise FileExistsError(errno.EEXIST, "file exists")


FAULTS: dict[str, Callable[[Path, Path], None]] = {
    "none": _link,
    "crash before": crash_before,
    "crash after": crash_after,
    "power loss": power_loss,
    "fail before": fail_before,
    "fail after": fail_after,
    "answer lost": answer_lost,
}
faults = st.one_of(st.just("none"), st.just("none"), st.sampled_from(sorted(FAULTS)))


@dataclass
class Holder:
    """A process with its own view of the chain. `seen` is the reading that its next claim is based on."""

    name: str
    chain: Chain
    generation: int = 0
    step: int = 0
    seen: list[Record] | None = None
    alive: bool = True


@dataclass
class Written:
    """What the model remembers: records whose append returned, and what each try to claim had refused."""

    returned: list[Record] = field(default_factory=list)
    refused: dict[str, frozenset[CheckpointId]] = field(default_factory=dict)


class ChainMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="headway-chain-"))
        self.holders: list[Holder] = []
        self.written = Written()
        self.tries = 0
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)

    # --- what happens -------------------------------------------------------------------------------------------------

    @rule()
    def open(self) -> None:
        self.holders.append(Holder(f"holder {len(self.holders)}", Chain(self.directory, RUN)))

    @rule(at=st.integers(0, 99))
    def look(self, at: int) -> None:
        holder = self.holder(at)
        holder.seen = holder.chain.read()

    @precondition(lambda self: any(h.alive and h.seen is not None for h in self.holders))
    @rule(at=st.integers(0, 99), refuses=st.sets(st.integers(0, 3), max_size=2), fault=faults)
    def claim(self, at: int, refuses: set[int], fault: str) -> None:
        able = [h for h in self.holders if h.alive and h.seen is not None]
        holder = able[at % len(able)]
        seen, self.tries = holder.seen or [], self.tries + 1
        counting, attempt = lineage(seen), f"{holder.name} try {self.tries}"
        refused = frozenset(counting[i].checkpoint for i in refuses if i < len(counting))
        self.written.refused[attempt] = refused
        base, holder.seen, since = newest_base(seen, refused), None, self.records()[len(seen) :]
        with self.doing(holder, fault):
            try:
                record = holder.chain.claim(base, 0, attempt)
            except SupersededError:
                assert newest_claim(since) is not None
                return
            except MovedError:
                assert newest_claim(since) is None
                assert any(isinstance(r.entry, Commit) for r in since) or (base and base.checkpoint in retired(since))
                return
            self.written.returned.append(record)
            holder.generation, holder.step = record.generation, base.step if base else 0

    @rule(at=st.integers(0, 99), steps=st.integers(1, 3), fault=faults)
    def commit(self, at: int, steps: int, fault: str) -> None:
        holder = self.holder(at)
        holder.step += steps
        self.append(holder, Commit(holder.step, f"{holder.step}.{holder.generation}"), fault)

    @rule(at=st.integers(0, 99), fault=faults)
    def retire(self, at: int, fault: str) -> None:
        """The oldest that counts, but never the base of the claim."""
        records = self.records()
        old = [b.checkpoint for b in lineage(records)[2:] if b.checkpoint not in retired(records) and b != base_of(records)]
        if old:
            self.append(self.holder(at), Retire((old[-1],)), fault)

    def append(self, holder: Holder, entry: Commit | Retire, fault: str) -> None:
        holder.seen, newest = None, newest_claim(self.records())
        in_charge = newest is not None and newest.generation == holder.generation
        with self.doing(holder, fault):
            try:
                self.written.returned.append(holder.chain.append(entry, holder.generation, 0, holder.name))
            except SupersededError:
                assert not in_charge
                return
            assert in_charge

    @contextmanager
    def doing(self, holder: Holder, fault: str) -> Iterator[None]:
        with mock.patch.object(os, "link", FAULTS[fault]):
            try:
                yield
            except Crash:
                holder.alive = False
            except OSError:
                assert fault == "fail before"

    def holder(self, at: int) -> Holder:
        if not any(h.alive for h in self.holders):
            self.open()
        alive = [h for h in self.holders if h.alive]
        return alive[at % len(alive)]

    def records(self) -> list[Record]:
        return Chain(self.directory, RUN).read()

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def what_returned_stands_where_it_was_put(self) -> None:
        records = self.records()
        assert all(records[record.seq - 1] == record for record in self.written.returned)
        assert len({record.seq for record in self.written.returned}) == len(self.written.returned)

    @invariant()
    def only_the_generation_in_charge_has_written(self) -> None:
        in_charge = 0
        for record in self.records():
            expected = in_charge + 1 if isinstance(record.entry, Claim) else in_charge
            assert record.generation == expected
            in_charge = record.generation

    @invariant()
    def a_claim_drops_only_what_it_has_refused(self) -> None:
        path: list[Base] = []
        gone: set[CheckpointId] = set()
        for record in self.records():
            match record.entry:
                case Commit(step, digest):
                    path.append(Base(step, record.generation, digest))
                case Retire(checkpoints):
                    gone.update(checkpoints)
                case Claim(base):
                    assert base is None or base.checkpoint not in gone
                    kept = path[: path.index(base) + 1] if base else []
                    dropped = {b.checkpoint for b in path[len(kept) :]}
                    assert dropped - gone <= self.written.refused[record.holder]
                    path = kept
        assert lineage(self.records()) == path[::-1]


def base_of(records: Sequence[Record]) -> Base | None:
    newest = newest_claim(records)
    return newest.entry.base if newest and isinstance(newest.entry, Claim) else None


TestChainMachine = ChainMachine.TestCase
TestChainMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
