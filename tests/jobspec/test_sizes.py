"""Fabrics derived from nodes and switch models: published designs, small and uneven shapes, and growth without moved cables."""

import json
from collections import Counter
from collections.abc import Mapping
from ipaddress import IPv4Interface
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, field
from msgspec.structs import replace

from headway.jobspec.check.fabric import check_cabling
from headway.jobspec.plan import ClusterPlan, ComingSwitch, SwitchPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.links import shape_of
from headway.jobspec.resolve.sizes import SizeError, Sizes, sizes_of
from headway.jobspec.spec.cluster import Cluster
from headway.planner.fabric import count_tiers, growth_of, losses, written_out
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.render import frr_conf


class Site(Struct, frozen=True):
    """The facts about a site that are known before a switch is bought."""

    nodes: int
    nics: int = 8
    transport: str = "roce"
    switches: Mapping[str, Any] = field(default_factory=dict)
    fabric: Mapping[str, Any] = field(default_factory=dict)
    group: Mapping[str, Any] = field(default_factory=dict)
    ends: int = 0

    def spec(self) -> Cluster:
        nics = [f"mlx5_{rail}" for rail in range(self.nics)]
        gpus = {"name": "gpu", "count": self.nodes, "cpus": 8, "gpu": "H100-SXM-80", "gpus": 8, "nics": nics, **self.group}
        # Four adapters of the fabric's manager, which is connected like a node.
        ends = [{"name": "ufm", "count": 1, "cpus": 8, "nics": nics[: self.ends]}] if self.ends else []
        roce = {"classes": [{"name": "roce", "carries": "collectives", "dscp": 26, "lossless": True}]}
        kind = "frr" if self.transport == "roce" else "opensm"
        fabric = {"name": "rails", "role": "scale-out", "transport": self.transport, **self.fabric}
        fabric |= {"switches": {**self.switches, "os": [{"kind": kind}]}} | (roce if self.transport == "roce" else {})
        head = {"apiVersion": "headway/v1alpha1", "kind": "Cluster", "name": "site", "scheduler": {"kind": "slurm"}}
        return Cluster.model_validate_json(json.dumps({**head, "node_groups": [gpus, *ends], "fabrics": [fabric]}))

    def sizes(self) -> Sizes:
        cluster = self.spec()
        return sizes_of(cluster.fabrics[0], cluster.node_groups)

    def plan(self) -> ClusterPlan:
        cluster = self.spec()
        assert [problem.message for problem in check_cabling(cluster)] == []
        return resolve_cluster(cluster)


def quantum2(nodes: int, ends: int = 0) -> Site:
    return Site(nodes, transport="infiniband", switches={"model": "QM9700"}, group={"nic": "ConnectX-7"}, ends=ends)


def quantum(nodes: int) -> Site:
    return Site(nodes, transport="infiniband", switches={"model": "QM8700"}, group={"gpu": "A100-SXM-80", "nic": "ConnectX-6"})


def xdr(nodes: int) -> Site:
    return Site(nodes, transport="infiniband", switches={"model": "Q3400"}, group={"nic": "ConnectX-8"})


def b300_ethernet(nodes: int) -> Site:
    """Each ConnectX-8 has two ports of 400 Gb/s, one in each plane."""
    return Site(nodes, nics=16, switches={"model": "SN5600"}, fabric={"planes": 2}, group={"nic": "ConnectX-8"})


def megascale(nodes: int) -> Site:
    return Site(nodes, switches={"model": "Z9664F-ON"}, group={"nic_speed": "200Gb/s"})


def hpn(nodes: int) -> Site:
    """Eight adapters with two ports of 200 Gb/s, one in each plane; switches of 51.2 Tb/s with links of 400 Gb/s between them."""
    switches = {"model": "7060X6-64PE", "uplink_speed": "400Gb/s"}
    fabric = {"planes": 2, "oversubscription": {"leaf": 1.067, "spine": 15}}
    return Site(nodes, nics=16, switches=switches, fabric=fabric, group={"nic_speed": "200Gb/s"})


