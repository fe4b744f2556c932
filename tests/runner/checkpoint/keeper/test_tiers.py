"""Tests the way from sealed ranks to storage: all ranks of a node or none, each capture once, and late captures yield to newer ones."""

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue

import pytest

from headway.runner.checkpoint.keeper.capture import ALIGN, NodeCapture, Stored
from headway.runner.checkpoint.keeper.captures import CaptureBuffer, Captures
from headway.runner.checkpoint.keeper.delivery import Delivery
from headway.runner.checkpoint.keeper.gathering import Gathered, Gathering, TiersDifferError
from headway.runner.checkpoint.keeper.memory import KeeperMemory
from headway.runner.checkpoint.keeper.protocol import Done, Failed
from headway.runner.contract import CheckpointId
from tests.runner.checkpoint.keeper.test_captures import sealed

WAIT_S = 30.0


def at(step: int) -> CheckpointId:
    return CheckpointId(step, 1)


# --- all ranks or none ------------------------------------------------------------------------------------------------------


@pytest.fixture
def buffers() -> list[CaptureBuffer]:
    """One sealed buffer of each of two ranks."""
    captures = Captures(KeeperMemory(), lambda *_: None)
    return [captures.reserve(rank, 1, ALIGN, 1)[0] for rank in (0, 1)]


def test_a_checkpoint_is_taken_once_and_only_when_all_ranks_have_sealed(buffers: list[CaptureBuffer]) -> None:
    gathering = Gathering(1, 2)
    gathering.add(at(5), ("shared",), buffers[1])
    gathering.add(at(6), ("shared",), buffers[1])
    assert gathering.take(at(5)) is None
    gathering.add(at(5), ("shared",), buffers[0])
    taken = gathering.take(at(5))
    assert taken == Gathered(at(5), ("shared",), {0: buffers[0], 1: buffers[1]})
    assert gathering.take(at(5)) is None
    assert gathering.take(at(6)) is None


def test_ranks_must_request_the_same_tiers(buffers: list[CaptureBuffer]) -> None:
    gathering = Gathering(1, 2)
    gathering.add(at(5), ("shared",), buffers[0])
    with pytest.raises(TiersDifferError, match=r"rank 1 saves step 5 to \('shared', 'peer'\), but others to \('shared',\)"):
        gathering.add(at(5), ("shared", "peer"), buffers[1])


def test_a_checkpoint_fails_if_a_departed_rank_did_not_seal_it(buffers: list[CaptureBuffer]) -> None:
    gathering = Gathering(1, 2)
    gathering.add(at(5), ("shared",), buffers[0])
    assert gathering.take_hopeless() == []
    gathering.leave(0)
    assert gathering.take_hopeless() == [], "it had sealed it before it left"
    gathering.leave(1)
    assert [(gathered.checkpoint, rank) for gathered, rank in gathering.take_hopeless()] == [(at(5), 1)]
    assert gathering.take_hopeless() == []
    gathering.join(1)
    gathering.add(at(6), ("shared",), buffers[0])
    assert gathering.take_hopeless() == []


# --- delivery -------------------------------------------------------------------------------------------------------------------


@dataclass
class Gate:
    """A storage that blocks until it is opened."""

    begun: SimpleQueue[int] = field(default_factory=SimpleQueue)
    lets: SimpleQueue[Exception | None] = field(default_factory=SimpleQueue)

    def store(self, node: NodeCapture) -> list[Stored]:
        self.begun.put(node.step)
        if (error := self.lets.get(timeout=WAIT_S)) is not None:
            raise error
        return [Stored(capture.rank, f"{node.step}", "file", 1) for capture in node.ranks]


