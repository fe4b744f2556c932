"""Arista's startup-config: AVD validates the same settings and renders the same commands; unsupported settings are rejected."""

import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import Problem
from headway.templates.cluster import check_switches
from headway.templates.reading import EcnView
from headway.templates.switches.eos import EOS
from headway.templates.switches.eos.blocks import read_blocks
from headway.templates.switches.eos.options import EosOptions
from headway.templates.switches.eos.render import SPEEDS, structured
from tests.templates.test_sonic import CLASSES, CNP, ROCE, cluster

AVD = Path(__file__).parents[2] / ".venv-peers/avd/bin/python"
PROGRAM = Path(__file__).with_name("avd.py")
needs_avd = pytest.mark.skipif(not AVD.exists(), reason="make .venv-peers/avd/installed.stamp")

BASE = """! Command: show running-config
!
hostname localhost
username admin role network-admin nopassword
!
interface Ethernet1/1
   switchport access vlan 100
!
interface Ethernet65
   no switchport
   ip address 192.0.2.9/31
!
interface Management1
   ip address 192.0.2.1/24
!
qos map dscp 46 to traffic-class 5
!
ip route 0.0.0.0/0 192.0.2.254
no ip routing
!
router bgp 65000
   neighbor 192.0.2.8 remote-as 65001
!
end
"""


def fabric(classes: list[dict[str, Any]] | None = None, balancing: str = "ecmp", **switches: Any) -> ClusterPlan:
    return cluster(classes, **{"balancing": balancing, "model": "7060X6-64PE", "os": [{"kind": "eos"}], **switches})


def options(plan: ClusterPlan, base: str = BASE, **given: Any) -> EosOptions:
    """Return options for every switch of the plan, with the base."""
    chosen = EosOptions.model_validate_json(json.dumps({"base": "base.cfg", **given}))
    return chosen.with_bases({switch.name: read_blocks(base) for switch in plan.switches})


def text_of(plan: ClusterPlan, switch: SwitchPlan, chosen: EosOptions | None = None) -> str:
    return EOS.render(chosen or EosOptions(), switch, plan)[PurePosixPath(EOS.file)]


def problems(plan: ClusterPlan, **given: Any) -> list[Problem]:
    return list(check_switches(plan, {("rails", "eos"): options(plan, **given)}))


def summary(found: Iterable[Problem]) -> set[tuple[str, str]]:
    return {(".".join(map(str, each.path)), each.message) for each in found}


def commands(text: str) -> Iterator[tuple[str, ...]]:
    """Yield each command with those above it."""
    inside: list[tuple[int, str]] = []
    for line in text.splitlines():
        words = line.strip()
        if words and not words.startswith("!") and words != "end":
            indent = len(line) - len(line.lstrip())
            while inside and inside[-1][0] >= indent:
                inside.pop()
            inside.append((indent, words))
            yield tuple(each for _, each in inside)


# --- rendering --------------------------------------------------------------------------------------------------------

FABRICS = {
    "lossless": fabric(),
    "lossy, by load": fabric(CLASSES["lossy"], balancing="dlb"),
    "another priority": fabric([{**ROCE, "priority": 4, "queue": 3}, CNP]),
    "no classes": fabric([]),
    "800G": fabric(speed="800Gb/s"),
    "two speeds": fabric(speed="200Gb/s", uplink_speed="800Gb/s"),
}


@needs_avd
@pytest.mark.slow
def test_avd_validates_the_settings_and_renders_the_same_commands() -> None:
    chosen = EosOptions(guaranteed_percent=1)
    switches = [(plan, plan.switches[-1 if name == "800G" else 0]) for name, plan in FABRICS.items()]
    wrong = structured(chosen, switches[0][1], switches[0][0])
    wrong["qos_profiles"] = [{"name": "ROCE", "priority_flow_control": {"priorities": [{"priority": 9}]}}]
    settings = [structured(chosen, switch, plan) for plan, switch in switches]
    done = subprocess.run([AVD, PROGRAM], input=json.dumps([*settings, wrong]), capture_output=True, text=True, check=True)
    *found, refused = json.loads(done.stdout)
    assert [each["errors"] for each in found] == [[]] * len(switches)
    assert refused["errors"] != []
    for (plan, switch), each in zip(switches, found, strict=True):
        assert set(commands(each["text"])) == set(commands(text_of(plan, switch, chosen)))


