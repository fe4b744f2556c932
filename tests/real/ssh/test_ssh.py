"""Tests a real sshd: its identity is verified, ours is a key, and files are written completely or not at all."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from headway.infra.reach import ConnectError, Reach, SshError
from headway.infra.ssh import connect
from tests.real.slurm.leftovers import leftovers, pid_namespace
from tests.real.slurm.machine import leashed

from .hosts import OPERATOR, SshHosts
from .programs import unified_hierarchy

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]


def reach(hosts: SshHosts, name: str = "n1") -> Reach:
    host = hosts.hosts[name]
    return Reach(name, "127.0.0.1", host.port, "root", str(hosts.identity), str(hosts.known_hosts))


@pytest.mark.parametrize("user", ["root", OPERATOR])
def test_commands_and_files_are_roots_also_through_sudo(ssh_hosts: SshHosts, user: str) -> None:
    path = ssh_hosts.hosts["n1"].path("/etc/a file 'with' $signs")
    with connect(replace(reach(ssh_hosts), user=user)) as ssh:
        assert ssh.run(["id", "--user"]) == "0\n"
        assert ssh.read("/etc/a file 'with' $signs") is None
        ssh.put("/etc/a file 'with' $signs", "first\n", 0o644)
        ssh.put("/etc/a file 'with' $signs", "größer\n", 0o750)
        assert ssh.read("/etc/a file 'with' $signs") == "größer\n"
        assert (path.stat().st_mode & 0o7777, path.stat().st_uid, path.stat().st_gid) == (0o750, 0, 0)
        ssh.remove(["/etc/a file 'with' $signs", "/etc/never was"])
    assert not path.exists()


def test_a_megabyte_is_transferred_in_both_directions(ssh_hosts: SshHosts) -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))
    with connect(reach(ssh_hosts)) as ssh:
        ssh.put("/etc/large", text, 0o600)
        assert ssh.read("/etc/large") == text
        ssh.remove(["/etc/large"])


def test_a_failing_command_is_reported_with_host_command_code_and_reason(ssh_hosts: SshHosts) -> None:
    expected = r"n1 \(root@127\.0\.0\.1:\d+\): `ls /never/was` exited with 2: .*No such file or directory"
    with connect(reach(ssh_hosts)) as ssh, pytest.raises(SshError, match=expected):
        ssh.run(["ls", "/never/was"])


def test_a_command_that_does_not_end_times_out(ssh_hosts: SshHosts) -> None:
    with connect(reach(ssh_hosts)) as ssh:
        with pytest.raises(SshError, match=r"no answer within 0\.5 s to `sleep 600`"):
            ssh.run(["sleep", "600"], timeout_s=0.5)
        assert ssh.run(["echo", "goes on"]) == "goes on\n"


def test_a_partially_transferred_text_changes_nothing(ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ssh_hosts.hosts["n1"].path("/etc/put")
    with connect(reach(ssh_hosts)) as ssh:
        ssh.run(["mkdir", "/etc/put"])
        ssh.put("/etc/put/file", "old\n", 0o644)
        run = ssh.run
        monkeypatch.setattr(ssh, "run", lambda argv, stdin=b"": run(argv, stdin=stdin[:-1]))
        with pytest.raises(SshError, match="was not transferred completely"):
            ssh.put("/etc/put/file", "a new text\n", 0o644)
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"file": "old\n"}
        run(["rm", "-r", "/etc/put"])


def test_a_symlink_at_the_new_texts_path_is_not_followed(ssh_hosts: SshHosts) -> None:
    folder = ssh_hosts.hosts["n1"].path("/etc/put")
    with connect(reach(ssh_hosts)) as ssh:
        ssh.run(["mkdir", "/etc/put"])
        ssh.run(["ln", "-s", "victim", "/etc/put/.file.headway-new"])
        ssh.put("/etc/put/file", "new\n", 0o644)
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"file": "new\n"}
        ssh.run(["rm", "-r", "/etc/put"])


# --- identity ---------------------------------------------------------------------------------------------------------


def test_an_unknown_host_is_rejected_with_the_line_to_add(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.touch()
    stranger = replace(reach(ssh_hosts), known_hosts=str(known))
    with pytest.raises(ConnectError, match=r"the host key is unknown; the host presented ssh-ed25519 SHA256:") as refused:
        connect(stranger)
    assert "`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`" in str(refused.value)
    assert str(refused.value).endswith(f"add this line to {known}: {ssh_hosts.hosts['n1'].known_hosts_line}")
    known.write_text(str(refused.value).rpartition(f"{known}: ")[2] + "\n")
    with connect(stranger) as ssh:
        assert ssh.run(["true"]) == ""


def test_a_host_with_another_key_is_rejected_with_both_keys(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{ssh_hosts.hosts['n1'].port} {ssh_hosts.hosts['n2'].host_key}\n")
    with pytest.raises(ConnectError, match=r"presented ssh-ed25519 SHA256:\S+, but \S+ has ssh-ed25519 SHA256:.*ssh-keygen -R"):
        connect(replace(reach(ssh_hosts), known_hosts=str(known)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"identity": "/never/was"}, "the file /never/was does not exist"),
        ({"known_hosts": "/never/was"}, "the file /never/was does not exist"),
        ({"identity": None}, "no agent offers a key"),
        ({"user": "nobody-here"}, "sshd does not accept the key .* for `nobody-here`"),
        ({"port": 1}, "no connection: Connection refused"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_reason_for_a_failed_connection_is_reported(
    ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], reason: str
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(ConnectError, match=f"^n1 .*{reason}"):
        connect(replace(reach(ssh_hosts), **change))


# --- the hosts --------------------------------------------------------------------------------------------------------


@contextmanager
def relay(port: int, garbled: int) -> Iterator[tuple[int, list[int]]]:
    """Yield a port that leads to `port`, and a list that gets the number of each connection. The first `garbled` connections get the
    host's banner and then meaningless bytes."""
    numbers: list[int] = []

    def serve(client: socket.socket, number: int) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as host:
            if number <= garbled:
                client.sendall(host.recv(4096).split(b"\n")[0] + b"\n" + b"\xff" * 64)
                client.settimeout(10)
                while client.recv(4096):
                    pass
                return
            back = threading.Thread(target=pump, args=(host, client), daemon=True)
            back.start()
            pump(client, host)
            back.join()

    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    numbers.append(len(numbers) + 1)
                    threading.Thread(target=serve, args=(client, len(numbers)), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1], numbers
        server.shutdown(socket.SHUT_RDWR)


def pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("garbled", [1, 2])
def test_a_misread_key_exchange_is_retried_once(ssh_hosts: SshHosts, tmp_path: Path, garbled: int) -> None:
    direct = reach(ssh_hosts)
    with relay(direct.port, garbled) as (port, numbers):
        known = tmp_path / "known_hosts"
        known.write_text(ssh_hosts.known_hosts.read_text().replace(f"[127.0.0.1]:{direct.port} ", f"[127.0.0.1]:{port} "))
        through = replace(direct, port=port, known_hosts=str(known))
        if garbled == 1:
            with connect(through) as ssh:
                assert ssh.run(["id", "--user"]) == "0\n"
        else:
            with pytest.raises(ConnectError, match="no connection: "):
                connect(through)
        assert len(numbers) == 2


def test_a_host_has_its_own_files_and_init_process(ssh_hosts: SshHosts) -> None:
    firsts = {name: host.run("cat", "/proc/1/comm").stdout.strip() for name, host in ssh_hosts.hosts.items()}
    assert firsts == {"n1": "bash", "n2": "bash", "n3": "systemd"}
    ssh_hosts.hosts["n1"].run("touch", "/usr/local/of-n1")
    assert ssh_hosts.hosts["n1"].path("/usr/local/of-n1").exists()
    assert not ssh_hosts.hosts["n2"].path("/usr/local/of-n1").exists()
    assert not Path("/usr/local/of-n1").exists()
    ssh_hosts.hosts["n1"].run("rm", "/usr/local/of-n1")


def test_hosts_are_cleaned_up_also_when_others_are_running(ssh_hosts: SshHosts) -> None:
    with SshHosts({"other": True}) as second:
        root, namespace = second.root, pid_namespace(second.hosts["other"].machine.pid)
        assert ssh_hosts.hosts["n1"].run("hostname").stdout == "n1\n"
        assert any("sshd" in line for line in leftovers(root, {namespace}))
    assert leftovers(root, {namespace}) == []
    assert not group_of(root).exists()


HOLDS_HOSTS = """
import json, signal
from tests.real.ssh.hosts import SshHosts

with SshHosts({"a": True, "b": False}) as hosts:
    print(json.dumps([str(hosts.root), *(host.machine.pid for host in hosts.hosts.values())]), flush=True)
    signal.pause()
"""


def test_hosts_of_a_killed_process_are_cleaned_up(ssh_here: None) -> None:
    command = leashed([sys.executable, "-c", HOLDS_HOSTS])
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            folder, *pids = json.loads(holder.stdout.readline())
            namespaces = {pid_namespace(pid) for pid in pids}
            assert leftovers(Path(folder), namespaces) != []
        finally:
            holder.kill()
    deadline = time.monotonic() + 30
    while leftovers(Path(folder), namespaces) or group_of(Path(folder)).exists():
        assert time.monotonic() < deadline, leftovers(Path(folder), namespaces)
        time.sleep(0.05)


def group_of(root: Path) -> Path:
    hierarchy = unified_hierarchy()
    assert hierarchy is not None
    return hierarchy / root.name
