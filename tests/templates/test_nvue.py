"""Cumulus Linux's startup.yaml reads back as the plan, and unsupported settings are rejected at their field."""

import json
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import Problem
from headway.templates.cluster import check_switches
from headway.templates.reading import EcnView
from headway.templates.switches.nvue import NVUE
from headway.templates.switches.nvue.options import NvueOptions
from headway.templates.switches.nvue.tree import Tree, members, read_tree, tree_text
from tests.templates.test_sonic import CLASSES, CNP, ROCE, cluster

BASE = """- set:
    interface:
      eth0:
        ipv4: {dhcp-client: {state: enabled}}
        type: eth
      lo: {ipv4: {address: {192.0.2.1/32: {}}}, description: 'the loopback'}
      swp1-64: {bridge: {domain: {br_default: {}}}, type: swp}
      swp65: {type: swp, link: {speed: 10G}}
    qos: {roce: {enable: on}, pfc: {other: {switch-priority: {'5': {}}}}}
    router:
      bgp: {autonomous-system: 65000}
      policy: {route-map: {EXIT: {rule: {'10': {action: {permit: {}}}}}}}
    system:
      hostname: cumulus
      config: {auto-save: {enable: on}}
    vrf:
      default: {router: {bgp: {neighbor: {swp64: {remote-as: external}}}, static: {0.0.0.0/0: {}}}}
"""


def fabric(classes: list[dict[str, Any]] | None = None, balancing: str = "ecmp", **switches: Any) -> ClusterPlan:
    return cluster(classes, **{"balancing": balancing, "os": [{"kind": "nvue"}], **switches})


def options(plan: ClusterPlan, **given: Any) -> NvueOptions:
    """Return options for every switch of the plan, with the base above."""
    chosen = NvueOptions.model_validate_json(json.dumps({"base": "base.yaml", **given}))
    return chosen.with_bases({switch.name: read_tree(BASE) for switch in plan.switches})


def text_of(plan: ClusterPlan, switch: SwitchPlan, chosen: NvueOptions | None = None) -> str:
    return NVUE.render(chosen or NvueOptions(), switch, plan)[PurePosixPath(NVUE.file)]


def tree_of(plan: ClusterPlan, switch: SwitchPlan, chosen: NvueOptions | None = None) -> dict[str, Any]:
    (document,) = yaml.load(text_of(plan, switch, chosen), yaml.CBaseLoader)
    found: dict[str, Any] = document["set"]
    return found


def problems(plan: ClusterPlan, **given: Any) -> list[Problem]:
    return list(check_switches(plan, {("rails", "nvue"): options(plan, **given)}))


def summary(found: Iterable[Problem]) -> set[tuple[str, str]]:
    return {(".".join(map(str, each.path)), each.message) for each in found}


# --- rendering --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["SN4700", "SN5600", "SN3700"])
@pytest.mark.parametrize("classes", [name for name, classes in CLASSES.items() if classes and "differ" not in name])
def test_rendered_files_read_back_as_the_plan(classes: str, model: str) -> None:
    plan = fabric(CLASSES[classes], model=model, speed="200Gb/s")
    qos = plan.fabric("rails").qos
    assert qos is not None
    assert problems(plan) == []
    marks = {each.queue: EcnView(each.ecn.min_bytes, each.ecn.max_bytes, each.ecn.percent) for each in qos.classes if each.ecn}
    for switch in plan.switches:
        reading = NVUE.read(text_of(plan, switch))
        device = reading.device
        assert device is not None
        assert device.bgp is not None
        assert (device.name, device.watches) == (switch.name, bool(qos.lossless_priorities))
        assert (device.bgp.asn, device.bgp.router_id, device.bgp.relaxes, device.bgp.hold_s) == (
            switch.asn,
            switch.router_id,
            True,
            9,
        )
        neighbors = device.bgp.neighbors or {}
        assert len(neighbors) == len(switch.uplinks)
        assert all(each.is_up and each.bfd and each.remote_as == "external" for each in neighbors.values())
        assert set(neighbors) < set(device.ports)
        for view in reading.qos.values():
            assert {each.dscp: view.queues[each.dscp] for each in qos.classes} == {each.dscp: each.queue for each in qos.classes}
            assert all(view.queues[dscp] == 0 for dscp in range(64) if qos.of_dscp(dscp) is None)
            assert {priority for priority, on in view.pfc.items() if on} == set(qos.lossless_priorities)
            assert {queue: view.ecn[queue] for queue in marks} == marks
            assert [queue for queue, ecn in view.ecn.items() if ecn is not None] == list(marks)
            assert {0: qos.rest_percent, **{each.queue: each.bandwidth_percent for each in qos.classes}}.items() <= (
                view.weights.items()
            )
        assert list(reading.faults()) == []


