"""Tests a fabric of three tiers, run by FRR: pods reach each other over every core, and no packet crosses a third pod."""

from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.templates.switches.frr import FRR
from headway.templates.switches.frr.options import FrrOptions
from tests.jobspec.test_sizes import Site

from .fabric import Fabric
from .planned import planned_fabric
from .wiring import Port

pytestmark = pytest.mark.slow

TOS = 26 << 2
# Two nodes on the leaf of each pod, which has one link to each of two spines; these have one to the core of their group.
TWO_PODS = Site(4, nics=1, switches={"ports": 4, "uplinks": 1}, fabric={"pods": 2, "shape": "rail-optimized"})


@pytest.fixture(scope="module")
def cluster() -> ClusterPlan:
    return TWO_PODS.plan()


@pytest.fixture(scope="module")
def fabric(frr_here: None, cluster: ClusterPlan) -> Iterator[Fabric]:
    """All switches, with every route between the leaves."""
    rendered = {switch.name: FRR.render(FrrOptions(), switch, cluster) for switch in cluster.switches}
    files = {name: {FRR.file: each[PurePosixPath(FRR.file)]} for name, each in rendered.items()}
    with planned_fabric(cluster, files) as started:
        here, there = by_role(cluster, "leaf")
        for one, other in ((here, there), (there, here)):
            for network in (f"{other.router_id}/32", networks(other)):
                started.wait_routes(one.name, network, {port.name for port in one.uplinks})
        yield started


def by_role(cluster: ClusterPlan, role: str) -> list[SwitchPlan]:
    return [switch for switch in cluster.switches if switch.role == role]


def networks(leaf: SwitchPlan) -> str:
    assert leaf.block is not None
    return leaf.block


def test_nodes_of_two_pods_reach_each_other_with_their_dscp(fabric: Fabric) -> None:
    assert fabric.probe(Port("gpu-1", "mlx5_0"), Port("gpu-3", "mlx5_0"), TOS) == [TOS, TOS]
    assert fabric.probe(Port("gpu-4", "mlx5_0"), Port("gpu-1", "mlx5_0"), TOS) == [TOS, TOS]


def test_a_spine_reaches_the_other_pod_only_through_its_cores(fabric: Fabric, cluster: ClusterPlan) -> None:
    spines, cores = by_role(cluster, "spine"), {core.name for core in by_role(cluster, "core")}
    there = by_role(cluster, "leaf")[1]
    for spine in spines[: len(spines) // 2]:
        to_cores = {port.name for port in spine.ports if port.peer in cores}
        fabric.wait_routes(spine.name, f"{there.router_id}/32", to_cores)
