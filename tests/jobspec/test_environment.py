"""NCCL's variables follow from the cluster file: each transport, shape and kind of balancing sets only what it needs."""

import json
import re
from pathlib import Path

import pytest
import yaml

from headway.jobspec.catalog.versions import compatibility
from headway.jobspec.plan import EnvVar, FabricPlan
from headway.jobspec.resolve.environment import nccl_environment, with_own
from headway.jobspec.resolve.fabric import resolve_fabric
from headway.jobspec.resolve.nodes import resolve_group
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.nodes import NodeGroup
from headway.templates.switches.frr.options import FrrOptions

GPUS = "{name: gpu, count: 4, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [mlx5_0, mlx5_1]}"
ONE_ADAPTER = "{name: gpu, count: 4, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [mlx5_0]}"
RACK = "{name: rack, count: 18, cpus: 144, gpu: GB200-186, gpus: 4, nvlink_domain: 72, imex: true, nics: [mlx5_0, mlx5_1]}"
CLASSES = "classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]"
ROCE = f"{{name: rails, role: scale-out, transport: roce, {CLASSES}}}"
INFINIBAND = "{name: rails, role: scale-out, transport: infiniband}"
TCP = "{name: net, role: scale-out, transport: tcp, interface: eth0}"
EFA = "{name: efa, role: scale-out, transport: efa}"
TCPXO = "{name: google, role: scale-out, transport: tcpxo}"
SWITCHED = (
    f"{{name: rails, role: scale-out, transport: roce, {CLASSES}, switches: {{leaves: 2, spines: 1, os: [{{kind: frr}}]}}}}"
)
LISTED = Path(__file__).parents[3] / "shared" / "data" / "nccl-2.30.7-variables.csv"


def group(text: str) -> NodeGroup:
    return NodeGroup.model_validate_json(json.dumps(yaml.safe_load(text)))


def plan(text: str, nodes: str = GPUS) -> FabricPlan:
    return resolve_fabric(Fabric.model_validate_json(json.dumps(yaml.safe_load(text))), [group(nodes)])


def variables(fabric: str, nodes: str = GPUS) -> list[EnvVar]:
    planned = plan(fabric, nodes)
    return list(nccl_environment([planned], resolve_group(group(nodes), planned.name)))


def values(fabric: str, nodes: str = GPUS) -> dict[str, str]:
    return {variable.name: variable.value for variable in variables(fabric, nodes)}


def test_efa_sets_the_plugin_and_the_provider_but_no_adapter() -> None:
    found = values(EFA)
    assert found["NCCL_NET"] == "AWS Libfabric"
    assert found["FI_PROVIDER"] == "efa"
    assert not [name for name in found if name.startswith("NCCL_IB_")]


def test_network_is_not_set_if_the_provider_of_the_transport_sets_it() -> None:
    gpu, fabrics = group(GPUS), [plan(TCPXO), plan("{name: admin, role: management, transport: tcp, interface: eth0}")]
    found = {variable.name for variable in nccl_environment(fabrics, resolve_group(gpu, "google"))}
    assert not {"NCCL_NET", "NCCL_CROSS_NIC", "NCCL_SOCKET_IFNAME"} & found
    assert "NCCL_SOCKET_IFNAME" in {variable.name for variable in nccl_environment(fabrics[1:], resolve_group(gpu, "admin"))}