# Leaves, spines, cores, cables to nodes (and to the manager), between leaves and spines, between spines and cores.
# docs.nvidia.com, NVIDIA DGX SuperPOD reference architectures, "network fabrics": DGX H100 table 4, DGX B200, DGX B300 (XDR, Ethernet);
# DGX A100: RA-09950-001, seven units of 20 nodes, in which groups of spines and of cores are for each rail and for half of each such group.
# MegaScale: Jiang et al., NSDI 2024, 3.6: 64 ports of 400 Gb/s, 32 down and 32 up, each down port split in two of 200 Gb/s, 64 servers on
# 8 leaves. HPN: Qian et al., SIGCOMM 2024: 128 ports of 200 Gb/s down and 60 of 400 Gb/s up, 15 segments of 1,024 GPUs in a pod with
# 240 leaves and 120 spines, of whose ports 120 are down and 8 up.
PUBLISHED: Mapping[str, tuple[Site, tuple[int, ...]]] = {
    "A100, 7 units": (quantum(140), (56, 80, 28, 1120, 1120, 1120)),
    "H100, 1 unit": (quantum2(31, ends=4), (8, 4, 0, 252, 256, 0)),
    "H100, 2 units": (quantum2(63, ends=4), (16, 8, 0, 508, 512, 0)),
    "H100, 3 units": (quantum2(95, ends=4), (24, 16, 0, 764, 768, 0)),
    "H100, 4 units": (quantum2(127, ends=4), (32, 16, 0, 1020, 1024, 0)),
    "B200, 2 units": (quantum2(64), (16, 8, 0, 512, 512, 0)),
    "B200, 4 units": (quantum2(128), (32, 16, 0, 1024, 1024, 0)),
    "B200, 8 units": (quantum2(256), (64, 32, 0, 2048, 2048, 0)),
    "B200, 16 units": (quantum2(512), (128, 128, 64, 4096, 4096, 4096)),
    "B200, 32 units": (quantum2(1024), (256, 256, 128, 8192, 8192, 8192)),
    "B200, 64 units": (quantum2(2048), (512, 512, 256, 16384, 16384, 16384)),
    "B300 XDR, 1 unit": (xdr(72), (8, 4, 0, 576, 576, 0)),
    "B300 XDR, 2 units": (xdr(144), (16, 8, 0, 1152, 1152, 0)),
    "B300 XDR, 4 units": (xdr(288), (32, 18, 0, 2304, 2304, 0)),
    "B300 XDR, 8 units": (xdr(576), (64, 36, 0, 4608, 4608, 0)),
    "B300 XDR, 18 units": (xdr(1296), (144, 72, 0, 10368, 10368, 0)),
    "B300 Ethernet, 1 unit": (b300_ethernet(64), (16, 8, 0, 1024, 512, 0)),
    "B300 Ethernet, 2 units": (b300_ethernet(128), (32, 16, 0, 2048, 1024, 0)),
    "B300 Ethernet, 4 units": (b300_ethernet(256), (64, 32, 0, 4096, 2048, 0)),
    "B300 Ethernet, 8 units": (b300_ethernet(512), (128, 64, 0, 8192, 4096, 0)),
    "B300 Ethernet, 16 units": (b300_ethernet(1024), (256, 128, 0, 16384, 16384, 0)),
    "MegaScale, one set of leaves": (megascale(64), (8, 4, 0, 512, 256, 0)),
    "MegaScale, 12,288 GPUs": (megascale(1536), (192, 192, 128, 12288, 6144, 6144)),
    "HPN, one pod": (hpn(1920), (240, 120, 0, 30720, 14400, 0)),
    "HPN, two pods": (hpn(3840), (480, 240, 120, 61440, 28800, 1920)),
}


@pytest.mark.parametrize("design", PUBLISHED)
def test_published_design_follows_from_its_nodes_and_switches(design: str) -> None:
    site, expected = PUBLISHED[design]
    found, cluster = site.sizes(), site.spec()
    assert [problem.message for problem in check_cabling(cluster)] == []
    cables = (site.nodes * site.nics + site.ends, found.leaves * found.leaf_up, found.spines * found.spine_up)
    assert (found.leaves, found.spines, found.cores, *cables) == expected


