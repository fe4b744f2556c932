"""Reads the kernel's log for this node's agent: what NVIDIA's driver has reported since the generation started.

/dev/kmsg gives one record a read, `priority,sequence,microseconds,flags;message`, and lines of further facts that begin with a space
(linux Documentation/ABI/testing/dev-kmsg). Without the right to read it (dmesg_restrict, a container) nothing is known. Records of
processes are ignored: the kernel gives them another facility than its own, 0.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from headway.runner.health.xid import Xid, parse

KMSG = Path("/dev/kmsg")
# Reports of a generation: a failing device repeats its report.
KEPT = 16
# The longest that the kernel gives; a shorter buffer is refused.
_RECORD_BYTES = 8192
_RECORD = re.compile(r"^(?P<priority>\d+),\d+,\d+,[^;]*;(?P<message>.*)$", re.MULTILINE)


class KernelLog:
    """Reports since `begin`."""

    def __init__(self, path: Path = KMSG) -> None:
        self._xids: list[Xid] = []
        self._log: int | None = None
        with contextlib.suppress(OSError):
            self._log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.begin()

    def begin(self) -> None:
        """Forget the reports so far."""
        self._xids.clear()
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.lseek(self._log, 0, os.SEEK_END)

    def xids(self) -> list[Xid]:
        """The first KEPT reports since then."""
        if self._log is not None:
            for priority, message in records(self._log):
                if priority >> 3 == 0 and len(self._xids) < KEPT and (found := parse(message)) is not None:
                    self._xids.append(found)
        return list(self._xids)


def records(log: int) -> Iterator[tuple[int, str]]:
    """Yield the unread records of an open /dev/kmsg: priorities, which hold the facility, and messages."""
    while True:
        try:
            text = os.read(log, _RECORD_BYTES).decode(errors="replace")
        except BrokenPipeError:
            # Records were overwritten before they were read; the next read continues after them.
            continue
        except OSError:  # no more; or not to be read any longer
            return
        if not text:
            return
        yield from ((int(match["priority"]), match["message"]) for match in _RECORD.finditer(text))
