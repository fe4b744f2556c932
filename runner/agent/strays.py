"""Ends the processes and removes the shared memory that workers leave behind."""

import os
import signal
import time
from collections.abc import Callable, Iterable

from headway.runner.agent import shm_cleanup
from headway.runner.agent.processes import become_subreaper, children, kill_group, opens_a_device

REAP_S = 0.005
# A killed process that is in the kernel may take its time; the next generation waits no longer.
STRAYS_S = 10.0


class Strays:
    """`started` returns the processes that the supervisor has started; all other children of it are strays, which it has adopted."""

    def __init__(self, started: Callable[[], set[int]]) -> None:
        self._started = started
        # Children that this process had before it was a supervisor.
        self._others: frozenset[int] = frozenset()
        # Sessions of what ranks that ended with 0 have left behind.
        self._left: set[int] = set()
        # Shared memory that ended workers had open, and that was there before the generation.
        self._shared_memory: set[shm_cleanup.Inode] = set()
        self._shared_before: set[shm_cleanup.Inode] = set()

    def adopt(self) -> None:
        """Have orphans come to this process from here on. Children that it has already are no strays."""
        self._others = frozenset(children())
        become_subreaper()

    def found(self) -> list[int]:
        """Return the processes that workers left behind; this process adopts orphans (`become_subreaper`)."""
        return [pid for pid in children() if pid not in self._started() | self._others]

    def begin(self) -> None:
        """Note the shared memory that is there before a generation: it is not the generation's to remove."""
        self._shared_before = shm_cleanup.present()

    def note_shared_memory(self, pids: Iterable[int]) -> None:
        """Note the shared memory of processes that are about to end."""
        self._shared_memory |= shm_cleanup.shared_memory_of(pids)

    def leave(self, pid: int, others: set[int]) -> None:
        """Leave the processes alone that a completed rank has left behind, in whatever session they run: they belong to its script.
        `others` are the other workers."""
        self._left |= ({pid} | {session for each in self.found() if (session := session_of(each)) is not None}) - others

    def clear_away(self, reap: Callable[[], None]) -> None:
        """End what earlier workers left behind, and reap it: what it held, a device or memory, is free then."""
        until = time.monotonic() + STRAYS_S
        while (strays := self._to_end()) and time.monotonic() < until:
            self.note_shared_memory(strays)
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
            reap()
            if self._to_end():
                time.sleep(REAP_S)
        self.remove_shared_memory()

    def end_everything(self, patience_s: float, *, completed: bool) -> None:
        """Kill and reap this process's children within `patience_s`; after a failure also the processes that workers have left behind,
        with the children of killed ones. Processes that a completed run has left continue, as under torchrun."""
        until = time.monotonic() + patience_s
        while (left := self._to_kill(completed=completed)) and time.monotonic() < until:
            for pid in left:
                kill_group(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
            while children() and os.waitpid(-1, os.WNOHANG)[0]:
                continue
            time.sleep(REAP_S)
        if not completed:
            self.remove_shared_memory()

    def remove_shared_memory(self) -> None:
        shm_cleanup.remove_unused(self._shared_memory - self._shared_before)
        self._shared_memory.clear()

    def _to_end(self) -> list[int]:
        """Return the strays, without the processes of completed ranks that have no device open."""
        return [pid for pid in self.found() if session_of(pid) not in self._left or opens_a_device(pid)]

    def _to_kill(self, *, completed: bool) -> list[int]:
        ours = [pid for pid in children() if pid in self._started() - self._others]
        return ours if completed else [*ours, *self._to_end()]


def session_of(pid: int) -> int | None:
    """Return the session of a process; None once it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
