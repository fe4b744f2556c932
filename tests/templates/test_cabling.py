"""Cables: each planted mistake is reported once, from LLDP's and InfiniBand's reports; lists and graphs have every cable."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from headway.cli.main import main
from headway.jobspec.plan import ClusterPlan
from headway.templates.cabling.compare import End, Miscabling, PlannedCables, miscablings
from headway.templates.cabling.read import SeenCables, read_cables
from headway.templates.cabling.render import containerlab_text, csv_text, dot_text
from headway.templates.switches.opensm.options import OpensmOptions
from headway.templates.switches.opensm.render import render_fabric
from tests.jobspec.test_sizes import Site

Wires = dict[End, End]


@cache
def ethernet() -> ClusterPlan:
    """Return four units of two nodes, two rails, with a spare port on each leaf: eight leaves and four spines."""
    return Site(7, nics=2, switches={"ports": 4, "spine_ports": 15}, fabric={"shape": "rail-optimized"}).plan()


@cache
def infiniband() -> ClusterPlan:
    site = Site(7, nics=2, transport="infiniband", switches={"ports": 4, "spine_ports": 15}, fabric={"shape": "rail-optimized"})
    return site.plan()


def wires(plan: ClusterPlan) -> Wires:
    return dict(PlannedCables(plan).far)


def lldp(plan: ClusterPlan, cables: Wires, devices: Iterable[str] | None = None) -> list[SeenCables]:
    """Return the output of each switch's lldpd: system and port of every neighbor; hosts send the name of a network interface."""
    found = []
    for switch in devices or [switch.name for switch in plan.switches]:
        rows = [{port: neighbor(*far)} for (device, port), far in cables.items() if device == switch]
        found.append(read_cables(json.dumps({"lldp": {"interface": rows}}), switch, {}))
    return found


def neighbor(device: str, port: str) -> Mapping[str, object]:
    own = f"{device}.example.org" if device.startswith(("rails-", "gpu-")) else device
    chassis = {own: {"id": {"type": "mac", "value": "02:00:00:00:00:01"}}}
    return {"via": "LLDP", "chassis": chassis, "port": {"id": {"type": "ifname", "value": port}, "descr": port}}


def ibnetdiscover(plan: ClusterPlan, cables: Wires) -> list[SeenCables]:
    """Return the output of `ibnetdiscover` for the whole fabric."""
    lines = []
    for switch in plan.switches:
        lines.append(f'Switch\t64 "S-{switch.index:016x}{switch.role}"\t\t# "{switch.name}" base port 0 lid 3 lmc 0')
        ids = {each.name: f"S-{each.index:016x}{each.role}" for each in plan.switches}
        for (device, port), (far, far_port) in cables.items():
            if device == switch.name:
                is_switch = far in ids
                end = f'"{ids[far]}"[{far_port}]' if is_switch else f'"H-{far} {far_port}"[1](2000)'
                lines.append(f'[{port}]\t{end}\t\t# "{far}" lid 2 4xNDR')
        lines.append("")
    for device, port in sorted(cables):
        if device not in plan.switch_roles:
            lines.append(f'Ca\t1 "H-{device} {port}"\t\t# "{device} {port}"\n')
    return [read_cables("\n".join(lines), "", {})]


REPORTS: Mapping[str, tuple[Callable[[], ClusterPlan], Callable[[ClusterPlan, Wires], list[SeenCables]]]] = {
    "LLDP": (ethernet, lldp),
    "ibnetdiscover": (infiniband, ibnetdiscover),
}


def connect(cables: Wires, a: End, b: End) -> None:
    cables[a], cables[b] = b, a


def cut(cables: Wires, *ends: End) -> None:
    for end in ends:
        far = cables.pop(end, None)
        if far is not None:
            cables.pop(far, None)


def swap(cables: Wires, a: End, b: End) -> None:
    """Swap the cables in these two ends."""
    far_a, far_b = cables[a], cables[b]
    connect(cables, a, far_b)
    connect(cables, b, far_a)


def move(cables: Wires, end: End, place: End) -> None:
    """Move the far end of the cable of `end` to another port."""
    cut(cables, end)
    cut(cables, place)
    connect(cables, end, place)


def leaf(number: int, port: int) -> End:
    """Return a port of a leaf: 0 and 1 are for nodes, 2 and 3 for spines; `port_names` names them."""
    return (f"rails-leaf-{number}", str(port))


def spine(number: int, port: int) -> End:
    return (f"rails-spine-{number}", str(port))


def node(number: int, rail: int) -> End:
    return (f"gpu-{number}", f"mlx5_{rail}")


