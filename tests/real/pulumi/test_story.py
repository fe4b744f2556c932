"""Tests `headway up`, `preview` and `down` with a real engine on real hosts: they manage all of headway's files and no others."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.infra.host import MANIFEST
from tests.real.slurm.leftovers import pid_namespace
from tests.real.slurm.machine import UNSHARE, leashed
from tests.real.ssh.hosts import SshHost, SshHosts

from .engine import PulumiEngine

pytestmark = pytest.mark.slow

COMMAND_S = 120.0
SCRIPT, UNIT_FILE, UNIT = "/usr/local/sbin/headway-qos", "/etc/systemd/system/headway-qos.service", "headway-qos.service"
LINK = "/etc/systemd/system/multi-user.target.wants/headway-qos.service"

WAITS = """#!/bin/sh
[ "$1" != enable ] || until [ -e /var/lib/go ]; do sleep 0.05; done
exec /usr/bin/systemctl "$@"
"""

CLUSTER = """
apiVersion: headway/v1alpha1
kind: Cluster
name: {name}
scheduler: {{kind: slurm}}
provider: {{kind: onprem, options: {{identity: {identity}, known_hosts: known_hosts}}}}
node_groups:
  - {{name: n, count: {count}, cpus: 8, gpu: H100-SXM-80, gpus: 1, nics: [mlx5_0], hosts: [{hosts}]}}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes:
      - {{name: roce, carries: collectives, dscp: {dscp}, priority: 3, lossless: true}}
storage:
  - {{name: runs, kind: posix, path: runs, shared: true}}
"""


@dataclass
class Lab:
    """A cluster's document in a separate folder, whose nodes n-1 and n-2 are the hosts n1 and n2."""

    folder: Path
    hosts: SshHosts
    env: Mapping[str, str]
    nodes: list[str] = field(default_factory=lambda: ["n1", "n2"])
    dscp: int = 26

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def host(self, number: int) -> SshHost:
        return self.hosts.hosts[self.nodes[number - 1]]

    def command(self, *words: str) -> list[str]:
        """A command line in a separate PID namespace: the engine's processes end with it."""
        addresses = ", ".join(f'"127.0.0.1:{self.hosts.hosts[name].port}"' for name in self.nodes)
        text = CLUSTER.format(
            name=self.folder.name, identity=self.hosts.identity, count=len(self.nodes), hosts=addresses, dscp=self.dscp
        )
        (self.folder / "cluster.yaml").write_text(text)
        verb, *options = words
        return leashed([*UNSHARE, sys.executable, "-m", "headway.cli.main", verb, "cluster.yaml", *options])

    def headway(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            check=False,
            cwd=self.folder,
            env=dict(self.env),
            timeout=COMMAND_S,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )

    def listings(self) -> list[dict[str, str]]:
        return [host.listing() for host in self.hosts.hosts.values()]


@pytest.fixture
def lab(pulumi_engine: PulumiEngine, ssh_hosts: SshHosts, tmp_path: Path) -> Iterator[Lab]:
    """Assert that the hosts are afterwards as they were before."""
    folder = tmp_path / f"lab-{os.getpid()}"
    folder.mkdir()
    (folder / "known_hosts").write_text(ssh_hosts.known_hosts.read_text())
    lab = Lab(folder, ssh_hosts, pulumi_engine.env)
    before = lab.listings()
    yield lab
    (folder / "known_hosts").write_text(ssh_hosts.known_hosts.read_text())
    if any(host.path(MANIFEST).exists() for host in ssh_hosts.hosts.values()):  # otherwise it only takes time
        ended(lab.headway("down", "--yes"), 0)
    assert lab.listings() == before


def ended(done: subprocess.CompletedProcess[str], code: int) -> list[str]:
    """The lines of standard output, after a check of the exit code."""
    assert done.returncode == code, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def all_of(node: str, symbol: str) -> list[str]:
    return [f"{symbol} {node}:{UNIT_FILE}", f"{symbol} {node}:{SCRIPT}"]


def made(node: str) -> list[str]:
    return [*all_of(node, "+"), f"! {node}:{UNIT} (not enabled)"]


def test_hosts_are_created_repaired_updated_excluded_forgotten_and_renamed(lab: Lab) -> None:
    before, bare = lab.listings(), lab.host(1).listing()
    # The state is in its usual place: in a folder next to the document, for this user only, and it contains no key.
    lab.env = {name: value for name, value in lab.env.items() if name not in {"PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE"}}
    stacks = lab.folder / ".headway/pulumi/.pulumi/stacks/headway"
    assert sorted(ended(lab.headway("up", "--yes"), 0)) == sorted([*made("n-1"), *made("n-2")])
    assert (lab.folder / ".headway").stat().st_mode & 0o777 == 0o700
    (state,) = stacks.glob("*.json")
    assert str(lab.hosts.identity) not in state.read_text()
    assert len(json.loads(state.read_text())["checkpoint"]["latest"]["resources"]) > 1
    for number in (1, 2):
        host = lab.host(number)
        assert host.path(LINK).is_symlink()
        assert "26" in host.path(SCRIPT).read_text()
        assert (host.path(SCRIPT).stat().st_mode & 0o777, host.path(UNIT_FILE).stat().st_mode & 0o777) == (0o755, 0o644)

    again = lab.headway("up", "--yes")
    assert ended(again, 0) == []
    assert again.stderr == "2 hosts: no changes\n"
    assert ended(lab.headway("preview"), 0) == []

    drifts_and_is_repaired_at_a_terminal(lab)
    is_off_and_forgotten(lab)
    has_reused_name(lab, bare)

    code, shown = answered(lab, "y\n", "down")
    assert (code, lab.listings()) == (0, before)
    assert "remove headway's files from 1 host, `n-1`? [y/N]" in shown
    assert list(stacks.glob("*.json")) == []


