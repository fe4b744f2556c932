"""The real netplan makes of a node's file what systemd-networkd then configures: the addresses, routes and rules that the script sets."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from headway.jobspec.plan import ClusterPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.spec.cluster import Cluster
from headway.templates.hosts.render import NETPLAN, SCRIPT, render_host
from headway.templates.switches.frr import FRR
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.sysctl import SYSCTL

from .fabric import Fabric
from .planned import addresses_of, kernel_settings, planned_fabric
from .wiring import Port

DAEMON = Path("/lib/systemd/systemd-networkd")
PROGRAM = shutil.which("netplan", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare (util-linux)"),
    pytest.mark.skipif(not DAEMON.exists(), reason=f"`{DAEMON}` not found; run `apt-get install systemd`"),
    pytest.mark.skipif(PROGRAM is None, reason="`netplan` not found; run `apt-get install netplan.io`"),
]

ROCE = 26 << 2
# Each adapter and its network interface. In the fabric of namespaces both have one name, by which its cables are.
INTERFACES = {"mlx5_0": "enp26s0np0", "mlx5_1": "enp60s0np0"}
# Of Ubuntu's installer, which lists every interface that it has found.
INSTALLER = "network: {version: 2, ethernets: {eno1: {dhcp4: true}, enp26s0np0: {dhcp4: true}, enp60s0np0: {dhcp4: true}}}\n"

CLUSTER = """
apiVersion: headway/v1alpha1
kind: Cluster
name: site
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 2, cpus: 8, gpu: H100-SXM-80, gpus: 2, nic_speed: 400Gb/s}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]
    switches: {ports: 4, leaves: 2, spines: 1, addresses: 10.10.0.0/24, os: [{kind: frr}]}