def test_slower_links_between_switches_avoid_a_third_tier() -> None:
    # 64 ports of 800 Gb/s are 128 of 400: two tiers reach 8192 adapters, as NVIDIA prints for 16 units of DGX B300.
    site = Site(1024, switches={"model": "SN5600"}, group={"nic": "ConnectX-7"})
    cluster = site.spec()
    shape = shape_of(cluster.fabrics[0], cluster.node_groups)
    assert (shape.sizes.tiers, shape.sizes.leaves, shape.sizes.spines, shape.ports.up_speed) == (2, 128, 64, 400_000_000_000)
    assert written_out(shape)["uplink_speed"] == "400Gb/s"
    assert grown(site, **written_out(shape)).sizes() == shape.sizes
    assert replace(site, nodes=512).sizes().leaf_up == 32


def test_leaf_may_have_spare_links_for_lost_spines() -> None:
    # A leaf of two nodes has 16 links down and 18 up to chassis: two of these may be lost.
    switches = {"ports": 64, "node_ports": 16, "spine_ports": 576, "speed": "400Gb/s"}
    fabric = {"shape": "leaf-spine", "oversubscription": {"leaf": 0.889}}
    found = Site(384, switches=switches, fabric=fabric).sizes()
    assert (found.leaves, found.leaf_up) == (192, 18)


def test_leaf_shared_by_more_rails_than_exist_is_rejected() -> None:
    with pytest.raises(SizeError, match="3 rails are to share a leaf, and the fabric has 2"):
        Site(4, nics=2, switches={"leaf_rails": 3}).sizes()


def test_numbers_of_cables_and_transceivers_match_the_reference() -> None:
    site = quantum2(31, ends=4)
    cluster = site.spec()
    (nodes, spines) = count_tiers(resolve_cluster(cluster), shape_of(cluster.fabrics[0], cluster.node_groups))
    assert (nodes.cables, spines.cables) == (252, 256)
    # A cage has two ports: 16 of each leaf below, 16 above, and all 32 of each spine.
    assert nodes.transceivers == (8 * 16, 252)
    assert spines.transceivers == (8 * 16 + 4 * 32, 0)


def test_dual_ports_of_800_gbit_share_one_cable_for_two_links() -> None:
    site = b300_ethernet(64)
    cluster = site.spec()
    (nodes, spines) = count_tiers(resolve_cluster(cluster), shape_of(cluster.fabrics[0], cluster.node_groups))
    assert (nodes.cables, nodes.transceivers[0], spines.cables) == (1024, 512, 512)


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        (Site(2, nics=2), ("one switch", 1, 1, 2, 1, 0)),
        (Site(8), ("one switch", 1, 1, 8, 1, 0)),
        (Site(9), ("two rails a leaf", 2, 4, 2, 4, 2)),
        (Site(16), ("two rails a leaf", 2, 4, 2, 4, 2)),
        (Site(17), ("a leaf for each rail", 2, 8, 1, 8, 4)),
        (Site(20, fabric={"shape": "leaf-spine"}), ("leaf-spine", 2, 1, 8, 5, 4)),
        (Site(40, fabric={"shape": "rail-only"}), ("rail-only", 1, 8, 1, 8, 0)),
        (Site(40, nics=3, fabric={"planes": 3}), ("one switch a plane", 1, 3, 1, 3, 0)),
        (Site(40, fabric={"shape": "rail-only"}, switches={"ports": 32}), ("rails of two tiers", 2, 8, 1, 24, 16)),
    ],
)
def test_small_and_uneven_shapes_follow_from_the_nodes(site: Site, expected: tuple[Any, ...]) -> None:
    found = site.sizes()
    assert (expected[0], found.tiers, found.width, found.leaf_rails, found.leaves, found.spines) == expected
    assert_cabled(site.plan())


def test_more_pods_than_the_ports_of_a_core_are_rejected() -> None:
    with pytest.raises(SizeError, match="98 pods are more than the 64 ports of a core") as refused:
        Site(12500).sizes()
    assert refused.value.key == "model"


def assert_cabled(plan: ClusterPlan) -> None:
    """Assert that every cable has two ends that name each other, and ports, addresses, leaf AS numbers and loopbacks are unique."""
    ports = [(switch.name, port.name) for switch in plan.switches for port in switch.ports]
    assert len(set(ports)) == len(ports)
    ends = {(switch.name, port.name): (port.peer, port.peer_port) for switch in plan.switches for port in switch.ports}
    assert all(ends[peer] == end for end, peer in ends.items() if peer in ends)
    adapters = [end for end in ends.values() if end not in ends]
    expected = [(node.name, nic) for node in plan.nodes for nic in node.nics]
    assert sorted(adapters) == sorted(expected)
    addresses = [port.address for switch in plan.switches for port in switch.ports if port.address]
    addresses += [link.address for link in plan.links if link.address]
    assert len({IPv4Interface(address).ip for address in addresses}) == 2 * len(expected)
    loopbacks = [switch.router_id for switch in plan.switches]
    assert len(set(loopbacks)) == len(loopbacks)
    numbers = Counter(switch.asn for switch in plan.switches if switch.role == "leaf")
    assert set(numbers.values()) == {1}
    assert not numbers.keys() & {switch.asn for switch in plan.switches if switch.role != "leaf"}
    assert len(plan.links) == len(expected) + sum(len(switch.uplinks) for switch in plan.switches) // 2


@st.composite
def sites(draw: st.DrawFn) -> Site:
    """Draw fabrics of small switches, which soon need pods."""
    rails = draw(st.integers(1, 4))
    planes = draw(st.sampled_from([each for each in range(1, rails + 1) if rails % each == 0]))
    ports = draw(st.sampled_from([8, 12, 16]))
    fabric: dict[str, Any] = {"planes": planes}
    if draw(st.booleans()):
        fabric["shape"] = draw(st.sampled_from(["rail-optimized", "leaf-spine"]))
    return Site(draw(st.integers(1, 40)), nics=rails, switches={"ports": ports}, fabric=fabric)


def grown(site: Site, **switches: Any) -> Site:
    return replace(site, switches={**site.switches, **switches})


@settings(deadline=None, max_examples=60)
@given(sites())
def test_every_derived_fabric_is_fully_cabled(site: Site) -> None:
    try:
        site.sizes()
    except SizeError:
        return
    assert_cabled(site.plan())


@settings(deadline=None, max_examples=40)
@given(sites(), st.integers(0, 30))
def test_growth_toward_its_goal_moves_nothing_and_changes_no_switch(site: Site, more: int) -> None:
    goal = site.nodes + more
    now = grown(site, grow_to=goal)
    try:
        now.sizes()
    except SizeError:
        return
    before, after = now.plan(), replace(now, nodes=goal).plan()
    # Every port for a future device exists, with its final speed, name and address.
    assert set(before.switches) <= set(after.switches)
    assert set(before.links) <= set(after.links)
    assert {port.peer for switch in before.switches for port in switch.ports} <= before.devices | after.devices
    assert set(before.coming) <= {ComingSwitch(each.name, each.fabric, each.role, each.asn) for each in after.switches}
    assert after.coming == ()
    assert_cabled(after)


@settings(deadline=None, max_examples=40)
@given(sites())
def test_explicit_sizes_give_the_same_plan(site: Site) -> None:
    cluster = site.spec()
    try:
        shape = shape_of(cluster.fabrics[0], cluster.node_groups)
    except SizeError:
        return
    stated = grown(site, **written_out(shape))
    assert replace(stated.plan(), hash="") == replace(site.plan(), hash="")


def test_pods_are_connected_by_cores_of_every_group() -> None:
    plan = Site(8, nics=1, switches={"ports": 4}, fabric={"pods": 4}).plan()
    roles = Counter(switch.role for switch in plan.switches)
    assert (roles["leaf"], roles["spine"], roles["core"]) == (4, 4, 2)
    by_role = {role: [switch for switch in plan.switches if switch.role == role] for role in roles}
    assert len({switch.asn for switch in by_role["spine"]}) == 4
    assert {switch.asn for switch in by_role["core"]} == {4200000000}
    for core in by_role["core"]:
        assert {port.peer for port in core.ports} == {switch.name for switch in by_role["spine"]}


