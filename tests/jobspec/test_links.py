"""Fabrics: every cable has two ends that name each other, planes are separate, and ports and addresses are unique."""

from dataclasses import dataclass
from ipaddress import IPv4Interface

from hypothesis import given
from hypothesis import strategies as st

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.qos import resolve_qos
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import TrafficClass

# Four nodes per leaf.
PORTS = 8


@dataclass(frozen=True)
class Size:
    """The size of a fabric."""

    nodes: int
    rails: int
    planes: int
    spines: int
    leaves: int


@st.composite
def sizes(draw: st.DrawFn) -> Size:
    """Draw a size whose last unit may be partly filled; a spine has a port for each leaf of its plane."""
    units, rails = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    planes = draw(st.sampled_from([planes for planes in range(1, rails + 1) if units * -(-rails // planes) <= PORTS]))
    nodes = PORTS // 2 * (units - 1) + draw(st.integers(1, PORTS // 2))
    return Size(nodes, rails, planes, planes * draw(st.integers(1, PORTS // 2)), rails * units)


def cluster(size: Size, uplinks: int = 1) -> ClusterPlan:
    switches = {"leaves": size.leaves, "spines": size.spines, "uplinks": uplinks, "ports": PORTS, "os": [{"kind": "frr"}]}
    nics = [f"mlx5_{rail}" for rail in range(size.rails)]
    gpus = {"name": "gpu", "count": size.nodes, "cpus": 8, "gpu": "H100", "gpus": size.rails, "nics": nics}
    roce: dict[str, object] = {"name": "rails", "role": "scale-out", "transport": "roce", "switches": switches}
    roce |= {"planes": size.planes, "classes": [{"name": "roce", "carries": "collectives", "dscp": 26, "lossless": True}]}
    document = {
        "apiVersion": "headway/v1alpha1",
        "kind": "Cluster",
        "name": "lab",
        "scheduler": {"kind": "slurm"},
        "node_groups": [{"name": "login", "count": 1, "cpus": 4}, gpus],
        "fabrics": [roce],
    }
    return resolve_cluster(Cluster.model_validate(document, strict=False))


def leaves_of(plan: ClusterPlan) -> list[SwitchPlan]:
    return [switch for switch in plan.switches if switch.role == "leaf"]


@given(sizes())
def test_every_cable_has_two_ends_that_name_each_other(size: Size) -> None:
    plan = cluster(size)
    ends = {(switch.name, port.name): (port.peer, port.peer_port) for switch in plan.switches for port in switch.ports}
    adapters = [end for end in ends.values() if end not in ends]
    assert all(ends[peer] == end for end, peer in ends.items() if peer in ends)
    assert sorted(adapters) == sorted(
        (f"gpu-{node + 1}", f"mlx5_{rail}") for node in range(size.nodes) for rail in range(size.rails)
    )
    assert len(plan.links) == size.nodes * size.rails + size.leaves * size.spines // size.planes
    assert {(link.a, link.a_port): (link.b, link.b_port) for link in plan.links}.items() <= ends.items()


@given(sizes())
def test_every_port_is_used_at_most_once_and_exists(size: Size) -> None:
    for switch in cluster(size).switches:
        indices = [port.index for port in switch.ports]
        assert len(set(indices)) == len(indices)
        assert set(indices) <= set(range(PORTS))


@given(sizes())
def test_addresses_and_leaf_as_numbers_are_unique(size: Size) -> None:
    plan = cluster(size)
    own = [port.address for switch in plan.switches for port in switch.ports if port.address]
    far = [link.address for link in plan.links if link.address]
    loopbacks = [switch.router_id for switch in plan.switches]
    assert len(set(own + far)) == 2 * size.nodes * size.rails
    assert len(set(loopbacks)) == size.leaves + size.spines
    assert all(IPv4Interface(a).network == IPv4Interface(b).network for a, b in zip(own, far, strict=True))
    numbers = {role: [switch.asn for switch in plan.switches if switch.role == role] for role in ("leaf", "spine")}
    assert len(set(numbers["leaf"])) == size.leaves
    assert len(set(numbers["spine"])) == 1
    assert not set(numbers["leaf"]) & set(numbers["spine"])


@given(sizes())
def test_adapter_i_is_connected_to_a_leaf_of_rail_i(size: Size) -> None:
    for switch in leaves_of(cluster(size)):
        assert {port.peer_port for port in switch.ports if port.role == "node"} <= {f"mlx5_{switch.index % size.rails}"}


@given(sizes())
def test_leaf_is_linked_to_exactly_the_spines_of_its_plane(size: Size) -> None:
    for switch in leaves_of(cluster(size)):
        plane = switch.index % size.rails % size.planes
        of_plane = [f"rails-spine-{spine + 1}" for spine in range(size.spines) if spine % size.planes == plane]
        assert [port.peer for port in switch.uplinks] == of_plane
        assert len(of_plane) == size.spines // size.planes


def test_ports_for_spines_start_in_the_upper_half_of_a_leaf() -> None:
    (leaf,) = leaves_of(cluster(Size(nodes=1, rails=1, planes=1, spines=2, leaves=1), uplinks=2))
    assert [(port.index, port.role, port.peer) for port in leaf.ports] == [
        (0, "node", "gpu-1"),
        (4, "fabric", "rails-spine-1"),
        (5, "fabric", "rails-spine-1"),
        (6, "fabric", "rails-spine-2"),
        (7, "fabric", "rails-spine-2"),
    ]
    assert [port.name for port in leaf.uplinks] == ["Ethernet32", "Ethernet40", "Ethernet48", "Ethernet56"]


def test_class_without_numbers_gets_the_defaults_of_adapters() -> None:
    roce = TrafficClass(name="roce", carries="collectives", dscp=26, lossless=True, bandwidth_percent=60)
    cnp = TrafficClass(name="cnp", carries="cnp", dscp=48)
    plan = resolve_qos((roce, cnp))
    numbers = [(each.priority, each.traffic_class, each.queue, each.priority_group) for each in plan.classes]
    assert numbers == [(3, 3, 3, 3), (6, 6, 6, 0)]
    assert plan.lossless_priorities == (3,)
    assert plan.rest_percent == 40


def test_priority_and_queue_are_independent() -> None:
    roce = TrafficClass(name="roce", carries="collectives", dscp=10, priority=3, queue=5, lossless=True)
    (plan,) = resolve_qos((roce,)).classes
    assert (plan.dscp, plan.priority, plan.queue) == (10, 3, 5)
