"""A consistent cluster has no problem; each contradiction has one, which no other rule hides."""

import itertools
import json
from pathlib import Path
from typing import cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.catalog.versions import compatibility, is_older, major_minor
from headway.jobspec.check.cluster import check_cluster
from headway.jobspec.check.fabric import check_cabling
from headway.jobspec.document import Document
from headway.jobspec.parse import Parsed, read
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.qos import congestion_of
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import TrafficClass
from tests.jobspec.test_growth import Size, spec

HEAD = "apiVersion: headway/v1alpha1\nkind: Cluster\nname: lab\nscheduler: {kind: slurm}\n"
RUNS = "storage: [{name: runs, kind: posix, path: /scratch/runs, shared: true}]\n"
ADAPTERS = ", ".join(f"mlx5_{index}" for index in range(8))

RACKS = f"""{HEAD}
node_groups:
  - {{name: rack, count: 36, held_back: 1, arch: aarch64, cpus: 144, gpu: GB200-186, gpus: 4, nvlink_domain: 72, imex: true,
     nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3], nic: ConnectX-7, nic_speed: 400Gb/s}}
fabrics:
  - {{name: rails, role: scale-out, transport: infiniband, shape: rail-optimized, rails: 4, balancing: adaptive,
     congestion: nic-managed, oversubscription: {{leaf: 1.0}}}}
  - {{name: nvl, role: scale-up, transport: nvlink}}
  - {{name: admin, role: management, transport: tcp, interface: eth0}}
versions: {{driver: "580.95.05", cuda: "13.0", nccl: "2.28.9", torch: "2.10.0"}}
{RUNS}"""

AWS = f"""{HEAD}
node_groups:
  - {{name: p5en, count: 64, cpus: 192, gpu: H200-SXM-141, gpus: 8, nic: EFAv3, nic_speed: 200Gb/s}}
fabrics:
  - {{name: efa, role: scale-out, transport: efa, balancing: spray}}
  - {{name: vpc, role: management, transport: tcp, interface: ens32}}
versions: {{driver: "570.172.08", cuda: "12.8", nccl: "2.27.5"}}
storage:
  - {{name: runs, kind: posix, path: /fsx/runs, shared: true, groups: [p5en]}}
  - {{name: far, kind: object, url: "s3://training/checkpoints"}}
"""

OWN_SWITCHES = f"""{HEAD}
node_groups:
  - name: gpu
    count: 32
    cpus: 96
    gpu: H100-SXM-80
    gpus: 8
    nic: ConnectX-7
    nic_speed: 400Gb/s
    nics: [{ADAPTERS}, {{name: mlx5_8, fabric: store}}]
  - {{name: login, count: 2, cpus: 32, nics: [{{name: mlx5_0, fabric: store}}]}}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    shape: rail-optimized
    rails: 8
    congestion: pfc-ecn
    oversubscription: {{leaf: 2.0}}
    classes:
      - {{name: roce, carries: collectives, dscp: 26, lossless: true, ecn: {{min: 1MiB, max: 2MiB, percent: 5}}}}
      - {{name: cnp, carries: cnp, dscp: 48}}
    switches: {{leaves: 8, spines: 4, uplinks: 4, os: [{{kind: sonic}}]}}
  - name: store
    role: storage
    transport: roce
    congestion: ecn-lossy
    classes:
      - {{name: roce, carries: collectives, dscp: 26, ecn: {{min: 1MiB, max: 2MiB, percent: 5}}}}
      - {{name: cnp, carries: cnp, dscp: 48}}
{RUNS}"""

BRIDGES = f"""{HEAD}
node_groups:
  - {{name: pcie, count: 4, cpus: 64, gpu: A100-SXM-80, gpus: 8, nvlink_domain: 2, nics: [mlx5_0, mlx5_1]}}
fabrics:
  - {{name: rails, role: scale-out, transport: infiniband, shape: leaf-spine}}
{RUNS}"""