@pytest.mark.parametrize(
    ("model", "speed", "names", "breakouts"),
    [
        ("SN5400", "400Gb/s", ["swp1", "swp2", "swp33", "swp34"], {}),
        ("SN5600", "400Gb/s", ["swp1s0", "swp1s1", "swp33s0", "swp33s1"], {"swp1": "2x", "swp33": "2x"}),
        ("SN5600", "200Gb/s", ["swp1s0", "swp1s1", "swp33s0", "swp33s1"], {"swp1": "4x", "swp33": "4x"}),
        ("SN3700", "200Gb/s", ["swp1", "swp2", "swp17", "swp18"], {}),
        ("SN3700", "100Gb/s", ["swp1s0", "swp1s1", "swp17s0", "swp17s1"], {"swp1": "2x", "swp17": "2x"}),
    ],
)
def test_ports_are_breakouts_of_cages(model: str, speed: str, names: list[str], breakouts: dict[str, str]) -> None:
    plan = fabric(model=model, speed=speed)
    interfaces = tree_of(plan, plan.switches[0])["interface"]
    assert [name for name, row in interfaces.items() if "description" in row] == names
    found = {name: next(iter(row["link"]["breakout"])) for name, row in interfaces.items() if "breakout" in row.get("link", {})}
    assert found == breakouts
    speeds = {row["link"]["speed"] for row in interfaces.values() if "description" in row}
    assert speeds == {speed.replace("Gb/s", "G")}


def test_description_of_a_port_names_the_peer_and_its_port() -> None:
    plan = fabric(model="SN5600", speed="400Gb/s")
    described = {
        (switch.name, name): row["description"]
        for switch in plan.switches
        for name, row in tree_of(plan, switch)["interface"].items()
        if "description" in row
    }
    for (switch, name), text in described.items():
        peer, port = text.split()
        assert described.get((peer, port), f"{switch} {name}") == f"{switch} {name}"


def test_speed_is_forced_if_transceivers_do_not_negotiate() -> None:
    links = [
        next(row["link"] for name, row in tree_of(plan, plan.switches[0])["interface"].items() if name.startswith("swp1"))
        for plan in (fabric(model="SN4700"), fabric(model="SN5400"))
    ]
    assert ["auto-negotiate" in link for link in links] == [True, False]


def test_leaf_announces_its_loopback_and_its_node_links_as_one_network() -> None:
    plan = fabric()
    leaf, spine = plan.switches[0], plan.switches[-1]
    families = [tree_of(plan, each)["vrf"]["default"]["router"]["bgp"]["address-family"] for each in (leaf, spine)]
    assert list(families[0]["ipv4-unicast"]["network"]) == ["10.10.0.0/31", "10.10.0.2/31", f"{leaf.router_id}/32"]
    assert families[0]["ipv4-unicast"]["aggregate-route"] == {leaf.block: {"summary-only": "enabled"}}
    assert list(families[1]["ipv4-unicast"]["network"]) == [f"{spine.router_id}/32"]
    assert "aggregate-route" not in families[1]["ipv4-unicast"]


def test_headroom_is_computed_for_the_longest_cable() -> None:
    plan = fabric(spine_cable="70m")
    assert tree_of(plan, plan.switches[0])["qos"]["pfc"]["default-global"]["cable-length"] == "70"


def test_adaptive_routing_is_enabled_on_links_between_switches() -> None:
    plan = fabric(balancing="adaptive")
    tree = tree_of(plan, plan.switches[0])
    on = {name for name, row in tree["interface"].items() if row.get("router") == {"adaptive-routing": {"state": "enabled"}}}
    assert (tree["router"]["adaptive-routing"], on) == ({"state": "enabled"}, {"swp33", "swp34"})
    assert "adaptive-routing" not in tree_of(fabric(), fabric().switches[0])["router"]


def test_options_set_timers_and_buffer() -> None:
    plan = fabric()
    chosen = options(plan, bfd_ms=100, bfd_multiplier=5, hold_s=30, lossless_percent=80)
    tree = tree_of(plan, plan.switches[0], chosen)
    assert tree["router"]["bfd"]["profile"]["FABRIC"] == {
        "detect-multiplier": "5",
        "min-rx-interval": "100",
        "min-tx-interval": "100",
    }
    assert tree["vrf"]["default"]["router"]["bgp"]["peer-group"]["FABRIC"]["timers"]["hold"] == "30"
    assert tree["qos"]["traffic-pool"]["default-lossy"] == {"memory-percent": "20"}
    without = tree_of(plan, plan.switches[0], options(plan, bfd_ms=None))
    assert "bfd" not in without["router"]
    assert "bfd" not in without["vrf"]["default"]["router"]["bgp"]["peer-group"]["FABRIC"]


# --- the site's base --------------------------------------------------------------------------------------------------


