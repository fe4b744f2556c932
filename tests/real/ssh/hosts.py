"""Provides hosts with an sshd each, with systemd as their first process or without, for programs that manage machines over SSH."""

import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from tests.real.slurm.addresses import claim_addresses
from tests.real.slurm.machine import Machine, leashed
from tests.real.slurm.scratch import Scratch

from .group import Group
from .programs import SEARCH_PATH, SYSTEMD, program

START_S = 30.0
POLL_S = 0.05
OPERATOR = "operator"

# Only the dependencies of a unit that multi-user.target starts: the machine's own sysinit.target would set up the machine's kernel.
UNITS = {
    "sysinit.target": "[Unit]\nDefaultDependencies=no\n",
    "basic.target": "[Unit]\nDefaultDependencies=no\nRequires=sysinit.target\nAfter=sysinit.target\n",
    "shutdown.target": "[Unit]\nDefaultDependencies=no\nRefuseManualStart=yes\n",
    "multi-user.target": "[Unit]\nRequires=basic.target\nAfter=basic.target\nWants=ssh.service\n",
    "ssh.service": "[Service]\nExecStart={sshd}\n",
}

# a separate home too: bash under sshd reads ~/.bashrc, which may be slow
OWN_FOLDERS = {"/etc": "etc", "/usr/local": "usr-local", "/var/lib": "var-lib", "/root": "root"}

SSHD_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PidFile none
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
Subsystem sftp internal-sftp
"""

# $1: the host's own files; the rest of the arguments is its first process, after the visible files have changed
VIEW = """
set -e
hostname "$0"
own=$1; shift
mount --bind "$own/etc" /etc
mount --bind "$own/usr-local" /usr/local
mount --bind "$own/var-lib" /var/lib
mount --bind "$own/root" /root
mount --bind "$own/units" /usr/lib/systemd/system
mount --bind "$own/generators" /usr/lib/systemd/system-generators
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
"""

WITH_SYSTEMD = (
    VIEW
    + """
mkdir -p /run/systemd
echo 0 >"$1/cgroup.procs"; shift
exec unshare --cgroup bash -c '
    umount --recursive /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    echo up
    exec "$0" "$@" >&2
' "$@"
"""
)

# the loop reaps orphans
WITHOUT_SYSTEMD = (
    VIEW
    + """
echo up
exec >&2
"$@" &
while :; do sleep infinity & wait $! || :; done
"""
)


@dataclass(frozen=True)
class SshHost:
    """A host at 127.0.0.1:`port`, with its own /etc, /usr/local, /var/lib and /root, which are below `files`."""

    name: str
    port: int
    files: Path
    has_systemd: bool
    machine: Machine

    def path(self, path: str) -> Path:
        """The path on this machine of a file in the host's own folders; raises ValueError for another."""
        for folder, own in OWN_FOLDERS.items():
            if PurePosixPath(path).is_relative_to(folder):
                return self.files / own / PurePosixPath(path).relative_to(folder)
        raise ValueError(f"`{path}` is not the host's own: {', '.join(OWN_FOLDERS)} are")

    @property
    def host_key(self) -> str:
        """The public key, in the format of a known_hosts line after the name."""
        return " ".join((self.files / "etc/ssh/host_key.pub").read_text().split()[:2])

    @property
    def known_hosts_line(self) -> str:
        return f"[127.0.0.1]:{self.port} {self.host_key}"

    def listing(self) -> dict[str, str]:
        """Every path of the host's own files, with kind, mode, owner and content or target."""
        return {str(path.relative_to(self.files)): _entry(path) for path in sorted(self.files.rglob("*"))}

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, not over SSH; raises CalledProcessError."""
        return subprocess.run(
            leashed(self.machine.enter(argv, Path("/"))),
            check=check,
            env={"PATH": SEARCH_PATH},
            timeout=START_S,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )

    def power_off(self) -> None:
        self.machine.kill()

    def power_on(self) -> None:
        """Return when sshd answers; raises RuntimeError with the console's text if it does not."""
        self.machine.boot()
        deadline = time.monotonic() + START_S
        while not _answers(self.port):
            if time.monotonic() > deadline or not self.machine.is_on:
                raise RuntimeError(f"sshd of `{self.name}` does not answer; its console:\n{self.machine.console.read_text()}")
            time.sleep(POLL_S)


class SshHosts:
    """`with SshHosts({"n1": True}) as hosts:` starts n1 with systemd; afterwards no process, mount, group or file remains.

    `identity` is the key that root and `operator` (who has sudo) accept; `known_hosts` has the keys of all.
    """

    def __init__(self, systemd: dict[str, bool]) -> None:
        self.hosts: dict[str, SshHost] = {}
        self._systemd = systemd
        self._started = ExitStack()
        self._root = Path("/nonexistent")

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            addresses = claim_addresses(len(self._systemd))
            stack.callback(addresses.release)
            scratch = Scratch("headway-ssh-")
            stack.callback(scratch.remove)
            self._root = scratch.path
            group = Group(scratch.path.name)
            stack.callback(group.remove)
            _make_key(self.identity)
            for index, (name, has_systemd) in enumerate(self._systemd.items(), start=1):
                host = self._host(name, group.path if has_systemd else None, addresses.node_port(index))
                self.hosts[name] = host
                stack.callback(host.power_off)
                host.power_on()
            self.known_hosts.write_text("".join(f"{host.known_hosts_line}\n" for host in self.hosts.values()))
            self._started = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._started.close()

    @property
    def root(self) -> Path:
        """The folder of everything that the hosts write."""
        return self._root

    @property
    def identity(self) -> Path:
        return self._root / "identity"

    @property
    def known_hosts(self) -> Path:
        return self._root / "known_hosts"

    def _host(self, name: str, group: Path | None, port: int) -> SshHost:
        files = self._root / name
        files.mkdir()
        sshd = [program("sshd"), "-D", "-e", "-f", "/etc/ssh/config_of_this_host"]
        self._write_files(files, port, sshd)
        env = {"PATH": SEARCH_PATH, "container": "lab"}
        if group is not None:
            (group / name).mkdir()
            systemd = [str(SYSTEMD), "--system", "--unit=multi-user.target", "--show-status=no", "--log-target=console"]
            script, first = WITH_SYSTEMD, [str(group / name), *systemd]
        else:
            script, first = WITHOUT_SYSTEMD, sshd
        machine = Machine(name, script, [str(files), *first], env, self._root / f"{name}.console", is_host=True)
        return SshHost(name, port, files, group is not None, machine)

    def _write_files(self, files: Path, port: int, sshd: Sequence[str]) -> None:
        subprocess.run(["cp", "--archive", "/etc", str(files / "etc")], check=True)
        for folder in ("usr-local", "var-lib", "root", "units", "generators"):
            (files / folder).mkdir()
        (files / "etc/hostname").write_text(f"{files.name}\n")
        (files / "etc/hosts").write_text(f"127.0.0.1 localhost {files.name}\n")
        _write_units(files, sshd)
        ssh = files / "etc/ssh"
        _make_key(ssh / "host_key")
        (ssh / "config_of_this_host").write_text(SSHD_CONFIG.format(port=port))
        shutil.copy(self.identity.with_suffix(".pub"), ssh / "authorized_keys")
        (ssh / "authorized_keys").chmod(0o644)
        # the machine's own /etc/sudoers may contain anything
        (files / "etc/sudoers").unlink(missing_ok=True)
        (files / "etc/sudoers").write_text(f"root ALL=(ALL) ALL\n{OPERATOR} ALL=(root) NOPASSWD: ALL\n")
        (files / "etc/sudoers").chmod(0o440)
        with (files / "etc/passwd").open("a") as passwd, (files / "etc/shadow").open("a") as shadow:
            passwd.write(f"{OPERATOR}:x:4242:4242::/:/bin/sh\n")
            shadow.write(f"{OPERATOR}:*:19000:0:99999:7:::\n")


def _write_units(files: Path, sshd: Sequence[str]) -> None:
    shutil.rmtree(files / "etc/systemd/system", ignore_errors=True)
    (files / "etc/systemd/system").mkdir(parents=True)
    for name, text in UNITS.items():
        (files / "units" / name).write_text(text.format(sshd=" ".join(sshd)))


def _make_key(path: Path) -> None:
    command = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=START_S) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _entry(path: Path) -> str:
    status = path.lstat()
    if path.is_symlink():
        content = str(path.readlink())
    elif path.is_file():
        content = path.read_bytes().decode(errors="replace")
    else:
        content = ""
    return f"{status.st_mode:o} {status.st_uid}:{status.st_gid} {content}"
