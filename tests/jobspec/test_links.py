"""Fabrics: every cable has two ends that name each other, no address is given twice, and what is added moves nothing."""

from ipaddress import IPv4Interface

from hypothesis import given
from hypothesis import strategies as st

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.qos import resolve_qos
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import TrafficClass

PORTS = 8  # four nodes a leaf


def cluster(nodes: int, rails: int, *, leaves: int, spines: int, uplinks: int = 1) -> ClusterPlan:
    switches = {"leaves": leaves, "spines": spines, "uplinks": uplinks, "ports": PORTS, "os": [{"kind": "frr"}]}
    gpus = {"group": "gpu", "count": nodes, "cpus": 8, "gpu": "H100", "gpus": rails, "nics": [f"mlx5_{i}" for i in range(rails)]}
    roce: dict[str, object] = {"name": "rails", "role": "scale_out", "transport": "roce", "switches": switches}
    roce["classes"] = [{"name": "roce", "carries": "collectives", "dscp": 26, "lossless": True}]
    document = {
        "apiVersion": "headway/v1alpha1",
        "kind": "Cluster",
        "name": "lab",
        "scheduler": {"kind": "slurm"},
        "nodes": [{"group": "login", "count": 1, "cpus": 4}, gpus],
        "fabrics": [roce],
    }
    return resolve_cluster(Cluster.model_validate(document, strict=False))


shapes = st.builds(
    lambda units, rails, last, spines: (4 * units + last, rails, rails * (units + 1), spines),
    st.integers(0, 2),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(1, 4),
)


@given(shapes)
def test_every_cable_has_two_ends_that_name_each_other(shape: tuple[int, int, int, int]) -> None:
    nodes, rails, leaves, spines = shape
    plan = cluster(nodes, rails, leaves=leaves, spines=spines)
    ends = {(switch.name, port.name): (port.peer, port.peer_port) for switch in plan.switches for port in switch.ports}
    adapters = [end for end in ends.values() if end not in ends]
    assert all(ends[peer] == end for end, peer in ends.items() if peer in ends)
    assert sorted(adapters) == sorted((f"gpu-{node + 1}", f"mlx5_{rail}") for node in range(nodes) for rail in range(rails))
    assert len(plan.links) == nodes * rails + leaves * spines
    assert {(link.a, link.a_port): (link.b, link.b_port) for link in plan.links}.items() <= ends.items()


@given(shapes)
def test_no_address_and_no_leaf_as_number_is_given_twice(shape: tuple[int, int, int, int]) -> None:
    nodes, rails, leaves, spines = shape
    plan = cluster(nodes, rails, leaves=leaves, spines=spines)
    own = [port.address for switch in plan.switches for port in switch.ports if port.address]
    far = [link.address for link in plan.links if link.address]
    loopbacks = [switch.router_id for switch in plan.switches]
    assert len(set(own + far)) == 2 * nodes * rails
    assert len(set(loopbacks)) == leaves + spines
    assert all(IPv4Interface(a).network == IPv4Interface(b).network for a, b in zip(own, far, strict=True))
    numbers = {role: [switch.asn for switch in plan.switches if switch.role == role] for role in ("leaf", "spine")}
    assert len(set(numbers["leaf"])) == leaves
    assert len(set(numbers["spine"])) == 1
    assert not set(numbers["leaf"]) & set(numbers["spine"])


@given(shapes)
def test_adapter_i_hangs_on_a_leaf_of_rail_i(shape: tuple[int, int, int, int]) -> None:
    nodes, rails, leaves, spines = shape
    for switch in cluster(nodes, rails, leaves=leaves, spines=spines).switches:
        for port in switch.ports:
            assert port.role != "node" or port.peer_port == f"mlx5_{switch.index % rails}"


@given(shapes)
def test_more_nodes_leaves_and_spines_move_nothing_that_was_there(shape: tuple[int, int, int, int]) -> None:
    nodes, rails, leaves, spines = shape
    before = by_name(cluster(nodes, rails, leaves=leaves, spines=spines))
    after = by_name(cluster(nodes + 4, rails, leaves=leaves + rails, spines=spines + 1))
    for name, switch in before.items():
        grown = after[name]
        assert (switch.asn, switch.router_id) == (grown.asn, grown.router_id)
        assert set(switch.ports) <= set(grown.ports)


def test_ports_for_spines_begin_in_the_upper_half_of_a_leaf() -> None:
    leaf = by_name(cluster(1, 1, leaves=1, spines=2, uplinks=2))["rails-leaf-1"]
    assert [(port.index, port.role, port.peer) for port in leaf.ports] == [
        (0, "node", "gpu-1"),
        (4, "fabric", "rails-spine-1"),
        (5, "fabric", "rails-spine-1"),
        (6, "fabric", "rails-spine-2"),
        (7, "fabric", "rails-spine-2"),
    ]
    assert [port.name for port in leaf.uplinks] == ["Ethernet32", "Ethernet40", "Ethernet48", "Ethernet56"]


def test_a_class_without_numbers_gets_those_that_adapters_give_it_by_themselves() -> None:
    roce = TrafficClass(name="roce", carries="collectives", dscp=26, lossless=True, bandwidth_percent=60)
    cnp = TrafficClass(name="cnp", carries="cnp", dscp=48)
    plan = resolve_qos((roce, cnp))
    numbers = [(each.priority, each.traffic_class, each.queue, each.priority_group) for each in plan.classes]
    assert numbers == [(3, 3, 3, 3), (6, 6, 6, 0)]
    assert plan.lossless_priorities == (3,)
    assert plan.rest_percent == 40


def test_priority_and_queue_are_numbers_of_their_own() -> None:
    roce = TrafficClass(name="roce", carries="collectives", dscp=10, priority=3, queue=5, lossless=True)
    (plan,) = resolve_qos((roce,)).classes
    assert (plan.dscp, plan.priority, plan.queue) == (10, 3, 5)


def by_name(plan: ClusterPlan) -> dict[str, SwitchPlan]:
    return {switch.name: switch for switch in plan.switches}
