"""Tests that messages between worker and keeper arrive unchanged, with their descriptors."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.checkpoint.format import Box
from headway.runner.checkpoint.keeper.capture import BufferLayout, BufferPiece, Held, Stored
from headway.runner.checkpoint.keeper.protocol import (
    Confirm,
    Describe,
    Done,
    Drop,
    Failed,
    Fetch,
    Fetched,
    Freed,
    Hello,
    Holding,
    List,
    Listed,
    Reserve,
    Reserved,
    Seal,
    Sealed,
)
from headway.runner.checkpoint.keeper.wire import LostError, Message, Wire, WireError

NUMBER, TEXT = st.integers(0, 1 << 62), st.text()
BOX = st.builds(Box, st.lists(NUMBER).map(tuple), st.lists(NUMBER).map(tuple))
HELD = st.builds(Held, TEXT, st.lists(NUMBER).map(tuple), BOX)
PIECE = st.builds(BufferPiece, TEXT, BOX, NUMBER, NUMBER, st.booleans())
LAYOUT = st.builds(BufferLayout, st.dictionaries(TEXT, HELD, max_size=3), st.lists(PIECE, max_size=3).map(tuple), NUMBER, NUMBER)
OBJECTS = st.dictionaries(TEXT, st.none() | st.booleans() | NUMBER | TEXT | st.lists(NUMBER), max_size=3)
STORED = st.none() | st.builds(Stored, NUMBER, TEXT, TEXT, NUMBER)
HOLDINGS = st.lists(st.builds(Holding, NUMBER, NUMBER, NUMBER, TEXT, NUMBER), max_size=3).map(tuple)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, TEXT, NUMBER, NUMBER, NUMBER, NUMBER, st.dictionaries(TEXT, TEXT), st.none() | TEXT, st.none() | NUMBER),
    st.builds(Reserve, NUMBER, NUMBER),
    st.builds(Describe, LAYOUT),
    st.builds(Seal, NUMBER, NUMBER, TEXTS, OBJECTS),
    st.builds(Confirm, NUMBER),
    st.builds(Drop, NUMBER),
    st.just(List()),
    st.builds(Fetch, NUMBER, NUMBER, NUMBER),
    st.builds(Sealed, NUMBER, TEXT),
    st.builds(Done, NUMBER, TEXT, STORED),
    st.builds(Failed, NUMBER, TEXT, TEXT),
    st.builds(Freed, NUMBER),
    st.builds(Listed, HOLDINGS),
)


@contextmanager
def wires() -> Iterator[tuple[Wire, Wire]]:
    one, two = (Wire(end) for end in socket.socketpair())
    try:
        yield one, two
    finally:
        one.close()
        two.close()


@pytest.mark.slow
@given(st.lists(st.tuples(MESSAGES, st.booleans()), max_size=5))
@settings(deadline=None)
def test_messages_arrive_in_order_and_unchanged(said: list[tuple[Message, bool]]) -> None:
    with wires() as (one, two):
        heard: list[Any] = []
        thread = threading.Thread(target=lambda: heard.extend(two.receive() for _ in said))
        thread.start()
        for message, answers in said:
            one.send(message, answers=answers)
        thread.join()
        assert [(received.message, received.is_answer) for received in heard] == said


def test_descriptors_arrive_with_their_message() -> None:
    with wires() as (one, two):
        inodes = []
        for message, count in ((Freed(1), 0), (Reserved(8, (True, False)), 2), (Freed(2), 0), (Fetched(8, "part"), 1)):
            files = [os.memfd_create("test") for _ in range(count)]
            inodes += [os.fstat(file).st_ino for file in files]
            one.send(message, files)
            for file in files:
                os.close(file)
        received = [two.receive() for _ in range(4)]
        assert [len(each.descriptors) for each in received] == [0, 2, 0, 1]
        there = [descriptor for each in received for descriptor in each.descriptors]
        assert [os.fstat(descriptor).st_ino for descriptor in there] == inodes
        assert not any(os.get_inheritable(descriptor) for descriptor in there)
        for descriptor in there:
            os.close(descriptor)


def test_buffers_without_their_descriptors_are_refused() -> None:
    with wires() as (one, two):
        one.send(Reserved(8, (True, True)))
        with pytest.raises(WireError, match="Reserved came with 0 descriptors, expected 2"):
            two.receive()


def test_unexpected_descriptors_are_closed() -> None:
    read, write = os.pipe()
    with wires() as (one, two):
        one.send(Freed(1), [write])
        os.close(write)
        two.receive()
    assert os.read(read, 1) == b"", "the last writer has gone"
    os.close(read)


def test_a_closed_connection_differs_from_an_invalid_message() -> None:
    with wires() as (one, two):
        one.send(Freed(1))
        one.hang_up()
        assert two.receive().message == Freed(1)
        with pytest.raises(LostError):
            two.receive()
        with pytest.raises(LostError):
            two.send(Freed(2))