@pytest.mark.parametrize("classes", [name for name, classes in CLASSES.items() if classes and "differ" not in name])
def test_rendered_files_read_back_as_the_plan(classes: str) -> None:
    plan = fabric(CLASSES[classes])
    qos = plan.fabric("rails").qos
    assert qos is not None
    assert problems(plan) == []
    marks = {each.queue: EcnView(each.ecn.min_bytes, each.ecn.max_bytes, each.ecn.percent) for each in qos.classes if each.ecn}
    for switch in plan.switches:
        reading = EOS.read(text_of(plan, switch))
        device = reading.device
        assert device is not None
        assert device.bgp is not None
        assert (device.name, device.bgp.asn, device.bgp.router_id) == (switch.name, switch.asn, switch.router_id)
        assert (device.bgp.max_paths, device.bgp.relaxes, device.watches) == (128, True, bool(qos.lossless_priorities))
        neighbors = device.bgp.neighbors or {}
        assert [each.remote_as for each in neighbors.values()] == [plan.switch_asns[port.peer] for port in switch.uplinks]
        assert all(each.is_up and each.bfd and each.hold_s == 9 for each in neighbors.values())
        assert set(neighbors) < set(device.ports)
        assert sum(port.enabled is True for port in device.ports.values()) == len(switch.ports) + 1
        for view in reading.qos.values():
            assert view.queues == {dscp: each.queue if (each := qos.of_dscp(dscp)) else 0 for dscp in range(64)}
            assert {priority for priority, on in view.pfc.items() if on} == set(qos.lossless_priorities)
            assert {queue: ecn for queue, ecn in view.ecn.items() if ecn is not None} == marks
            assert view.weights == {0: qos.rest_percent, **{each.queue: each.bandwidth_percent for each in qos.classes}}
        assert list(reading.faults()) == []


def test_class_whose_queue_differs_from_its_number_is_mapped() -> None:
    plan = FABRICS["another priority"]
    text = text_of(plan, plan.switches[0])
    assert "qos map dscp 26 to traffic-class 4\n" in text
    assert "qos map traffic-class 4 to tx-queue 3\n" in text
    assert "   priority-flow-control priority 4 no-drop\n   priority-flow-control pause watchdog\n" in text
    assert "traffic-class" not in text_of(FABRICS["no classes"], plan.switches[0])


@pytest.mark.parametrize(
    ("switches", "ports", "speeds"),
    [
        ({"speed": "800Gb/s"}, ["Ethernet1/1", "Ethernet2/1", "Ethernet33/1", "Ethernet34/1"], {"800g-8"}),
        ({"speed": "400Gb/s"}, ["Ethernet1/1", "Ethernet1/5", "Ethernet33/1", "Ethernet33/5"], {"400g-4"}),
        ({"speed": "200Gb/s"}, ["Ethernet1/1", "Ethernet1/3", "Ethernet33/1", "Ethernet33/3"], {"200g-2"}),
        ({"speed": "400Gb/s", "lanes": 8}, ["Ethernet1/1", "Ethernet2/1", "Ethernet33/1", "Ethernet34/1"], {"400g-8"}),
    ],
)
def test_ports_are_named_by_cage_and_lane_and_others_are_shut_down(
    switches: dict[str, Any], ports: list[str], speeds: set[str]
) -> None:
    plan = fabric(**switches)
    settings = structured(EosOptions(), plan.switches[0], plan)["ethernet_interfaces"]
    up = [port for port in settings if not port["shutdown"]]
    assert ([port["name"] for port in up], {port["speed"] for port in up}) == (ports, speeds)
    shut = {port["name"] for port in settings if port["shutdown"]}
    parts = {name.partition("/")[0] for name in ports}
    assert {f"Ethernet{cage}/1" for cage in range(1, 65)} - {f"{name}/1" for name in parts} <= shut
    assert len(shut) + len(up) == 64 + sum(8 // int(each.split("-")[1]) - 1 for each in speeds) * len(parts)


def test_leaf_announces_its_loopback_and_its_node_links_as_one_network() -> None:
    plan = fabric()
    leaf = plan.switches[0]
    lines = text_of(plan, leaf).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("      network ")] == [
        f"{leaf.router_id}/32",
        "10.10.0.0/31",
        "10.10.0.2/31",
    ]
    assert f"   aggregate-address {leaf.block} summary-only" in lines
    assert not any("aggregate-address" in line for line in text_of(plan, plan.switches[-1]).splitlines())


