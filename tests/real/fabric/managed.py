"""A fabric whose switches are managed over SSH: an sshd for each in its own view, and a station from which headway reaches them."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from headway.compile import PlannedCluster, compile_documents
from headway.templates.switches.frr import FRR
from headway.templates.switches.frr.sysctl import SYSCTL
from tests.real.slurm.machine import leashed
from tests.real.ssh.programs import program

from .fabric import START_S, Fabric
from .planned import cable, kernel_settings
from .programs import SEARCH_PATH
from .wiring import Link, Nic, Port

REPOSITORY = Path(__file__).parents[3]
STATION = "station"
RELOADER = Path("/usr/lib/frr/frr-reload.py")
LIMIT_S = 240.0

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups: [{name: gpu, count: 3, cpus: 8, gpu: H100-SXM-80, gpus: 1, nics: [mlx5_0]}]
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes: [{name: roce, carries: collectives, dscp: 26, priority: 3, lossless: true}]
    switches:
      leaves: 2
      spines: 2
      ports: 4
      addresses: 10.10.0.0/16
      os: [{kind: frr, options: {login: {user: root, identity: identity, known_hosts: known_hosts}}}]
storage: [{name: runs, kind: posix, path: runs, shared: true}]
"""
INVENTORY = """\
apiVersion: headway/v1alpha1
kind: Inventory
name: lab-switches
cluster: lab
"""

SSHD_CONFIG = """
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
"""

# $1: the folder of the switch, $2: its name. It has a name, /etc/frr, /root and /run of its own, with the sockets of its FRR.
VIEW = """
set -e
hostname "$2"
own=/run/own-$2
mkdir -p "$own/frr" "$own/sshd" "$1/root"
chmod 755 "$own/sshd"
mount --bind "/etc/frr/$2" /etc/frr
mount --bind "/run/frr/$2" "$own/frr"
mount --bind "$1/root" /root
mount --rbind "$own" /run
exec "$3" -f "$1/sshd_config" -E "$1/sshd.log"
"""

# Stand-ins of Slurm's clients: the jobs and the states of nodes are files of the folder.
CLIENTS = {
    "squeue": '#!/bin/sh\ncat "${0%/*}/jobs"\n',
    "sinfo": '#!/bin/sh\ncat "${0%/*}/nodes"\n',
}


def obstacle() -> str | None:
    """Why switches cannot be managed here, with what to do about it."""
    if not RELOADER.exists():
        return f"`{RELOADER}` not found; run `apt-get install frr-pythontools`"
    if shutil.which("sshd", path=SEARCH_PATH) is None:
        return "`sshd` not found; run `apt-get install openssh-server`"
    return None


