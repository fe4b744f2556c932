"""Tests the fabric of the RoCE example with the committed files of switches and nodes: the kernels' routes, and packets between nodes."""

import json
import shutil
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from headway.jobspec.parse import read
from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.spec.cluster import Cluster
from headway.templates.switches.frr import FRR

from .fabric import Fabric, FabricError
from .planned import cable, sonic_fabric
from .wiring import Link, Port

pytestmark = pytest.mark.slow

STORY = Path(__file__).parents[3] / "examples/two-node-roce"
RENDERED = STORY / "rendered/two-roce-nodes"
# the job's DSCP 26, as its packets' TOS byte
TOS = 26 << 2


@pytest.fixture(scope="module")
def cluster() -> ClusterPlan:
    _, parsed, problems = read(STORY / "slurm-cluster.yaml")
    assert parsed is not None
    assert not problems
    assert isinstance(parsed.spec, Cluster)
    return resolve_cluster(parsed.spec)


@pytest.fixture(scope="module")
def fabric(frr_here: None, cluster: ClusterPlan) -> Iterator[Fabric]:
    """Two leaves, two spines, two nodes with two adapters, and every route. A test that damages it repairs it."""
    with sonic_fabric(cluster, RENDERED) as started:
        wait_until_complete(started, cluster)
        yield started


def committed(switch: SwitchPlan) -> str:
    return (RENDERED / "switches" / switch.name / "frr/frr.conf").read_text()


def leaves(cluster: ClusterPlan) -> list[SwitchPlan]:
    return [switch for switch in cluster.switches if switch.role == "leaf"]


def uplinks(switch: SwitchPlan) -> set[str]:
    return {port.name for port in switch.uplinks}


def networks(leaf: SwitchPlan) -> list[str]:
    """A leaf's announcement: one network for all of its links to nodes."""
    assert leaf.block is not None
    return [f"{leaf.router_id}/32", leaf.block]


def wait_until_complete(fabric: Fabric, cluster: ClusterPlan) -> None:
    """Every leaf's kernel sends to each network of every other leaf by all uplinks, and every spine directly to its leaf."""
    for here, there in permutations(leaves(cluster), 2):
        for network in networks(there):
            fabric.wait_routes(here.name, network, uplinks(here))
    for spine in (switch for switch in cluster.switches if switch.role == "spine"):
        for leaf in leaves(cluster):
            down = {port.name for port in spine.ports if port.peer == leaf.name}
            for network in networks(leaf):
                fabric.wait_routes(spine.name, network, down)


def adapters(cluster: ClusterPlan) -> list[Port]:
    return [cable(link).b for link in cluster.links if link.address]


def answers(fabric: Fabric, pairs: list[tuple[Port, Port]]) -> dict[tuple[Port, Port], list[int]]:
    return {(a, b): fabric.probe(a, b, TOS) for a, b in pairs}


def first_uplink(cluster: ClusterPlan) -> Link:
    return next(cable(link) for link in cluster.links if not link.address)


def test_every_leaf_has_every_uplink_as_a_kernel_route_to_every_network(fabric: Fabric, cluster: ClusterPlan) -> None:
    first, second = leaves(cluster)
    assert uplinks(first) == {"Ethernet256", "Ethernet264"}
    assert networks(second) == ["10.255.128.2/32", "10.10.0.64/26"]
    assert {network: fabric.kernel_routes(first.name, network) for network in networks(second)} == {
        network: uplinks(first) for network in networks(second)
    }
    assert {network: fabric.kernel_routes(second.name, network) for network in networks(first)} == {
        network: uplinks(second) for network in networks(first)
    }


def test_frrs_running_configuration_equals_the_committed_file(fabric: Fabric, cluster: ClusterPlan) -> None:
    """FRR's own text of its settings, in its own order, without defaults."""
    views = {switch.name: FRR.read(committed(switch)).routing for switch in cluster.switches}
    running = {name: FRR.read(fabric.vtysh(name, "show running-config")).routing for name in views}
    assert running == views


def test_all_adapters_reach_each_other_and_packets_keep_their_dscp(fabric: Fabric, cluster: ClusterPlan) -> None:
    all_pairs = [(a, b) for a, b in permutations(adapters(cluster), 2) if a.device != b.device]
    assert {(a.interface, b.interface) for a, b in all_pairs} == {
        (a, b) for a in ("mlx5_0", "mlx5_1") for b in ("mlx5_0", "mlx5_1")
    }
    assert len(all_pairs) == 8
    assert answers(fabric, all_pairs) == {pair: [TOS, TOS] for pair in all_pairs}


def test_a_cut_link_leaves_one_path_and_returns_to_the_kernel_routes(fabric: Fabric, cluster: ClusterPlan) -> None:
    (first, second), link = leaves(cluster), first_uplink(cluster)
    across = [(a, b) for a, b in permutations(adapters(cluster), 2) if a.interface != b.interface and a.device != b.device]
    try:
        fabric.cut(link)
        for network in networks(second):
            fabric.wait_routes(first.name, network, uplinks(first) - {link.a.interface})
        towards_the_cut = {port.name for port in second.uplinks if port.peer == link.b.device}
        for network in networks(first):
            fabric.wait_routes(second.name, network, uplinks(second) - towards_the_cut)
        assert answers(fabric, across) == {pair: [TOS, TOS] for pair in across}
    finally:
        fabric.mend(link)
        wait_until_complete(fabric, cluster)
    assert answers(fabric, across) == {pair: [TOS, TOS] for pair in across}