class Way:
    """A delivery of one rank's captures to one tier that is a gate."""

    def __init__(self, tier: str, steps: int) -> None:
        self.tier, self.gate = tier, Gate()
        self.freed: list[int] = []
        self.heard: SimpleQueue[Done | Failed] = SimpleQueue()
        self.idle = threading.Event()
        self.captures = Captures(KeeperMemory(), lambda _, index: self.freed.append(index))
        self.captures.reserve(0, 1, ALIGN, steps)
        self.delivery = Delivery(self.captures, lambda *_: self.gate, self.idle.set)

    def bring(self, index: int, step: int) -> None:
        buffer = self.captures.begin(0, index)
        self.captures.keep(buffer, sealed(0, buffer, step, 1))
        self.delivery.bring(
            Gathered(at(step), (self.tier,), {0: buffer}), 0, {self.tier: "x"}, lambda _, event: self.heard.put(event)
        )
        self.captures.release(buffer)

    def hear(self) -> Done | Failed:
        return self.heard.get(timeout=WAIT_S)

    def let(self, error: Exception | None = None) -> None:
        self.gate.lets.put(error)


def test_a_buffer_is_held_until_its_tier_has_finished() -> None:
    way = Way("shared", 2)
    way.bring(0, 5)
    assert way.gate.begun.get(timeout=WAIT_S) == 5
    way.bring(1, 6)
    way.captures.confirm(0, 6, 1)
    assert (way.freed, way.delivery.jobs) == ([], 2)
    way.let()
    way.let()
    assert [way.hear(), way.hear()] == [
        Done(5, "shared", Stored(0, "5", "file", 1)),
        Done(6, "shared", Stored(0, "6", "file", 1)),
    ]
    assert way.idle.wait(WAIT_S)
    assert (way.freed, way.delivery.jobs) == ([0], 0)


@pytest.mark.parametrize("tier", ["peer", "remote"])
def test_a_capture_waiting_for_a_slow_tier_is_replaced_by_a_newer_one(tier: str) -> None:
    way = Way(tier, 4)
    way.bring(0, 5)
    assert way.gate.begun.get(timeout=WAIT_S) == 5
    for index, step in ((1, 6), (2, 7), (3, 8)):
        way.bring(index, step)
    assert [way.hear(), way.hear()] == [Failed(6, tier, "superseded by step 7"), Failed(7, tier, "superseded by step 8")]
    way.let()
    way.let()
    assert [way.hear(), way.hear()] == [Done(step, tier, Stored(0, f"{step}", "file", 1)) for step in (5, 8)]


def test_a_capture_waiting_for_a_hung_tier_frees_its_buffer() -> None:
    way = Way("remote", 3)
    way.bring(0, 5)
    assert way.gate.begun.get(timeout=WAIT_S) == 5
    way.bring(1, 6)
    way.captures.confirm(0, 6, 1)
    way.delivery.make_room(0, 6)
    assert way.freed == [], "what would be started from is not given up"
    newest = way.captures.begin(0, 2)
    way.captures.keep(newest, sealed(0, newest, 7, 1))
    way.captures.release(newest)
    way.captures.confirm(0, 7, 1)
    assert (way.captures.is_full(0), way.freed) == (True, [])
    way.delivery.make_room(0, 7)
    assert way.hear() == Failed(6, "remote", "superseded in memory by step 7 while it waited")
    assert (way.captures.is_full(0), way.freed) == (False, [1])
    way.let()
    assert way.hear() == Done(5, "remote", Stored(0, "5", "file", 1))
    assert way.idle.wait(WAIT_S)
    assert way.delivery.jobs == 0


def test_a_disk_stores_every_requested_checkpoint() -> None:
    way = Way("shared", 4)
    for index, step in enumerate((5, 6, 7, 8)):
        way.bring(index, step)
        way.let()
    assert [way.hear().step for _ in range(4)] == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device", "/data"), "No space left on device: /data"),
        (TimeoutError("no answer from https://store"), "no answer from https://store"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_failing_tier_reports_its_error_and_continues(error: Exception, reason: str) -> None:
    way = Way("shared", 2)
    way.bring(0, 5)
    way.let(error)
    assert way.hear() == Failed(5, "shared", reason)
    way.bring(1, 6)
    way.let()
    assert way.hear() == Done(6, "shared", Stored(0, "6", "file", 1))
