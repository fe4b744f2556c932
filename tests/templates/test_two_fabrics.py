"""A storage network separate from the rails: it has its own switches, numbers and classes, and a script on each host."""

import shutil
from functools import cache
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path, PurePosixPath

import pytest
import yaml

from headway.cli.main import main
from headway.cli.read_back import compare, harms
from headway.compile import PlannedCluster, compile_documents
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.environment import resolve_environment
from headway.templates.audit.fabrics import other_fabrics
from headway.templates.cluster import reader_of
from headway.templates.hosts.read import read
from headway.templates.hosts.render import NETWORKD, SCRIPT, UNIT, render_host
from headway.templates.reading import Reading

EXAMPLE = Path(__file__).parents[2] / "examples" / "two-fabrics"
CLUSTER = EXAMPLE / "cluster.yaml"
OF_FILES = SCRIPT.with_name("headway-qos-files")
# The same fabrics on switches with other systems, whose files are compared by port. Linux has no queues.
SYSTEMS = ("nvue", "sonic", "eos")
MODELS = {"eos": "7060X6-64PE", "sonic": "SN5400"}


def document(os: str = "nvue") -> str:
    text = CLUSTER.read_text().replace("base/switch.yaml", str(EXAMPLE / "base" / "switch.yaml"))
    if os == "nvue":
        return text
    content = yaml.safe_load(text)
    for fabric in content["fabrics"][:2]:
        fabric["switches"] |= {"model": MODELS[os], "os": [{"kind": os}]}
    return str(yaml.safe_dump(content))


def compiled(folder: Path, text: str) -> PlannedCluster:
    folder.mkdir(exist_ok=True)
    (folder / "cluster.yaml").write_text(text)
    result = compile_documents([folder / "cluster.yaml"], kinds=("Cluster",))
    assert result.problems.errors == 0, [problem.message for problem in result.problems]
    return result.clusters[0]


@cache
def planned() -> ClusterPlan:
    (cluster,) = compile_documents([CLUSTER], kinds=("Cluster",)).clusters
    return cluster.plan


