"""Tries topology files in a slurmctld that is started for it, with a munged and a key of its own, and is ended again.

It listens on loopback only, its nodes have no daemons, and no other daemon accepts its key: nothing of it reaches the Slurm of the site.
"""

import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

# Debian's place of daemons is not on every PATH.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_PROGRAMS = ("slurmctld", "munged", "scontrol")
_START_S, _END_S, _POLL_S = 30.0, 10.0, 0.1
# A complaint of slurmctld, with its time and level before it.
_COMPLAINT = re.compile(r"^(?:\[[^\]]*\]|slurmctld:) (?:error|fatal): (.*)$", re.MULTILINE)
_OF_TOPOLOGY = re.compile(r"switch|topolog|block|leaf", re.IGNORECASE)


class TrialError(Exception):
    """The trial could not be made; the message gives the reason."""


class Trial(Struct, frozen=True):
    """The result for a topology file: whether slurmctld started, its complaints, and `scontrol show topology`."""

    starts: bool
    complaints: tuple[str, ...]
    shown: str


def version() -> tuple[int, int]:
    """Return the release of the slurmctld of this machine, such as (24, 5). Raises TrialError without one."""
    done = subprocess.run([_programs()["slurmctld"], "-V"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    if found is None:
        raise TrialError(f"`slurmctld -V` prints no version: {(done.stdout + done.stderr).strip()}")
    return int(found[1]), int(found[2])


def _programs() -> Mapping[str, str]:
    found = {name: shutil.which(name, path=_PATH) for name in _PROGRAMS}
    if absent := [name for name, path in found.items() if path is None]:
        raise TrialError(f"`{'`, `'.join(absent)}` not found; install Slurm's controller and munge (Debian: slurmctld, munge)")
    return {name: path for name, path in found.items() if path is not None}


def try_topology(file: str, text: str, plugin: str, nodes: Sequence[str]) -> Trial:
    """Start a slurmctld with the topology `file` of this text and these nodes, and end it. `plugin` is that of slurm.conf, such as `tree`.

    Raises TrialError.
    """
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="headway-slurmctld-") as place:
        folder = Path(place)
        # munged refuses a socket in a folder that others cannot enter.
        folder.chmod(0o755)
        (folder / "state").mkdir(mode=0o700)
        (folder / "munge.key").touch(mode=0o600)
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        port, dead = _free_ports()
        (folder / "slurm.conf").write_text(_slurm_conf(folder, port, dead, plugin, nodes))
        (folder / "cgroup.conf").write_text("")
        (folder / file).write_text(text)
        environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "seed", "pid", "log")]
        munged = [programs["munged"], "--foreground", f"--socket={folder}/munge.sock", *files]
        with _running(munged, environment, folder / "munged.out") as munge:
            _wait((folder / "munge.sock").exists, munge, "munged", folder / "munged.out")
            with _running([programs["slurmctld"], "-D"], environment, folder / "slurmctld.out") as controller:
                shown = _shown(programs["scontrol"], environment, controller)
        log = (folder / "slurmctld.log").read_text(errors="replace") if (folder / "slurmctld.log").exists() else ""
        said = log + (folder / "slurmctld.out").read_text(errors="replace")
        if shown is None and not log:
            raise TrialError(f"slurmctld did not start: {said.strip()[-500:]}")
        complaints = dict.fromkeys(each for each in _COMPLAINT.findall(said) if shown is None or _OF_TOPOLOGY.search(each))
        return Trial(shown is not None, tuple(complaints), shown or "")


def _slurm_conf(folder: Path, port: int, dead: int, plugin: str, nodes: Sequence[str]) -> str:
    user = getpass.getuser()
    settings = {
        "ClusterName": "trial",
        # slurmctld takes no other name than this or its host's.
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": port,
        "CommunicationParameters": "NoCtldInAddrAny",
        "SlurmUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.sock",
        "CredType": "cred/munge",
        "StateSaveLocation": f"{folder}/state",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "ProctrackType": "proctrack/linuxproc",
        "AccountingStorageType": "accounting_storage/none",
        "MailProg": "/bin/true",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "TopologyPlugin": f"topology/{plugin}",
        # slurmctld asks nodes that are down whether they are back: nothing listens on this port.
        "SlurmdTimeout": 0,
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [f"NodeName={name} NodeAddr=127.0.0.1 Port={dead} CPUs=1 State=DOWN" for name in nodes]
    return "\n".join([*lines, f"PartitionName=trial Nodes={','.join(nodes)} Default=YES State=UP", ""])


def _free_ports() -> tuple[int, int]:
    """Return two ports that were free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def _running(argv: Sequence[str], environment: Mapping[str, str], output: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A daemon in the foreground, which is ended when the block is left."""
    with (
        output.open("wb") as file,
        subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", name: str, output: Path) -> None:
    until = time.monotonic() + _START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > until:
            raise TrialError(f"`{name}` did not start: {output.read_text(errors='replace').strip()[-500:]}")
        time.sleep(_POLL_S)


def _shown(scontrol: str, environment: Mapping[str, str], controller: "subprocess.Popen[bytes]") -> str | None:
    """Return what the slurmctld shows of its topology; None if it has ended. Raises TrialError if it does not answer."""
    until = time.monotonic() + _START_S
    while controller.poll() is None:
        if "is UP" in _asked([scontrol, "ping"], environment):
            return _asked([scontrol, "show", "topology"], environment)
        if time.monotonic() > until:
            raise TrialError(f"slurmctld has not answered for {_START_S:.0f} s")
        time.sleep(_POLL_S)
    return None


def _asked(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=_START_S, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout
