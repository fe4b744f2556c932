"""Receives the supervisor's signals: the end of a child, and a request to stop the node."""

import os
import signal
import time

from headway.runner.contract import RunConfig


class StopSignals:
    """`since` is when the node was first asked to stop (monotonic), None if it was not; `number` is the newest signal that asked for it,
    which torchrun's workers get too."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.since: float | None = None
        self.number: int = signal.SIGTERM

    def install(self) -> int:
        """Install the handlers. Return a descriptor that is readable when a signal has come."""
        self._read_end, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write)
        self._stop_signals = self._signals_to_stop_at()
        for number in {signal.SIGCHLD, *self._stop_signals}:
            signal.signal(number, lambda *_: None)
        return self._read_end

    def read(self) -> bool:
        """Read the signals that have come. Return whether one of them asks to stop."""
        asked = set(os.read(self._read_end, 4096)) & self._stop_signals
        if asked:
            self.since = self.since or time.monotonic()
            self.number = min(asked)
        return bool(asked)

    def since_s(self) -> float | None:
        """Return how long ago the node was asked to stop."""
        return None if self.since is None else time.monotonic() - self.since

    def _signals_to_stop_at(self) -> set[int]:
        """Return the signals of schedulers and people, or those of torchrun's --signals-to-handle; one that nohup ignores stays ignored."""
        names = self._config.trainer.options.get("signals", ("SIGTERM", "SIGINT"))
        return {number for name in names if signal.getsignal(number := getattr(signal, name)) is not signal.SIG_IGN}
