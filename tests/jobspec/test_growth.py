"""Clusters that grow and shrink: existing devices keep their ports, addresses and AS numbers, and every byte of their files."""

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.plan import ClusterPlan, LinkPlan, SwitchPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.inventory import Observed, resolve_cables
from headway.jobspec.resolve.links import shape_of
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.inventory import Inventory
from headway.templates.hosts.render import render_host
from headway.templates.switches import SWITCHES
from headway.templates.switches.eos.options import EosOptions
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.nvue.options import NvueOptions
from headway.templates.switches.sonic.options import SonicOptions

# Four nodes per leaf.
PORTS = 8

Thing = TypeVar("Thing")


class Size(Struct, frozen=True):
    """Nodes of each group, and the size of their fabric; every second group is only on the rails `some`, if any."""

    counts: tuple[int, ...]
    rails: int
    planes: int = 1
    spines: int = 1
    units: int = 16
    ports: int = PORTS
    some: tuple[int, ...] = ()

    def rails_of(self, group: int) -> Sequence[int]:
        return self.some if group % 2 and self.some else range(self.rails)

    @property
    def adapters(self) -> int:
        """The number of all adapters."""
        return sum(count * len(self.rails_of(group)) for group, count in enumerate(self.counts))


def spec(size: Size) -> Cluster:
    nics = [[{"name": f"mlx5_{rail}", "rail": rail} for rail in size.rails_of(group)] for group in range(len(size.counts))]
    groups = [
        {"name": name, "count": count, "cpus": 8, "gpu": "H100-SXM-80", "gpus": len(on), "nics": on}
        for name, count, on in zip("abcd", size.counts, nics, strict=False)
    ]
    switches = {"leaves": size.rails * size.units, "spines": size.spines, "ports": size.ports}
    roce = {"name": "rails", "role": "scale-out", "transport": "roce", "planes": size.planes}
    classes = [{"name": "roce", "carries": "collectives", "dscp": 26, "lossless": True}]
    document = {
        "apiVersion": "headway/v1alpha1",
        "kind": "Cluster",
        "name": "lab",
        "scheduler": {"kind": "slurm"},
        "node_groups": groups,
        "fabrics": [{**roce, "classes": classes, "switches": {**switches, "os": [{"kind": "sonic"}, {"kind": "frr"}]}}],
    }
    return Cluster.model_validate_json(json.dumps(document))


def pinned(plan: ClusterPlan) -> Inventory:
    """Return all cables of the plan's nodes as an inventory."""
    nics: dict[str, list[dict[str, str]]] = {}
    for link in cables(plan).values():
        nics.setdefault(link.b, []).append({"name": link.b_port, "switch": link.a, "port": link.a_port})
    head = {"apiVersion": "headway/v1alpha1", "kind": "Inventory", "name": "all", "cluster": plan.name}
    return Inventory.model_validate_json(json.dumps({**head, "nodes": [{"name": name, "nics": nics[name]} for name in nics]}))


def cables(plan: ClusterPlan) -> Mapping[tuple[str, str], LinkPlan]:
    """Return the link of each adapter, with its address, by node and adapter."""
    return {(link.b, link.b_port): link for link in plan.links if link.address}


def switches(plan: ClusterPlan, role: str) -> Mapping[str, SwitchPlan]:
    return {switch.name: switch for switch in plan.switches if switch.role == role}


def assert_nothing_moved(before: ClusterPlan, after: ClusterPlan) -> None:
    """Assert that devices in both plans are the same in both."""
    old, new = cables(before), cables(after)
    nodes = {node.name for node in after.nodes}
    assert {end: link for end, link in old.items() if end[0] in nodes}.items() <= new.items()
    assert len({(link.a, link.a_port) for link in new.values()}) == len(new)
    grown = {switch.name: switch for switch in after.switches}
    for switch in before.switches:
        assert replace(grown[switch.name], ports=switch.ports) == switch
        assert {port for port in switch.ports if port.role == "fabric" or port.peer in nodes} <= set(grown[switch.name].ports)


@st.composite
def clusters(draw: st.DrawFn, groups: int = 3) -> Size:
    rails = draw(st.integers(1, 3))
    planes = draw(st.integers(1, rails))
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=groups))
    some = tuple(sorted(draw(st.sets(st.integers(0, rails - 1)))))
    return Size(tuple(counts), rails, planes, planes * draw(st.integers(1, 2)), some=some)


@pytest.mark.slow
@given(clusters(), st.integers(0, 5), st.integers(0, 2), st.integers(0, 1))
def test_adding_nodes_to_the_last_group_leaves_or_spines_moves_nothing(size: Size, nodes: int, units: int, spines: int) -> None:
    counts = (*size.counts[:-1], size.counts[-1] + nodes)
    larger = replace(size, counts=counts, units=size.units + units, spines=size.spines + spines * size.planes)
    assert_nothing_moved(resolve_cluster(spec(size)), resolve_cluster(spec(larger)))


@pytest.mark.slow
@given(clusters())
def test_each_adapter_is_on_a_leaf_of_its_rail_even_if_rails_are_skipped(size: Size) -> None:
    found = cables(resolve_cluster(spec(size)))
    assert len(found) == size.adapters
    for (_, adapter), link in found.items():
        leaf = int(link.a.removeprefix("rails-leaf-")) - 1
        assert adapter == f"mlx5_{leaf % size.rails}"


