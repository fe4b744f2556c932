"""Plans: ranks map one to one to places, degrees multiply, variables follow from the fabrics, the same input gives the same bytes."""

import dataclasses
import json
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.jobspec.plan import ClusterPlan, FabricPlan, GroupPlan, StoragePlan, to_json
from headway.jobspec.resolve.environment import resolve_environment
from headway.jobspec.resolve.fingerprint import fingerprint, values_of
from headway.jobspec.resolve.mesh import MeshError, resolve_mesh
from headway.jobspec.resolve.qos import resolve_qos
from headway.jobspec.resolve.ranks import resolve_ranks
from headway.jobspec.spec.fabric import TrafficClass
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.layout import Layout
from headway.runner.contract import Mesh, RunConfig, Trainer

degrees = st.integers(1, 4)
layouts = st.builds(Layout, pp=degrees, dp_replicate=degrees, dp_shard=st.none() | degrees, cp=degrees, tp=degrees)

GPUS = GroupPlan("gpu", 2, 96, 8, "H100-SXM-80", 8, ("mlx5_0", "mlx5_1"))
CPUS = GroupPlan("cpu", 2, 6, 4, None, 0, ())
ROCE_CLASS = TrafficClass(name="roce", carries="collectives", dscp=26, priority=3, lossless=True)
ROCE = FabricPlan("rails", "scale-out", "roce", None, resolve_qos((ROCE_CLASS,)), None, ())
INFINIBAND = FabricPlan("rails", "scale-out", "infiniband", None, None, None, ())
TCP = FabricPlan("ethernet", "scale-out", "tcp", "eth1", None, None, ())
ADMIN = FabricPlan("admin", "management", "tcp", "eth0", None, None, ())


def cluster(group: GroupPlan, *fabrics: FabricPlan) -> ClusterPlan:
    return ClusterPlan(
        name="lab",
        hash="0" * 64,
        scheduler="slurm",
        provider=None,
        groups=(group,),
        nodes=(),
        fabrics=fabrics,
        switches=(),
        links=(),
        storage=(StoragePlan("runs", "posix", "runs", True),),
    )


def environment(group: GroupPlan, *fabrics: FabricPlan) -> dict[str, str]:
    return {variable.name: variable.value for variable in resolve_environment(cluster(group, *fabrics), group)}


@given(layouts, st.integers(1, 64))
def test_degrees_multiply_to_the_ranks_or_no_mesh_is_possible(layout: Layout, world_size: int) -> None:
    given_degrees = [degree for degree in layout.model_dump().values() if degree is not None]
    fits = world_size % prod(given_degrees) == 0 if layout.dp_shard is None else world_size == prod(given_degrees)
    if fits:
        mesh = resolve_mesh(layout, world_size)
        assert mesh.world_size == world_size
        assert (mesh.pp, mesh.dp_replicate, mesh.cp, mesh.tp) == (layout.pp, layout.dp_replicate, layout.cp, layout.tp)
    else:
        with pytest.raises(MeshError):
            resolve_mesh(layout, world_size)


@given(st.builds(Mesh, degrees, degrees, degrees, degrees, degrees), st.integers(1, 8))
def test_ranks_map_one_to_one_to_coordinates_and_to_places(mesh: Mesh, procs: int) -> None:
    ranks = resolve_ranks(mesh, procs)
    assert [rank.rank for rank in ranks] == list(range(mesh.world_size))
    assert len({rank.coords for rank in ranks}) == mesh.world_size
    assert [rank.coords for rank in ranks] == sorted(rank.coords for rank in ranks)
    assert all(0 <= place < degree for rank in ranks for place, degree in zip(rank.coords, mesh.shape, strict=True))
    assert [rank.slot * procs + rank.local_rank for rank in ranks] == list(range(mesh.world_size))
    assert all(rank.local_rank < procs for rank in ranks)


