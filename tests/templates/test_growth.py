"""Growth toward `grow_to`: files of existing switches, hosts and jobs keep every byte, and no cable moves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.cli.main import main
from headway.cli.read_back import harms
from headway.compile import compile_documents
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.sizes import SizeError
from headway.templates.cabling.compare import PlannedCables, miscablings
from headway.templates.cluster import reader_of
from headway.templates.hosts.render import NETPLAN, render_host
from headway.templates.reading import Reading
from headway.templates.switches import SWITCHES
from headway.templates.switches.eos.options import EosOptions
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.nvue.options import NvueOptions
from headway.templates.switches.opensm.options import OpensmOptions
from headway.templates.switches.opensm.render import NETLIST, render_fabric
from headway.templates.switches.sonic.options import SonicOptions
from tests.jobspec.test_growth import pinned
from tests.jobspec.test_sizes import Site, grown, sites
from tests.templates.test_cabling import lldp

OPTIONS: Mapping[str, Any] = {"sonic": SonicOptions(), "frr": FrrOptions(), "nvue": NvueOptions(), "eos": EosOptions()}

# A leaf with two speeds, planes of dual-port adapters, pods, nodes that share a leaf, stated leaves still without nodes.
SHAPES: Mapping[str, tuple[Site, int]] = {
    "two speeds": (Site(5, nics=2, switches={"model": "SN5600", "node_ports": 8}, group={"nic": "ConnectX-7"}), 20),
    "planes": (Site(3, nics=4, switches={"ports": 16}, fabric={"planes": 2}), 30),
    "pods": (Site(5, nics=1, switches={"ports": 4}, fabric={"pods": 4}), 8),
    "one switch": (Site(3), 8),
    "rail-only": (Site(3, nics=2, switches={"ports": 16}, fabric={"shape": "rail-only"}), 20),
    "stated leaves": (Site(3, nics=2, switches={"ports": 8, "leaves": 6}), 12),
    "a file server before": (Site(3, nics=2, switches={"ports": 8}, ends=1), 14),
}


@dataclass(frozen=True)
class Rendered:
    """Files by their names, lines of the netlist, and the cables."""

    files: Mapping[tuple[str, PurePosixPath], str]
    netlist: frozenset[str]
    cables: frozenset[tuple[str, str, str, str]]


def rendered(plan: ClusterPlan, kinds: Sequence[str] = tuple(OPTIONS)) -> Rendered:
    files: dict[tuple[str, PurePosixPath], str] = {}
    (fabric,) = (each for each in plan.fabrics if each.role == "scale-out")
    is_routed = fabric.transport == "roce"
    for switch in plan.switches:
        for kind in kinds if is_routed else ():
            made = SWITCHES[kind].render(OPTIONS[kind], switch, plan)
            files |= {(f"{switch.name} {kind}", path): text for path, text in made.items()}
    for node in plan.nodes:
        files |= {(node.name, path): text for path, text in render_host(node, plan).items()}
    netlist = frozenset[str]()
    if not is_routed:
        texts = render_fabric(OpensmOptions(), fabric, plan)
        netlist = frozenset(texts.pop(PurePosixPath(NETLIST)).split("\n"))
        files |= {("opensm", path): text for path, text in texts.items()}
    return Rendered(files, netlist, frozenset((link.a, link.a_port, link.b, link.b_port) for link in plan.links))


def assert_only_adds(before: Rendered, after: Rendered) -> None:
    changed = [name for name, text in before.files.items() if after.files[name] != text]
    assert changed == []
    assert before.netlist <= after.netlist
    assert before.cables <= after.cables


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(sites(), st.lists(st.integers(1, 12), min_size=1, max_size=2), st.sampled_from([*OPTIONS, "opensm"]))
def test_growing_to_grow_to_changes_no_byte_and_moves_no_cable(site: Site, steps: list[int], kind: str) -> None:
    nodes, transport = min(site.nodes, 12), "infiniband" if kind == "opensm" else "roce"
    now = grown(replace(site, nodes=nodes, transport=transport), grow_to=nodes + sum(steps))
    try:
        now.sizes()
    except SizeError:
        return
    plan = now.plan()
    before = rendered(plan, [kind])
    for more in steps:
        now = replace(now, nodes=now.nodes + more)
        pins, plan = pinned(plan), now.plan()
        assert replace(resolve_cluster(now.spec(), [pins]), hash=plan.hash) == plan
        after = rendered(plan, [kind])
        assert_only_adds(before, after)
        before = after


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("transport", ["roce", "infiniband"])
def test_growth_changes_no_byte_in_any_shape(shape: str, transport: str) -> None:
    site, goal = SHAPES[shape]
    if transport == "infiniband":
        site = replace(
            site, switches={**{key: site.switches[key] for key in site.switches if key != "model"}, "speed": "400Gb/s"}
        )
    first = grown(replace(site, transport=transport), grow_to=goal + site.ends)
    before = rendered(first.plan())
    for nodes in (first.nodes + 1, goal):
        after = rendered(replace(first, nodes=nodes).plan())
        assert_only_adds(before, after)
        before = after


@pytest.mark.parametrize("shape", SHAPES)
def test_growth_changes_no_byte_of_a_netplan_file(shape: str) -> None:
    site, goal = SHAPES[shape]
    nics = [{"name": f"mlx5_{rail}", "interface": f"enp{rail}s0np0"} for rail in range(site.nics)]
    site = replace(site, group={**site.group, "network_config": "netplan", "nics": nics})
    first = grown(site, grow_to=goal + site.ends)
    before = rendered(first.plan(), [])
    assert sum(path == NETPLAN for _, path in before.files) == site.nodes
    for nodes in (first.nodes + 1, goal):
        after = rendered(replace(first, nodes=nodes).plan(), [])
        assert_only_adds(before, after)
        before = after


def test_only_unplanned_ports_are_shut_down() -> None:
    plan = grown(Site(5, nics=2, switches={"model": "SN5600"}, fabric={"shape": "rail-optimized"}), grow_to=20).plan()
    (leaf, *_) = plan.switches
    rows = json.loads(SWITCHES["sonic"].render(SonicOptions(), leaf, plan)[PurePosixPath("config_db.json")])["PORT"]
    up = [row["description"].split()[0] for row in rows.values() if row["admin_status"] == "up"]
    assert [name for name in up if name.startswith("gpu")] == [f"gpu-{number}" for number in range(1, 21)]
    assert sum(row["admin_status"] == "down" for row in rows.values()) == len(rows) - len(leaf.ports) > 0


def test_node_at_the_port_of_a_future_node_swaps_ports_with_it() -> None:
    site = grown(Site(3, nics=2, switches={"ports": 16}, fabric={"shape": "rail-optimized"}), grow_to=8)
    pins = pinned(replace(site, nodes=7).plan())
    # The first node is at the port of the seventh.
    moved = pins.nodes[6].model_copy(update={"name": "gpu-1"})
    inventory = pins.model_copy(update={"nodes": (moved,)})
    before, after = (resolve_cluster(replace(site, nodes=nodes).spec(), [inventory]) for nodes in (3, 8))
    assert before.switches == after.switches
    assert [port.peer for port in before.switches[0].ports if port.role == "node"] == [
        *("gpu-7", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-1", "gpu-8")
    ]


def test_group_with_gpus_grows_without_moving_others() -> None:
    # The manager's node is listed after the GPU nodes, and keeps its port.
    first = grown(Site(3, nics=2, switches={"ports": 16}, ends=1), grow_to=7).plan()
    last = grown(Site(6, nics=2, switches={"ports": 16}, ends=1), grow_to=7).plan()
    assert first.group("gpu").grow_to == 6
    assert first.group("ufm").grow_to is None
    assert {link.a_port for plan in (first, last) for link in plan.links if link.b == "ufm-1"} == {"Ethernet0"}


# --- files of jobs, the audit, cables and the plan --------------------------------------------------------------------

_CLUSTER = """apiVersion: headway/v1alpha1
kind: Cluster
name: site
scheduler: {kind: SCHEDULER}
node_groups:
  - {name: gpu, count: COUNT, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3], nic: ConnectX-7}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    shape: rail-optimized
    classes:
      - {name: roce, carries: collectives, dscp: 26, lossless: true, ecn: {min: 1MiB, max: 2MiB, percent: 5}}
      - {name: cnp, carries: cnp, dscp: 48}
    switches: {model: MODEL, node_ports: 8, grow_to: 24, os: [{kind: OS}]}
  - {name: admin, role: management, transport: tcp, interface: eth0}