def drifts_and_is_repaired_at_a_terminal(lab: Lab) -> None:
    """Manual changes are reported, and repaired with the changes in the document once the plan is accepted."""
    lab.host(1).path(SCRIPT).write_text("#!/bin/bash\n# by hand\n")
    lab.host(2).path(UNIT_FILE).unlink()
    lab.dscp = 28
    drift = [f"~ n-1:{SCRIPT}", f"+ n-2:{UNIT_FILE}", f"~ n-2:{SCRIPT}", f"! n-2:{UNIT} (not enabled)"]
    before = lab.listings()
    code, shown = answered(lab, "n\n", "up")
    assert (code, lab.listings()) == (1, before)
    assert [line for line in drift if line not in shown] == [], shown
    assert "change 2 hosts? [y/N]" in shown
    code, shown = answered(lab, "y\n", "up")
    assert (code, shown.endswith("2 hosts: 2 changed")) == (0, True), shown
    assert all("28" in lab.host(number).path(SCRIPT).read_text() for number in (1, 2))
    assert lab.host(2).path(UNIT_FILE).exists()
    assert lab.host(2).path(LINK).is_symlink()


def is_off_and_forgotten(lab: Lab) -> None:
    """A host that is off stops it, is excluded by name, and is forgotten when it has been removed."""
    held = lab.host(2).listing()
    lab.dscp = 30
    lab.host(2).power_off()
    try:
        stopped = lab.headway("up", "--yes")
        assert ended(stopped, 3) == []
        assert "error: n-2 (root@127.0.0.1:" in stopped.stderr
        assert "no connection: Connection refused" in stopped.stderr
        assert ended(lab.headway("up", "--yes", "--without", "n-2"), 0) == [f"~ n-1:{SCRIPT}"]

        lab.nodes = ["n1"]
        failed = lab.headway("up", "--yes")
        assert ended(failed, 1) == []
        assert "error: n-2 (root@127.0.0.1:" in failed.stderr
        assert f"use `--forget 127.0.0.1:{lab.hosts.hosts['n2'].port}` if it is gone for good" in failed.stderr
        assert ended(lab.headway("up", "--yes", "--forget", "n-2"), 0) == []
    finally:
        lab.hosts.hosts["n2"].power_on()
    assert lab.hosts.hosts["n2"].listing() == held


def has_reused_name(lab: Lab, bare: dict[str, str]) -> None:
    """A forgotten machine with the name of a removed host keeps its files; the other is `bare` again."""
    first, second = (lab.hosts.hosts[name] for name in ("n1", "n2"))
    lab.nodes = ["n2"]
    lines = ended(lab.headway("up", "--yes"), 0)
    assert [line for line in lines if line.startswith("-")] == all_of(f"n-1 (127.0.0.1:{first.port})", "-")
    assert f"~ n-1:{SCRIPT}" in lines
    assert first.listing() == bare
    assert "adapters of n-1 in" in second.path(SCRIPT).read_text()
    assert second.path(LINK).is_symlink()


def test_a_file_of_another_owner_stops_up_before_any_host_is_changed(lab: Lab) -> None:
    lab.host(2).path(UNIT_FILE).write_text("somebody else's\n")
    try:
        before = lab.listings()
        for words in (("preview",), ("up", "--yes")):
            refused = lab.headway(*words)
            assert ended(refused, 1) == []
            assert f"{UNIT_FILE} is already there and not headway's" in refused.stderr
            assert "nothing was changed" in refused.stderr
        assert lab.listings() == before
    finally:
        lab.host(2).path(UNIT_FILE).unlink()


def test_a_host_with_another_key_is_rejected_and_nothing_is_written(lab: Lab) -> None:
    before = lab.listings()
    lab.known_hosts.write_text(
        f"{lab.host(1).known_hosts_line}\n[127.0.0.1]:{lab.host(2).port} {lab.host(1).host_key}\n",
    )
    refused = lab.headway("up", "--yes")
    assert ended(refused, 3) == []
    assert re.search(
        r"error: n-2 .*the host presented ssh-ed25519 SHA256:\S+, but \S+known_hosts has ssh-ed25519", refused.stderr
    )
    assert lab.listings() == before