# Each with the expected differences by kind.
PLANTED: Mapping[str, tuple[Callable[["Hands"], "Hands"], list[str]]] = {
    "uplinks of one leaf": (lambda hands: hands.swap(leaf(1, 2), leaf(1, 3)), ["swapped"]),
    "uplinks of two leaves at one spine": (lambda hands: hands.swap(leaf(1, 2), leaf(2, 2)), ["swapped"]),
    "uplinks of two leaves at two spines": (lambda hands: hands.swap(leaf(3, 2), leaf(4, 3)), ["swapped"]),
    "two nodes on one leaf": (lambda hands: hands.swap(leaf(1, 0), leaf(1, 1)), ["swapped"]),
    "two rails of one node": (lambda hands: hands.swap(leaf(1, 0), leaf(2, 0)), ["swapped"]),
    "two nodes of two units": (lambda hands: hands.swap(leaf(1, 0), leaf(3, 0)), ["swapped"]),
    "two rails of two nodes": (lambda hands: hands.swap(leaf(1, 1), leaf(4, 1)), ["swapped"]),
    "two pairs": (lambda hands: hands.swap(leaf(1, 2), leaf(2, 2)).swap(leaf(5, 0), leaf(5, 1)), ["swapped", "swapped"]),
    "no cable to a spine": (lambda hands: hands.cut(leaf(1, 2)), ["missing"]),
    "no cable to a node": (lambda hands: hands.cut(leaf(2, 1)), ["missing"]),
    "a leaf without uplinks": (lambda hands: hands.cut(leaf(5, 2), leaf(5, 3)), ["missing", "missing"]),
    "a node that is off": (lambda hands: hands.cut(leaf(3, 0), leaf(4, 0)), ["missing", "missing"]),
    "a node in the spare port": (lambda hands: hands.move(node(1, 0), leaf(7, 1)), ["wrong"]),
    "a node in an uplink's port": (lambda hands: hands.move(node(1, 1), leaf(2, 2)), ["wrong"]),
    "an uplink in a free port of its spine": (lambda hands: hands.move(leaf(1, 2), spine(1, 12)), ["wrong"]),
    "an uplink in a free port of another spine": (lambda hands: hands.move(leaf(1, 2), spine(2, 12)), ["wrong"]),
    "two leaves with each other": (lambda hands: hands.connect(leaf(7, 1), leaf(8, 1)), ["extra"]),
    "two spines with each other": (lambda hands: hands.connect(spine(1, 14), spine(2, 14)), ["extra"]),
    "a spare port and a spine": (lambda hands: hands.connect(leaf(8, 1), spine(1, 13)), ["extra"]),
    "a missing cable and a swapped pair": (
        lambda hands: hands.cut(leaf(8, 2)).swap(leaf(1, 0), leaf(2, 0)),
        ["missing", "swapped"],
    ),
    "three cables that changed places in a ring": (
        lambda hands: hands.swap(leaf(1, 0), leaf(3, 0)).swap(leaf(3, 0), leaf(5, 0)),
        ["wrong", "wrong", "wrong"],
    ),
    "a foreign device": (lambda hands: hands.connect(leaf(7, 1), ("toaster", "1")), ["extra"]),
}


