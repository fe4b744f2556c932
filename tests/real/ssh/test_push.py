"""The undo of a push on a host with systemd, and on one without: it is started, outlives the connection, and cleans up after itself."""

import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from headway.infra.push.switch import FrrSwitch, PushState, PushTimes, push
from headway.infra.reach import HostCommandError
from headway.infra.ssh import connect
from tests.real.fabric.managed import obstacle as reload_obstacle
from tests.real.fabric.programs import obstacle as frr_obstacle

from .hosts import OPERATOR, SshHost, SshHosts
from .test_ssh import reach

pytestmark = pytest.mark.slow

# A daemon alone, in a network of its own: there is nothing that it could route.
START = """
mkdir -p /run/frr /etc/frr && chown frr: /run/frr
unshare --net /usr/lib/frr/zebra -d -f /dev/null -P 0 --log file:/run/frr/zebra.log
export VTYSH_HISTFILE=/dev/null
for _ in $(seq 100); do vtysh -c 'show version' >/dev/null 2>&1 && exit; sleep 0.1; done
exit 1
"""
END = "kill $(cat /run/frr/zebra.pid); rm -rf /run/frr"
LINE = "ip prefix-list NEW seq 5 permit 192.0.2.0/24"
# Longer than a busy machine takes for a few connections; the test makes the deadline of the switch earlier.
UNDO_S = 600
PID = "/run/headway-push/pid"
NOW = "echo 0 >/run/headway-push/deadline"


@pytest.fixture(params=["n1", "n3"], ids=["without-systemd", "with-systemd"])
def host(request: pytest.FixtureRequest, ssh_hosts: SshHosts) -> Iterator[SshHost]:
    """A host whose zebra runs, until the test is over."""
    if reason := reload_obstacle() or frr_obstacle():
        pytest.skip(reason)
    found = ssh_hosts.hosts[request.param]
    before = found.listing()
    found.run("sh", "-c", START)
    try:
        yield found
    finally:
        found.run("sh", "-c", END)
    assert found.listing() == before


def units(host: SshHost) -> str:
    if not host.has_systemd:
        return ""
    return host.run("systemctl", "list-units", "--plain", "--no-legend", "headway-push-*").stdout


@pytest.mark.parametrize("user", ["root", OPERATOR])
def test_undo_outlives_the_connection(ssh_hosts: SshHosts, host: SshHost, user: str) -> None:
    to_host = replace(reach(ssh_hosts, host.name), user=user)
    with connect(to_host) as ssh:
        switch = FrrSwitch(ssh)
        old = switch.look()
        assert (old.earlier, old.obstacle) == (None, None)
        switch.arm(f"{old.running}\n{LINE}\n", old.running, UNDO_S)
        switch.apply(60)
        assert LINE in switch.running()
    assert host.has_systemd == ("active running" in units(host))
    with connect(to_host) as ssh:
        switch = FrrSwitch(ssh)
        armed = switch.look().earlier
        assert armed is not None
        assert (armed.state, armed.is_alive) == ("armed", True)
        with pytest.raises(HostCommandError, match="another push is in progress"):
            switch.arm(old.running, switch.running(), UNDO_S)
        # A process that was given the same number at another time is not the undo.
        host.run("sh", "-c", f"mv {PID} {PID}.kept; read -r number start <{PID}.kept; echo $number $((start + 1)) >{PID}")
        reused = switch.look().earlier
        assert reused is not None
        assert not reused.is_alive
        host.run("mv", f"{PID}.kept", PID)
        host.run("sh", "-c", NOW)
        deadline = time.monotonic() + 60
        while switch.look().earlier is not None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert switch.running() == old.running
        with pytest.raises(HostCommandError, match="the undo came first"):
            switch.confirm()
    assert "headway-push" not in host.run("ls", "/run").stdout
    assert units(host) == ""


def test_configuration_that_has_changed_since_is_not_replaced(ssh_hosts: SshHosts, host: SshHost) -> None:
    with connect(reach(ssh_hosts, host.name)) as ssh:
        switch = FrrSwitch(ssh)
        old = switch.running()
        host.run("env", "VTYSH_HISTFILE=/dev/null", "vtysh", "-c", "configure terminal", "-c", LINE)
        with pytest.raises(HostCommandError, match="has changed since it was shown"):
            switch.arm(old, old, UNDO_S)
    assert "headway-push" not in host.run("ls", "/run").stdout


def test_failed_undo_is_reported_and_keeps_the_old_configuration(ssh_hosts: SshHosts, host: SshHost) -> None:
    with connect(reach(ssh_hosts, host.name)) as ssh:
        switch = FrrSwitch(ssh)
        old = switch.look()
    try:
        times = PushTimes(undo_s=120, settle_s=1, last_s=1)

        def end_zebra(step: str) -> None:
            if step == "verifying over a new connection":
                host.run("sh", "-c", "kill $(cat /run/frr/zebra.pid)")

        outcome = push(reach(ssh_hosts, host.name), f"{old.running}\n{LINE}\n", old, times, end_zebra)
        assert outcome.state is PushState.FAILED
        assert outcome.reason.endswith("the undo failed: the old configuration is /run/headway-push/old/frr.conf on the switch")
        assert host.run("cat", "/run/headway-push/old/frr.conf").stdout == old.running
    finally:
        host.run("rm", "-rf", "/run/headway-push")
        host.run("sh", "-c", START)


def test_switch_whose_frr_does_not_run_is_an_error(ssh_hosts: SshHosts) -> None:
    if reason := reload_obstacle() or frr_obstacle():
        pytest.skip(reason)
    with connect(reach(ssh_hosts, "n2")) as ssh, pytest.raises(HostCommandError, match="failed to connect to any daemons"):
        FrrSwitch(ssh).look()