@pytest.mark.slow
@given(clusters(groups=2), st.integers(1, 6))
def test_adding_a_last_group_moves_nothing(size: Size, nodes: int) -> None:
    assert_nothing_moved(resolve_cluster(spec(size)), resolve_cluster(spec(replace(size, counts=(*size.counts, nodes)))))


@pytest.mark.slow
@settings(deadline=None)
@given(clusters(), st.lists(st.lists(st.integers(-2, 3), min_size=3, max_size=3), max_size=4))
def test_pinned_nodes_never_move_when_groups_grow_or_shrink(size: Size, steps: list[list[int]]) -> None:
    plan = resolve_cluster(spec(size))
    for step in steps:
        inventory = pinned(plan)
        size = replace(size, counts=tuple(max(1, count + more) for count, more in zip(size.counts, step, strict=False)))
        names = {f"{group}-{index + 1}" for group, count in zip("abcd", size.counts, strict=False) for index in range(count)}
        kept = inventory.model_copy(update={"nodes": tuple(node for node in inventory.nodes if node.name in names)})
        after = resolve_cluster(spec(size), [kept])
        assert len(cables(after)) == size.adapters
        assert_nothing_moved(plan, after)
        plan = after


@pytest.mark.slow
@settings(deadline=None)
@given(clusters(), st.sets(st.integers(0, 17)), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_cable_predicted_to_stay_does_not_move_when_groups_grow(size: Size, observed: set[int], more: list[int]) -> None:
    everything = pinned(resolve_cluster(spec(size)))
    some = everything.model_copy(update={"nodes": tuple(node for i, node in enumerate(everything.nodes) if i in observed)})
    larger = replace(size, counts=tuple(count + extra for count, extra in zip(size.counts, more, strict=False)))
    before, after = stays(size, some), stays(larger, some)
    assert {place for place, sure in before.items() if sure} <= set(after)
    assert all(sure for (node, _, _), sure in before.items() if node.startswith("a-"))
    assert all(sure == (node in {each.name for each in some.nodes}) for (node, _, _), sure in before.items() if node[0] != "a")


def stays(size: Size, inventory: Inventory) -> Mapping[tuple[str, str, tuple[int, int]], bool]:
    """Return whether each cable is predicted to stay, by node, adapter and place."""
    cluster = spec(size)
    (fabric,) = cluster.fabrics
    found = resolve_cables(shape_of(fabric, cluster.node_groups), fabric, cluster.node_groups, Observed.of([inventory]))
    return {(cable.node, cable.adapter, cable.place): cable.stays for cable in found}


# Units of 72 nodes on switches of 144 ports; a spine has a port for each unit of its plane.
LARGE = Size((128 * 72,), rails=8, planes=8, spines=64, units=128, ports=144)


@pytest.mark.slow
@pytest.mark.parametrize("units", [16, pytest.param(128, marks=pytest.mark.variant)])
def test_added_unit_changes_no_byte_of_the_other_nodes_and_leaves(units: int) -> None:
    before, after = (resolve_cluster(spec(replace(LARGE, counts=(each * 72,), units=each))) for each in (units, units + 1))
    nodes, leaves = units * 72, units * 8
    assert (len(before.nodes), len(before.switches), len(before.links)) == (nodes, leaves + 64, (nodes + leaves) * 8)
    assert after.nodes[:nodes] == before.nodes
    assert cables(before).items() <= cables(after).items()
    assert list(switches(after, "leaf").values())[:leaves] == list(switches(before, "leaf").values())
    assert_spines_have_new_ports_only(before, after)
    assert_same_files(before, after)


@pytest.mark.slow
@pytest.mark.variant
def test_unit_added_to_an_earlier_group_changes_no_byte_of_pinned_nodes() -> None:
    size = replace(LARGE, counts=(64 * 72, 64 * 72))
    before = resolve_cluster(spec(size))
    after = resolve_cluster(spec(replace(size, counts=(65 * 72, 64 * 72), units=129)), [pinned(before)])
    nodes = {node.name: node for node in after.nodes}
    assert [nodes[node.name] for node in before.nodes] == list(before.nodes)
    assert cables(before).items() <= cables(after).items()
    assert list(switches(after, "leaf").values())[:1024] == list(switches(before, "leaf").values())
    assert_spines_have_new_ports_only(before, after)
    assert_same_files(before, after)


def assert_spines_have_new_ports_only(before: ClusterPlan, after: ClusterPlan) -> None:
    """Assert that each spine has one more port, for the leaf of the new unit."""
    spines = switches(after, "spine")
    for name, spine in switches(before, "spine").items():
        assert spines[name].ports[:-1] == spine.ports
        assert replace(spines[name], ports=spine.ports) == spine


def assert_same_files(before: ClusterPlan, after: ClusterPlan) -> None:
    """Assert that files of a sample of nodes and leaves are the same."""
    kinds = {"sonic": SonicOptions(), "frr": FrrOptions(), "nvue": NvueOptions(), "eos": EosOptions()}
    leaves, nodes = switches(after, "leaf"), {node.name: node for node in after.nodes}
    for leaf in sample(list(switches(before, "leaf").values())):
        for kind, options in kinds.items():
            render = SWITCHES[kind].render
            assert render(options, leaves[leaf.name], after) == render(options, leaf, before)
    for node in sample(before.nodes):
        assert render_host(nodes[node.name], after) == render_host(node, before) != {}


def sample(things: Sequence[Thing]) -> list[Thing]:
    """Return the first, the last, and fifteen between them."""
    return [things[index * (len(things) - 1) // 16] for index in range(17)]