class Hands:
    """Moves the cables of a plan, whose ports have the names of its devices."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.cables = wires(plan)
        self._names = {(switch.name, str(port.index)): port.name for switch in plan.switches for port in switch.ports}
        self._is_routed = plan.fabrics[0].transport == "roce"
        self.touched: set[End] = set()

    def end(self, end: End) -> End:
        device, port = end
        if device.startswith("rails-"):
            usual = f"Ethernet{int(port) * 8}" if self._is_routed else str(int(port) + 1)
            return device, self._names.get(end, usual)
        return end

    def _ends(self, *ends: End) -> list[End]:
        found = [self.end(each) for each in ends]
        self.touched |= {*found, *(self.cables[each] for each in found if each in self.cables)}
        return found

    def swap(self, a: End, b: End) -> "Hands":
        swap(self.cables, *self._ends(a, b))
        return self

    def cut(self, *ends: End) -> "Hands":
        cut(self.cables, *self._ends(*ends))
        return self

    def move(self, end: End, place: End) -> "Hands":
        move(self.cables, *self._ends(end, place))
        return self

    def connect(self, a: End, b: End) -> "Hands":
        connect(self.cables, *self._ends(a, b))
        return self


def found(plan: ClusterPlan, reports: list[SeenCables]) -> list[Miscabling]:
    return list(miscablings(PlannedCables(plan), reports))


def test_interfaces_distinguish_rails_of_a_host() -> None:
    """Without `interface` in the cluster file the name of the host alone is known, and it is the planned one."""
    nics = [{"name": f"mlx5_{rail}", "interface": f"enp{rail}s0"} for rail in range(2)]
    site = Site(7, nics=2, switches={"ports": 4, "spine_ports": 15}, fabric={"shape": "rail-optimized"})
    named = replace(site, group={"nics": nics}).plan()
    cables = {
        end: (far[0], far[1].replace("mlx5_", "enp") + "s0") if far[0].startswith("gpu-") else far
        for end, far in wires(named).items()
    }
    assert found(named, lldp(named, cables)) == []
    one, two = (next(end for end, far in cables.items() if far == ("gpu-3", name)) for name in ("enp0s0", "enp1s0"))
    cables[one], cables[two] = cables[two], cables[one]
    (swapped,) = found(named, lldp(named, cables))
    assert (swapped.what, swapped.ends) == ("swapped", frozenset({one, two, ("gpu-3", "mlx5_0"), ("gpu-3", "mlx5_1")}))
    assert found(ethernet(), lldp(ethernet(), cables)) == []


@pytest.mark.parametrize("report", REPORTS)
def test_cables_as_planned_have_no_difference(report: str) -> None:
    make, print_out = REPORTS[report]
    assert found(make(), print_out(make(), wires(make()))) == []


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("planted", PLANTED)
def test_exactly_the_planted_mistakes_are_reported(planted: str, report: str) -> None:
    make, print_out = REPORTS[report]
    pull, kinds = PLANTED[planted]
    hands = Hands(make())
    pull(hands)
    differences = found(make(), print_out(make(), hands.cables))
    assert sorted(each.what for each in differences) == kinds
    for each in differences:
        assert each.ends <= hands.touched
        assert all(f"`{device}`" in each.message for device, _ in each.ends)


def test_swapped_pair_is_reported_with_the_right_ports() -> None:
    hands = Hands(ethernet())
    hands.swap(leaf(1, 0), leaf(2, 0))
    (difference,) = found(ethernet(), lldp(ethernet(), hands.cables))
    assert difference.message == (
        "the cables in `Ethernet0` of `rails-leaf-1` and `Ethernet0` of `rails-leaf-2` are swapped: "
        "`mlx5_0` of `gpu-1` belongs to `Ethernet0` of `rails-leaf-1`, `mlx5_1` of `gpu-1` to `Ethernet0` of `rails-leaf-2`"
    )


def test_only_devices_with_a_report_are_checked() -> None:
    hands = Hands(ethernet())
    hands.cut(leaf(1, 2), leaf(8, 0))
    assert [each.what for each in found(ethernet(), lldp(ethernet(), hands.cables, ["rails-leaf-1"]))] == ["missing"]
    assert found(ethernet(), lldp(ethernet(), hands.cables, ["rails-leaf-2"])) == []


def test_host_is_matched_by_name_despite_other_interface_names() -> None:
    cables = wires(ethernet())
    renamed = {end: (far[0], "enp7s0np0") if far[0].startswith("gpu-") else far for end, far in cables.items()}
    assert found(ethernet(), lldp(ethernet(), renamed)) == []


def test_management_port_is_not_checked() -> None:
    cables = wires(ethernet())
    cables["rails-leaf-1", "eth0"] = ("office-switch", "12")
    assert found(ethernet(), lldp(ethernet(), cables)) == []


def test_neighbor_of_a_moved_cable_is_its_newest() -> None:
    """lldpd keeps the last one until its time to live is over."""
    rows = [
        {"Ethernet0": {**neighbor("gpu-1", "mlx5_0"), "age": "2 days, 03:04:05"}},
        {"Ethernet0": {**neighbor("gpu-2", "mlx5_0"), "age": "0 day, 00:00:59"}},
        {"Ethernet8": {**neighbor("gpu-3", "mlx5_0"), "age": "0 day, 00:01:00"}},
    ]
    report = read_cables(json.dumps({"lldp": {"interface": rows}}), "rails-leaf-1", {})
    assert [(cable.own.ports, cable.far.device) for cable in report.cables] == [
        (("Ethernet0",), "gpu-2.example.org"),
        (("Ethernet8",), "gpu-3.example.org"),
    ]


def test_rendered_netlist_matches_the_planned_fabric() -> None:
    plan = infiniband()
    files = {path.name: text for path, text in render_fabric(OpensmOptions(), plan.fabrics[0], plan).items()}
    assert found(plan, [read_cables(files["topology.net"], "", {})]) == []


@pytest.mark.parametrize("text", ["{}", "[1", "hello", ""])
def test_text_of_another_kind_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="line 1: "):
        read_cables(text, "rails-leaf-1", {})


def test_every_cable_is_in_the_table_the_graph_and_the_lab() -> None:
    plan = ethernet()
    rows = list(csv.DictReader(io.StringIO(csv_text(plan))))
    assert [(row["from"], row["from_port"], row["to"], row["to_port"]) for row in rows] == [
        (link.a, link.a_port, link.b, link.b_port) for link in plan.links
    ]
    assert {row["tier"] for row in rows} == {"node-leaf", "leaf-spine"}
    dot = dot_text(plan)
    assert all(f'"{link.a}":"{link.a_port}" -- "{link.b}":"{link.b_port}";' in dot for link in plan.links)
    laboratory = yaml.safe_load(containerlab_text(plan))["topology"]
    assert [link["endpoints"] for link in laboratory["links"]] == [
        [f"{link.a}:{link.a_port}", f"{link.b}:{link.b_port}"] for link in plan.links
    ]
    assert laboratory["nodes"].keys() == {switch.name for switch in plan.switches} | {node.name for node in plan.nodes}
    assert laboratory["nodes"]["rails-leaf-1"]["binds"] == ["switches/rails-leaf-1/frr.conf:/etc/frr/frr.conf"]


@pytest.mark.parametrize(("example", "switch_port"), [("cumulus", "swp2"), ("arista", "Ethernet1/5")])
def test_ports_have_the_names_that_the_operating_system_shows(
    example: str, switch_port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = str(Path("examples", example, "cluster.yaml"))
    assert main(["plan", cluster, "--cables", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert (rows[1]["from_port"], rows[1]["to"]) == (switch_port, "h100-2")
    seen = {row["from_port"]: neighbor(row["to"], row["to_port"]) for row in rows if row["from"] == "rails-leaf-1"}
    seen |= {row["to_port"]: neighbor(row["from"], row["from_port"]) for row in rows if row["to"] == "rails-leaf-1"}
    report = tmp_path / "rails-leaf-1.json"
    report.write_text(json.dumps({"lldp": {"interface": [{port: far} for port, far in seen.items()]}}))
    assert main(["verify-cabling", cluster, str(report)]) == 0
    report.write_text(report.read_text().replace('"h100-2"', '"h100-1"'))
    assert main(["verify-cabling", cluster, str(report)]) == 1
    assert switch_port in capsys.readouterr().out


CLUSTER = """
apiVersion: headway/v1alpha1
kind: Cluster
name: site
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 2, cpus: 8, gpu: H100-SXM-80, gpus: 2, nics: [mlx5_0, mlx5_1]}
fabrics:
  - {name: rails, role: scale-out, transport: infiniband, switches: {model: QM9700, os: [{kind: opensm}]}}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true}