class ManagedFabric:
    """`with ManagedFabric(folder) as managed:` starts two leaves and two spines that run their rendered files, with an sshd each.

    `folder` gets the documents, the keys, and the stand-ins of Slurm's clients.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.planned = self._write_documents()
        self.rendered = self._rendered()
        plan = self.planned.plan
        self.names = [switch.name for switch in plan.switches]
        links = [cable(link) for link in plan.links]
        links += [Link(Port(STATION, f"to-{number}"), Port(name, "eth0")) for number, name in enumerate(self.names)]
        files = {name: {"frr.conf": text} for name, text in self.rendered.items()}
        hosts: dict[str, dict[str, Nic]] = {name: {} for name in (STATION, *(node.name for node in plan.nodes))}
        self.fabric = Fabric(files, links, hosts, self._systems())
        self._started = ExitStack()

    def _write_documents(self) -> PlannedCluster:
        (self.folder / "cluster.yaml").write_text(CLUSTER)
        names = [switch.name for switch in compile_documents([self.folder / "cluster.yaml"]).clusters[0].plan.switches]
        switches = [{"name": name, "host": _address(number)} for number, name in enumerate(names)]
        (self.folder / "inventory.yaml").write_text(f"{INVENTORY}switches: {json.dumps(switches)}\n")
        compiled = compile_documents([self.folder / "cluster.yaml"])
        assert not compiled.problems.errors
        return compiled.clusters[0]

    def _rendered(self) -> Mapping[str, str]:
        files, plan = self.planned.files(), self.planned.plan
        return {switch.name: files[PurePosixPath(plan.name, "switches", switch.name, FRR.file)] for switch in plan.switches}

    def _systems(self) -> Mapping[str, list[str]]:
        files, plan = self.planned.files(), self.planned.plan
        systems = {}
        for number, switch in enumerate(plan.switches):
            kernel = files[PurePosixPath(plan.name, "switches", switch.name, SYSCTL)]
            systems[switch.name] = [
                kernel_settings(switch.name, kernel),
                f"ip -n {STATION} address add {_station(number)}/31 dev to-{number}",
                f"ip -n {switch.name} address add {_address(number)}/31 dev eth0",
            ]
        return systems

    # --- start and end ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for name in ("identity", *(f"{switch}/host_key" for switch in self.names)):
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            command = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", str(path)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        tools = self.folder / "tools"
        tools.mkdir()
        for name, text in CLIENTS.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self.set_jobs()
        with ExitStack() as stack:
            stack.enter_context(self.fabric)
            known = [self._start_sshd(number, name) for number, name in enumerate(self.names)]
            (self.folder / "known_hosts").write_text("".join(known))
            self.wait_until_up()
            self._started = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._started.close()

    def _start_sshd(self, number: int, name: str) -> str:
        folder = self.folder / name
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(address=_address(number), folder=folder))
        shutil.copy(self.folder / "identity.pub", folder / "authorized_keys")
        command = ["ip", "netns", "exec", name, "unshare", "--uts", "--mount"]
        self.run(*command, "bash", "-c", VIEW, "view", str(folder), name, program("sshd"))
        return f"{_address(number)} {' '.join((folder / 'host_key.pub').read_text().split()[:2])}\n"

    # --- what happens there -------------------------------------------------------------------------------------------

    def run(self, *argv: str) -> str:
        """The output of a command inside, where the switches are."""
        entered = leashed(self.fabric.machine.enter(argv, Path("/")))
        env = {"PATH": SEARCH_PATH}
        done = subprocess.run(entered, check=False, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{shlex.join(argv)}: {done.stdout}{done.stderr}"
        return done.stdout

    def on_switch(self, name: str, *argv: str) -> str:
        """The output of a command in the view of a switch."""
        pid = (self.folder / name / "sshd.pid").read_text().strip()
        return self.run("nsenter", f"--target={pid}", "--mount", "--uts", "--net", "--", *argv)

    def configure(self, name: str, *commands: str) -> None:
        """By hand, as a person does who logs in."""
        self.fabric.vtysh(name, "configure terminal", *commands)

    def running(self, name: str) -> str:
        return self.on_switch(name, "vtysh", "-c", "show running-config no-header")

    def saved(self, name: str) -> str:
        return self.on_switch(name, "cat", "/etc/frr/frr.conf")

    def established(self, name: str) -> set[str]:
        """The neighbors with a BGP session."""
        peers = json.loads(self.fabric.vtysh(name, "show bgp summary json")).get("ipv4Unicast", {}).get("peers", {})
        return {peer for peer, found in peers.items() if found["state"] == "Established"}

    def drops(self, name: str) -> dict[str, int]:
        """How often the session with each neighbor has ended."""
        peers = json.loads(self.fabric.vtysh(name, "show bgp summary json"))["ipv4Unicast"]["peers"]
        return {peer: found["connectionsDropped"] for peer, found in peers.items()}

    def daemons(self) -> str:
        """Which processes of FRR run, by their numbers."""
        return self.run("pgrep", "-a", "bgpd|zebra|bfdd")

    def wait_until_up(self) -> None:
        """Return when every switch has all of its sessions, and BFD too."""
        for switch in self.planned.plan.switches:
            self.wait_for_sessions(switch.name)
            wanted = {port.name for port in switch.uplinks}
            self.fabric.wait(f"BFD of {switch.name}", partial(self._bfd, switch.name), wanted.__eq__, START_S)

    def wait_for_sessions(self, name: str) -> None:
        """Return when the switch has a session with each of its neighbors."""
        (switch,) = [each for each in self.planned.plan.switches if each.name == name]
        wanted = {port.name for port in switch.uplinks}
        self.fabric.wait(f"sessions of {name}", partial(self.established, name), wanted.__eq__, START_S)

    def _bfd(self, name: str) -> set[str]:
        return {
            peer["interface"] for peer in json.loads(self.fabric.vtysh(name, "show bfd peers json")) if peer["status"] == "up"
        }

    def set_jobs(self, *lines: str) -> None:
        """The lines that squeue prints: number, user, state, reason, nodes, name and comment."""
        (self.folder / "tools/jobs").write_text("".join(f"{line}\n" for line in lines))
        nodes = [f"{node.name}|idle" for node in self.planned.plan.nodes]
        (self.folder / "tools/nodes").write_text("".join(f"{line}\n" for line in nodes))

    # --- headway ------------------------------------------------------------------------------------------------------

    def push(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`headway push` on the station, to its end."""
        command, env = self._command(words), self._environment()
        return subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    @contextmanager
    def pushing(self, *words: str) -> "Iterator[subprocess.Popen[str]]":
        """`headway push` on the station, whose steps are lines of its standard error."""
        command, env, nothing = self._command(words), self._environment(), subprocess.DEVNULL
        with subprocess.Popen(command, env=env, stdin=nothing, stdout=nothing, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def kill_push(self) -> None:
        """SIGKILL for the headway that `pushing` has started."""
        self.run("kill", "-KILL", (self.folder / "pid").read_text().strip())

    def _command(self, words: tuple[str, ...]) -> list[str]:
        run = f'echo $$ >{shlex.quote(str(self.folder / "pid"))}; exec "$@"'
        headway = [
            "bash",
            "-c",
            run,
            "bash",
            sys.executable,
            "-m",
            "headway.cli.main",
            "push",
            str(self.folder / "cluster.yaml"),
            *words,
        ]
        return leashed(self.fabric.machine.enter(["ip", "netns", "exec", STATION, *headway], REPOSITORY))

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'tools'}:{SEARCH_PATH}",
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(self.folder),
        }


def _address(number: int) -> str:
    """Of the management port of the switch."""
    return f"10.99.0.{2 * number + 1}"


def _station(number: int) -> str:
    return f"10.99.0.{2 * number}"