def test_cpu_ranks_share_the_cores_and_use_the_named_interface() -> None:
    assert environment(CPUS) == {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    assert environment(CPUS, ADMIN, TCP)["GLOO_SOCKET_IFNAME"] == "eth1"
    assert environment(CPUS, ADMIN)["GLOO_SOCKET_IFNAME"] == "eth0"


def test_roce_sets_adapters_traffic_class_and_version_but_no_gid_index() -> None:
    found = environment(GPUS, ROCE, ADMIN)
    assert found["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert found["NCCL_IB_TC"] == "104"
    assert found["NCCL_IB_ROCE_VERSION_NUM"] == "2"
    assert found["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert found["NCCL_NET"] == "IB"
    assert found["OMP_NUM_THREADS"] == "12"
    assert "NCCL_IB_GID_INDEX" not in found


@given(st.integers(0, 63))
def test_traffic_class_has_the_dscp_in_its_upper_six_bits(dscp: int) -> None:
    traffic_class = int(
        environment(GPUS, replace(ROCE, qos=resolve_qos((ROCE_CLASS.model_copy(update={"dscp": dscp}),))))["NCCL_IB_TC"]
    )
    assert traffic_class >> 2 == dscp
    assert traffic_class < 256


def test_infiniband_sets_no_traffic_class_and_tcp_no_adapter() -> None:
    infiniband, tcp = environment(GPUS, INFINIBAND), environment(GPUS, TCP)
    assert "NCCL_IB_HCA" in infiniband
    assert not {"NCCL_IB_TC", "NCCL_IB_ROCE_VERSION_NUM"} & set(infiniband)
    assert tcp["NCCL_NET"] == "Socket"
    assert not [name for name in tcp if name.startswith("NCCL_IB_")]


@pytest.mark.parametrize("group", [GPUS, CPUS], ids=["gpu", "cpu"])
@pytest.mark.parametrize("fabrics", [(), (ROCE, ADMIN), (INFINIBAND,), (TCP,)])
def test_every_variable_is_set_once_with_a_reason_and_a_source(group: GroupPlan, fabrics: tuple[FabricPlan, ...]) -> None:
    variables = resolve_environment(cluster(group, *fabrics), group)
    assert len({variable.name for variable in variables}) == len(variables)
    for variable in variables:
        assert variable.value
        assert variable.reason
        assert variable.source.split()[0] in {"NVIDIA/nccl", "docs.pytorch.org", "docs.python.org"}


def test_json_is_valid_sorted_and_the_same_each_time() -> None:
    run = RunConfig(2, 2, Mesh(dp_shard=4), Trainer("builtin"), "0" * 64)
    text = to_json(run)
    assert text == to_json(run)
    assert json.loads(text) == json.loads(json.dumps(dataclasses.asdict(run)))
    keys = list(json.loads(text))
    assert keys == sorted(keys)
    assert max(map(len, text.splitlines())) <= 120


def test_fingerprint_depends_on_values_and_not_on_their_notation() -> None:
    job = {"apiVersion": "headway/v1alpha1", "kind": "TrainingJob", "name": "a", "cluster": "lab", "nodes": 1, "steps": 5}
    job |= {
        "model": {"vocab_size": 1, "layers": 1, "hidden": 2, "heads": 1, "kv_heads": 1, "ffn_hidden": 1},
        "data": {"kind": "files"},
    }
    job |= {"batch": {"global": "1 sequences", "micro": 1, "sequence": 1}, "optimizer": {"lr": 1.0}}
    job |= {"checkpoint": {"tiers": [{"kind": "shared", "every": "1 steps"}]}}

    def hash_of(**changes: object) -> str:
        return fingerprint(values_of(TrainingJob.model_validate_json(json.dumps({**job, **changes}))))

    assert hash_of() == hash_of(seed=0) == hash_of(cluster=["lab"])
    assert len({hash_of(), hash_of(seed=1), hash_of(nodes=2)}) == 3
