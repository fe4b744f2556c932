"""Tests a storage network next to the rails, run by FRR, with hosts set up by their rendered scripts: each fabric has its own packets."""

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
import yaml

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.spec.cluster import Cluster
from headway.templates.hosts.render import is_script, render_host
from headway.templates.switches.frr import FRR
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.sysctl import SYSCTL

from .fabric import Fabric
from .planned import as_host, kernel_settings, planned_fabric
from .wiring import Port

pytestmark = pytest.mark.slow

COLLECTIVES, STORAGE = 26 << 2, 18 << 2

# Two nodes on the leaf of the rails; both nodes and a file server on two leaves of the storage network.
CLUSTER = """
apiVersion: headway/v1alpha1
kind: Cluster
name: site
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 2, cpus: 8, gpu: H100-SXM-80, gpus: 1, nics: [mlx5_0, {name: mlx5_1, fabric: files}]}
  - {name: store, count: 1, cpus: 8, nics: [{name: mlx5_0, fabric: files}]}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]
    switches: {ports: 4, leaves: 1, spines: 1, addresses: 10.10.0.0/24, os: [{kind: frr}]}
  - name: files
    role: storage
    transport: roce
    classes: [{name: nfs, carries: storage, dscp: 18, lossless: true}]
    switches:
      {ports: 4, leaves: 2, spines: 1, asn: 4200100000, loopbacks: 10.254.0.0/16, addresses: 10.20.0.0/24, os: [{kind: frr}]}
"""


@pytest.fixture(scope="module")
def cluster() -> ClusterPlan:
    return resolve_cluster(Cluster.model_validate_json(json.dumps(yaml.safe_load(CLUSTER))))


@pytest.fixture(scope="module")
def fabric(frr_here: None, cluster: ClusterPlan) -> Iterator[Fabric]:
    """Five switches and three hosts, with every route of each fabric."""
    rendered = {switch.name: FRR.render(FrrOptions(), switch, cluster) for switch in cluster.switches}
    files = {name: {FRR.file: each[PurePosixPath(FRR.file)]} for name, each in rendered.items()}
    systems = {name: [kernel_settings(name, each[PurePosixPath(SYSCTL)])] for name, each in rendered.items()}
    for node in cluster.nodes:
        systems[node.name] = [
            as_host(node.name, text) for path, text in render_host(node, cluster).items() if is_script(path.name)
        ]
    assert {node.name: len(systems[node.name]) for node in cluster.nodes} == {"gpu-1": 2, "gpu-2": 2, "store-1": 1}
    with planned_fabric(cluster, files, systems) as started:
        here, there = leaves(cluster, "files")
        for one, other in ((here, there), (there, here)):
            assert other.block is not None
            started.wait_routes(one.name, other.block, {port.name for port in one.uplinks})
        yield started


def leaves(cluster: ClusterPlan, fabric: str) -> list[SwitchPlan]:
    return [switch for switch in cluster.switches if switch.fabric == fabric and switch.role == "leaf"]


def test_storage_and_collectives_use_their_own_fabrics_and_dscp(fabric: Fabric) -> None:
    assert fabric.probe(Port("gpu-1", "mlx5_0"), Port("gpu-2", "mlx5_0"), COLLECTIVES) == [COLLECTIVES, COLLECTIVES]
    for node in ("gpu-1", "gpu-2"):
        assert fabric.probe(Port(node, "mlx5_1"), Port("store-1", "mlx5_0"), STORAGE) == [STORAGE, STORAGE]


def test_no_packet_crosses_between_fabrics(fabric: Fabric, cluster: ClusterPlan) -> None:
    assert fabric.probe(Port("gpu-1", "mlx5_0"), Port("store-1", "mlx5_0"), STORAGE) == []
    (rail,) = leaves(cluster, "rails")
    for leaf in leaves(cluster, "files"):
        assert leaf.block is not None
        assert fabric.kernel_routes(rail.name, leaf.block) == set()