@pytest.mark.variant
def test_a_host_is_forgotten_only_on_request(lab: Lab) -> None:
    ended(lab.headway("up", "--yes"), 0)
    held = lab.host(2).listing()
    assert ended(lab.headway("up", "--forget", "n-2"), 2) == []
    lab.nodes = ["n1"]
    ended(lab.headway("preview"), 1)
    assert lab.hosts.hosts["n2"].listing() == held


def test_a_killed_engines_lock_is_explained_and_the_next_run_converges(lab: Lab) -> None:
    with waiting_to_enable(lab.host(1)) as go:
        with subprocess.Popen(lab.command("up", "--yes"), cwd=lab.folder, env=dict(lab.env), stderr=subprocess.PIPE) as working:
            try:
                wait_for("the files of n-1", lambda: lab.host(1).path(UNIT_FILE).exists())
                wait_for("n-2", lambda: is_finished(lab.host(2)))
                os.kill(engine_in(working.pid), signal.SIGKILL)
                assert working.wait(COMMAND_S) == 1
            finally:
                working.kill()
        assert not is_finished(lab.host(1))
        go.touch()

        locked = lab.headway("up", "--yes")
        assert ended(locked, 1) == []
        assert "currently locked by 1 lock(s)" in locked.stderr
        cancel = locked.stderr.strip().splitlines()[-1].rpartition("remove its lock with `")[2].partition("`")[0]
        bare = {name: lab.env[name] for name in ("PATH", "PULUMI_HOME")}
        subprocess.run(["bash", "-c", cancel], env=bare, cwd="/", check=True, capture_output=True, timeout=COMMAND_S)
        ended(lab.headway("up", "--yes"), 0)
        assert is_finished(lab.host(1))
        assert lab.host(1).path(LINK).is_symlink()


@contextlib.contextmanager
def waiting_to_enable(host: SshHost) -> Iterator[Path]:
    """No unit is enabled on the host before the file exists."""
    own = host.path("/usr/local/bin")
    own.mkdir()
    (own / "systemctl").write_text(WAITS)
    (own / "systemctl").chmod(0o755)
    try:
        yield host.path("/var/lib/go")
    finally:
        host.run("rm", "-rf", "/usr/local/bin", "/var/lib/go")


def is_finished(host: SshHost) -> bool:
    return host.path(MANIFEST).exists() and bool(json.loads(host.path(MANIFEST).read_text())["finished"])


def engine_in(process: int) -> int:
    """The engine below `process`, which started its namespace."""
    (first,) = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    namespace = pid_namespace(int(first))
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and (path / "comm").read_text() == "pulumi\n" and pid_namespace(int(path.name)) == namespace:
                return int(path.name)
    raise AssertionError("no engine runs")


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + COMMAND_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


def test_a_failing_unit_is_reported_and_the_other_host_is_still_updated(lab: Lab) -> None:
    lab.nodes = ["n1", "n3"]
    before = lab.listings()
    # n3 runs systemd, which starts the unit; there is no adapter
    failed = lab.headway("up", "--yes")
    assert ended(failed, 1) == made("n-1")
    assert re.search(
        r"error: n-2 .*`systemctl reload-or-restart -- headway-qos\.service` exited with 1: Job for headway-qos", failed.stderr
    )
    assert failed.stderr.endswith("2 hosts: 1 changed, 1 failed\n")
    assert ended(lab.headway("preview"), 1) == [f"! n-2:{UNIT} (failed)"]
    assert ended(lab.headway("down", "--yes"), 0) == [*all_of("n-1", "-"), *all_of("n-2", "-")]
    lab.host(2).run("systemctl", "reset-failed")
    assert lab.listings() == before


def answered(lab: Lab, answer: str, *words: str) -> tuple[int, str]:
    """The exit code, and the output on a terminal where `answer` was typed."""
    ours, terminal = os.openpty()
    os.write(ours, answer.encode())
    command = subprocess.Popen(
        lab.command(*words), cwd=lab.folder, env=dict(lab.env), stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    raw = b""
    try:
        with contextlib.suppress(OSError):  # EIO: the terminal is closed
            while part := os.read(ours, 65536):
                raw += part
        code = command.wait(COMMAND_S)
    finally:
        command.kill()
        command.wait()
        os.close(ours)
    return code, raw.decode().rstrip()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("up",), 2, "cannot ask for confirmation without a terminal; pass `--yes`"),
        (("down",), 2, "cannot ask for confirmation without a terminal; pass `--yes`"),
        (("up", "--yes", "--without", "n-9"), 2, "`--without n-9`: there is no such node; there are `n-1`, `n-2`"),
        (("up", "--yes", "--forget", "n-9"), 2, "`--forget n-9`: there is no such node"),
    ],
)
def test_invalid_arguments_change_nothing(lab: Lab, words: tuple[str, ...], code: int, message: str) -> None:
    refused = lab.headway(*words)
    assert ended(refused, code) == []
    assert message in refused.stderr