def problems(text: str) -> list[Problem]:
    cluster = Cluster.model_validate_json(json.dumps(yaml.safe_load(text)))
    return list(check_cluster(Parsed(Document("cluster.yaml"), cluster, True, frozenset(Cluster.model_fields))))


def found(text: str) -> list[tuple[str, str]]:
    return [(problem.code, ".".join(map(str, problem.path))) for problem in problems(text)]


@pytest.mark.parametrize("text", [RACKS, AWS, OWN_SWITCHES, BRIDGES], ids=["racks", "aws", "own-switches", "bridges"])
def test_consistent_cluster_has_no_problem(text: str) -> None:
    assert problems(text) == []


def test_custom_gpu_may_be_in_any_host() -> None:
    own = "gpu: X9, gpu_model: {like: GH200-96, memory: 64GiB}"
    assert ("HW232", "node_groups.0.gpu") in found(AWS.replace("gpu: H200-SXM-141", "gpu: GH200-96"))
    assert found(AWS.replace("gpu: H200-SXM-141", own)) == []


def test_a_group_with_fewer_adapters_may_have_any_of_the_rails() -> None:
    part = "  - {name: part, count: 2, cpus: 8, gpu: H100-SXM-80, gpus: 1, nics: [{name: mlx5_7, rail: 7}]}\n"
    text = OWN_SWITCHES.replace("  - {name: login", part + "  - {name: login").replace("oversubscription: {leaf: 2.0}", "pods: 1")
    assert found(text.replace("leaves: 8", "leaves: 16")) == []
    assert found(text.replace("leaves: 8", "leaves: 16").replace("rail: 7", "rail: 8")) == [
        ("HW515", "node_groups.1.nics.0.rail")
    ]


def test_number_of_cables_of_a_fabric_is_limited() -> None:
    full = Size((65536,), rails=8, planes=8, spines=2048, units=256, ports=512)
    assert [problem.code for problem in check_cabling(spec(full))] == []
    over = replace(full, counts=(65537,), units=257)
    (problem,) = check_cabling(spec(over))
    assert (problem.code, problem.path) == ("HW527", ("fabrics", 0, "switches"))
    assert problem.message == (
        "524296 cables to nodes and 526336 between leaves and spines are more than the 1048576 of one plan"
    )


def test_numbered_adapters_may_skip_rails() -> None:
    gaps = "nics: [{name: m0, rail: 0}, {name: m1, rail: 2}, {name: m2, rail: 4}, {name: m3, rail: 6}]"
    fabric = "{name: rails, role: scale-out, transport: infiniband, rails: 8}"
    nodes = f"{{name: gpu, count: 2, cpus: 8, gpu: H100-SXM-80, gpus: 4, {gaps}}}"
    text = f"{HEAD}node_groups: [{nodes}]\nfabrics: [{fabric}]\n{RUNS}"
    assert found(text) == []
    assert found(text.replace("rails: 8", "rails: 6")) == [("HW515", "node_groups.0.nics.3.rail")]


def test_adapters_without_a_fabric_are_checked_against_the_scale_out_one() -> None:
    assert found(AWS.replace("EFAv3", "ConnectX-7")) == [("HW232", "node_groups.0.nic")]
    assert found(AWS.replace("nic_speed: 200Gb/s", "nic_speed: 400Gb/s")) == [("HW232", "node_groups.0.nic_speed")]


def test_adapters_of_a_storage_fabric_are_not_counted_per_gpu() -> None:
    assert found(OWN_SWITCHES.replace(", {name: mlx5_8, fabric: store}", "").replace("mlx5_7", "mlx5_7, mlx5_8")) == [
        ("HW515", "node_groups.0.nics.8.rail"),
        ("HW235", "node_groups.0.nics"),
    ]


def test_stated_oversubscription_must_match_the_planes_of_the_switches() -> None:
    assert found(OWN_SWITCHES.replace("rails: 8", "rails: 8\n    planes: 2")) == [("HW518", "fabrics.0.oversubscription.leaf")]
    assert found(OWN_SWITCHES.replace("rails: 8", "rails: 8\n    planes: 2").replace("leaf: 2.0", "leaf: 4.0")) == []


