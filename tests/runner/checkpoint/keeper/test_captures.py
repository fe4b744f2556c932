"""Tests how long a node keeps captures: memory that is needed or being read is never reused, and nothing else occupies memory."""

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.runner.checkpoint.keeper.capture import ALIGN, BufferLayout, Capture
from headway.runner.checkpoint.keeper.captures import BufferTakenError, CaptureBuffer, Captures, SealedCapture
from headway.runner.checkpoint.keeper.memory import KeeperMemory, NoMemoryError
from headway.runner.contract import CheckpointId

SIZE = 3 * ALIGN


class Node:
    """Captures with a record of what was freed."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.memory = KeeperMemory()
        self.memory.limit_bytes = limit_bytes
        self.freed: list[tuple[int, int]] = []
        self.captures = Captures(self.memory, lambda rank, index: self.freed.append((rank, index)))

    def seal(self, rank: int, index: int, step: int, generation: int = 1) -> CaptureBuffer:
        """Seal a capture of `step` in the buffer and read it nowhere."""
        buffer = self.captures.begin(rank, index)
        self.captures.keep(buffer, sealed(rank, buffer, step, generation))
        self.captures.release(buffer)
        return buffer

    def held(self, rank: int = 0) -> list[tuple[int, int]]:
        """Generation and step of each capture."""
        return sorted((one.generation, one.step) for one in self.captures.holdings() if one.rank == rank)


def sealed(rank: int, buffer: CaptureBuffer, step: int, generation: int) -> SealedCapture:
    capture = Capture(rank, BufferLayout({}, (), 0, buffer.region.bytes), buffer.region.view, (), {})
    return SealedCapture("run-1", CheckpointId(step, generation), capture, b"", f"{generation}/{step}")


def node_with(*steps: int, count: int = 2, size: int = SIZE) -> Node:
    """Rank 0 with `count` buffers, in which these steps are sealed in generation 1."""
    node = Node()
    node.captures.reserve(0, 1, size, count)
    for index, step in enumerate(steps):
        node.seal(0, index, step)
    return node


# --- buffers ------------------------------------------------------------------------------------------------------------


def test_buffers_are_whole_pages_and_are_freed() -> None:
    node = Node()
    buffers = node.captures.reserve(0, 1, 100, 3)
    assert [(buffer.index, buffer.region.bytes, buffer.free) for buffer in buffers] == [(i, ALIGN, True) for i in range(3)]
    assert node.memory.taken_bytes == 3 * ALIGN


def test_a_rank_that_reconnects_gets_its_own_buffers() -> None:
    node = node_with(5)
    again = node.captures.reserve(0, 2, SIZE, 2)
    assert again == node.captures.reserve(0, 2, SIZE, 2)
    assert [buffer.free for buffer in again] == [False, True]
    assert node.memory.taken_bytes == 2 * SIZE


def test_more_than_the_limit_is_refused_with_the_sizes() -> None:
    node = Node(limit_bytes=3 * SIZE)
    node.captures.reserve(0, 1, SIZE, 2)
    with pytest.raises(NoMemoryError) as refused:
        node.captures.reserve(1, 1, SIZE, 2)
    assert str(refused.value) == f"needs {SIZE} bytes, but {3 * SIZE} of host_memory_bytes {3 * SIZE} are in use"


def test_more_than_the_nodes_memory_is_refused_before_the_kernel_runs_out() -> None:
    with pytest.raises(NoMemoryError, match=rf"needs {1 << 50} bytes, but the node has \d+ free"):
        Node().captures.reserve(0, 1, 1 << 50, 1)


@pytest.mark.parametrize("index", [0, 2, -1], ids=["sealed", "unknown", "negative"])
def test_only_a_free_buffer_can_be_sealed(index: int) -> None:
    with pytest.raises(BufferTakenError, match=f"buffer {index} of rank 0"):
        node_with(5).captures.begin(0, index)


def test_a_capture_of_another_size_stays_until_it_is_superseded() -> None:
    node = node_with(5)
    buffers = node.captures.reserve(0, 1, 2 * SIZE, 2)
    assert [buffer.region.bytes for buffer in buffers] == [2 * SIZE] * 2
    assert (node.held(), node.memory.taken_bytes) == ([(1, 5)], 5 * SIZE)
    node.seal(0, 0, 6)
    node.captures.confirm(0, 6, 1)
    assert (node.held(), node.memory.taken_bytes) == ([(1, 6)], 4 * SIZE)


def test_a_new_generation_reuses_the_memory_of_captures_if_none_is_free() -> None:
    node = node_with(5, 6)
    node.memory.limit_bytes = 4 * SIZE
    node.captures.reserve(0, 2, 2 * SIZE, 2)
    assert (node.held(), node.memory.taken_bytes) == ([], 4 * SIZE)


# --- captures that are kept ---------------------------------------------------------------------------------------------


def test_a_confirmed_capture_supersedes_earlier_ones() -> None:
    node = node_with(5, 6)
    node.captures.confirm(0, 5, 1)
    assert node.held() == [(1, 5), (1, 6)], "6 may be confirmed yet"
    node.captures.confirm(0, 6, 1)
    assert node.held() == [(1, 6)]
    assert node.freed == [(0, 0)]


def test_a_late_confirmation_or_one_of_an_older_generation_drops_nothing() -> None:
    node = node_with(5, 6, count=3)
    node.captures.confirm(0, 6, 1)
    node.captures.confirm(0, 5, 1)
    assert node.held() == [(1, 6)]
    node.captures.reserve(0, 2, SIZE, 3)
    node.seal(0, 0, 7, generation=2)
    node.captures.confirm(0, 9, 1)
    assert node.held() == [(1, 6), (2, 7)]


def test_a_capture_is_not_freed_while_it_is_read() -> None:
    node = node_with(5, 6)
    buffer = node.captures.find(0, CheckpointId(5, 1))
    assert buffer is not None
    node.captures.confirm(0, 6, 1)
    with pytest.raises(BufferTakenError):
        node.captures.begin(0, 0)
    assert node.freed == []
    node.captures.release(buffer)
    assert node.freed == [(0, 0)]
    assert node.captures.begin(0, 0) is buffer


def test_the_same_step_sealed_again_replaces_the_first() -> None:
    node = node_with(5, 5)
    assert node.held() == [(1, 5)]
    assert node.freed == [(0, 0)]


def test_a_generation_that_rolls_back_drops_the_captures_after_its_base() -> None:
    node = node_with(5, 6)
    node.captures.confirm(0, 5, 2)
    assert node.held() == [(1, 5)]


def test_a_generation_from_another_base_drops_all_earlier_captures() -> None:
    node = node_with(5, 6)
    node.captures.confirm(0, 4, 2)
    assert node.held() == []


def test_the_same_step_of_an_older_generation_is_replaced() -> None:
    node = node_with(5)
    node.seal(0, 1, 5, generation=2)
    node.captures.confirm(0, 5, 2)
    assert node.held() == [(2, 5)]


# --- the first buffer of a new generation ---------------------------------------------------------------------------------


def test_a_new_generation_has_a_free_buffer_and_its_fetched_capture() -> None:
    for fetched in (5, 6):
        node = node_with(5, 6)
        node.captures.fetched(0, CheckpointId(fetched, 1), 2)
        free = [buffer.free for buffer in node.captures.reserve(0, 2, SIZE, 2)]
        assert (free, node.held()) == ([fetched != 5, fetched != 6], [(1, fetched)])


def test_without_a_fetch_the_confirmed_capture_is_kept() -> None:
    node = node_with(5, 6)
    node.captures.confirm(0, 5, 1)
    node.captures.reserve(0, 2, SIZE, 2)
    assert node.held() == [(1, 5)]


def test_without_any_confirmation_the_newest_capture_is_kept() -> None:
    node = node_with(5, 6)
    node.captures.reserve(0, 2, SIZE, 2)
    assert node.held() == [(1, 6)]


def test_a_new_generation_with_a_free_buffer_drops_nothing() -> None:
    node = node_with(5, 6, count=3)
    node.captures.reserve(0, 2, SIZE, 3)
    assert node.held() == [(1, 5), (1, 6)]


def test_ranks_that_have_left_the_node_free_their_memory() -> None:
    node = node_with(5)
    node.captures.reserve(1, 2, SIZE, 2)
    node.captures.forget_ranks({1}, 2)
    assert (node.held(0), node.memory.taken_bytes) == ([], 2 * SIZE)


# --- any order of all operations ------------------------------------------------------------------------------------------


class CapturesMachine(RuleBasedStateMachine):
    """Workers of one rank write, seal, confirm and die; readers come and go. Each capture is a page filled with its number."""

    @initialize(count=st.integers(2, 3))
    def start(self, count: int) -> None:
        self.node, self.count, self.generation, self.step = Node(), count, 1, 0
        self.confirmed: CheckpointId | None = None
        self.readers: list[tuple[CaptureBuffer, int]] = []
        self.number: dict[CheckpointId, int] = {}
        self.buffers = self.node.captures.reserve(0, 1, ALIGN, count)

    def free(self) -> list[CaptureBuffer]:
        return [buffer for buffer in self.buffers if buffer.free]

    @precondition(lambda self: self.free())
    @rule(data=st.data(), seals=st.booleans())
    def write(self, data: st.DataObject, seals: bool) -> None:
        """A worker fills a buffer, or dies halfway if it does not seal."""
        buffer = data.draw(st.sampled_from(self.free()))
        number = len(self.number) % 250 + 1
        buffer.region.view[:] = bytes([number if seals else 255]) * len(buffer.region.view)
        if seals:
            self.step += 1
            self.number[CheckpointId(self.step, self.generation)] = number
            assert buffer.index is not None
            self.node.seal(0, buffer.index, self.step, self.generation)

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        mine = [step for generation, step in self.node.held() if generation == self.generation]
        if mine:
            step = data.draw(st.sampled_from(mine))
            self.confirmed = CheckpointId(max(step, self.confirmed.step if self.confirmed else 0), self.generation)
            self.node.captures.confirm(0, step, self.generation)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if held := self.node.held():
            generation, step = data.draw(st.sampled_from(held))
            buffer = self.node.captures.find(0, CheckpointId(step, generation))
            assert buffer is not None
            self.readers.append((buffer, self.number[CheckpointId(step, generation)]))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def finish_reading(self, data: st.DataObject) -> None:
        buffer, _ = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        self.node.captures.release(buffer)

    @rule(fetches=st.booleans(), pages=st.integers(1, 2))
    def begin_generation(self, fetches: bool, pages: int) -> None:
        """A new generation starts, possibly with another layout, from the newest capture or from elsewhere."""
        self.generation += 1
        held = self.node.held()
        base = CheckpointId(*reversed(held[-1])) if fetches and held else None
        if base is not None:
            self.node.captures.fetched(0, base, self.generation)
        self.buffers = self.node.captures.reserve(0, self.generation, pages * ALIGN, self.count)
        assert base is None or (base.generation, base.step) in self.node.held()
        assert self.readers or self.free(), "a new generation has a buffer to write to"
        self.step = base.step if base else self.step
        self.confirmed = None

    @invariant()
    def captures_held_or_read_are_intact(self) -> None:
        for holding in self.node.captures.holdings():
            checkpoint = CheckpointId(holding.step, holding.generation)
            buffer = self.node.captures.find(0, checkpoint)
            assert buffer is not None
            assert set(buffer.region.view) == {self.number[checkpoint]}
            self.node.captures.release(buffer)
        assert all(set(buffer.region.view) == {number} for buffer, number in self.readers)

    @invariant()
    def the_confirmed_capture_is_held(self) -> None:
        if self.confirmed is not None:
            assert (self.confirmed.generation, self.confirmed.step) in self.node.held()

    @invariant()
    def no_memory_is_lost(self) -> None:
        kept = defaultdict(int)
        for buffer in [*self.buffers, *(buffer for buffer, _ in self.readers)]:
            kept[id(buffer)] = buffer.region.bytes
        held = sum(pages for pages in kept.values())
        assert self.node.memory.taken_bytes >= held
        if not self.node.held() and not self.readers:
            assert self.node.memory.taken_bytes == held

    def teardown(self) -> None:
        for buffer, _ in getattr(self, "readers", ()):
            self.node.captures.release(buffer)


TestCapturesMachine = pytest.mark.slow(CapturesMachine.TestCase)
TestCapturesMachine.settings = settings(max_examples=50, deadline=None)
