"""Provides nodes of a cluster on this machine: each has its own mount, PID, network, UTS and IPC namespaces, and can lose power."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.real.slurm.machine import Machine, leashed
from tests.support import LIGHT

# In the bridge's own network namespace, invisible elsewhere.
LAN = "10.77.0"
ROOT = Path(__file__).parents[2]
# The path of the shared folder on every node.
SHARED = Path("/mnt")
OWN_RUNS = "/tmp/runs"  # each node has its own /tmp
BRIDGE = "ip link set lo up; ip link add lan type bridge; ip link set lan up; echo up; exec sleep infinity >&2"
# The first process of a node also reaps orphans, so that no zombies remain.
NODE = """
set -e
hostname "$0"
mount --bind "$1" /mnt
exec 8<"$2" 9<"$3"
for folder in /tmp /dev/shm; do mount -t tmpfs tmpfs "$folder"; done
if [[ ! -e $2/pyproject.toml ]]; then mkdir -p "$2"; mount --no-canonicalize --bind /proc/self/fd/8 "$2"; fi
if [[ ! -e $3/pyvenv.cfg ]]; then mkdir -p "$3"; mount --no-canonicalize --bind /proc/self/fd/9 "$3"; fi
exec 8<&- 9<&-
cp "/mnt/hosts" /tmp/hosts
mount --bind /tmp/hosts /etc/hosts
ip link set lo up
echo up
exec >&2
while :; do sleep infinity & wait $! || :; done
"""


def why_not() -> str:
    """Why this machine cannot hold nodes; empty if it can."""
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "lan", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"namespaces and bridges: {tried.stderr.strip() or tried.returncode}" if tried.returncode else ""


class Node:
    """`name` is its host name, which all nodes resolve. Commands started on it continue until they are ended or the node loses power."""

    def __init__(self, cluster: "Nodes", number: int) -> None:
        self.name, self.address = f"node{number}", f"{LAN}.{number + 10}"
        self._cluster, self._link, self._boots = cluster, f"port{number}", 0
        self._machine: Machine | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def machine(self) -> Machine:
        assert self._machine is not None, f"{self.name} is off"
        return self._machine

    def boot(self) -> "Node":
        """Boot the node with an empty /tmp and /dev/shm, and return it."""
        console = self._cluster.folder / f"{self.name}.console"
        # The latter two may be below this machine's /tmp.
        arguments = [str(self._cluster.folder), str(ROOT), sys.prefix]
        self._machine = Machine(self.name, NODE, arguments, dict(os.environ), console, is_host=True, view=("unshare", "--net"))
        self._machine.boot()
        pid, self._boots = self._machine.pid, self._boots + 1
        link = f"{self._link}x{self._boots}"
        lan = self._cluster.bridge
        lan(f"ip link add {link} type veth peer name eth0 netns {pid}")
        lan(f"ip link set {link} master lan up")
        self.run(f"ip address add {self.address}/24 dev eth0; ip link set eth0 up")
        self._up = link
        return self

    def unplug(self) -> None:
        """Take its link down: no packet leaves it any more, and nothing ends a connection."""
        self._cluster.bridge(f"ip link set {self._up} down")

    def lose_power(self) -> None:
        """End every process of the node at once, with its link down first, so that peers receive nothing."""
        self.unplug()
        self._end()

    def _end(self) -> None:
        if self._machine is not None:
            self._machine.kill()
        for process in self._started:
            process.wait()
        self._started = []

    def run(self, script: str) -> None:
        """Run a line of bash inside to its end."""
        subprocess.run(leashed(self.machine.enter(["bash", "-ec", script], Path("/"))), check=True, stdin=subprocess.DEVNULL)

    def torchrun(self, *words: str | Path, runs: str | Path, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Start `headway torchrun WORDS` in the background; its output is appended to the node's."""
        return self.start(
            [sys.executable, "-m", "headway.cli.main", "torchrun", *map(str, words)], {"HEADWAY_RUNS": str(runs), **(env or {})}
        )

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Run a command inside in the background, in the shared folder."""
        known = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "PET_"))}
        with self.output_file.open("ab") as output:
            process = subprocess.Popen(
                leashed(self.machine.enter(argv, SHARED)),
                env={"HEADWAY_STANDBY": "0", "PYTHONPATH": LIGHT, **known, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process

    @property
    def output_file(self) -> Path:
        return self._cluster.folder / f"{self.name}.output"

    @property
    def output(self) -> str:
        """Everything printed on it so far, over all of its boots."""
        return self.output_file.read_text() if self.output_file.exists() else ""

    def own(self, path: str) -> Path:
        """A path of the node as this machine sees it, while the node is on."""
        return Path(f"/proc/{self.machine.pid}/root{path}")


class Nodes:
    """`with Nodes(folder, count) as nodes:` gives nodes that are on and share `folder`. Nothing of them remains: the
    kernel ends namespaces with their last process, and every process ends with this one."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.nodes = [Node(self, number) for number in range(count)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            hosts = [f"{node.address} {node.name}" for node in self.nodes]
            (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
            self._bridge = Machine("lan", BRIDGE, [], dict(os.environ), self.folder / "lan.console", view=("unshare", "--net"))
            self._bridge.boot()
            stack.callback(self._bridge.kill)
            for node in self.nodes:
                stack.callback(node._end)
                node.boot()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def bridge(self, script: str) -> None:
        """Run a line of bash in the bridge's namespace."""
        command = ["nsenter", f"--net=/proc/{self._bridge.pid}/ns/net", "--", "bash", "-ec", script]
        subprocess.run(leashed(command), check=True, stdin=subprocess.DEVNULL)