def test_newer_name_that_this_torch_does_not_read_sets_the_planned_one() -> None:
    planned = [EnvVar("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "why", "where"), EnvVar("NCCL_NET", "IB", "why", "where", "it")]
    own = {"TORCH_FR_BUFFER_SIZE": "5000", "NCCL_NET": "Socket"}
    assert [(each.name, each.value) for each in with_own(planned, own)] == [
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "5000"),
        ("NCCL_NET", "IB"),
        ("TORCH_FR_BUFFER_SIZE", "5000"),
    ]


@pytest.mark.parametrize("balancing", ["ecmp", "ucmp", "qp-hash"])
def test_flow_balancing_switches_get_several_flows_per_connection(balancing: str) -> None:
    found = values(ROCE.replace("roce,", f"roce, balancing: {balancing},", 1))
    assert found["NCCL_IB_QPS_PER_CONNECTION"] == "4"
    assert "NCCL_IB_ADAPTIVE_ROUTING" not in found


@pytest.mark.parametrize("fabric", [ROCE, INFINIBAND], ids=["roce", "infiniband"])
@pytest.mark.parametrize("balancing", ["adaptive", "spray"])
def test_adaptive_routing_of_nccl_is_set_if_packets_may_be_reordered(fabric: str, balancing: str) -> None:
    found = values(fabric.replace("role:", f"balancing: {balancing}, role:"))
    assert found["NCCL_IB_ADAPTIVE_ROUTING"] == "1"
    assert "NCCL_IB_QPS_PER_CONNECTION" not in found


@pytest.mark.parametrize("fabric", [ROCE.replace("role:", "balancing: dlb, role:"), INFINIBAND], ids=["dlb", "static-routes"])
def test_balancing_variables_are_not_set_if_neither_helps(fabric: str) -> None:
    assert not {"NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_ADAPTIVE_ROUTING"} & set(values(fabric))


@pytest.mark.parametrize("shape", ["rail-optimized", "rail-only"])
@pytest.mark.parametrize("fabric", [ROCE, INFINIBAND], ids=["roce", "infiniband"])
def test_rings_stay_on_their_rail_if_rails_have_separate_switches(fabric: str, shape: str) -> None:
    railed = fabric.replace("role:", f"shape: {shape}, role:")
    assert values(railed)["NCCL_CROSS_NIC"] == "0"
    assert "NCCL_CROSS_NIC" not in values(railed, ONE_ADAPTER)


@pytest.mark.parametrize("shape", ["leaf-spine", "fat-tree", "dragonfly", "torus"])
def test_nccl_chooses_the_adapter_in_other_shapes(shape: str) -> None:
    assert "NCCL_CROSS_NIC" not in values(INFINIBAND.replace("role:", f"shape: {shape}, role:"))
    assert "NCCL_CROSS_NIC" not in values(INFINIBAND)


def test_mnnvl_is_enabled_only_for_domains_over_nodes_with_imex() -> None:
    assert values(INFINIBAND, RACK)["NCCL_MNNVL_ENABLE"] == "1"
    assert "NCCL_MNNVL_ENABLE" not in values(INFINIBAND, RACK.replace("imex: true", "imex: false"))
    assert "NCCL_MNNVL_ENABLE" not in values(INFINIBAND, RACK.replace("nvlink_domain: 72", "nvlink_domain: 4"))


def test_infiniband_plugin_is_not_excluded() -> None:
    """NCCL src/plugin/net.cc: only networks of the name in NCCL_NET are used, and the one of HPC-X, which has SHARP, is `IBext`."""
    assert "NCCL_NET" not in values(INFINIBAND)
    assert values(ROCE)["NCCL_NET"] == "IB"


def test_traffic_class_allows_ecn_marks_if_switches_mark() -> None:
    """RFC 3168: ECT(0) is 10 in the two lowest bits; the hosts set the same byte for senders that set none."""
    assert values(ROCE)["NCCL_IB_TC"] == "104"
    marked = ROCE.replace("lossless: true", "lossless: true, ecn: {min: 1MiB, max: 2MiB, percent: 5}")
    assert (marked != ROCE, values(marked)["NCCL_IB_TC"]) == (True, "106")


def test_retransmission_outlasts_route_convergence_but_is_below_5_s() -> None:
    """4.096 us x 2^timeout, 7 retries (InfiniBand Architecture, 9.9.2); BGP's hold time is 9 s by default."""
    wait_s = 4.096e-6 * 2 ** int(values(SWITCHED)["NCCL_IB_TIMEOUT"])
    assert 7 * wait_s > 3 * FrrOptions().hold_s
    assert wait_s < 5


@pytest.mark.parametrize(
    ("fabric", "decisive"),
    [
        (ROCE, {"NCCL_NET", "NCCL_IB_HCA", "NCCL_IB_TC", "NCCL_IB_ROCE_VERSION_NUM"}),
        (SWITCHED.replace("role:", "balancing: adaptive, role:"), {"NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_ADDR_RANGE"}),
        (INFINIBAND.replace("role:", "shape: rail-only, role:"), {"NCCL_IB_HCA", "NCCL_CROSS_NIC"}),
        (EFA, {"NCCL_NET", "FI_PROVIDER"}),
        (TCP, {"NCCL_NET", "NCCL_SOCKET_IFNAME"}),
    ],
    ids=["roce", "switched", "infiniband", "efa", "tcp"],
)
def test_variables_that_must_agree_with_hosts_name_the_deciding_field(fabric: str, decisive: set[str]) -> None:
    decided = {each.name: each.decided_by for each in variables(fabric, RACK) if each.decided_by is not None}
    assert decided.keys() >= decisive | {"NCCL_MNNVL_ENABLE"}
    assert not [name for name in decided if name.startswith(("TORCH_", "PYTORCH_")) or name == "NCCL_DEBUG"]
    assert all(re.fullmatch(r"`[a-z._]+` of the (fabric|class|group) `[a-z]+`", field) for field in decided.values())


def by_torch(torch: str | None) -> dict[str, EnvVar]:
    planned = plan(ROCE)
    return {variable.name: variable for variable in nccl_environment([planned], resolve_group(group(GPUS), planned.name), torch)}


@pytest.mark.parametrize(
    ("torch", "recorder", "allocator"),
    [
        ("2.7.1", "TORCH_NCCL_TRACE_BUFFER_SIZE", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.8.0", "TORCH_FR_BUFFER_SIZE", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.10.0", "TORCH_FR_BUFFER_SIZE", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.11.0", "TORCH_FR_BUFFER_SIZE", "PYTORCH_ALLOC_CONF"),
        (None, "TORCH_FR_BUFFER_SIZE", "PYTORCH_ALLOC_CONF"),
    ],
)
def test_variables_have_the_names_that_the_given_torch_reads(torch: str | None, recorder: str, allocator: str) -> None:
    found = by_torch(torch)
    newest = by_torch(None)
    assert found.keys() - newest.keys() == {recorder, allocator} - newest.keys()
    assert len(found) == len(newest)
    assert (found[recorder].value, found[allocator].value) == ("2000", "expandable_segments:True")


def test_older_name_has_a_reason_and_a_source() -> None:
    variable = by_torch("2.9.1")["PYTORCH_CUDA_ALLOC_CONF"]
    assert variable.reason.endswith("; torch 2.9.1 does not read it as `PYTORCH_ALLOC_CONF`")
    assert variable.source == "docs.pytorch.org notes/cuda.html; https://github.com/pytorch/pytorch/issues/183387"


def test_every_renamed_torch_variable_is_planned() -> None:
    assert set(compatibility().torch_variables) <= by_torch(None).keys()


@pytest.mark.parametrize("nodes", [GPUS, RACK], ids=["gpus", "rack"])
@pytest.mark.parametrize("fabric", [ROCE, INFINIBAND, EFA, SWITCHED, INFINIBAND.replace("role:", "balancing: adaptive, role:")])
def test_every_variable_is_set_once_with_its_reason_and_source(fabric: str, nodes: str) -> None:
    found = variables(fabric, nodes)
    assert len({variable.name for variable in found}) == len(found)
    for variable in found:
        assert variable.reason
        assert variable.source.split()[0] in {"NVIDIA/nccl", "aws/aws-ofi-nccl", "docs.pytorch.org"}


@pytest.mark.skipif(not LISTED.exists(), reason=f"lay the list of NCCL's variables there: {LISTED}")
def test_every_nccl_variable_exists_in_nccl() -> None:
    listed = {line.partition(",")[0] for line in LISTED.read_text().splitlines()}
    # src/debug.cc reads NCCL_DEBUG before there are parameters.
    known = {*listed, "NCCL_DEBUG"}
    fabrics = [ROCE, INFINIBAND, EFA, SWITCHED, INFINIBAND.replace("role:", "balancing: adaptive, shape: rail-only, role:")]
    used = {name for fabric in fabrics for nodes in (GPUS, RACK) for name in values(fabric, nodes) if name.startswith("NCCL_")}
    assert {"NCCL_CROSS_NIC", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_ADDR_RANGE", "NCCL_MNNVL_ENABLE"} <= used
    assert used | set(compatibility().nccl_since) <= known


def test_fabric_with_switches_is_planned_from_its_switches() -> None:
    found = plan(SWITCHED, GPUS.replace("count: 4", "count: 30"))
    assert found.shape == "rail-optimized"
    assert found.rails == 2
    assert found.leaf_oversubscription == 30.0
    assert found.congestion == "pfc"
    assert found.addresses == "10.128.0.0/10"


def test_leaf_oversubscription_is_bounded_by_its_ports_and_at_least_1() -> None:
    assert plan(SWITCHED, GPUS.replace("count: 4", "count: 500")).leaf_oversubscription == 32.0
    assert plan(SWITCHED.replace("spines: 1", "spines: 16"), GPUS).leaf_oversubscription == 1.0


def test_fabric_without_planned_switches_is_planned_as_described() -> None:
    found = plan("{name: a, role: scale-out, transport: infiniband, shape: fat-tree, oversubscription: {leaf: 1.5}, rails: 4}")
    assert (found.shape, found.leaf_oversubscription, found.rails, found.congestion) == ("fat-tree", 1.5, 4, None)