@given(
    lossless=st.booleans(),
    marked=st.booleans(),
    scheme=st.sampled_from(["pfc", "pfc-ecn", "ecn-lossy", "trim-lossy", "nic-managed"]),
)
def test_congestion_scheme_is_accepted_if_the_class_matches_it(lossless: bool, marked: bool, scheme: str) -> None:
    meant = {(True, False): ["pfc"], (True, True): ["pfc-ecn"], (False, True): ["ecn-lossy"], (False, False): []}[
        lossless, marked
    ]
    if not lossless:
        meant = [*meant, "trim-lossy", "nic-managed"]
    ecn = ", ecn: {min: 1MiB, max: 2MiB, percent: 5}" if marked else ""
    roce = f"{{name: roce, carries: collectives, dscp: 26, lossless: {str(lossless).lower()}{ecn}}}"
    classes = f"[{roce}, {{name: cnp, carries: cnp, dscp: 48}}]"
    fabric = f"{{name: rails, role: scale-out, transport: roce, congestion: {scheme}, classes: {classes}}}"
    nodes = "{name: gpu, count: 2, cpus: 8, gpu: H100-SXM-80, gpus: 1, nics: [mlx5_0]}"
    text = f"{HEAD}node_groups: [{nodes}]\nfabrics: [{fabric}]\n{RUNS}"
    assert found(text) == ([] if scheme in meant else [("HW516", "fabrics.0.congestion")])


def test_congestion_scheme_follows_from_the_classes() -> None:
    plain = TrafficClass(name="roce", carries="collectives", dscp=26)
    cnp = TrafficClass(name="cnp", carries="cnp", dscp=48)
    assert congestion_of([cnp]) is None
    assert congestion_of([cnp, plain]) is None
    assert congestion_of([cnp, plain.model_copy(update={"lossless": True})]) == "pfc"


def test_problem_of_one_section_does_not_hide_that_of_another(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        RACKS.replace('cuda: "13.0"', "cuda: 13.0").replace("held_back: 1", "held_back: 36").replace("name: runs", "name: 1")
    )
    _, cluster, invalid = read(path)
    assert {problem.path for problem in invalid} == {("versions", "cuda"), ("storage", 0, "name")}
    assert [problem.code for problem in check_cluster(cast("Parsed[Cluster]", cluster))] == ["HW234"]


def test_a_cluster_without_versions_does_not_read_the_table_of_versions() -> None:
    compatibility.cache_clear()
    problems(BRIDGES)
    assert compatibility.cache_info().misses == 0
    problems(RACKS)
    assert compatibility.cache_info().misses == 1


def test_versions_are_compared_by_their_numbers() -> None:
    assert is_older("12.9", "12.10")
    assert not is_older("12.10", "12.9")
    assert not is_older("12.8.0", "12.8")
    assert not is_older("12.8", "12.8.0")
    assert not is_older("580.65.06", "580")
    assert is_older("570.124.06", "580")
    assert major_minor("2.10.1") == "2.10"


@given(st.lists(st.lists(st.integers(0, 999), min_size=2, max_size=4), min_size=3, max_size=3))
def test_older_is_a_strict_weak_order(numbers: list[list[int]]) -> None:
    a, b, c = (".".join(map(str, version)) for version in numbers)
    assert not is_older(a, a)
    assert not (is_older(a, b) and is_older(b, a))
    assert is_older(a, c) or not (is_older(a, b) and is_older(b, c))


def test_every_nvidia_gpu_of_the_catalog_has_an_architecture() -> None:
    known = {name for architecture in compatibility().architectures for name in architecture.gpus}
    assert known == {name for name, gpu in gpus().items() if gpu.vendor == "NVIDIA"}