@pytest.fixture(scope="module", params=SYSTEMS)
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write the cluster's document, and the files of both fabrics with a job's variables; a test that changes a file restores it."""
    folder = tmp_path_factory.mktemp(request.param)
    cluster = compiled(folder, document(request.param))
    assert main(["render", str(folder / "cluster.yaml"), "-o", str(folder / "rendered")]) == 0
    variables = resolve_environment(cluster.plan, cluster.plan.groups[0])
    lines = "".join(f"export {each.name}={each.value}\n" for each in variables)
    (folder / "rendered" / "job.env").write_text(lines)
    return folder / "cluster.yaml", folder / "rendered"


def readings(folder: Path) -> dict[str, Reading]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (reader := reader_of(path)) is not None:
            found[str(path)] = reader(path.read_text())
    return found


def alone(folder: Path) -> list[Problem]:
    found = readings(folder)
    return [*compare(found, None), *harms(found)]


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_fabrics_share_no_numbers() -> None:
    plan = planned()
    by_fabric = {fabric: [switch for switch in plan.switches if switch.fabric == fabric] for fabric in ("rails", "files")}
    assert {fabric: len(switches) for fabric, switches in by_fabric.items()} == {"rails": 4, "files": 4}
    for number in ("name", "asn", "router_id"):
        rails, files = ({getattr(switch, number) for switch in by_fabric[fabric]} for fabric in ("rails", "files"))
        assert rails.isdisjoint(files), number
    networks = {"rails": IPv4Network("10.10.0.0/16"), "files": IPv4Network("10.20.0.0/16")}
    for fabric, switches in by_fabric.items():
        addresses = [IPv4Interface(port.address).ip for each in switches for port in each.ports if port.address]
        assert addresses, fabric
        assert all(address in networks[fabric] for address in addresses)


def test_each_adapter_is_connected_to_its_fabric() -> None:
    plan = planned()
    fabrics = {switch.name: switch.fabric for switch in plan.switches}
    found = {(link.b, link.b_port): fabrics[link.a] for link in plan.links if link.b not in fabrics}
    gpu = {"mlx5_0": "rails", "mlx5_1": "rails", "mlx5_2": "files", "mlx5_3": "files"}
    store = {"mlx5_0": "files", "mlx5_1": "files"}
    expected = {"h100-1": gpu, "h100-2": gpu, "store-1": store, "store-2": store}
    assert found == {(node, adapter): fabric for node, adapters in expected.items() for adapter, fabric in adapters.items()}


def test_collectives_use_only_the_rails() -> None:
    plan = planned()
    variables = {each.name: each.value for each in resolve_environment(plan, plan.groups[0])}
    assert variables["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert variables["NCCL_IB_TC"] == "106"
    assert variables["NCCL_IB_ADDR_RANGE"] == "10.10.0.0/16"


def test_second_fabric_does_not_change_files_of_the_first(tmp_path: Path) -> None:
    content = yaml.safe_load(document())
    after = compiled(tmp_path / "both", yaml.safe_dump(content)).files()
    del content["fabrics"][1], content["node_groups"][1], content["node_groups"][0]["nics"][2:]
    before = compiled(tmp_path / "one", yaml.safe_dump(content)).files()
    kept = [path for path in before if path.name != "plan.json"]
    assert {path: before[path] for path in kept} == {path: after[path] for path in kept}
    # Four switches, a script and a unit for each of four nodes, and networkd's settings for the two nodes that had no adapters.
    assert len(after) == len(before) + 4 + 2 * 4 + 2


# --- hosts ------------------------------------------------------------------------------------------------------------


def test_a_node_has_a_script_and_a_unit_for_each_of_its_fabrics() -> None:
    plan = planned()
    unit = UNIT.with_name("headway-qos-files.service")
    assert set(render_host(plan.nodes[0], plan)) == {SCRIPT, UNIT, OF_FILES, unit, NETWORKD}
    assert set(render_host(plan.nodes[2], plan)) == {OF_FILES, unit, NETWORKD}
    assert f"ExecStart={OF_FILES}" in render_host(plan.nodes[0], plan)[unit].splitlines()
    units = [text.splitlines() for path, text in render_host(plan.nodes[0], plan).items() if path.suffix == ".service"]
    after = [line.partition("=")[2].split()[-1] for lines in units for line in lines if line.startswith("After=")]
    assert after == ["network-pre.target", "headway-qos.service"], "both may mount configfs"


def test_adapters_of_a_node_have_separate_tables_and_routes() -> None:
    plan = planned()
    files = render_host(plan.nodes[0], plan)
    calls = [line.split(" & ")[0] for text in (files[SCRIPT], files[OF_FILES]) for line in text.splitlines() if " & wait" in line]
    assert calls == [
        "set_address mlx5_0 10.10.0.1/31 10.10.0.0 1000",
        "set_address mlx5_1 10.10.0.65/31 10.10.0.64 1001",
        "set_qos mlx5_0",
        "set_qos mlx5_1",
        "set_address mlx5_2 10.20.0.1/31 10.20.0.0 1002",
        "set_address mlx5_3 10.20.0.129/31 10.20.0.128 1003",
        "set_qos mlx5_2",
        "set_qos mlx5_3",
    ]
    way = 'ip route replace {} via "$gateway" dev "$netdev" metric "$table"'
    assert way.format("10.10.0.0/16") in files[SCRIPT]
    assert way.format("10.20.0.0/16") in files[OF_FILES]


def test_script_of_the_storage_fabric_reads_back_as_its_classes() -> None:
    plan = planned()
    reading = read(render_host(plan.nodes[2], plan)[OF_FILES])
    assert reading.device is not None
    assert reading.device.fabric == "files"
    assert set(reading.qos) == {"mlx5_0", "mlx5_1"}
    view = reading.qos["mlx5_0"]
    assert view.marks == {"storage": 18, "cnp": 48}
    assert view.priorities == {18: 3, 48: 6}
    assert [priority for priority, on in view.pfc.items() if on] == [3]
    scale_out = read(render_host(plan.nodes[0], plan)[SCRIPT])
    assert scale_out.device is not None
    assert (scale_out.device.fabric, scale_out.qos["mlx5_0"].marks) == (None, {"collectives": 26, "cnp": 48})


def test_storage_network_without_classes_gets_only_addresses(tmp_path: Path) -> None:
    content = yaml.safe_load(document())
    storage = content["fabrics"][1]
    del storage["classes"]
    storage["switches"]["os"] = [{"kind": "frr"}]
    plan = compiled(tmp_path, yaml.safe_dump(content)).plan
    files = render_host(plan.nodes[2], plan)
    assert set(files) == {OF_FILES, UNIT.with_name("headway-qos-files.service"), NETWORKD}
    assert "set_qos" not in files[OF_FILES]
    reading = read(files[OF_FILES])
    assert reading.qos == {}
    assert reading.device is not None
    assert {name: port.addresses for name, port in reading.device.ports.items()} == {
        "mlx5_0": ("10.20.0.5/31",),
        "mlx5_1": ("10.20.0.133/31",),
    }


# --- the audit --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_of_two_fabrics_are_checked_separately(tree: tuple[Path, Path]) -> None:
    """Their classes have different numbers, and both are correct."""
    _, rendered = tree
    found = readings(rendered)
    apart = {Path(file).relative_to(rendered).parts[2] for file in other_fabrics(found)}
    assert apart == {"h100-1", "h100-2", "store-1", "store-2", "files-leaf-1", "files-leaf-2", "files-spine-1", "files-spine-2"}
    assert [problem.message for problem in alone(rendered)] == []


def test_files_of_two_fabrics_match_the_cluster_file(tree: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    file, rendered = tree
    capsys.readouterr()
    assert main(["audit", str(rendered), "--cluster", str(file)]) == 0
    assert "problem" not in capsys.readouterr().out.replace("no problems", "").replace("HW513", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("dscp-prio 18:3", "dscp-prio 18:4"),
        ("prio-pfc all:off 3:on", "prio-pfc all:off 4:on"),
        ('cma_tos "$adapter" 74', 'cma_tos "$adapter" 106'),
    ],
)
def test_mistakes_on_the_storage_fabric_are_found(
    tree: tuple[Path, Path], right: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, rendered = tree
    script = rendered / "two-fabrics" / "hosts" / "store-1" / OF_FILES.relative_to("/")
    text = script.read_text()
    assert right in text
    try:
        script.write_text(text.replace(right, wrong))
        assert {problem.document for problem in alone(rendered)} == {str(script)}
        capsys.readouterr()
        assert main(["audit", str(rendered), "--cluster", str(file)]) == 1
        assert str(script) in capsys.readouterr().out
    finally:
        script.write_text(text)


def test_leaf_without_pauses_for_storage_is_found(tmp_path: Path) -> None:
    cluster = compiled(tmp_path, document("sonic"))
    assert main(["render", str(tmp_path / "cluster.yaml"), "-o", str(tmp_path / "rendered")]) == 0
    leaf = tmp_path / "rendered" / cluster.plan.name / "switches" / "files-leaf-1" / "config_db.json"
    leaf.write_text(leaf.read_text().replace('"pfc_enable": "3"', '"pfc_enable": ""'))
    assert str(leaf) in {problem.document for problem in alone(tmp_path / "rendered")}


def test_fabric_that_also_carries_checkpoints_matches_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The keeper marks its own packets; adapters do not."""
    text = document().replace(
        "      - name: cnp\n", "      - {name: copies, carries: checkpoints, dscp: 10}\n      - name: cnp\n", 1
    )
    compiled(tmp_path, text)
    assert main(["render", str(tmp_path / "cluster.yaml"), "-o", str(tmp_path / "rendered")]) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path)]) == 0
    assert "error[" not in capsys.readouterr().out


