"""Tests the fabric that other tests build on: its switches route according to their files, and it is cleaned up."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.slurm.leftovers import leftovers, pid_namespace
from tests.real.slurm.machine import leashed

from . import programs
from .fabric import Fabric, FabricError
from .syntax import refused_lines
from .wiring import Link, Nic, Port

REPOSITORY = Path(__file__).parents[3]
START_S = 30.0
NO_ROOT = Path("/nothing/has/this/name")

SWITCH = """\
ip forwarding
interface Ethernet0
 ip address 10.0.{index}.0/31
exit
router bgp 6500{index}
 bgp router-id 10.255.0.{index}
 no bgp ebgp-requires-policy
 neighbor Ethernet4 interface remote-as external
 address-family ipv4 unicast
  network 10.0.{index}.0/31
 exit-address-family
exit
"""
SWITCHES = {f"s{index}": {"frr.conf": SWITCH.format(index=index)} for index in (1, 2)}
HOSTS = {f"h{index}": {"nic": Nic(f"10.0.{index}.1/31", f"10.0.{index}.0")} for index in (1, 2)}
BETWEEN = Link(Port("s1", "Ethernet4"), Port("s2", "Ethernet4"))
LINKS = [BETWEEN, *(Link(Port(f"s{index}", "Ethernet0"), Port(f"h{index}", "nic")) for index in (1, 2))]
H1, H2 = Port("h1", "nic"), Port("h2", "nic")

HOLDS_A_FABRIC = """
import signal
from tests.real.fabric.test_fabric import HOSTS, LINKS, SWITCHES
from tests.real.fabric.fabric import Fabric

signal.signal(signal.SIGINT, signal.default_int_handler)
with Fabric(SWITCHES, LINKS, HOSTS) as fabric:
    print(fabric.machine.pid, flush=True)
    signal.pause()
"""


@pytest.fixture(scope="module")
def fabric(frr_here: None) -> Iterator[Fabric]:
    """Two switches with a cable between them, and a host on each."""
    with Fabric(SWITCHES, LINKS, HOSTS) as started:
        for name, far in (("s1", "10.0.2.0/31"), ("s2", "10.0.1.0/31")):
            started.wait_routes(name, far, {"Ethernet4"})
        yield started


@pytest.mark.slow
@pytest.mark.fixture
def test_switches_learn_routes_and_hosts_reach_each_other(fabric: Fabric) -> None:
    assert fabric.kernel_routes("s1", "10.0.1.0/31") == {"Ethernet0"}
    assert fabric.kernel_routes("s1", "10.0.0.0/16") == set()
    assert fabric.probe(H1, H2, tos=104) == [104, 104]
    assert fabric.probe(H2, H1, tos=0) == [0, 0]
    peers = json.loads(fabric.vtysh("s1", "show bgp summary json"))["ipv4Unicast"]["peers"]
    assert {name: peer["remoteAs"] for name, peer in peers.items()} == {"Ethernet4": 65002}


@pytest.mark.slow
@pytest.mark.fixture
def test_cut_cable_carries_no_packets_until_it_is_repaired(fabric: Fabric) -> None:
    try:
        fabric.cut(BETWEEN)
        fabric.wait_routes("s1", "10.0.2.0/31", set())
        assert fabric.probe(H1, H2, tos=104) == []
    finally:
        fabric.mend(BETWEEN)
        fabric.wait_routes("s1", "10.0.2.0/31", {"Ethernet4"})
        fabric.wait_routes("s2", "10.0.1.0/31", {"Ethernet4"})
    assert fabric.probe(H1, H2, tos=104) == [104, 104]


@pytest.mark.slow
@pytest.mark.fixture
def test_waiting_times_out_and_shows_the_switchs_state(fabric: Fabric) -> None:
    with pytest.raises(
        FabricError, match=r"(?s)waited 0.1 s for routes of `s1` to 10.0.2.0/31 by \[\].*Routing entry for 10.0.2.0/31"
    ):
        fabric.wait_routes("s1", "10.0.2.0/31", set(), timeout_s=0.1)


@pytest.mark.slow
@pytest.mark.fixture
def test_second_fabric_with_equal_names_runs_in_parallel_and_is_cleaned_up(fabric: Fabric) -> None:
    with Fabric(SWITCHES, LINKS, HOSTS) as second:
        namespace = pid_namespace(second.machine.pid)
        second.wait_routes("s1", "10.0.2.0/31", {"Ethernet4"})
        second.cut(BETWEEN)
        second.wait_routes("s1", "10.0.2.0/31", set())
        assert fabric.kernel_routes("s1", "10.0.2.0/31") == {"Ethernet4"}
        assert sum("bgpd" in line for line in leftovers(NO_ROOT, {namespace})) == 2
    assert leftovers(NO_ROOT, {namespace}) == []
    assert not list(Path("/run/frr").glob("s?"))
    assert "s1" not in subprocess.run([fabric.programs["ip"], "netns", "list"], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.fixture
def test_unknown_command_is_reported_with_its_line_and_cleaned_up(frr_here: None) -> None:
    wrong = SWITCH.format(index=1).replace("remote-as", "remote-az")
    fabric = Fabric({**SWITCHES, "s1": {"frr.conf": wrong}}, LINKS, HOSTS)
    with pytest.raises(FabricError, match=r"(?s)line 8: % Unknown command.*remote-az"), fabric:
        pytest.fail("a switch took a command that does not exist")
    assert not fabric.machine.is_on


@pytest.mark.slow
@pytest.mark.fixture
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=lambda end: end.name)
def test_interrupted_process_is_cleaned_up(frr_here: None, end: signal.Signals) -> None:
    with held_fabric() as (holder, namespace):
        assert len(leftovers(NO_ROOT, {namespace})) >= 6
        holder.send_signal(end)
        holder.wait(timeout=START_S)
        assert wait_until_gone(namespace) == []


@contextlib.contextmanager
def held_fabric() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds a fabric, and the fabric's PID namespace; the process is killed in the end."""
    command = leashed([sys.executable, "-c", HOLDS_A_FABRIC])
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as holder:
        try:
            assert holder.stdout is not None
            line = holder.stdout.readline()
            assert line.strip().isdigit(), line + holder.stdout.read()
            yield holder, pid_namespace(int(line))
        finally:
            holder.kill()


def wait_until_gone(namespace: str) -> list[str]:
    deadline = time.monotonic() + 20
    while (left := leftovers(NO_ROOT, {namespace})) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_vtysh_accepts_a_valid_file_and_names_the_invalid_line(frr_here: None) -> None:
    good = SWITCH.format(index=1)
    assert refused_lines(good) == []
    assert refused_lines(good.replace("no bgp", "no bgqp")) == ["line 7: % Unknown command[25]:  no bgqp ebgp-requires-policy"]


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SEARCH_PATH", "/nonexistent")
    wanted = "`bfdd`, `bgpd`, `ip`, `vtysh`, `zebra` not found; run `apt-get install frr iproute2`"
    assert programs.obstacle() == wanted
