"""Starts a separate Slurm cluster for a test: munged, slurmctld and slurmd nodes, each a machine that can be switched off."""

import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.support import LIGHT

from . import network
from .addresses import Addresses, claim_addresses
from .configuration import Shape, gpu_devices, gres_conf, hosts, slurm_conf
from .current import chosen_programs
from .machine import Machine, leashed
from .programs import SEARCH_PATH, SlurmPrograms
from .record import parse_record
from .scratch import Scratch

T = TypeVar("T")

# Each poll starts a client of Slurm.
POLL_S = 0.25
START_S = 60.0
LOG_TAIL_LINES = 40
FOLDERS = ("etc", "run", "state", "log", "nodes", "dev")
FINAL_JOB_STATES = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}
)
OUT_OF_SERVICE = ("down", "drain", "fail")

DAEMON = 'echo up; exec "$@" >&2'

# a private /dev/shm: two nodes do not see each other's memory, and a power loss clears it; the loop reaps orphans
NODE = """
set -e
hostname "$0"
mount --bind "$1" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
echo up
exec >&2
if [ -n "$3" ]; then
  ip link set lo up
  until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
  for address in "$3" "$4"; do ip address add "$address/24" dev eth0; done
  ip link set eth0 up
fi
"$2" -D -N "$0" &
while :; do sleep infinity & wait $! || :; done
"""


class ClusterError(Exception):
    """The cluster did not reach an awaited state; the message ends with the controller's log."""


