"""Defines the contract of every store of a chain, as tests: a subclass gives the fixture `store`, an empty store."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from headway.runner.checkpoint.chain import Chain, Commit, Retire, lineage
from headway.runner.checkpoint.stores import PROBE, Store, verify_store

RACERS = 6


class StoreContract:
    """A name is created once and completely, by one of any number of creators, and then never changes."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    def test_a_created_name_is_read_back(self, store: Store) -> None:
        for name, data in (("000000001.json", b'{"a": 1}\n'), ("000000002.json", bytes(range(256)) * 40), ("empty", b"")):
            assert store.create(name, data) is True
            assert store.read(name) == data

    def test_a_name_is_created_once(self, store: Store) -> None:
        assert store.create("one", b"first") is True
        assert [store.create("one", data) for data in (b"second", b"first", b"")] == [False, False, False]
        assert store.read("one") == b"first"

    def test_a_missing_name_reads_as_none(self, store: Store) -> None:
        assert store.read("absent") is None
        assert store.names() == []
        assert store.create("absent", b"now") is True

    def test_names_are_the_created_ones(self, store: Store) -> None:
        names = [f"{number:09d}.json" for number in range(1, 8)]
        for name in names:
            store.create(name, name.encode())
        assert sorted(store.names()) == names

    def test_one_of_many_creators_wins_and_its_bytes_are_kept(self, store: Store) -> None:
        won = racing(RACERS, lambda racer: store.create("one", f"racer {racer}".encode() * 100))
        assert sorted(won) == [False] * (RACERS - 1) + [True]
        assert store.read("one") == f"racer {won.index(True)}".encode() * 100

    def test_verification_is_repeatable_on_an_exclusive_store(self, store: Store) -> None:
        verify_store(store)
        before = store.read(PROBE)
        verify_store(store)
        assert (store.names(), store.read(PROBE)) == ([PROBE], before)

    def test_a_chain_is_read_back_through_another_instance(self, store: Store) -> None:
        chain = Chain(store, "run-1")
        written = [chain.claim(None, 0, "coordinator")]
        written += [chain.append(Commit(step, f"{step}"), 1, 0, "rank 0") for step in (10, 20)]
        written += [chain.append(Retire((lineage(chain.read())[1].checkpoint,)), 1, 0, "rank 0")]
        assert Chain(store, "run-1").read() == written

    def test_racing_writers_append_every_record_once(self, store: Store) -> None:
        Chain(store, "run-1").claim(None, 0, "coordinator")

        def write(writer: int) -> None:
            chain = Chain(store, "run-1")
            for n in range(5):
                chain.append(Commit(writer * 100 + n, f"{writer}.{n}"), 1, 0, f"writer {writer}")

        racing(4, write)
        records = Chain(store, "run-1").read()
        assert [record.seq for record in records] == list(range(1, 22))
        assert sorted(c.step for c in lineage(records)) == sorted(w * 100 + n for w in range(4) for n in range(5))


def racing(racers: int, work: Callable[[int], Any]) -> list[Any]:
    """Return the results of `work(0)` to `work(racers - 1)` in threads that start together; their errors are raised here."""
    gate, answers, errors = threading.Barrier(racers), [None] * racers, list[BaseException]()

    def run(racer: int) -> None:
        try:
            gate.wait(30)
            answers[racer] = work(racer)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(racer,)) for racer in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    return answers
