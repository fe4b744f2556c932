"""Provides a machine with a separate network, on which daemons are started one by one."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.real.slurm.machine import Machine, leashed

from .programs import SEARCH_PATH

POLL_S = 0.05
OFF_S = 30.0
LOG_TAIL_LINES = 40

OWN_NETWORK = 'exec unshare --net bash -c "$1" "$0" "${@:2}"'

# the loop reaps orphans
IDLE = """
echo up
exec >&2
while :; do sleep infinity & wait $! || :; done
"""

HTTP_GET = 'exec 3<>"/dev/tcp/$0/$1" && printf "GET $2 HTTP/1.0\\r\\n\\r\\n" >&3 && grep -q "^HTTP/1.. 200 " <&3'


class HostError(Exception):
    """A host did not reach an awaited state; the message ends with the log of its command."""


class Host:
    """`script` (bash, with `arguments`) prepares the host, whose network has only a loopback device that is down.

    It ends with IDLE. The output of every daemon is in `logs`, in a file with the daemon's name.
    """

    def __init__(self, name: str, script: str, arguments: Sequence[str], logs: Path) -> None:
        self.name = name
        self.logs = logs
        self.env = {"PATH": SEARCH_PATH, "HOME": "/nonexistent"}
        console = logs / f"{name}.console"
        self._machine = Machine(name, OWN_NETWORK, [script, *arguments], self.env, console, is_host=True)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pid(self) -> int:
        """The first process, with its PID on this machine; raises ProcessLookupError if the host is off."""
        return self._machine.pid

    def boot(self) -> None:
        """Return when the script has ended; raises RuntimeError with its output if it did not."""
        self._machine.boot()

    def kill(self) -> None:
        """Power loss: return when every process of the host has ended. A host that is off is unchanged."""
        self._machine.kill()
        for daemon in self._daemons.values():
            daemon.wait(timeout=OFF_S)
        self._daemons.clear()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Run a daemon on the host until the host is off."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                leashed(self._machine.enter(argv, Path("/"))),
                env=self.env | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def runs(self, name: str) -> bool:
        """Whether the daemon was started and has not ended."""
        return name in self._daemons and self._daemons[name].poll() is None

    def run(self, *argv: str, check: bool = True, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the host to its end; raises HostError with its output if it fails."""
        done = subprocess.run(
            leashed(self._machine.enter(argv, Path("/"))),
            check=False,
            env=self.env,
            timeout=timeout_s,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if check and done.returncode != 0:
            raise HostError(f"`{' '.join(argv)}` on `{self.name}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def network(self) -> list[str]:
        """The prefix of a command line that runs in the host's network, with this machine's files and processes."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]

    def wait_http(self, name: str, port: int, path: str, timeout_s: float, address: str = "127.0.0.1") -> None:
        """Return when the daemon answers `path` with 200; raises HostError if it ends before or after `timeout_s`."""
        request = ("bash", "-c", HTTP_GET, address, str(port), path)
        self.wait_daemon(name, lambda: self.run(*request, check=False).returncode == 0, timeout_s)

    def wait_daemon(self, name: str, is_up: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_up():
            if not self.runs(name):
                raise HostError(f"`{name}` on `{self.name}` ended at its start; its log:\n{self.tail(name)}")
            if time.monotonic() > deadline:
                raise HostError(f"waited {timeout_s:g} s for `{name}` on `{self.name}`; its log:\n{self.tail(name)}")
            time.sleep(POLL_S)

    def tail(self, name: str) -> str:
        """The last lines that a daemon wrote."""
        return "\n".join((self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