def test_a_silent_link_failure_is_detected_by_bfd(fabric: Fabric, cluster: ClusterPlan) -> None:
    (first, second), link = leaves(cluster), first_uplink(cluster)
    assert bfd_states(fabric, first) == dict.fromkeys(uplinks(first), "up")
    try:
        fabric.silence(link)
        for network in networks(second):
            fabric.wait_routes(first.name, network, uplinks(first) - {link.a.interface})
        session = json.loads(fabric.vtysh(link.b.device, f"show bgp neighbors {link.b.interface} json"))[link.b.interface]
        assert session["lastNotificationReason"] == "Cease/BFD Down"
    finally:
        fabric.mend(link)
        wait_until_complete(fabric, cluster)
    fabric.wait("BFD", lambda: bfd_states(fabric, first), lambda states: set(states.values()) == {"up"}, 30)


def bfd_states(fabric: Fabric, switch: SwitchPlan) -> dict[str, str]:
    return {peer["interface"]: peer["status"] for peer in json.loads(fabric.vtysh(switch.name, "show bfd peers json"))}


def test_only_planned_networks_with_a_link_that_is_up_are_announced(fabric: Fabric, cluster: ClusterPlan) -> None:
    first, second = leaves(cluster)
    to_nodes = [cable(link) for link in cluster.links if link.a == second.name and link.address]
    block = networks(second)[1]
    try:
        fabric.add_address(Port(second.name, "lo"), "192.0.2.1/32")
        fabric.cut(to_nodes[0])
        fabric.wait("one node", lambda: fabric.kernel_routes(second.name, "10.10.0.64/31"), lambda found: not found, 30)
        assert fabric.kernel_routes(first.name, block) == uplinks(first)
        for link in to_nodes[1:]:
            fabric.cut(link)
        fabric.wait_routes(first.name, block, set())
        assert fabric.kernel_routes(first.name, "192.0.2.1/32") == set()
    finally:
        for link in to_nodes:
            fabric.mend(link)
        wait_until_complete(fabric, cluster)
    assert fabric.kernel_routes(first.name, "192.0.2.1/32") == set()
    assert fabric.kernel_routes(first.name, "10.10.0.64/31") == set()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (["neighbor FABRIC shutdown"], ["no neighbor FABRIC shutdown"]),
        (
            ["address-family ipv4 unicast", "neighbor FABRIC route-map NONE out"],
            ["address-family ipv4 unicast", "no neighbor FABRIC route-map NONE out"],
        ),
        (
            ["address-family ipv4 unicast", "no network 10.10.0.64/31", "no network 10.10.0.66/31"],
            ["address-family ipv4 unicast", "network 10.10.0.64/31", "network 10.10.0.66/31"],
        ),
    ],
    ids=["shut", "denied", "not announced"],
)
def test_a_leaf_that_is_down_denied_or_silent_is_unreachable(
    fabric: Fabric, cluster: ClusterPlan, wrong: list[str], right: list[str]
) -> None:
    """The test above depends on these lines: each of them is enough to lose the nodes behind the leaf."""
    first, second = leaves(cluster)
    bgp = f"router bgp {second.asn}"
    try:
        # a route map without entries permits nothing
        fabric.vtysh(second.name, "configure terminal", "route-map NONE deny 10")
        fabric.vtysh(second.name, "configure terminal", bgp, *wrong)
        fabric.vtysh(second.name, "clear bgp ipv4 unicast * soft")
        fabric.wait_routes(first.name, networks(second)[1], set())
    finally:
        fabric.vtysh(second.name, "configure terminal", bgp, *right)
        fabric.vtysh(second.name, "configure terminal", "no route-map NONE")
        fabric.vtysh(second.name, "clear bgp ipv4 unicast * soft")
        wait_until_complete(fabric, cluster)


@pytest.mark.variant
def test_next_hop_objects_would_lose_a_recovered_link(frr_here: None, cluster: ClusterPlan, tmp_path: Path) -> None:
    """The reason for `no zebra nexthop kernel enable` in the files, and a control of the test that cuts a link: FRR 8.4 lists the path
    again, but its kernel does not use it."""
    shutil.copytree(RENDERED, tmp_path, dirs_exist_ok=True)
    (first, second), link = leaves(cluster), first_uplink(cluster)
    file = tmp_path / "switches" / first.name / "frr/frr.conf"
    file.write_text(file.read_text().replace("no zebra nexthop kernel enable\n", ""))
    with sonic_fabric(cluster, tmp_path) as fabric:
        wait_until_complete(fabric, cluster)
        fabric.cut(link)
        for network in networks(second):
            fabric.wait_routes(first.name, network, uplinks(first) - {link.a.interface})
        fabric.mend(link)
        with pytest.raises(FabricError):
            fabric.wait_routes(first.name, networks(second)[1], uplinks(first), timeout_s=20)
