"""Implements a worker's side of the agent: the heartbeat page, events, and access to the rendezvous store of its generation."""

import faulthandler
import json
import mmap
import os
import site
import socket
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from headway.runner.contract import HEARTBEAT, SECTIONS, STACKS_SIGNAL, Base, HeartbeatPage

TEXT_CHARACTERS = 500
# The number of the start (`orders.RestartRanks`) of a replica group that was lost.
JOINS = "HEADWAY_JOINS"
_STEP, _SECTION, _PULSE = HEARTBEAT["step"], HEARTBEAT["section"], HEARTBEAT["pulse"]
_MONOTONIC_NS, _OWN_NS = HEARTBEAT["monotonic_ns"], HEARTBEAT["own_ns"]
_NUMBER = {name: number for number, name in enumerate(SECTIONS)}
_OWN = f"{Path(__file__).parent}{os.sep}"


_current: "list[Worker]" = []
_kept: list[Any] = []  # files that must stay open


def current() -> "Worker | None":
    """The worker that this process is; None outside a headway run."""
    return _current[0] if _current else None


@dataclass
class Worker:
    """The descriptors that the supervisor passed to this process, and the two ways to report through them: heartbeat page and events."""

    rank: int
    local_rank: int
    world_size: int
    generation: int
    attempt: int
    run_json: str
    base: Base | None
    _page: HeartbeatPage
    _events: socket.socket
    step: int = 0
    # The first position of the batch that is computed, where the trainer knows it.
    sample: int | None = None
    _pid: int = field(default_factory=os.getpid)
    _pulses: int = 0
    _not_own_ns: int = field(
        default_factory=time.monotonic_ns
        # When this process began, and what it has waited for others since.
    )
    _line: memoryview = field(init=False)
    _socket: tuple[int, int] = field(init=False)  # device and number

    def __post_init__(self) -> None:
        self._line = self._page.line(self.local_rank)
        found = os.fstat(self._events.fileno())
        self._socket = found.st_dev, found.st_ino

    @classmethod
    def from_environment(cls) -> "Worker":
        """Raises KeyError outside a headway run."""
        # Taken out of the environment and kept from children: a daemon of the script must not hold them open.
        heartbeat, events = (int(os.environ.pop(f"HEADWAY_{name}_FD")) for name in ("HEARTBEAT", "EVENTS"))
        for descriptor in (heartbeat, events):
            os.set_inheritable(descriptor, False)
        show_stacks_when_asked()
        page = HeartbeatPage(memoryview(mmap.mmap(heartbeat, 0)))
        os.close(heartbeat)
        base = json.loads(os.environ["HEADWAY_BASE"])
        worker = cls(
            rank=int(os.environ["RANK"]),
            local_rank=int(os.environ.get("HEADWAY_LOCAL_RANK", os.environ["LOCAL_RANK"])),
            world_size=int(os.environ["WORLD_SIZE"]),
            generation=int(os.environ["HEADWAY_GENERATION"]),
            attempt=int(os.environ["HEADWAY_ATTEMPT"]),
            run_json=os.environ["HEADWAY_RUN_JSON"],
            base=Base(**base) if base else None,
            _page=page,
            _events=socket.socket(fileno=events),
        )
        page.write(worker.local_rank, pid=os.getpid())
        _current[:] = [worker]
        return worker

    # --- heartbeat ----------------------------------------------------------------------------------------------------

    def section(self, name: str) -> None:
        """This process now does `name`, one of contract.SECTIONS."""
        self._line[_SECTION] = _NUMBER[name]
        self.pulse()

    def completed(self, step: int) -> None:
        """`step` optimizer steps are complete."""
        self.step = self._line[_STEP] = step
        self.pulse()

    def waited(self, nanoseconds: int) -> None:
        """So long it has just waited for other ranks."""
        self._not_own_ns += nanoseconds
        self.pulse()

    @property
    def not_own_ns(self) -> int:
        """Nanoseconds for which this process has waited for other ranks, since an arbitrary start."""
        return self._not_own_ns

    def pulse(self) -> None:
        """This process lives and moves. Hooks call this several times a step, so it writes the words by their places."""
        self._pulses += 1
        now = time.monotonic_ns()
        line = self._line
        line[_PULSE], line[_MONOTONIC_NS], line[_OWN_NS] = self._pulses, now, now - self._not_own_ns

    def save_requested(self) -> bool:
        """Has the coordinator asked to save and stop? Ranks must agree on the step before they act on it."""
        return bool(self._page.read(self.local_rank)["save_request"])

    def members_word(self) -> int:
        """Return the word of the replica groups that train together (`Members.of_word`)."""
        return self._page.read(self.local_rank)["members"]

    # --- events -------------------------------------------------------------------------------------------------------

    def say(self, what: str, **facts: Any) -> None:
        """One event for the coordinator. It is delivered in order, and before the end of this process. A script that has closed our socket,
        as a daemon closes all that it inherits, reports nothing any more: its number may be a file of the script now."""
        if self._is_still_ours():
            self._events.send(json.dumps({"what": what, "rank": self.rank, **facts}).encode())

    def _is_still_ours(self) -> bool:
        try:
            found = os.fstat(self._events.fileno())
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._socket

    def forked(self) -> bool:
        """Return whether this process was forked by the rank, so that its end is not the rank's."""
        return os.getpid() != self._pid

    def raised(self, error: BaseException) -> None:
        """The exception that ends this process."""
        if self.forked():
            return
        lines = str(error).splitlines() or [""]
        facts = {"type": type_name(error), "text": lines[0][:TEXT_CHARACTERS], "at": innermost(error.__traceback__)}
        self.say("exception", **facts, step=self.step, sample=self.sample)