"""


def test_verb_prints_differences_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, report = tmp_path / "cluster.yaml", tmp_path / "fabric.txt"
    cluster.write_text(CLUSTER)
    ports = "".join(f'[{n}]\t"H-{n}"[1](2)\t# "x" lid 1\n' for n in (1, 2, 4, 3))
    hosts = "".join(
        f'Ca\t1 "H-{n}"\t# "gpu-{(n + 1) // 2} mlx5_{(n - 1) % 2}"\n[1](2)\t"S-1"[{n}]\t# lid 1\n' for n in (1, 2, 3, 4)
    )
    report.write_text(f'Switch\t64 "S-1"\t\t# "rails-leaf-1" base port 0 lid 1 lmc 0\n{ports}\n{hosts}')
    assert main(["verify-cabling", str(cluster), str(report)]) == 0
    report.write_text(report.read_text().replace('[1]\t"H-1"', '[1]\t"H-9"').replace('"H-1"\t#', '"H-9"\t#'))
    assert main(["verify-cabling", str(cluster), str(report)]) == 0
    capsys.readouterr()
    text = report.read_text().replace('[2]\t"H-2"', '[2]\t"H-3"').replace('[3]\t"H-3"', '[3]\t"H-2"')
    text = text.replace('"S-1"[2]', '"S-1"[x]').replace('"S-1"[3]', '"S-1"[2]').replace('"S-1"[x]', '"S-1"[3]')
    report.write_text(text)
    assert main(["verify-cabling", str(cluster), str(report)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("swapped: the cables in ")
    assert err == "4 cables planned, 1 device read: 1 swapped\n"
    report.write_text("nothing")
    assert main(["verify-cabling", str(cluster), str(report)]) == 2
