"""Holds the workers of a generation: their events, the signals that they get, and how they end."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.runner.agent import cgroup
from headway.runner.agent.agent_link import AgentLink
from headway.runner.agent.processes import activity, describe_code, describe_status, kill_group, signal_main_thread, state_of
from headway.runner.agent.protocol import UndeadRank, UndeadReport, WorkerEnded, WorkerProcess
from headway.runner.contract import STACKS_SIGNAL, HeartbeatPage

EVENT_BYTES = 1 << 16
# After the script's end, for Python's own: of a process that computes nothing and moves nothing meanwhile.
LEAVE_S, LEAVE = 30.0, "HEADWAY_LEAVE_S"
# Of a processor: threads that wait for the interpreter wake up all the time.
IDLE_SHARE = 0.1
# A script that has not stepped by then may never do so in a way that can be counted.
STEPLESS_S = 60.0
# Of a worker that SIGKILL does not end; from when on the agent gets a report.
KILL_AGAIN_S, UNDEAD_S = 5.0, 30.0


@dataclass
class Leaving:
    """A worker whose script is through, with the code that it ends with; what it had done when it was last looked at, and when it is looked
    at next."""

    code: int
    done: tuple[int, int]
    until: float
    killed: bool = False


class Workers:
    """`by_pid` has the workers of the newest generation, ended ones too; `events` is the socket that they send their events to."""

    def __init__(self, agent: AgentLink, heartbeats: HeartbeatPage, events: socket.socket, *, is_script: bool) -> None:
        self._agent, self._heartbeats, self._is_script = agent, heartbeats, is_script
        self.events = events
        self.by_pid: dict[int, WorkerProcess] = {}
        self._leaving: dict[int, Leaving] = {}  # by pid
        # By pid: when SIGKILL was sent first, monotonic.
        self._killed: dict[int, float] = {}
        self._kill_again = 0.0
        self._steps_due: float | None = None  # monotonic
        # Kills by the kernel before this generation.
        self._out_of_memory = 0

    def forget(self) -> None:
        """Forget the workers of the generation before."""
        self.by_pid.clear()
        self._agent.forget_events()
        self._leaving.clear()
        self._steps_due = None
        self._killed.clear()

    def forget_ended(self, local_ranks: Collection[int]) -> None:
        """Forget the ended workers of these local ranks, which start again."""
        for pid, worker in list(self.by_pid.items()):
            if worker.local_rank in local_ranks and worker.ended is not None:
                del self.by_pid[pid]

    def begin(self) -> None:
        """Count the kernel's kills for memory from here on."""
        self._out_of_memory = cgroup.out_of_memory_kills()

    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.by_pid.values() if worker.ended is None]

    def kill(self, meant: Iterable[WorkerProcess], number: int) -> None:
        """Send the signal to these workers, with their process groups."""
        for worker in meant:
            worker.asked = True
            kill_group(worker.pid, signal.Signals(number))
            if number == signal.SIGKILL:
                self._kill_again = time.monotonic() + KILL_AGAIN_S if not self._killed else self._kill_again
                self._killed.setdefault(worker.pid, time.monotonic())

    def dump(self, ranks: Sequence[int]) -> None:
        """Have the ranks' processes write their stacks, where they handle the signal for that."""
        for worker in self.living():
            if worker.rank in ranks:
                signal_main_thread(worker.pid, STACKS_SIGNAL)

    def ended(self, worker: WorkerProcess, status: int) -> None:
        """Record and report how a worker has ended."""
        worker.ended, worker.code = describe_status(status), os.waitstatus_to_exitcode(status)
        self._killed.pop(worker.pid, None)
        if (leaving := self._leaving.pop(worker.pid, None)) is not None and leaving.killed:
            worker.ended, worker.code = describe_code(leaving.code), leaving.code
            print(f"rank {worker.rank} had finished but did not exit: {worker.ended}", file=sys.stderr, flush=True)
        worker.oom = worker.code != 0 and not worker.asked and cgroup.out_of_memory_kills() > self._out_of_memory
        self._agent.report(WorkerEnded(worker))

    # --- events -------------------------------------------------------------------------------------------------------

    def read_events(self) -> None:
        """Report all events that have arrived."""
        while True:
            try:
                data = self.events.recv(EVENT_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            try:
                event = json.loads(data)
            except ValueError:
                # Longer than EVENT_BYTES, so cut: it costs that event, not the node.
                print(f"unreadable event: {data[:80]!r}", file=sys.stderr, flush=True)
                continue
            if event.get("what") == "leaving":  # only for this process
                self._begins_to_leave(event)
                continue
            if self._is_script and (event.get("what"), event.get("name")) == ("section", "script"):
                self._steps_due = time.monotonic() + STEPLESS_S
            self._agent.report_event(event)

    def _begins_to_leave(self, event: dict[str, Any]) -> None:
        for worker in self.living():
            if worker.rank == event["rank"]:
                self._leaving[worker.pid] = Leaving(event["code"], activity(worker.pid), time.monotonic() + leave_s())

    # --- workers that do not end, and scripts whose steps cannot be counted ---------------------------------------------

    def watch(self) -> float | None:
        """End workers that do not end by themselves. Return the seconds until the next look, None if there is nothing to look at."""
        now = time.monotonic()
        for pid, leaving in self._leaving.items():
            if leaving.until <= now:
                self._look_at(pid, leaving, now)
        if self._killed and self._kill_again <= now:
            self._kill_killed_again(now)
        if self._steps_due is not None and self._steps_due <= now:
            self._steps_due = None
            self._report_stepless()
        waits = [leaving.until for leaving in self._leaving.values()] + [self._kill_again] * bool(self._killed)
        waits += [] if self._steps_due is None else [self._steps_due]
        return max(min(waits) - now, 0.0) if waits else None

    def _look_at(self, pid: int, leaving: Leaving, now: float) -> None:
        """End a worker whose script is through, where it has done nothing since the last look."""
        ticks, moved = activity(pid)
        bound_s = leave_s()
        idle = moved == leaving.done[1] and ticks - leaving.done[0] <= IDLE_SHARE * bound_s * os.sysconf("SC_CLK_TCK")
        leaving.done, leaving.until = (ticks, moved), now + bound_s
        if idle or leaving.killed:
            leaving.killed = True
            os.kill(pid, signal.SIGKILL)

    def _kill_killed_again(self, now: float) -> None:
        self._kill_again = now + KILL_AGAIN_S
        for pid in self._killed:
            kill_group(pid, signal.SIGKILL)
        stay = [pid for pid, since in self._killed.items() if now - since >= UNDEAD_S]
        if undead := [UndeadRank(self.by_pid[pid].rank, state_of(pid)) for pid in stay]:
            self._agent.report(UndeadReport(undead))

    def _report_stepless(self) -> None:
        """Report that the progress of a script is unknown that steps no optimizer of torch."""
        first = next((worker for worker in self.living() if worker.rank == 0), None)
        if first is not None and self._heartbeats.read(first.local_rank)["step"] == 0:
            text = f"no torch optimizer has stepped within {STEPLESS_S:.0f} s: steps are not counted"
            self._agent.report_event({"what": "note", "rank": 0, "kind": "unseen", "calls": [text]})


def leave_s() -> float:
    """Return how long a process may do nothing after its script's end."""
    return float(os.environ.get(LEAVE, LEAVE_S))
