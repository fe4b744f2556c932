"""Builds switches and hosts as network namespaces with veth cables, and runs FRR with the given frr.conf on each switch."""

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from tests.real.slurm.machine import Machine, leashed
from tests.real.slurm.scratch import Scratch

from .datagrams import ROCE_PORT, receive, send, socket_in
from .programs import SEARCH_PATH, installed_programs
from .wiring import (
    Link,
    Nic,
    Port,
    device_commands,
    hear_commands,
    host_commands,
    link_commands,
    set_command,
    silence_commands,
)

T = TypeVar("T")

POLL_S = 0.05
START_S = 60.0
ANSWER_S = 2.0
LOG_TAIL_LINES = 8
DATAGRAM = b"x" * 4000
DAEMONS = ("zebra", "bfdd", "bgpd")
LOST_FLAGS = frozenset({"dead", "linkdown"})

# Names of namespaces, FRR's folders and its crash logs (named by pid) are private to this machine. The loop reaps orphans.
HOLDER = """
set -e
for folder in /run /etc/frr /var/tmp; do
    mount -t tmpfs -o mode=755 tmpfs "$folder"
done
install -d -o frr -g frr /run/frr /run/log
chmod 1777 /var/tmp
echo up
exec >&2
while :; do sleep infinity & wait $! || :; done
"""


class FabricError(Exception):
    """The fabric did not reach an awaited state; the message ends with the switch's report."""


