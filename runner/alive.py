"""Identifies a process on disk for later readers, and checks whether it is still alive."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

# States of a process that only its parent has not looked at yet (proc(5))
_ENDED = frozenset("ZX")


@dataclass(frozen=True)
class Process:
    """`started` in clock ticks since the boot `boot` of `machine`; `pids` and `network` are its namespaces. Empty: cannot be known here."""

    host: str
    machine: str
    boot: str
    pids: str
    network: str
    pid: int
    started: int

    @classmethod
    def own(cls) -> "Process":
        """This process. It stays the same one through exec."""
        return cls(
            host=socket.gethostname(),
            machine=_read("/etc/machine-id"),
            boot=_read("/proc/sys/kernel/random/boot_id"),
            pids=_namespace("pid"),
            network=_namespace("net"),
            pid=os.getpid(),
            started=_started(os.getpid()) or 0,
        )

    def lives(self) -> bool | None:
        """Whether it does; None where that cannot be seen from here: another machine, or a container that this one does not see into."""
        here = Process.own()
        if not self.boot or self.boot != here.boot:
            # The machine was rebooted since. A host name alone proves nothing: containers may share one.
            again = (self.host, self.machine) == (here.host, here.machine) and self.machine and self.boot
            return False if again else None
        if not self.pids or self.pids != here.pids:
            return None
        return _started(self.pid) == self.started

    def shares_network(self) -> bool:
        """Whether loopback is the same there and here."""
        here = Process.own()
        return bool(self.boot and self.network) and (self.boot, self.network) == (here.boot, here.network)


def _started(pid: int) -> int | None:
    """When a process began (proc(5), starttime); None when it is gone."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in _ENDED else int(fields[18])


def _namespace(kind: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