def type_name(error: BaseException) -> str:
    """The qualified name of an exception's class; a built-in one's without its module."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def innermost(trace: TracebackType | None) -> str | None:
    """Where the innermost frame of the user's code was, as `file:line function`: not that of a library, unless there is no other."""
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    for passed_over in ((*_libraries(), _OWN), _libraries(), ()):
        left = [(code, line) for code, line in frames if not code.co_filename.startswith(passed_over)]
        if left:
            code, line = left[-1]
            # Python 3.10 has no `co_qualname`.
            return f"{code.co_filename}:{line} {getattr(code, 'co_qualname', code.co_name)}"
    return None


def _libraries() -> tuple[str, ...]:
    """How the names of files begin that are installed."""
    paths = sysconfig.get_paths()
    return ("<frozen ", *(f"{folder}{os.sep}" for folder in (paths["stdlib"], paths["platstdlib"], *site.getsitepackages())))


def show_stacks_when_asked() -> None:
    """Append the stack of the thread that gets STACKS_SIGNAL to the file that the agent named, whichever thread has the GIL.

    It is the stack of one thread, and must only be requested while that thread sleeps: faulthandler reads the frames of one that runs
    while CPython 3.11 frees them (two busy threads: SIGSEGV after 642 signals).
    """
    path = os.environ.get("HEADWAY_STACKS")
    if path is None:
        return
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        stacks = Path(path).open("a")  # noqa: SIM115  open for as long as the process lives
    except OSError as error:
        # A full disk costs the evidence, not the run.
        print(f"stacks of rank {os.environ.get('RANK')} cannot be shown: {error}", file=sys.stderr)
        return
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=False)
    _kept.append(stacks)


def client_store(timeout: timedelta) -> Any:
    """The generation's store, which the node of rank 0 serves. Raises RuntimeError when it does not within `timeout`."""
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415

    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*address, is_master=False, timeout=timeout, wait_for_workers=False)


def meet_store(worker: Worker, store: Any, key: str, timeout: timedelta) -> None:
    """Waits until the first local rank of every node has come here, or `timeout` has passed. `store` null: one is made."""
    nodes = worker.world_size // int(os.environ["LOCAL_WORLD_SIZE"])
    try:
        store = store or client_store(timeout)
        if worker.local_rank == 0 and store.add(key, 1) == nodes:
            store.set(f"{key}/all", b"1")
        store.wait([f"{key}/all"], timeout)
    except RuntimeError as error:
        print(f"headway: rank {worker.rank} continues alone from {key}: {error}".splitlines()[0], file=sys.stderr)