storage:
  - {name: runs, kind: posix, path: /runs, shared: true}
"""
_OPTIONS = {
    "slurm": "slurm, options: {partition: gpu, topology: tree}",
    "kubernetes": "kubernetes, options: {image: 'registry.example.org/headway:1', mounts: [{claim: runs, path: /runs}]}",
}
_JOB = """apiVersion: headway/v1alpha1
kind: TrainingJob
name: train
cluster: site
nodes: 2
layout: {dp_shard: 16}
model: {preset: llama-3-8b}
batch: {global: 16 sequences, micro: 1, sequence: 2048}
steps: 10
data: {kind: dataset, options: {name: c4}}
trainer: {kind: torchtitan}
"""
MODELS = {"sonic": "SN5600", "frr": "SN5600", "nvue": "SN5600", "eos": "7060X6-64PE"}


def cluster_file(folder: Path, count: int, os: str = "sonic", scheduler: str = "slurm") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = _CLUSTER.replace("COUNT", str(count)).replace("MODEL", MODELS[os]).replace("OS", os)
    (folder / "cluster.yaml").write_text(text.replace("SCHEDULER", _OPTIONS[scheduler]))
    return folder / "cluster.yaml"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", _OPTIONS)
def test_growth_changes_no_byte_of_the_files_of_a_job(tmp_path: Path, scheduler: str) -> None:
    files = []
    for count in (5, 8, 24):
        folder = cluster_file(tmp_path / str(count), count, scheduler=scheduler).parent
        (folder / "job.yaml").write_text(_JOB)
        assert main(["render", str(folder)]) == 0
        files.append(tree(folder / "rendered" / "train"))
    assert len(files[0]) >= 2
    assert files[0] == files[1] == files[2]


def readings(folder: Path) -> dict[str, Reading]:
    found = {}
    for path in sorted(folder.rglob("*")):
        reader = reader_of(path) if path.is_file() else None
        if reader is not None:
            found[str(path)] = reader(path.read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("os", MODELS)
def test_port_for_a_future_node_may_be_configured_or_shut_down(
    tmp_path: Path, os: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = cluster_file(tmp_path / "now", 5, os)
    assert main(["render", str(cluster)]) == 0
    # As at a site that configures a port when its cable arrives: the same fabric without a goal, with explicit sizes.
    (planned,) = compile_documents([cluster], kinds=("Cluster",)).clusters
    shut = replace(planned.plan, switches=tuple(replace(each, ports=planned.plan.cabled(each)) for each in planned.plan.switches))
    names = [switch.name for switch in planned.plan.switches]
    other = tmp_path / "shut" / "rendered" / "site"
    for path, text in replace(planned, plan=shut).files().items():
        (other.parent / path).parent.mkdir(parents=True, exist_ok=True)
        (other.parent / path).write_text(text)
    present = tree(tmp_path / "now" / "rendered" / "site" / "switches")
    assert present.keys() == tree(other / "switches").keys()
    assert all(any(present[f] != text for f, text in tree(other / "switches").items() if name in f) for name in names)
    for folder in (tmp_path / "now" / "rendered" / "site", other):
        capsys.readouterr()
        assert main(["audit", str(folder / "switches"), str(folder / "hosts"), "--cluster", str(cluster)]) == 0, (
            capsys.readouterr().out
        )
        assert list(harms(readings(folder / "switches"))) == []


@pytest.mark.slow
@pytest.mark.parametrize("os", MODELS)
def test_wrong_port_for_a_future_node_is_an_error(tmp_path: Path, os: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = cluster_file(tmp_path, 5, os)
    assert main(["render", str(cluster)]) == 0
    (plan,) = (each.plan for each in compile_documents([cluster], kinds=("Cluster",)).clusters)
    address = next(port.address for port in plan.switches[0].ports if port.peer == "gpu-7")
    assert address is not None
    (file,) = (
        path
        for path in (tmp_path / "rendered" / "site" / "switches" / plan.switches[0].name).rglob("*")
        if path.name == SWITCHES[os].file
    )
    text = file.read_text()
    assert address in text
    file.write_text(text.replace(address, "10.77.0.0/31"))
    assert main(["audit", str(file), "--cluster", str(cluster)]) == 1
    assert "10.77.0.0/31" in capsys.readouterr().out


def test_future_node_has_no_planned_cable_but_may_have_one() -> None:
    site = grown(Site(5, nics=2, switches={"ports": 16}, fabric={"shape": "rail-optimized"}), grow_to=7)
    now, later = site.plan(), replace(site, nodes=7).plan()
    cabling = PlannedCables(now)
    assert not any("gpu-6" in (link.a, link.b) for link in now.links)
    assert list(miscablings(cabling, lldp(now, dict(cabling.far)))) == []
    wires = dict(PlannedCables(later).far)
    assert list(miscablings(cabling, lldp(later, wires))) == []
    # The two nodes that arrived early are in each other's ports.
    ends = [
        (link.a, link.a_port) for node in ("gpu-6", "gpu-7") for link in later.links if (link.b, link.b_port) == (node, "mlx5_0")
    ]
    one, two = ends
    far_one, far_two = wires[one], wires[two]
    wires |= {one: far_two, far_two: one, two: far_one, far_one: two}
    (found,) = miscablings(cabling, lldp(later, wires))
    assert (found.what, found.ends) == ("swapped", frozenset({one, two, far_one, far_two}))


def test_plan_shows_ports_for_future_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(cluster_file(tmp_path, 5))]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "ports set up for 3 that are to come" in text
    assert "5 of 8" in text
    assert main(["plan", str(tmp_path / "cluster.yaml"), "--cables", "csv"]) == 0
    cables = capsys.readouterr().out
    assert "gpu-5" in cables
    assert "gpu-6" not in cables
    document = yaml.safe_load((tmp_path / "cluster.yaml").read_text())
    assert document["node_groups"][0]["count"] == 5