class SlurmCluster:
    """`with SlurmCluster(Shape(nodes=2)) as slurm:` gives idle nodes n1, n2, ...; afterwards no process, mount or file remains.

    A node has a separate host name, /etc/hosts, processes, /dev/shm and uptime; file system, device files and, unless the shape specifies
    otherwise, the network are shared.
    """

    def __init__(self, shape: Shape | None = None, programs: SlurmPrograms | None = None) -> None:
        self.shape = shape or Shape()
        self.programs = programs or chosen_programs()
        self.machines: dict[str, Machine] = {}
        self._started = ExitStack()
        self._scratch: Scratch | None = None
        self._cables = 0

    # --- start and stop -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            addresses = claim_addresses(self.shape.nodes)
            stack.callback(addresses.release)
            self._scratch = Scratch("headway-slurm-")
            stack.callback(self._scratch.remove)
            self._write_files(addresses)
            self._start(stack)
            self._started = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._started.close()

    def _start(self, stack: ExitStack) -> None:
        for machine in (self._munged(), self._slurmctld(), *map(self._node, self.shape.node_names)):
            self.machines[machine.name] = machine
            stack.callback(machine.kill)
        self.machines["munged"].boot()
        self._wait_for_start("munged", (self.root / "run" / "munge.sock").exists)
        self.machines["slurmctld"].boot()
        # a slurmd that finds no controller retries only after 8 s
        self._wait_for_start("slurmctld", lambda: "is UP" in self.run("scontrol", "ping", check=False).stdout)
        for name in self.shape.node_names:
            self._boot(name)
        for name in self.shape.node_names:
            self.wait_node(name, {"idle"}, START_S)

    def _wait_for_start(self, name: str, is_up: Callable[[], bool]) -> None:
        def is_up_or_off() -> bool:
            return is_up() or not self.machines[name].is_on

        self._poll(f"start of `{name}`", is_up_or_off, bool, START_S)
        if not self.machines[name].is_on:
            raise ClusterError(f"`{name}` ended at its start; its logs:\n{self._tail(name)}")

    def _write_files(self, addresses: Addresses) -> None:
        for folder in (*FOLDERS, *(f"nodes/{name}" for name in self.shape.node_names)):
            (self.root / folder).mkdir()
        etc = self.root / "etc"
        (etc / "hosts").write_text(hosts(self.shape, addresses, Path("/etc/hosts").read_text()))
        (etc / "slurm.conf").write_text(slurm_conf(self.shape, self.root, addresses))
        (etc / "gres.conf").write_text(gres_conf(self.shape, self.root))
        (etc / "cgroup.conf").write_text(self.programs.cgroup_conf)
        for name, text in self.shape.files.items():
            (etc / name).write_text(text)
        (etc / "munge.key").touch(mode=0o600)
        (etc / "munge.key").write_bytes(os.urandom(1024))
        for device in gpu_devices(self.shape, self.root):
            # slurmd requires a character device for a GPU; this one is /dev/null's
            os.mknod(device, 0o20666, os.makedev(1, 3))

    def _munged(self) -> Machine:
        run = self.root / "run"
        files = [f"--socket={run}/munge.sock", f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed"]
        files += [f"--key-file={self.root}/etc/munge.key", f"--log-file={self.root}/log/munged.log"]
        return self._machine("munged", DAEMON, [str(self.programs.munged), "--foreground", *files])

    def _slurmctld(self) -> Machine:
        script = network.BRIDGE + DAEMON if self.shape.has_networks else DAEMON
        return self._machine("slurmctld", script, [str(self.programs.slurmctld), "-D"], has_network=self.shape.has_networks)

    def _node(self, name: str) -> Machine:
        index = self.shape.node_names.index(name) + 1
        own = [network.management(index), network.data(index)] if self.shape.has_networks else ["", ""]
        words = [f"{self.root}/etc/hosts", str(self.programs.slurmd), *own]
        return self._machine(name, NODE, words, is_host=True, has_network=self.shape.has_networks)

    def _machine(
        self, name: str, script: str, arguments: Sequence[str], *, is_host: bool = False, has_network: bool = False
    ) -> Machine:
        env = {"PATH": SEARCH_PATH, "SLURM_CONF": self.env["SLURM_CONF"]}
        console = self.root / "log" / f"{name}.console"
        view = (*self.programs.view, *(("unshare", "--net") if has_network else ()))
        return Machine(name, script, arguments, env, console, is_host=is_host, view=view)

    def _boot(self, name: str) -> None:
        """Switch a node on, and connect its cable."""
        self.machines[name].boot()
        if self.shape.has_networks:
            self._cables += 1
            cable = f"cable-{self._cables}"
            self.run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(self.node_pid(name)))
            self.run("ip", "link", "set", cable, "master", "lan", "up")

    # --- clients ------------------------------------------------------------------------------------------------------

    @property
    def root(self) -> Path:
        """The folder of everything the cluster writes; raises RuntimeError before the start."""
        if self._scratch is None:
            raise RuntimeError("the cluster is not started; enter it with `with`")
        return self._scratch.path

    @property
    def env(self) -> dict[str, str]:
        """This process's environment for a client of the cluster: this one's SLURM_CONF and no other Slurm's variables. Jobs keep no
        standbys, whose imports take longer than most of them, and their ranks are light."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN", "SALLOC"))}
        path = f"{self.programs.clients}{os.pathsep}{kept.get('PATH', os.defpath)}"
        return (
            {"HEADWAY_STANDBY": "0", "PYTHONPATH": LIGHT}
            | kept
            | {"PATH": path, "SLURM_CONF": str(self.root / "etc" / "slurm.conf")}
        )

    def run(
        self,
        *argv: str,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a client with `env` on top; raises CalledProcessError (with stderr as a note), TimeoutExpired after `timeout_s`."""
        done = subprocess.run(
            leashed([*self._in_network(), *self.programs.view, *argv]),
            check=False,
            env=self.env | dict(env or {}),
            cwd=cwd,
            timeout=timeout_s,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if check and done.returncode != 0:
            error = subprocess.CalledProcessError(done.returncode, argv, done.stdout, done.stderr)
            error.add_note(f"{' '.join(argv)}:\n{done.stdout}{done.stderr}")
            raise error
        return done

    def _in_network(self) -> list[str]:
        """The prefix of a client's command line: it runs in the controller's network."""
        if not self.shape.has_networks:
            return []
        return ["nsenter", f"--net=/proc/{self.machines['slurmctld'].pid}/ns/net", "--"]

    def submit(self, script: Path, *options: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
        """Run sbatch; return the id of the job. Its log is `slurm-ID.out` in `cwd` unless the options specify another."""
        return int(self.run("sbatch", "--parsable", *options, str(script), env=env, cwd=cwd).stdout)

    def job(self, job_id: int) -> dict[str, str]:
        """The fields of `scontrol show job`, with Slurm's names."""
        return parse_record(self.run("scontrol", "-o", "show", "job", str(job_id)).stdout)

    def wait(self, job_id: int, states: Collection[str], timeout_s: float) -> dict[str, str]:
        """The job's fields once its state is in `states`; raises ClusterError after `timeout_s`, or in another final state."""

        def is_settled(job: dict[str, str]) -> bool:
            return job["JobState"] in states or job["JobState"] in FINAL_JOB_STATES

        job = self._poll(f"job {job_id} in {sorted(states)}", lambda: self.job(job_id), is_settled, timeout_s)
        if job["JobState"] not in states:
            raise ClusterError(
                f"job {job_id} is `{job['JobState']}`, expected {sorted(states)}: {job}\n{self._tail('slurmctld')}"
            )
        return job

    def wait_held(self, job_id: int, timeout_s: float) -> None:
        """Return once the job is held; raises ClusterError after `timeout_s`."""
        self._poll(f"hold of job {job_id}", lambda: self.job(job_id)["Priority"], lambda priority: priority == "0", timeout_s)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def node_state(self, name: str) -> str:
        """sinfo's state: idle, allocated, mixed, draining, drained, down, ...; a `*` after it means that the node does not respond."""
        where = (f"--partition={self.shape.partition}", f"--nodes={name}")
        return self.run("sinfo", "--noheader", "--Node", *where, "--format=%T").stdout.strip()

    def wait_node(self, name: str, states: Collection[str], timeout_s: float) -> str:
        """The node's state once it is in `states`; raises ClusterError after `timeout_s`."""
        return self._poll(f"node `{name}` in {sorted(states)}", lambda: self.node_state(name), lambda s: s in states, timeout_s)

    def set_node(self, name: str, state: str, reason: str) -> None:
        self.run("scontrol", "update", f"nodename={name}", f"state={state}", f"reason={reason}")

    def node_pid(self, name: str) -> int:
        """The node's first process, with its PID outside the node; raises ProcessLookupError if the node is off."""
        return self.machines[name].pid

    def kill_node(self, name: str) -> None:
        """Power loss: slurmd and every process of the node have ended on return. Slurm is not notified."""
        self.machines[name].kill()

    def freeze_node(self, name: str) -> None:
        """Stop every process of the node, as a stalled hypervisor does; its connections stay open. `thaw_node` continues it."""
        self.machines[name].freeze()

    def thaw_node(self, name: str) -> None:
        self.machines[name].thaw()

    def boot_node(self, name: str) -> None:
        """Switch a killed node on and return when slurmctld has received its message; raises RuntimeError if it is on.

        A node whose loss or reboot slurmctld noticed is then `down` until `set_node(name, "resume", ...)`.
        """
        booted_at = int(time.time())
        self._boot(name)
        self._poll(f"registration of `{name}`", lambda: self._slurmd_start(name), lambda start: start >= booted_at, START_S)

    def cut(self, one: str, other: str) -> None:
        """Drop all packets that two nodes with networks send to each other by their names, silently. Slurm's messages still arrive."""
        self._connect(one, other, ["replace", "lladdr", network.NOWHERE, "nud", "permanent"])

    def heal(self, one: str, other: str) -> None:
        """Undo `cut`."""
        self._connect(one, other, ["del"])

    def _connect(self, one: str, other: str, words: Sequence[str]) -> None:
        for here, there in ((one, other), (other, one)):
            address = network.data(self.shape.node_names.index(there) + 1)
            self.nsenter(here, ["ip", "neighbour", words[0], address, *words[1:], "dev", "eth0"])

    def mend_node(self, name: str) -> None:
        """Recover the node from anything a test did to it: switch it on, resume it, return when it is idle."""
        if self.machines[name].is_on:
            self.thaw_node(name)
        else:
            self.boot_node(name)
        if self.node_state(name).startswith(OUT_OF_SERVICE):
            self.set_node(name, "resume", "mended")
        self.wait_node(name, {"idle"}, START_S)

    def _slurmd_start(self, name: str) -> float:
        """The time in whole seconds since 1970; 0 for a node that never registered."""
        start = parse_record(self.run("scontrol", "-o", "show", "node", name).stdout)["SlurmdStartTime"]
        return datetime.fromisoformat(start).timestamp() if start[0].isdigit() else 0.0

    def nsenter(
        self, name: str, argv: Sequence[str], check: bool = True, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` on the node, in this process's working folder."""
        return self.run(*self.machines[name].enter(argv, Path.cwd()), check=check, timeout_s=timeout_s)

    # --- logs ---------------------------------------------------------------------------------------------------------

    def logs(self) -> dict[str, str]:
        """File name -> the text of all daemons' logs: slurmctld.log, n1.log, munged.log, jobcomp.log, *.console."""
        return {path.name: path.read_text(errors="replace") for path in sorted((self.root / "log").iterdir())}

    def _tail(self, name: str) -> str:
        logs = self.logs()
        text = logs.get(f"{name}.log") or logs.get(f"{name}.console", "")
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

    def _poll(self, what: str, read: Callable[[], T], accept: Callable[[T], bool], timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        while not accept(value := read()):
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {timeout_s:g} s for {what}, found {value!r}; slurmctld:\n{self._tail('slurmctld')}")
            time.sleep(POLL_S)
        return value
