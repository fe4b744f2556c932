"""Runs a process tree in separate namespaces that is switched off like a machine, and ends with the process that booted it."""

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BOOT_S = 30.0
OFF_S = 30.0

# PR_SET_PDEATHSIG has no effect for a parent that died before the call: hence the comparison
LEASH = ("setpriv", "--pdeathsig", "KILL", "bash", "-c", '[ "$PPID" = "$0" ] && exec "$@"')
UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def leashed(argv: Sequence[str]) -> list[str]:
    """`argv`, to be started by the calling thread, and killed by the kernel when that thread ends."""
    return [*LEASH, str(os.getpid()), *argv]


class Machine:
    """Run `script` (bash, with `arguments`) as the first process of separate PID and mount namespaces.

    The script prints `up` on standard output once it is ready to be entered. `is_host`: it also has a separate host name, System V
    memory and uptime. `view`: a command line that changes the visible files and then runs the rest of its arguments.
    """

    def __init__(
        self,
        name: str,
        script: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        console: Path,
        *,
        is_host: bool = False,
        view: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.console = console
        self._command = [*view, "bash", "-c", script, name, *arguments]
        self._is_host = is_host
        self._env = dict(env)
        self._unshare: subprocess.Popen[bytes] | None = None

    @property
    def is_on(self) -> bool:
        return self._unshare is not None and self._unshare.poll() is None

    @property
    def pid(self) -> int:
        """The first process, with its PID on this machine's host; raises ProcessLookupError if it is off."""
        if self._unshare is not None and self.is_on:
            for child in Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split():
                return int(child)
        raise ProcessLookupError(f"`{self.name}` is off; boot it first")

    def boot(self) -> None:
        """Return when the script has printed `up`; raises RuntimeError with the console's text if it did not, or if it is already on."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"`{self.name}` booted from a thread; boot it from the main thread, with whose end it is killed")
        if self.is_on:
            raise RuntimeError(f"`{self.name}` is on already; kill it first")
        with self.console.open("ab") as console:
            self._unshare = subprocess.Popen(
                leashed([*UNSHARE, *(_host_namespaces() if self._is_host else ()), *self._command]),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=console,
                start_new_session=True,
            )
        if not _printed_up(self._unshare):
            self.kill()
            raise RuntimeError(f"`{self.name}` did not come up; its console:\n{self.console.read_text(errors='replace')}")

    def kill(self) -> None:
        """Power loss: return when every process of the machine has ended. A machine that is off is unchanged."""
        if self._unshare is None:
            return
        # the kernel ends the first process of a PID namespace only after all the others, and unshare waits for it
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            self._unshare.kill()
        self._unshare.wait(timeout=OFF_S)
        self._unshare = None

    def freeze(self) -> None:
        """Return when every process of the machine is stopped; raises ProcessLookupError if it is off."""
        while running := [process for process in self._processes() if process.state not in "TXZ"]:
            for process in running:
                process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue every process of the machine; running ones are unaffected."""
        for process in self._processes():
            process.signal(signal.SIGCONT)

    def _processes(self) -> list["_Process"]:
        namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        return [_Process(int(entry.name)) for entry in Path("/proc").glob("[0-9]*") if _namespace(entry) == namespace]

    def enter(self, argv: Sequence[str], directory: Path) -> list[str]:
        """The command line that runs `argv` inside, in `directory`."""
        return ["nsenter", f"--target={self.pid}", "--all", f"--wdns={directory}", "--", *argv]


@dataclass(frozen=True)
class _Process:
    """A process of the machine, which may end at any time."""

    pid: int

    @property
    def state(self) -> str:
        """The state in /proc/PID/stat; X once it has ended."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return "X"

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _namespace(entry: Path) -> Path | None:
    with contextlib.suppress(OSError):
        return (entry / "ns/pid").readlink()
    return None


def _host_namespaces() -> tuple[str, ...]:
    # slurmctld recognizes a reboot by the uptime: the boot-time clock starts from 0
    return ("--uts", "--ipc", "--time", f"--boottime=-{int(time.clock_gettime(time.CLOCK_BOOTTIME))}")


def _printed_up(process: subprocess.Popen[bytes]) -> bool:
    if process.stdout is None:
        return False
    with process.stdout as output:
        readable, _, _ = select.select([output], [], [], BOOT_S)
        return bool(readable) and output.readline() == b"up\n"
