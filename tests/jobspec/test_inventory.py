"""Inventories: observed cables override the formula and move no other, and every inventory that passes the checks can be planned."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.jobspec.check.inventory import check_inventories, check_inventory, check_places
from headway.jobspec.document import Document
from headway.jobspec.load import load_bytes
from headway.jobspec.parse import Parsed, parse
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.inventory import Inventory
from tests.jobspec.test_growth import Size, cables, clusters, pinned, spec

SIZE = Size((4, 2), rails=2, planes=1, spines=1, units=2)
HEAD = {"apiVersion": "headway/v1alpha1", "kind": "Inventory", "name": "seen", "cluster": "lab"}


def inventory(nodes: Sequence[Mapping[str, Any]] = (), switches: Sequence[Mapping[str, Any]] = ()) -> Parsed[Inventory]:
    document, unreadable = load_bytes("seen.yaml", yaml.safe_dump({**HEAD, "nodes": nodes, "switches": switches}).encode())
    parsed, invalid = parse(document)
    assert (unreadable, invalid) == ([], [])
    assert parsed is not None
    assert isinstance(parsed.spec, Inventory)
    return Parsed(document, parsed.spec, parsed.complete, parsed.sections)


def nic(name: str, leaf: int, port: int) -> dict[str, str]:
    return {"name": name, "switch": f"rails-leaf-{leaf}", "port": f"Ethernet{8 * port}"}


def plan(*found: Parsed[Inventory], size: Size = SIZE) -> ClusterPlan:
    return resolve_cluster(spec(size), [each.spec for each in found])


def ends(planned: ClusterPlan) -> dict[tuple[str, str], tuple[str, str]]:
    return {end: (link.a, link.a_port) for end, link in cables(planned).items()}


def problems(cluster: Cluster, *found: Parsed[Inventory]) -> list[Problem]:
    wrong = [*chain.from_iterable(map(check_inventory, found)), *check_inventories(cluster, found)]
    if any(problem.is_error for problem in wrong):
        return wrong
    return [*wrong, *check_places(cluster, [each.spec for each in found])]


def test_observed_port_overrides_the_formula_and_sets_the_address() -> None:
    seen = inventory([{"name": "a-1", "nics": [nic("mlx5_0", 3, 2), nic("mlx5_1", 4, 2)]}])
    link = cables(plan(seen))["a-1", "mlx5_0"]
    assert (link.a, link.a_port, link.address) == ("rails-leaf-3", "Ethernet16", "10.128.0.21/31")
    assert {end: place for end, place in ends(plan(seen)).items() if end[0] != "a-1"} == {
        end: place for end, place in ends(plan()).items() if end[0] != "a-1"
    }


def test_node_at_the_port_of_another_moves_only_that_one_to_a_free_port() -> None:
    seen = inventory([{"name": "b-2", "nics": [nic("mlx5_0", 1, 1), nic("mlx5_1", 2, 1)]}])
    before, after = ends(plan()), ends(plan(seen))
    assert {end[0] for end in before if before[end] != after[end]} == {"a-2", "b-2"}
    assert after["a-2", "mlx5_0"] == before["b-2", "mlx5_0"]


def test_unobserved_adapters_are_placed_next_to_observed_ones() -> None:
    seen = inventory([{"name": "a-1", "nics": [nic("mlx5_1", 4, 3)]}])
    assert ends(plan(seen))["a-1", "mlx5_0"] == ("rails-leaf-3", "Ethernet24")


def test_addresses_and_serial_numbers_are_in_the_plan() -> None:
    nodes = inventory([{"name": "a-2", "host": "10.0.0.12:2222", "serial": "A 2"}])
    switches = inventory(switches=[{"name": "rails-leaf-1", "host": "10.0.1.1", "serial": "L1"}, {"name": "rails-spine-1"}])
    found = plan(nodes, switches)
    assert [(node.host, node.port, node.serial) for node in found.nodes[:2]] == [(None, 22, None), ("10.0.0.12", 2222, "A 2")]
    known = {switch.name: (switch.host, switch.ssh_port, switch.serial) for switch in found.switches}
    assert known["rails-leaf-1"] == ("10.0.1.1", 22, "L1")
    assert set(known.values()) == {("10.0.1.1", 22, "L1"), (None, 22, None)}


def test_order_of_inventories_does_not_matter() -> None:
    one = inventory([{"name": "a-1", "nics": [nic("mlx5_0", 3, 2)]}])
    other = inventory([{"name": "b-1", "nics": [nic("mlx5_0", 1, 0)]}])
    assert plan(one, other) == plan(other, one)


@pytest.mark.slow
@settings(deadline=None)
@given(clusters())
def test_inventory_of_the_planned_cables_does_not_change_the_plan(size: Size) -> None:
    planned = plan(size=size)
    assert resolve_cluster(spec(size), [pinned(planned)]) == planned


def test_provider_accepts_addresses_of_the_inventory() -> None:
    cluster = spec(SIZE).model_copy(update={"provider": spec(SIZE).scheduler})
    unreached = [problem.code for problem in problems(cluster)]
    assert unreached == ["HW512"]
    reached = inventory([{"name": "a-1", "host": "10.0.0.11"}])
    assert "HW512" not in [problem.code for problem in problems(cluster, reached)]


def test_cables_of_a_fabric_without_planned_switches_are_not_checked() -> None:
    (fabric,) = spec(SIZE).fabrics
    cluster = spec(SIZE).model_copy(update={"fabrics": (fabric.model_copy(update={"switches": None}),)})
    seen = inventory([{"name": "a-1", "nics": [{"name": "mlx5_0", "switch": "ib-7", "port": "36"}]}], [{"name": "ib-7"}])
    assert problems(cluster, seen) == []


def test_group_after_another_is_a_warning_until_its_cables_are_pinned() -> None:
    cluster = spec(SIZE)
    (warning,) = problems(cluster)
    assert (warning.code, warning.path, warning.is_error) == ("HW524", ("node_groups", 1), False)
    parsed = Parsed(Document("all.yaml"), pinned(plan()), True, frozenset(Inventory.model_fields))
    assert problems(cluster, parsed) == []


NAMES = ["a-1", "a-2", "a-3", "a-4", "b-1", "b-2"]


@st.composite
def observed_cables(draw: st.DrawFn) -> Parsed[Inventory]:
    """Return some adapters of some nodes, each on a leaf of its rail."""
    places = st.none() | st.tuples(st.integers(0, 1), st.integers(0, 3))
    nodes = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        found = {rail: draw(places) for rail in (0, 1)}
        nics = [nic(f"mlx5_{rail}", place[0] * 2 + rail + 1, place[1]) for rail, place in found.items() if place]
        nodes.append({"name": name, "nics": nics})
    return inventory(nodes)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(observed_cables())
def test_valid_inventories_give_every_adapter_a_separate_port(found: Parsed[Inventory]) -> None:
    wrong = [problem for problem in problems(spec(SIZE), found) if problem.is_error]
    seen = [(nic.switch, nic.port) for node in found.spec.nodes for nic in node.nics]
    assert {problem.code for problem in wrong} <= ({"HW510"} if len(set(seen)) == len(seen) else {"HW521"})
    if not wrong:
        planned = ends(plan(found))
        assert len(set(planned.values())) == len(planned) == sum(SIZE.counts) * SIZE.rails
        assert all(planned[node.name, nic.name] == (nic.switch, nic.port) for node in found.spec.nodes for nic in node.nics)
        assert all((int(leaf.rpartition("-")[2]) - 1) % 2 == int(adapter[-1]) for (_, adapter), (leaf, _) in planned.items())


HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.128.0.1", "gpu-1:0", "a..b"])
DEVICE = {"host": HOSTS, "serial": st.sampled_from(["1", "2"])}
NICS = st.fixed_dictionaries(
    {"name": st.sampled_from(["mlx5_0", "mlx5_1", "mlx5_2"])},
    optional={
        "mac": st.sampled_from(["00:00:00:00:00:01", "00:00:00:00:00:02"]),
        "switch": st.sampled_from([f"rails-leaf-{leaf}" for leaf in range(1, 6)] + ["rails-spine-1"]),
        "port": st.sampled_from([f"Ethernet{8 * port}" for port in range(5)]),
    },
)
ANY = st.sampled_from([*NAMES, "a-5", "a-0", "c-1", "rails-leaf-1", "rails-leaf-5"])
NODES = st.fixed_dictionaries({"name": ANY}, optional={**DEVICE, "nics": st.lists(NICS, max_size=3)})
SWITCHES = st.fixed_dictionaries({"name": ANY}, optional=DEVICE)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.builds(inventory, st.lists(NODES, max_size=4), st.lists(SWITCHES, max_size=2)), min_size=1, max_size=2))
def test_every_problem_of_an_inventory_has_a_position_and_a_hint(found: list[Parsed[Inventory]]) -> None:
    for problem in problems(spec(SIZE), *found):
        of_inventory = problem.document == "seen.yaml"
        assert problem.hint
        assert not of_inventory or any(problem.path in each.document.values for each in found)
