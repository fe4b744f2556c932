"""Runs a tier's own thread: stores one node's captures after another, and reports the result of each."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headway.runner.checkpoint.keeper.capture import CaptureStorage, NodeCapture, Stored
from headway.runner.checkpoint.keeper.captures import CaptureBuffer
from headway.runner.checkpoint.keeper.protocol import Done, Failed

Report = Callable[[int, Done | Failed], None]


@dataclass(frozen=True)
class Upload:
    """A capture on its way to storage: the buffers that it is read from, and by rank the receivers of its result."""

    node: NodeCapture
    storage: Callable[[], CaptureStorage]
    buffers: tuple[CaptureBuffer, ...]
    report: Report


class KeeperTier:
    """Stores captures in its own thread. `ended` gets every job once, with what was stored or the reason why nothing
    was.

    `newest_only`: of the waiting captures only the newest is stored; those that it supersedes end without.
    """

    def __init__(self, name: str, ended: Callable[[str, Upload, list[Stored] | str], None], *, newest_only: bool) -> None:
        self._name, self._ended, self._newest_only = name, ended, newest_only
        self._waiting: deque[Upload] = deque()
        self._changed = threading.Condition()
        threading.Thread(target=self._serve, name=f"tier-{name}", daemon=True).start()

    def put(self, job: Upload) -> None:
        superseded: list[Upload] = []
        with self._changed:
            if self._newest_only:
                superseded.extend(self._waiting)
                self._waiting.clear()
            self._waiting.append(job)
            self._changed.notify()
        for old in superseded:
            self._ended(self._name, old, f"superseded by step {job.node.step}")

    def give_up(self, useless: Callable[[Upload], bool], why: str) -> None:
        """End the waiting jobs that have become `useless`, without storing them."""
        with self._changed:
            given_up = [job for job in self._waiting if useless(job)]
            self._waiting = deque(job for job in self._waiting if job not in given_up)
        for job in given_up:
            self._ended(self._name, job, why)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                job = self._waiting.popleft()
            self._ended(self._name, job, _outcome(job))


def _outcome(job: Upload) -> list[Stored] | str:
    try:
        return job.storage().store(job.node)
    except OSError as error:
        return f"{error.strerror}: {error.filename}" if error.strerror and error.filename else str(error)
    except Exception as error:
        # A store's library may raise anything: the tier continues, and the captures must be released.
        return str(error) or type(error).__name__