class Fabric:
    """`with Fabric(switches, links, hosts) as fabric:` gives switches that have read their files; nothing of it remains afterwards.

    `switches`: name -> its files, by their names in /etc/frr. `hosts`: name -> its adapters, by the names of their interfaces.
    `systems`: name of a switch or host -> commands with its operating system's settings; such a host gets no other addresses and routes.
    """

    def __init__(
        self,
        switches: Mapping[str, Mapping[str, str]],
        links: Sequence[Link],
        hosts: Mapping[str, Mapping[str, Nic]],
        systems: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.switches = switches
        self.links = links
        self.hosts = hosts
        self.systems = systems
        self.programs = installed_programs()
        self._started = ExitStack()
        self._machine: Machine | None = None

    # --- start and stop -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            scratch = Scratch("headway-fabric-")
            stack.callback(scratch.remove)
            self._machine = Machine("fabric", HOLDER, [], {"PATH": SEARCH_PATH}, scratch.path / "console")
            stack.callback(self._machine.kill)
            self._machine.boot()
            self.run_script(self._wiring())
            for name, files in self.switches.items():
                self._start_switch(name, files)
            self._started = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._started.close()

    def _wiring(self) -> Iterable[str]:
        for name in (*self.switches, *self.hosts):
            yield from device_commands(name)
        for link in self.links:
            yield from link_commands(link)
        for name, nics in self.hosts.items():
            yield from host_commands(name, nics) if name not in self.systems else ()
        for commands in self.systems.values():
            yield from commands

    def _start_switch(self, name: str, files: Mapping[str, str]) -> None:
        """As frrinit.sh does it: the daemons without configuration, and then the whole file through vtysh."""
        folder = self.root / "etc/frr" / name
        folder.mkdir()
        for file, text in {"vtysh.conf": "", **files}.items():
            (folder / file).write_text(text)
        self.run_script(shlex.join(["ip", "netns", "exec", name, *self._daemon(daemon, name)]) for daemon in DAEMONS)
        self.run([str(self.programs["vtysh"]), "-N", name, "-b"])

    def _daemon(self, daemon: str, switch: str) -> list[str]:
        # -N keeps the sockets of switches apart in /run/frr; -P 0: no terminal on TCP; without -f it logs a missing file
        log = f"file:/run/log/{switch}-{daemon}"
        # SONiC's zebra has a separate one, which sends routes to the ASIC; here nothing listens at the other end.
        module = ["-M", "dplane_fpm_nl"] if daemon == "zebra" else []
        return [str(self.programs[daemon]), "-d", "-N", switch, "-f", "/dev/null", "-P", "0", "--log", log, *module]

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def machine(self) -> Machine:
        """The folder with everything of the fabric; raises RuntimeError before the start."""
        if self._machine is None:
            raise RuntimeError("the fabric is not started; enter it with `with`")
        return self._machine

    @property
    def root(self) -> Path:
        """The file tree that switches and hosts see."""
        return Path(f"/proc/{self.machine.pid}/root")

    def run_script(self, commands: Iterable[str]) -> str:
        """Standard output of the commands inside; raises FabricError at the first that fails."""
        return self.run(["bash", "-e", "-c", "\n".join(commands)])

    def run(self, argv: Sequence[str]) -> str:
        """Standard output of `argv` inside; raises FabricError with its output if it fails."""
        entered = leashed(self.machine.enter(argv, Path("/")))
        env = {"PATH": SEARCH_PATH}
        done = subprocess.run(entered, check=False, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise FabricError(
                f"`{shlex.join(argv)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}{self._log_tails()}"
            )
        return done.stdout

    def vtysh(self, switch: str, *commands: str) -> str:
        """The answers of a switch's FRR to the commands, one after the other."""
        return self.run([str(self.programs["vtysh"]), "-N", switch, *(word for each in commands for word in ("-c", each))])

    def add_address(self, port: Port, address: str) -> None:
        """Configure by hand, as a person who logs in does."""
        self.run(["ip", "-n", port.device, "address", "add", address, "dev", port.interface])

    # --- routes -------------------------------------------------------------------------------------------------------

    def kernel_routes(self, switch: str, prefix: str) -> set[str]:
        """The interfaces through which the switch's kernel sends to exactly this prefix."""
        routes = json.loads(self.run(["ip", "-n", switch, "-j", "route", "show", "exact", prefix]))
        return {hop["dev"] for route in routes for hop in _hops(route) if not LOST_FLAGS & set(hop["flags"])}

    def wait_routes(self, switch: str, prefix: str, interfaces: Collection[str], timeout_s: float = START_S) -> None:
        """Return when the kernel sends to the prefix through exactly these interfaces; raises FabricError after `timeout_s`."""

        def explain() -> str:
            return self.vtysh(switch, f"show ip route {prefix}")

        what = f"routes of `{switch}` to {prefix} by {sorted(interfaces)}"
        self.wait(what, lambda: self.kernel_routes(switch, prefix), lambda found: found == set(interfaces), timeout_s, explain)

    def wait(
        self, what: str, read: Callable[[], T], accept: Callable[[T], bool], timeout_s: float, explain: Callable[[], str] = str
    ) -> T:
        """The first value of `read` that is accepted; raises FabricError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not accept(value := read()):
            if time.monotonic() > deadline:
                raise FabricError(f"waited {timeout_s:g} s for {what}, found {value!r}\n{explain()}{self._log_tails()}")
            time.sleep(POLL_S)
        return value

    # --- packets ------------------------------------------------------------------------------------------------------

    def probe(self, a: Port, b: Port, tos: int) -> list[int]:
        """The TOS bytes with which a jumbo datagram arrives at host port `b`, and its answer at `a`: fewer if one is lost."""
        near, far = self.hosts[a.device][a.interface], self.hosts[b.device][b.interface]
        with (
            socket_in(self._namespace(a.device), a.interface, near.ip) as asking,
            socket_in(self._namespace(b.device), b.interface, far.ip, ROCE_PORT) as answering,
        ):
            send(asking, DATAGRAM, (far.ip, ROCE_PORT), tos)
            if (question := receive(answering, ANSWER_S)) is None:
                return []
            payload, tos_there, asker = question
            send(answering, payload, asker, tos)
            if (answer := receive(asking, ANSWER_S)) is None:
                return [tos_there]
            return [tos_there, answer[1]]

    def _namespace(self, device: str) -> Path:
        return self.root / "run/netns" / device

    # --- cables -------------------------------------------------------------------------------------------------------

    def cut(self, link: Link) -> None:
        """End b goes down, end a loses its carrier."""
        self.run_script([set_command(link.b, "down")])

    def silence(self, link: Link) -> None:
        """End b receives nothing any more; both ends keep their carrier."""
        self.run_script(silence_commands(link.b))

    def mend(self, link: Link) -> None:
        """Restore a cable that was cut or silenced."""
        self.run_script([*hear_commands(link.b), set_command(link.b, "up")])

    # --- logs ---------------------------------------------------------------------------------------------------------

    def logs(self) -> dict[str, str]:
        """`<switch>-<daemon>` -> all that the daemon wrote."""
        return {path.name: path.read_text(errors="replace") for path in sorted((self.root / "run/log").iterdir())}

    def _log_tails(self) -> str:
        tails = {name: "\n".join(text.splitlines()[-LOG_TAIL_LINES:]) for name, text in self.logs().items()}
        return "\n".join(f"--- {name}\n{tail}" for name, tail in tails.items())


def _hops(route: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    hops: Sequence[Mapping[str, Any]] = route.get("nexthops", [route])
    return hops