"""


@cache
def cluster(config: str = "netplan", *, are_named_alike: bool = False) -> ClusterPlan:
    document = yaml.safe_load(CLUSTER)
    nics = [{"name": each, "interface": each if are_named_alike else INTERFACES[each]} for each in INTERFACES]
    document["node_groups"][0] |= {"network_config": config, "nics": nics}
    return resolve_cluster(Cluster.model_validate_json(json.dumps(document)))


def generated(folder: Path, texts: Mapping[str, str]) -> Path:
    """The folder with what `netplan generate` makes of the files in /etc/netplan."""
    place = folder / NETPLAN.parent.relative_to("/")
    place.mkdir(parents=True)
    for name, text in texts.items():
        (place / name).write_text(text)
        (place / name).chmod(0o600)
    assert PROGRAM is not None
    done = subprocess.run(
        [PROGRAM, "generate", "--root-dir", str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return folder / "run/systemd/network"


def text_of(plan: ClusterPlan, index: int = 0, path: PurePosixPath = NETPLAN) -> str:
    return render_host(plan.nodes[index], plan)[path]


def sections(text: str) -> list[tuple[str, dict[str, str]]]:
    """Each section with its assignments; systemd has several words for a boolean."""
    found: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        if line.startswith("["):
            found.append((line.strip("[]"), {}))
        elif "=" in line:
            key, _, value = line.partition("=")
            found[-1][1][key] = {"true": "yes", "false": "no"}.get(value, value)
    return sorted(found, key=str)


@pytest.mark.parametrize("others", [{}, {"00-installer-config.yaml": INSTALLER}], ids=["alone", "next to the installer's"])
def test_netplan_makes_files_of_networkd_with_the_planned_values(tmp_path: Path, others: dict[str, str]) -> None:
    plan = cluster()
    made = generated(tmp_path, {**others, NETPLAN.name: text_of(plan)})
    for table, (adapter, interface) in enumerate(INTERFACES.items(), 1000):
        address, gateway = plan.link_addresses["gpu-1"][adapter]
        network = {"LinkLocalAddressing": "ipv6", "Address": address, "IPv6AcceptRA": "no", "ConfigureWithoutCarrier": "yes"}
        wanted = [
            ("Match", {"Name": interface}),
            ("Link", {"RequiredForOnline": "no", "MTUBytes": "9000"}),
            ("Network", network),
            ("Route", {"Destination": "0.0.0.0/0", "Gateway": gateway, "Table": str(table)}),
            ("Route", {"Destination": "10.10.0.0/24", "Gateway": gateway, "Metric": str(table)}),
            ("RoutingPolicyRule", {"From": address.partition("/")[0], "Table": str(table), "Priority": str(table)}),
        ]
        assert sections((made / f"10-netplan-{interface}.network").read_text()) == sorted(wanted, key=str)


# --- a networkd that reads them ---------------------------------------------------------------------------------------

# In separate network and mount namespaces, whose /sys is read-only as in a container: networkd then waits for no udev. The interfaces
# have no carrier until the other ends of their cables are up.
HOST = """\
set -eu
mount -t sysfs -o ro sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /etc/systemd
mkdir -p /run/systemd/netif /run/systemd/network
chown -R systemd-network: /run/systemd/netif
if [ -n "$MADE" ]; then cp "$MADE"/*.network /run/systemd/network/ && chmod 644 /run/systemd/network/*; fi
ip link set lo up
for interface in $INTERFACES; do ip link add "$interface" type veth peer name "leaf-$interface"; done
show() {
  ip -json address >"$OUT/$1-address"
  ip -json -4 route show table all >"$OUT/$1-route"
  ip -json rule >"$OUT/$1-rule"
}
leaves() { for interface in $INTERFACES; do ip link set "leaf-$interface" "$1"; done; }
# until_there COUNT: so many rules of adapters
until_there() {
  for _ in $(seq 200); do
    if [ "$(ip rule | grep -c 'lookup 100[01]')" = "$1" ]; then return; fi
    sleep 0.05
  done
  echo "not $1 rules: $(ip rule)" >&2
  return 1
}
start() { "$DAEMON" >>"$OUT/log" 2>&1 & daemon=$!; }
"""
# Without a carrier and with one, through a short loss of it and a restart of networkd.
OF_NETWORKD = """\
start
until_there "$WITHOUT_CARRIER"
show dark
leaves up
until_there 2
sleep 1
show lit
stdbuf -oL ip -4 monitor address route rule >"$OUT/events" & monitor=$!
sleep 0.3
leaves down
sleep 1.5
show lost
leaves up
until_there 2
sleep 1
show again
kill "$daemon"
wait "$daemon" || :
start
sleep 3
until_there 2
show restarted
kill "$daemon" "$monitor"
"""
OF_SCRIPT = """\
leaves up
bash -e "$SCRIPT"
show lit
"""


@dataclass(frozen=True)
class Facts:
    """The settings of a host's adapters: by interface MTU and addresses, then routes and rules, without their origin."""

    interfaces: Mapping[str, tuple[int, tuple[str, ...]]]
    routes: frozenset[tuple[str, ...]]
    rules: frozenset[tuple[str, ...]]


def facts(out: Path, when: str) -> Facts:
    address, route, rule = (json.loads((out / f"{when}-{kind}").read_text()) for kind in ("address", "route", "rule"))
    return Facts(
        {each["ifname"]: (each["mtu"], _addresses(each)) for each in address if each["ifname"] in INTERFACES.values()},
        frozenset(
            (each["dst"], each.get("gateway", ""), each["dev"], str(each.get("metric", "")), str(each.get("table", "main")))
            for each in route
            if each.get("protocol") != "kernel" and each.get("dev") in INTERFACES.values()
        ),
        frozenset((str(each["priority"]), each["src"], str(each["table"])) for each in rule if each["priority"] in {1000, 1001}),
    )


def _addresses(interface: Mapping[str, Any]) -> tuple[str, ...]:
    found = (each for each in interface["addr_info"] if each["family"] == "inet")
    return tuple(f"{each['local']}/{each['prefixlen']}" for each in found)


def run_host(out: Path, story: str, **environment: str) -> None:
    out.mkdir(exist_ok=True)
    values = {"OUT": str(out), "DAEMON": str(DAEMON), "INTERFACES": " ".join(INTERFACES.values()), "MADE": "", **environment}
    command = ["unshare", "--net", "--mount", "bash", "-c", HOST + story]
    done = subprocess.run(command, env={**os.environ, **values}, capture_output=True, text=True, timeout=120, check=False)
    log = out / "log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")


@pytest.fixture(scope="module")
def of_script(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Settings that the script makes without netplan."""
    folder = tmp_path_factory.mktemp("script")
    text = addresses_of(text_of(cluster("script"), path=SCRIPT))
    cases = " ".join(f"{adapter}) echo {interface};;" for adapter, interface in INTERFACES.items())
    (folder / "script").write_text(text.replace('netdev_of() { echo "$1"; }', f"netdev_of() {{ case $1 in {cases} esac; }}"))
    run_host(folder / "out", OF_SCRIPT, SCRIPT=str(folder / "script"))
    return facts(folder / "out", "lit")


def test_networkd_configures_the_settings_of_the_script(tmp_path: Path, of_script: Facts) -> None:
    made = generated(tmp_path / "root", {NETPLAN.name: text_of(cluster()), "00-installer-config.yaml": INSTALLER})
    run_host(tmp_path / "out", OF_NETWORKD, MADE=str(made), WITHOUT_CARRIER="2")
    assert len(of_script.routes) == 4
    assert len(of_script.rules) == 2
    assert {mtu for mtu, _ in of_script.interfaces.values()} == {9000}
    for when in ("dark", "lit", "lost", "again", "restarted"):
        assert facts(tmp_path / "out", when) == of_script, when
    # A running job keeps its addresses, routes and rules at each moment, not only in the end.
    events = (tmp_path / "out/events").read_text()
    assert [line for line in events.splitlines() if line.startswith("Deleted")] == []


def test_lost_link_removes_the_address_without_ignore_carrier(tmp_path: Path, of_script: Facts) -> None:
    """Why the file has it, and the audit's warning where another one does not."""
    text = text_of(cluster()).replace("ignore-carrier: true", "ignore-carrier: false")
    made = generated(tmp_path / "root", {NETPLAN.name: text})
    run_host(tmp_path / "out", OF_NETWORKD, MADE=str(made), WITHOUT_CARRIER="0")
    assert facts(tmp_path / "out", "lit") == of_script
    lost = facts(tmp_path / "out", "lost")
    assert (lost.routes, lost.rules) == (frozenset(), frozenset())
    assert {addresses for _, addresses in lost.interfaces.values()} == {()}


# --- in a fabric ------------------------------------------------------------------------------------------------------

IN_FABRIC = """\
set -eu
mount -o remount,ro /sys
mount -t tmpfs tmpfs /run/systemd
mkdir -p /run/systemd/netif /run/systemd/network
chown -R systemd-network: /run/systemd/netif
cp "$1"/*.network /run/systemd/network/
chmod 644 /run/systemd/network/*
setsid "$2" >"$3" 2>&1 </dev/null &
for _ in $(seq 400); do
  if [ "$(ip rule | grep -c 'lookup 100[01]')" = 2 ]; then exit 0; fi
  sleep 0.05
done
cat "$3" >&2
exit 1
"""


@pytest.fixture(scope="module")
def fabric(frr_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """Two leaves, a spine and two nodes, each with a networkd that reads what netplan has made."""
    plan = cluster(are_named_alike=True)
    rendered = {switch.name: FRR.render(FrrOptions(), switch, plan) for switch in plan.switches}
    files = {name: {FRR.file: each[PurePosixPath(FRR.file)]} for name, each in rendered.items()}
    systems = {name: [kernel_settings(name, each[PurePosixPath(SYSCTL)])] for name, each in rendered.items()}
    for index, node in enumerate(plan.nodes):
        folder = tmp_path_factory.mktemp(node.name)
        made = generated(folder, {NETPLAN.name: text_of(plan, index)})
        arguments = ["networkd", str(made), str(DAEMON), str(folder / "log")]
        inside = ["ip", "netns", "exec", node.name, "unshare", "--mount", "bash", "-c", IN_FABRIC, *arguments]
        systems[node.name] = [
            "mkdir -p /run/systemd",
            shlex.join(inside),
            with_addresses(node.name, text_of(plan, index, SCRIPT)),
        ]
    with planned_fabric(plan, files, systems) as started:
        here, there = (switch for switch in plan.switches if switch.role == "leaf")
        for one, other in ((here, there), (there, here)):
            assert other.block is not None
            started.wait_routes(one.name, other.block, {port.name for port in one.uplinks})
        yield started


def with_addresses(node: str, script: str) -> str:
    """Return the script's part for addresses, in the node's namespace: it fails where one is missing."""
    calls = [line.partition(" & ")[0] for line in script.splitlines() if line.startswith("expect_address ")]
    assert len(calls) == len(INTERFACES)
    return shlex.join(["ip", "netns", "exec", node, "bash", "-e", "-c", "\n".join([addresses_of(script), *calls])])


def test_all_adapters_reach_each_other_with_the_mark(fabric: Fabric) -> None:
    plan = cluster(are_named_alike=True)
    ends = [Port(node.name, nic) for node in plan.nodes for nic in node.nics]
    pairs = [(a, b) for a, b in permutations(ends, 2) if a.device != b.device]
    assert len(pairs) == 8
    assert {pair: fabric.probe(*pair, ROCE) for pair in pairs} == {pair: [ROCE, ROCE] for pair in pairs}