def test_settings_of_the_base_are_kept_unless_headway_decides_them() -> None:
    plan = fabric()
    text = text_of(plan, plan.switches[0], options(plan, keep_ports=["swp65"]))
    (document,) = yaml.load(text, yaml.CBaseLoader)
    tree = document["set"]
    assert tree["interface"]["eth0"]["ipv4"] == {"dhcp-client": {"state": "enabled"}}
    assert tree["interface"]["lo"] == {
        "description": "the loopback",
        "ipv4": {"address": {f"{plan.switches[0].router_id}/32": {}}},
        "type": "loopback",
    }
    assert tree["interface"]["swp65"] == {"link": {"speed": "10G"}, "type": "swp"}
    assert [name for name in tree["interface"] if name.startswith("swp")] == ["swp1", "swp2", "swp33", "swp34", "swp65"]
    assert "bridge" not in tree["interface"]["swp1"]
    assert (tree["system"]["hostname"], "enable: on" in text) == (plan.switches[0].name, True)
    assert tree["router"]["policy"]["route-map"]["EXIT"]["rule"] == {"10": {"action": {"permit": {}}}}
    assert tree["router"]["bgp"]["autonomous-system"] == str(plan.switches[0].asn)
    assert "other" not in tree["qos"]["pfc"]
    assert tree["vrf"]["default"]["router"]["static"] == {"0.0.0.0/0": {}}
    assert "swp64" not in tree["vrf"]["default"]["router"]["bgp"]["neighbor"]
    assert "swp65" not in tree_of(plan, plan.switches[0], options(plan))["interface"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("interface: {}", "line 1: no YAML list with a `set`"),
        ("- set: [1]", "line 1: a list"),
        ("- set:\n    a: [x]", "line 2: a list"),
        ("- set: {a: {b}}\n- set: x", "line 2: `set` is not a tree"),
        ("- set: {", "line 2: not YAML"),
        ("- set: " + "{a: " * 40 + "b" + "}" * 40, "nested deeper"),
    ],
)
def test_base_in_another_form_is_rejected_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tree(text)


def test_tree_round_trips_through_its_text() -> None:
    words: Tree = {"a b": "on", "swp10": {}, "swp2": {"x": "yes: no", "y": 5}, "10": "1.5"}
    text = tree_text(words, ("a comment",))
    assert read_tree(text) == read_tree(tree_text(read_tree(text), ()))
    assert yaml.safe_load(text)[0]["set"] == words
    assert text.index("swp2") < text.index("swp10")
    with pytest.raises(ValueError, match="several lines"):
        tree_text(words, ("a\n- set: {}",))


def test_names_may_be_ranges() -> None:
    assert list(members("swp1-3,5,swp7s0-1")) == ["swp1", "swp2", "swp3", "5", "swp7s0", "swp7s1"]


# --- limits of Cumulus Linux ------------------------------------------------------------------------------------------


def test_lossless_queue_must_be_the_one_with_the_buffer() -> None:
    plan = fabric([{**ROCE, "priority": 4, "queue": 3}, CNP])
    assert problems(plan) == []
    pfc = tree_of(plan, plan.switches[0])["qos"]
    assert (
        pfc["pfc"]["default-global"]["switch-priority"],
        pfc["egress-queue-mapping"]["default-global"]["switch-priority"]["4"],
    ) == (
        {"4": {}},
        {"traffic-class": "3"},
    )
    found = summary(problems(fabric([{**ROCE, "queue": 5}, CNP])))
    assert found == {("fabrics.1.classes.0.queue", "Cumulus Linux has the lossless buffer in queue 3, but `roce` is in queue 5")}


def test_more_than_one_lossless_class_is_rejected() -> None:
    second = {"name": "bulk", "carries": "checkpoints", "dscp": 8, "lossless": True}
    ((path, message),) = summary(problems(fabric([ROCE, CNP, second])))
    assert path == "fabrics.1.classes.2.lossless"
    assert message == "Cumulus Linux keeps one buffer for lossless traffic, and another class before has it"


@pytest.mark.parametrize(
    ("model", "speed", "message"),
    [
        ("SN4700", "400Gb/s", "adaptive routing needs a Spectrum-4, but the SN4700 has a Spectrum-3"),
        ("SN5600", "800Gb/s", "adaptive routing needs links of 200 or 400Gb/s between switches, and these have 800Gb/s"),
    ],
)
def test_adaptive_routing_requires_its_asic_and_speeds(model: str, speed: str, message: str) -> None:
    assert summary(problems(fabric(balancing="adaptive", model=model, speed=speed))) == {("fabrics.1.balancing", message)}


def test_kept_port_must_be_in_the_base_and_not_in_the_plan() -> None:
    found = summary(problems(fabric(), keep_ports=["swp1", "swp66"]))
    leaf = "rails-leaf-1"
    assert (
        "fabrics.1.switches.os.0.options.keep_ports.0",
        f"`swp1` of `{leaf}` has a planned cable, so it cannot stay as the base has it",
    ) in found
    assert (
        "fabrics.1.switches.os.0.options.keep_ports.1",
        f"`swp66` is to stay as the base of `{leaf}` has it, which has no such port",
    ) in found