def test_newer_software_never_requires_older_versions() -> None:
    """A newer CUDA has a newer driver, a newer torch has no older NCCL, and a toolkit's driver supports its family."""
    tables = compatibility()
    toolkits = list(tables.toolkit_drivers.items())
    for (cuda, driver), (newer_cuda, newer_driver) in itertools.pairwise(toolkits):
        assert is_older(cuda, newer_cuda)
        assert is_older(driver, newer_driver)
    releases = list(tables.torch.items())
    for (torch, release), (newer_torch, newer_release) in itertools.pairwise(releases):
        assert is_older(torch, newer_torch)
        assert not is_older(newer_release.nccl, release.nccl)
    assert all(not is_older(driver, tables.family_drivers[cuda.partition(".")[0]]) for cuda, driver in toolkits)


def test_driver_of_a_cuda_toolkit_is_accepted_and_an_older_family_rejected() -> None:
    for cuda, driver in compatibility().toolkit_drivers.items():
        versions = f"versions: {{driver: '{driver}', cuda: '{cuda}'}}\n"
        assert found(BRIDGES + versions) == []
    assert found(BRIDGES + "versions: {driver: '579.99', cuda: '13.0'}\n") == [("HW216", "versions.driver")]
    assert found(BRIDGES + "versions: {driver: '580.0', cuda: '13.1'}\n") == [("HW230", "versions.driver")]
    assert found(BRIDGES + "versions: {driver: '400.1', cuda: '99.0'}\n") == []


@pytest.mark.parametrize(
    ("gpu", "newest_refused", "oldest_taken"),
    [
        ("H100-SXM-80", "520.61.04", "520.61.05"),
        ("B200-180", "570.133.19", "570.133.20"),
        ("GB200-186", "570.25", "570.26"),
    ],
)
def test_driver_older_than_the_gpu_requires_is_rejected(gpu: str, newest_refused: str, oldest_taken: str) -> None:
    nodes = BRIDGES.replace("A100-SXM-80", gpu)
    refused = problems(nodes + f"versions: {{driver: '{newest_refused}'}}\n")
    assert f"the GPU `{gpu}` needs the driver {oldest_taken} or newer" in "".join(problem.message for problem in refused)
    assert ("HW216", "versions.driver") not in found(nodes + f"versions: {{driver: '{oldest_taken}'}}\n")


def test_driver_of_a_gpu_is_at_least_that_of_its_architecture() -> None:
    known = compatibility()
    assert set(known.gpu_drivers) <= set(gpus())
    for gpu, own in known.gpu_drivers.items():
        architecture = known.architecture_of(gpu)
        assert architecture is not None
        assert architecture.driver is None or is_older(architecture.driver, own.driver)


def test_nvidia_versions_are_reported_if_all_gpus_are_from_amd() -> None:
    nodes = BRIDGES.replace("A100-SXM-80", "MI300X-192")
    versions = "versions: {driver: '580.95.05', cuda: '13.0', nccl: '2.28.9', torch: '2.10.0'}\n"
    unused = [place for code, place in found(nodes + versions) if code == "HW237"]
    assert unused == ["versions.driver", "versions.cuda", "versions.nccl"]
    assert found(nodes + "versions: {torch: '2.4.1'}\n") == found(nodes)
    assert "HW237" not in [code for code, _ in found(BRIDGES + versions)]


def test_nvidia_versions_are_used_if_one_group_has_nvidia_gpus() -> None:
    amd = "  - {name: amd, count: 2, cpus: 96, gpu: MI300X-192, gpus: 8, nics: [mlx5_0]}\n"
    mixed = BRIDGES.replace("fabrics:\n", f"{amd}fabrics:\n", 1)
    assert mixed != BRIDGES
    assert "HW237" not in [code for code, _ in found(mixed + "versions: {driver: '580.95.05'}\n")]


def test_exactly_the_faulty_nccl_versions_are_reported() -> None:
    named = [nccl for nccl in ("2.28.2", "2.28.3", "2.28.8", "2.28.9") if found(BRIDGES + f"versions: {{nccl: '{nccl}'}}\n")]
    assert named == ["2.28.3", "2.28.8"]