# --- other transports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("index", "script"), [(0, OF_FILES), (1, SCRIPT)])
def test_one_of_both_fabrics_may_be_infiniband(index: int, script: PurePosixPath, tmp_path: Path) -> None:
    """Only the other fabric has addresses and scripts."""
    content = yaml.safe_load(document())
    name, role = (content["fabrics"][index][key] for key in ("name", "role"))
    switches = {"model": "QM9700", "leaves": 2, "spines": 2, "os": [{"kind": "opensm"}]}
    content["fabrics"][index] = {"name": name, "role": role, "transport": "infiniband", "switches": switches}
    cluster = compiled(tmp_path, yaml.safe_dump(content))
    files = cluster.files()
    assert PurePosixPath(cluster.plan.name, "fabrics", name, "opensm.conf") in files
    assert {path.name for path in files if path.parent.name == "sbin"} == {script.name}
    variables = {each.name for each in resolve_environment(cluster.plan, cluster.plan.groups[0])}
    assert ("NCCL_IB_TC" in variables) == (role == "storage")


def test_collectives_on_a_storage_network_are_planned_as_storage(tmp_path: Path) -> None:
    plan = compiled(tmp_path, document().replace("carries: storage", "carries: collectives")).plan
    qos = plan.fabric("files").qos
    assert qos is not None
    assert [each.carries for each in qos.classes] == ["storage", "cnp"]


# --- documents --------------------------------------------------------------------------------------------------------


def problems(folder: Path, text: str) -> list[Problem]:
    (folder / "cluster.yaml").write_text(text)
    return list(compile_documents([folder / "cluster.yaml"], kinds=("Cluster",)).problems)


