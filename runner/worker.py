"""A worker's side of the agent: the heartbeat page, what it says, and the rendezvous store of its generation."""

import json
import mmap
import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headway.runner.checkpoint.chain import Base
from headway.runner.contract import SECTIONS, HeartbeatPage

PARTING_S = 60.0
_LEFT = "headway/left"  # in the store: how many ranks besides the first have finished


_current: "list[Worker]" = []


def current() -> "Worker | None":
    """The worker that this process is; None outside a headway run."""
    return _current[0] if _current else None


@dataclass(frozen=True)
class Worker:
    """What the supervisor handed to this process. `section`, `completed` and `say` are all it ever tells back."""

    rank: int
    local_rank: int
    world_size: int
    generation: int
    attempt: int
    run_json: str
    base: Base | None
    _page: HeartbeatPage
    _events: socket.socket

    @classmethod
    def from_environment(cls) -> "Worker":
        """Raises KeyError outside a headway run."""
        # Taken out of the environment and kept from children: a daemon of the script must not hold them open.
        heartbeat, events = (int(os.environ.pop(f"HEADWAY_{name}_FD")) for name in ("HEARTBEAT", "EVENTS"))
        for descriptor in (heartbeat, events):
            os.set_inheritable(descriptor, False)
        page = HeartbeatPage(memoryview(mmap.mmap(heartbeat, 0)))
        base = json.loads(os.environ["HEADWAY_BASE"])
        worker = cls(
            rank=int(os.environ["RANK"]),
            local_rank=int(os.environ["LOCAL_RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            generation=int(os.environ["HEADWAY_GENERATION"]),
            attempt=int(os.environ["HEADWAY_ATTEMPT"]),
            run_json=os.environ["HEADWAY_RUN_JSON"],
            base=Base(**base) if base else None,
            _page=page,
            _events=socket.socket(fileno=events),
        )
        page.write(worker.local_rank, pid=os.getpid())
        _current.append(worker)
        return worker

    def section(self, name: str) -> None:
        """This process now does `name`, one of contract.SECTIONS."""
        self._page.write(self.local_rank, section=SECTIONS.index(name), monotonic_ns=time.monotonic_ns())

    def completed(self, step: int) -> None:
        """`step` optimizer steps are complete."""
        self._page.write(self.local_rank, step=step, monotonic_ns=time.monotonic_ns())

    def save_requested(self) -> bool:
        """Has the coordinator asked to save and stop? Ranks must agree on the step before they act on it."""
        return bool(self._page.read(self.local_rank)["save_request"])

    def say(self, what: str, **facts: Any) -> None:
        """One event for the coordinator. It is delivered in order, and before the end of this process."""
        self._events.send(json.dumps({"what": what, "rank": self.rank, **facts}).encode())


def leave_store(worker: Worker, store: Any) -> None:
    """Rank 0 goes on serving the store until the other ranks have finished too, as torchrun's does; at most PARTING_S longer."""
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415

    try:
        if store is None:
            address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            TCPStore(*address, is_master=False, timeout=timedelta(seconds=5), wait_for_workers=False).add(_LEFT, 1)
            return
        until = time.monotonic() + PARTING_S
        while store.add(_LEFT, 0) < worker.world_size - 1 and time.monotonic() < until:
            time.sleep(0.01)
    except RuntimeError:  # rank 0 is gone, or left without waiting
        return


def host_store(worker: Worker) -> Any:
    """Rank 0: serves the generation's TCPStore on the socket that the supervisor opened. Keep what it returns.

    A store of the generation's own, on a port that was never free in between: torchrun shares one over restarts, and new workers then
    read dead workers' addresses (pytorch/pytorch#135712).
    """
    descriptor = os.environ.pop("HEADWAY_STORE_FD", None)
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415  importing torch costs a second, so only here

    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        worker.world_size,
        is_master=True,
        timeout=timedelta(seconds=300),
        wait_for_workers=False,
        master_listen_fd=int(descriptor),
    )
