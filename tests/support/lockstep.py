"""Steps writers of a chain one store operation at a time: in order, failed, lost, late, stale."""

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headway.runner.checkpoint.chain import Chain
from headway.runner.checkpoint.stores import Store

WAIT_S = 60.0
# How often a store may hide an existing name: less often than the chain asks again (chain.STALE_WAITS_S).
STALE_AT_MOST = 5


class Crash(BaseException):
    """The process dies here."""


class Memory:
    """A correct store in this process's memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        return self.objects.setdefault(name, data) is data

    def read(self, name: str) -> bytes | None:
        return self.objects.get(name)

    def names(self) -> list[str]:
        return list(self.objects)


@dataclass
class Wire:
    """The link between one writer and the store. `late`: requests that were given up and are still in flight."""

    store: Store
    late: list[tuple[str, bytes]]
    fault: str = "none"
    failed: bool = False  # since the job began
    stale: int = 0
    reached: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    allowed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __str__(self) -> str:
        return "store"

    def create(self, name: str, data: bytes) -> bool:
        match self._ask():
            case "crash before":
                raise Crash
            case "crash after":
                self.store.create(name, data)
                raise Crash
            case "fail before":
                self._fail()
            case "fail after":
                self.store.create(name, data)
                self._fail()
            case "late":
                self.late.append((name, data))
                self._fail()
            # It was executed, the answer was lost, and the retry was refused.
            case "answer lost":
                self.store.create(name, data)
                return False
        return self.store.create(name, data)

    def read(self, name: str) -> bytes | None:
        match self._ask():
            case "crash before" | "crash after":
                raise Crash
            case "fail before" | "fail after" | "late":
                self._fail()
            case "stale" if self._may_be_stale():
                return None
        return self.store.read(name)

    def names(self) -> list[str]:
        match self._ask():
            case "crash before" | "crash after":
                raise Crash
            case "fail before" | "fail after" | "late":
                self._fail()
            case "stale" if self._may_be_stale():
                return sorted(self.store.names())[:-1]
            # A directory is read while names are created: any of them may be missed.
            case "answer lost" if self._may_be_stale():
                return sorted(self.store.names())[1:]
        return self.store.names()

    def _ask(self) -> str:
        self.reached.release()
        assert self.allowed.acquire(timeout=WAIT_S)
        return self.fault

    def _fail(self) -> None:
        self.failed = True
        raise OSError(errno.EIO, "the request timed out")

    def _may_be_stale(self) -> bool:
        self.stale += 1
        return self.stale <= STALE_AT_MOST


FAULTS = ("none", "crash before", "crash after", "fail before", "fail after", "late", "answer lost", "stale")


class Writer:
    """A process: its own view of the chain, and at most one job at a time, which `step` advances by one operation."""

    def __init__(self, name: str, store: Store, run: str, late: list[tuple[str, bytes]]) -> None:
        self.name = name
        self.wire = Wire(store, late)
        self.chain = Chain(self.wire, run, wait=lambda _: None)
        self.result: Any = None
        self._thread: threading.Thread | None = None
        self._ended = False

    @property
    def busy(self) -> bool:
        return self._thread is not None

    def start(self, job: Callable[[Chain], Any]) -> bool:
        """Start the job; True if it ended without a store operation."""
        assert self._thread is None
        self.wire.failed, self.wire.stale, self._ended = False, 0, False

        def run() -> None:
            try:
                self.result = job(self.chain)
            except BaseException as error:
                self.result = error
            self._ended = True
            self.wire.reached.release()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        return self._arrived()

    def step(self, fault: str) -> bool:
        """Execute the job's pending operation with this fate; True if the job has ended with it: see `result`."""
        self.wire.fault = fault
        self.wire.allowed.release()
        return self._arrived()

    def crash(self) -> None:
        """End the job at its current operation, however it reacts."""
        while self.busy:
            self.step("crash before")

    def _arrived(self) -> bool:
        assert self.wire.reached.acquire(timeout=WAIT_S)
        if self._ended and self._thread is not None:
            self._thread.join(WAIT_S)
            self._thread = None
        return self._ended