def test_options_set_timers_guaranteed_bandwidth_and_balancing() -> None:
    plan = fabric(balancing="dlb")
    text = text_of(plan, plan.switches[0], EosOptions(bfd_ms=100, bfd_multiplier=5, hold_s=30, guaranteed_percent=2))
    assert "   neighbor FABRIC bfd interval 100 min-rx 100 multiplier 5\n   neighbor FABRIC timers 10 30\n" in text
    assert text.count("      bandwidth guaranteed percent 2\n") == 1
    assert "ip hardware fib load-balance distribution dynamic\n" in text
    without = text_of(fabric(), plan.switches[0], EosOptions(bfd_ms=None))
    assert "bfd" not in without
    assert "distribution" not in without


# --- the site's base --------------------------------------------------------------------------------------------------


def test_settings_of_the_base_are_kept_unless_headway_decides_them() -> None:
    plan = fabric()
    found = set(commands(text_of(plan, plan.switches[0], options(plan, keep_ports=["Ethernet65"]))))
    assert {
        ("username admin role network-admin nopassword",),
        ("interface Management1", "ip address 192.0.2.1/24"),
        ("interface Ethernet65", "ip address 192.0.2.9/31"),
        ("ip route 0.0.0.0/0 192.0.2.254",),
        (f"hostname {plan.switches[0].name}",),
    } <= found
    gone = ["hostname localhost", "no ip routing", "router bgp 65000", "qos map dscp 46 to traffic-class 5"]
    assert not {line for path in found for line in path} & {*gone, "switchport access vlan 100"}
    without = set(commands(text_of(plan, plan.switches[0], options(plan))))
    assert ("interface Ethernet65",) not in without


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("   mtu 9214\n", "line 1: an indented line"),
        ("!\n!\n", "no command"),
        ("hostname a\n{\n", "line 2: not a command of EOS"),
    ],
)
def test_base_in_another_form_is_rejected_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_blocks(text)


# --- limits of EOS ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "path", "message"),
    [
        (
            [{**ROCE, "priority": 7, "queue": 3}, CNP],
            "classes.0.priority",
            "EOS keeps traffic class 7 for its control plane, and `roce` has it",
        ),
        ([ROCE, {**CNP, "queue": 7}], "classes.1.queue", "EOS keeps queue 7 for its control plane, and `cnp` has it"),
        (
            [ROCE, {**CNP, "queue": 2}],
            "classes.1.queue",
            "queue 2 of `cnp` goes first, but in EOS no queue below a shared one does",
        ),
    ],
)
def test_queue_that_eos_does_not_have_is_a_problem_of_its_field(classes: list[dict[str, Any]], path: str, message: str) -> None:
    assert summary(problems(fabric(classes))) == {(f"fabrics.1.{path}", message)}


def test_speed_that_eos_does_not_have_is_a_problem() -> None:
    assert (100, 8) not in SPEEDS
    assert summary(problems(fabric(speed="100Gb/s", lanes=8, uplink_speed="800Gb/s"))) == {
        ("fabrics.1.switches.speed", "EOS has no port of 100Gb/s over 8 lanes")
    }


def test_kept_port_must_be_in_the_base_and_not_in_the_plan() -> None:
    found = summary(problems(fabric(), keep_ports=["Ethernet1/1", "Ethernet66"]))
    at = "fabrics.1.switches.os.0.options.keep_ports"
    leaf = "rails-leaf-1"
    assert (f"{at}.0", f"`Ethernet1/1` of `{leaf}` has a planned cable, so it cannot stay as the base has it") in found
    assert (f"{at}.1", f"`Ethernet66` is to stay as the base of `{leaf}` has it, which has no such port") in found