@pytest.mark.parametrize(
    ("mine", "others", "what"),
    [
        ("      asn: 4200100000\n", "      asn: 4200000002\n", "AS numbers"),
        ("      loopbacks: 10.254.0.0/16\n", "", "loopbacks"),
        ("      addresses: 10.20.0.0/16\n", "      addresses: 10.10.128.0/17\n", "addresses"),
        ("      addresses: 10.20.0.0/16\n", "      addresses: 10.255.4.0/22\n", "addresses"),
    ],
)
def test_shared_number_is_rejected_and_the_hint_has_a_free_one(mine: str, others: str, what: str, tmp_path: Path) -> None:
    text = document()
    (found,) = (problem for problem in problems(tmp_path, text.replace(mine, others)) if problem.is_error)
    assert (found.code, found.message) == ("HW514", f"`files` and `rails` have {what} in common")
    assert found.hint is not None
    setting = found.hint.partition("`")[2].rstrip("`")
    mended = text.replace(mine, f"      {setting}\n")
    assert [problem.message for problem in problems(tmp_path, mended) if problem.is_error] == []


def test_shared_default_numbers_are_one_problem_with_a_complete_hint(tmp_path: Path) -> None:
    text = document()
    for line in ("      asn: 4200100000\n", "      loopbacks: 10.254.0.0/16\n", "      addresses: 10.20.0.0/16\n"):
        text = text.replace(line, "")
    text = text.replace("      addresses: 10.10.0.0/16\n", "")
    (found,) = (problem for problem in problems(tmp_path, text) if problem.is_error)
    assert found.message == "`files` and `rails` have AS numbers, loopbacks and addresses in common"
    assert found.hint == (
        "give the switches of one of them others: `asn: 4200100000`, `loopbacks: 10.254.0.0/16` and `addresses: 10.64.0.0/10`"
    )


def test_adapters_of_storage_may_have_another_speed(tmp_path: Path) -> None:
    text = document().replace("    nic: ConnectX-7\n", "    nic: ConnectX-7\n    nic_speed: 400Gb/s\n", 1)
    assert [problem.message for problem in problems(tmp_path, text) if problem.is_error] == []
    plan = compiled(tmp_path / "plan", text).plan
    speeds = {(switch.fabric, port.gbps) for switch in plan.switches for port in switch.ports if port.role == "node"}
    assert speeds == {("rails", 400), ("files", 200)}


def test_rails_cannot_carry_storage(tmp_path: Path) -> None:
    found = problems(tmp_path, document().replace("carries: collectives", "carries: storage"))
    # The missing class for collectives is a consequence.
    assert {problem.code for problem in found if problem.is_error} == {"HW503"}


# --- verbs ------------------------------------------------------------------------------------------------------------


def test_plan_prints_both_fabrics(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plan", str(CLUSTER)]) == 0
    out = capsys.readouterr().out
    assert "rails: scale-out, roce" in out
    assert "files: storage, roce" in out
    assert "mlx5_0, mlx5_1; files: mlx5_2, mlx5_3" in " ".join(out.split())
    assert out.count("written out: ") == 2


def test_cables_of_both_fabrics_are_listed_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(CLUSTER), "--cables", "csv"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    assert {row[1].partition("-")[0] for row in rows} == {"rails", "files"}
    own = next(row for row in rows if row[1] == "rails-leaf-1" and row[3] == "h100-1")
    other = next(row for row in rows if row[1] == "files-leaf-1" and row[3] == "h100-1")
    neighbor = {"chassis": {"name": "h100-1"}, "port": {"id": {"type": "ifname", "value": other[4]}}}
    text = f'{{"lldp": {{"interface": {{"{own[2]}": {neighbor}}}}}}}'.replace("'", '"')
    (tmp_path / "rails-leaf-1.json").write_text(text)
    assert main(["verify-cabling", str(CLUSTER), str(tmp_path / "rails-leaf-1.json")]) == 1
    assert f"the cable in `{other[4]}` of `h100-1` leads to `{own[2]}` of `rails-leaf-1`" in capsys.readouterr().out


def test_pins_and_observed_cables_belong_to_their_fabric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "site", ignore=shutil.ignore_patterns("rendered", "inventory.yaml"))
    file, inventory = tmp_path / "site" / "cluster.yaml", tmp_path / "site" / "pinned.yaml"
    assert main(["pin", str(file), "-o", str(inventory)]) == 0
    text = inventory.read_text()
    assert text.count("switch: rails-leaf") == 4
    assert text.count("switch: files-leaf") == 8
    capsys.readouterr()
    assert main(["check", str(tmp_path / "site")]) == 0
    # The cables of one node to both rails of storage are swapped; those for collectives are correct.
    node = text[text.index("- name: h100-1") : text.index("- name: h100-2")]
    swapped = (
        node.replace("files-leaf-1", "files-leaf-9")
        .replace("files-leaf-2", "files-leaf-1")
        .replace("files-leaf-9", "files-leaf-2")
    )
    inventory.write_text(text.replace(node, swapped))
    assert main(["check", str(tmp_path / "site")]) == 1
    out = capsys.readouterr().out
    assert out.count("error[HW522]") == 2
    assert "the cables of `mlx5_2` and `mlx5_3` are swapped" in out
