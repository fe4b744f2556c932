"""Tests a fabric of two planes, run by FRR: each plane connects its rail from unit to unit, and the other has no route to it."""

from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.templates.switches.frr import FRR
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.sysctl import SYSCTL
from tests.jobspec.test_growth import Size, spec

from .fabric import Fabric
from .planned import kernel_settings, planned_fabric
from .wiring import Port

pytestmark = pytest.mark.slow

TOS = 26 << 2
# Two nodes in separate units; a leaf has one port for a node and one for the spine of its plane.
TWO_PLANES = Size((2,), rails=2, planes=2, spines=2, units=2, ports=2)


@pytest.fixture(scope="module")
def cluster() -> ClusterPlan:
    return resolve_cluster(spec(TWO_PLANES))


@pytest.fixture(scope="module")
def fabric(frr_here: None, cluster: ClusterPlan) -> Iterator[Fabric]:
    """Four leaves and two spines, with every route of each plane."""
    rendered = {switch.name: FRR.render(FrrOptions(), switch, cluster) for switch in cluster.switches}
    files = {name: {FRR.file: each[PurePosixPath(FRR.file)]} for name, each in rendered.items()}
    systems = {name: [kernel_settings(name, each[PurePosixPath(SYSCTL)])] for name, each in rendered.items()}
    with planned_fabric(cluster, files, systems) as started:
        for plane in (0, 1):
            here, there = leaves(cluster)[plane::2]
            for network in networks(there):
                started.wait_routes(here.name, network, {port.name for port in here.uplinks})
            for network in networks(here):
                started.wait_routes(there.name, network, {port.name for port in there.uplinks})
        yield started


def leaves(cluster: ClusterPlan) -> list[SwitchPlan]:
    return [switch for switch in cluster.switches if switch.role == "leaf"]


def networks(leaf: SwitchPlan) -> list[str]:
    assert leaf.block is not None
    return [f"{leaf.router_id}/32", leaf.block]


def test_a_leaf_has_routes_to_every_network_of_its_plane_and_to_no_other(fabric: Fabric, cluster: ClusterPlan) -> None:
    for index, leaf in enumerate(leaves(cluster)):
        for other in leaves(cluster)[(index + 1) % 2 :: 2]:
            assert {network: fabric.kernel_routes(leaf.name, network) for network in networks(other)} == {
                network: set() for network in networks(other)
            }


def test_adapters_reach_each_other_within_a_rail_but_not_across_planes(fabric: Fabric) -> None:
    assert fabric.probe(Port("a-1", "mlx5_0"), Port("a-2", "mlx5_0"), TOS) == [TOS, TOS]
    assert fabric.probe(Port("a-1", "mlx5_1"), Port("a-2", "mlx5_1"), TOS) == [TOS, TOS]
    assert fabric.probe(Port("a-1", "mlx5_0"), Port("a-2", "mlx5_1"), TOS) == []
