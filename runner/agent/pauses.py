"""Detects times in which this process did not run: stopped, frozen, or on a paused machine, most likely with its workers."""

from collections import deque

# Later than it should have run; what is shorter ends no rank.
NOTICED_S = 1.0
_KEPT = 64


class Pauses:
    """Pauses of the whole process, which durations must not include. Times are seconds of one monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._ran_s = now_s
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def runs(self, now_s: float, due_s: float) -> None:
        """This process runs, and was to do so within `due_s` of the last time."""
        late_s = now_s - self._ran_s - due_s
        if late_s > NOTICED_S:
            self._pauses.append((self._ran_s + due_s, now_s))
        self._ran_s = now_s

    def since(self, then_s: float) -> float:
        """Seconds of pauses after `then_s`."""
        return sum(ended_s - max(began_s, then_s) for began_s, ended_s in self._pauses if ended_s > then_s)