def test_rail_is_a_pod_where_that_takes_fewer_switches() -> None:
    """Seven units in pods of two have 80 spines too, and 40 cores with 32 of 40 ports in use."""
    plan = Site(140, switches={"ports": 40}).plan()
    leaves, spines, cores = ([each for each in plan.switches if each.role == role] for role in ("leaf", "spine", "core"))
    for leaf in leaves:
        rail = leaf.index % 8
        assert {port.peer for port in leaf.uplinks} == {f"rails-spine-{rail * 10 + place + 1}" for place in range(10)}
    for core in cores:
        assert len(core.ports) == 40
        assert Counter((int(port.peer.rpartition("-")[2]) - 1) // 10 for port in core.ports) == dict.fromkeys(range(8), 5)
    assert {len(spine.ports) for spine in spines} == {28}
    assert_cabled(plan)


def test_every_leaf_reaches_every_other_without_repeating_an_asn() -> None:
    """A switch refuses a path that its own number is in: spines of two rails must differ where a core leads from one to the other."""
    plan = Site(12, nics=3, switches={"ports": 8}).plan()
    sizes = Site(12, nics=3, switches={"ports": 8}).sizes()
    assert (sizes.has_rail_pods, sizes.leaves, sizes.spines, sizes.cores) == (True, 9, 12, 6)
    asns, near = plan.switch_asns, {switch.name: {port.peer for port in switch.uplinks} for switch in plan.switches}
    leaves = [switch.name for switch in plan.switches if switch.role == "leaf"]
    for leaf in leaves:
        reached = {leaf}
        paths: list[tuple[str, ...]] = [(leaf,)]
        while paths:
            paths = [
                (*path, peer)
                for path in paths
                for peer in near[path[-1]]
                if peer not in reached and asns[peer] not in {asns[each] for each in path}
            ]
            paths = list({path[-1]: path for path in paths}.values())
            reached |= {path[-1] for path in paths}
        assert reached >= set(leaves)


def test_spine_of_three_tiers_has_sessions_to_both_other_tiers() -> None:
    plan = Site(8, nics=1, switches={"ports": 4}, fabric={"pods": 4}).plan()
    spine = next(switch for switch in plan.switches if switch.role == "spine")
    text = frr_conf(FrrOptions(), spine, plan)
    assert text.count(" interface peer-group FABRIC") == len(spine.ports) == 4
    assert f"router bgp {4200000000 + 32768}\n" in text


def test_bandwidth_after_a_loss_is_weighted_by_speed() -> None:
    site = megascale(64)
    cluster = site.spec()
    shape = shape_of(cluster.fabrics[0], cluster.node_groups)
    left = {loss.lost: loss.left for loss in losses(resolve_cluster(cluster), shape)}
    assert left == {
        "a cable to a node": 7 / 8,
        "a leaf": 7 / 8,
        "a cable from a leaf to a spine": 31 / 32,
        "a spine": 3 / 4,
    }


def test_oversubscription_is_computed_from_speeds() -> None:
    assert megascale(64).plan().fabrics[0].leaf_oversubscription == 1.0
    assert hpn(128).plan().fabrics[0].leaf_oversubscription == pytest.approx(128 * 200 / (60 * 400))


def test_growth_is_limited_by_the_ports_of_the_spines() -> None:
    cluster = quantum2(64).spec()
    growth = growth_of(shape_of(cluster.fabrics[0], cluster.node_groups))
    assert (growth.present, growth.most) == (64, 64)
    cluster = grown(quantum2(64), grow_to=256).spec()
    growth = growth_of(shape_of(cluster.fabrics[0], cluster.node_groups))
    assert (growth.present, growth.most) == (64, 256)


def spines(plan: ClusterPlan) -> list[SwitchPlan]:
    return [switch for switch in plan.switches if switch.role == "spine"]


def test_all_spines_exist_from_the_start() -> None:
    small = grown(quantum2(32), grow_to=256).plan()
    assert len(spines(small)) == 32
    # With links for existing leaves, and ports for future ones.
    assert all(len(small.cabled(spine)) == 8 and len(spine.ports) == 64 for spine in spines(small))
