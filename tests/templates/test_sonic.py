"""SONiC's config_db.json: its YANG models accept the rendered files, which read back as the plan; mistakes are found."""

import contextlib
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.jobspec.plan import ClusterPlan, QosPlan, SwitchPlan
from headway.jobspec.problem import Severity
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.spec.cluster import Cluster
from headway.templates.reading import EcnView, QosView, RoutingView
from headway.templates.switches.sonic import SONIC
from headway.templates.switches.sonic.options import SonicOptions
from tests.real.sonic.yang import SonicModels, models, obstacle

EXAMPLES = Path(__file__).parents[2] / "examples"
ROCE = {
    "name": "roce",
    "carries": "collectives",
    "dscp": 26,
    "lossless": True,
    "ecn": {"min": "150kB", "max": "1500kB", "percent": 7},
    "bandwidth_percent": 60,
}
CNP = {"name": "cnp", "carries": "cnp", "dscp": 48}
CLASSES: dict[str, list[dict[str, Any]]] = {
    "lossless": [ROCE, CNP],
    "queue and priority differ": [{**ROCE, "queue": 5}, {**CNP, "queue": 7}],
    "lossy": [{**ROCE, "lossless": False}, CNP],
    "neither paused nor marked": [{"name": "roce", "carries": "collectives", "dscp": 26}],
    "none": [],
}


def cluster(
    classes: list[dict[str, Any]] | None = None, nodes: int = 2, fabric: str = "rails", balancing: str = "ecmp", **switches: Any
) -> ClusterPlan:
    document = {
        "apiVersion": "headway/v1alpha1",
        "kind": "Cluster",
        "name": "lab",
        "scheduler": {"kind": "local"},
        "node_groups": [{"name": "gpu", "count": nodes, "cpus": 8, "gpu": "H100", "gpus": 2, "nics": ["mlx5_0", "mlx5_1"]}],
        "fabrics": [
            {"name": "admin", "role": "management", "transport": "tcp", "interface": "eth0"},
            {
                "name": fabric,
                "role": "scale-out",
                "transport": "roce",
                "balancing": balancing,
                "classes": [ROCE, CNP] if classes is None else classes,
                "switches": {
                    "model": "SN5400",
                    "leaves": 2,
                    "spines": 2,
                    "addresses": "10.10.0.0/16",
                    "os": [{"kind": "frr"}, {"kind": "sonic"}],
                    **switches,
                },
            },
        ],
    }
    return resolve_cluster(Cluster.model_validate_json(json.dumps(document)))


BASE: dict[str, dict[str, Any]] = {
    "DEVICE_METADATA": {"localhost": {"mac": "02:00:5e:00:00:01"}},
    "MGMT_PORT": {"eth0": {"admin_status": "up"}},
    "MGMT_INTERFACE": {"eth0|192.0.2.1/24": {"gwaddr": "192.0.2.254"}},
}


def options(plan: ClusterPlan, base: dict[str, Any] | None = None, **given: Any) -> SonicOptions:
    """Return options for every switch of the plan, each with a separate base."""
    chosen = SonicOptions.model_validate_json(json.dumps({"base": "base/{switch}.json", **given}))
    return chosen.with_bases({switch.name: BASE if base is None else base for switch in plan.switches})


def rendered(plan: ClusterPlan, switch: SwitchPlan, chosen: SonicOptions | None = None) -> str:
    return SONIC.render(chosen or SonicOptions(), switch, plan)[PurePosixPath(SONIC.file)]


def leaf() -> dict[str, dict[str, Any]]:
    """Return the tables of the first leaf."""
    plan = cluster()
    document: dict[str, dict[str, Any]] = json.loads(rendered(plan, plan.switches[0]))
    return document


def view_of(tables: dict[str, Any], port: str = "Ethernet0") -> QosView:
    return SONIC.read(json.dumps(tables)).qos[port]


@pytest.fixture(scope="module")
def sonic_models() -> SonicModels:
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    return models()


# --- rendering --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", ["SN5400", "Z9664F-ON"])
@pytest.mark.parametrize("classes", CLASSES)
def test_models_of_sonic_accept_every_rendered_file(sonic_models: SonicModels, classes: str, model: str) -> None:
    plan = cluster(CLASSES[classes], model=model)
    for base in (None, options(plan)):
        texts = [rendered(plan, switch, base) for switch in plan.switches]
        assert [sonic_models.complaints(text) for text in texts] == [[], [], [], []]


@pytest.mark.slow
def test_models_of_sonic_accept_a_switch_with_all_ports_in_use(sonic_models: SonicModels) -> None:
    plan = cluster(nodes=32, spines=32)
    text = rendered(plan, plan.switches[0])
    ports = json.loads(text)["PORT"]
    assert [name for name, row in ports.items() if row["admin_status"] == "down"] == ["Ethernet512", "Ethernet520"]
    assert len(ports) == 66
    assert sonic_models.complaints(text) == []


@pytest.mark.slow
def test_models_of_sonic_accept_every_committed_file(sonic_models: SonicModels) -> None:
    committed = sorted(EXAMPLES.glob(f"*/rendered/**/{SONIC.file}"))
    assert committed
    assert {path: complaints for path in committed if (complaints := sonic_models.complaints(path.read_text()))} == {}


def test_rendering_is_repeatable_and_in_natural_order() -> None:
    plan = cluster(nodes=32)
    text = rendered(plan, plan.switches[0])
    assert rendered(cluster(nodes=32), plan.switches[0]) == text
    document = json.loads(text)
    assert list(document) == sorted(document)
    assert list(document["QUEUE"])[::3] == [f"{port.name}|0" for port in plan.switches[0].ports]
    assert list(document["PORT"])[:3] == ["Ethernet0", "Ethernet8", "Ethernet16"]
    assert list(document["DSCP_TO_TC_MAP"]["AZURE"]) == [str(dscp) for dscp in range(64)]


def test_buffer_model_follows_from_the_switch_model() -> None:
    found = {}
    for model, speed in (("SN5400", "400Gb/s"), ("Z9664F-ON", "400Gb/s"), ("7060X6-64PE", "800Gb/s")):
        plan = cluster(model=model, speed=speed)
        found[model] = json.loads(rendered(plan, plan.switches[0]))
    dynamic, static, of_sai = ({name for name in tables if name.startswith("BUFFER_")} for tables in found.values())
    assert (len(dynamic), static, of_sai) == (6, {"BUFFER_POOL", "BUFFER_PROFILE", "BUFFER_PG", "BUFFER_QUEUE"}, set())
    assert [tables["DEVICE_METADATA"]["localhost"]["buffer_model"] for tables in found.values()] == [
        "dynamic",
        "traditional",
        "traditional",
    ]
    assert {model for model, tables in found.items() if "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP" in tables} == {"SN5400"}


def test_port_without_a_planned_cable_is_shut_down_without_address() -> None:
    tables = leaf()
    used = {"Ethernet0", "Ethernet8", "Ethernet256", "Ethernet264"}
    assert {name for name, row in tables["PORT"].items() if row["admin_status"] == "up"} == used
    for table in ("INTERFACE", "QUEUE", "BUFFER_PG", "BUFFER_QUEUE", "PORT_QOS_MAP", "PFC_WD", "DEVICE_NEIGHBOR"):
        assert {key.partition("|")[0] for key in tables[table]} - {"global", "GLOBAL"} == used


def test_watchdog_waits_longer_with_more_ports_to_poll() -> None:
    """`pfcwd start_default`: 200 ms for every 32 ports, and polls at most every second."""
    found = {}
    for model, speed in (("SN4700", "400Gb/s"), ("SN5400", "400Gb/s"), ("SN5600", "400Gb/s"), ("SN5600", "200Gb/s")):
        plan = cluster(model=model, speed=speed, ports=32)
        rows = json.loads(rendered(plan, plan.switches[0]))["PFC_WD"]
        found[model, speed] = (rows["GLOBAL"]["POLL_INTERVAL"], rows["Ethernet0"]["detection_time"])
    assert list(found.values()) == [("200", "200"), ("400", "400"), ("800", "800"), ("1000", "1600")]


def test_frr_reads_its_own_file_and_bfd_runs() -> None:
    """docker-fpm-frr: docker_init.sh keeps an frr.conf in this mode only, and supervisord starts bfdd with this flag only."""
    plan = cluster()
    tables = leaf()
    device = tables["DEVICE_METADATA"]["localhost"]
    assert (device["docker_routing_config_mode"], device["frr_mgmt_framework_config"]) == ("split-unified", "true")
    assert not [name for name in tables if name.startswith("BGP_")]
    text = SONIC.render(SonicOptions(), plan.switches[0], plan)[PurePosixPath("frr/frr.conf")]
    lines = text.splitlines()
    assert {"no zebra nexthop kernel enable", "no fpm use-next-hop-groups", "fpm address 127.0.0.1"} <= set(lines)
    # intfmgrd sets addresses, from the other file.
    assert not [line for line in lines if "ip address" in line or "ip forwarding" in line]


# --- the site's base --------------------------------------------------------------------------------------------------

PRESET: dict[str, dict[str, Any]] = {
    "DEVICE_METADATA": {"localhost": {"mac": "02:00:5e:00:00:01", "hostname": "sonic", "type": "LeafRouter", "timezone": "UTC"}},
    "MGMT_INTERFACE": {"eth0|192.0.2.1/24": {"gwaddr": "192.0.2.254"}},
    "FEATURE": {"telemetry": {"state": "disabled"}},
    "PORT": {"Ethernet512": {"lanes": "512", "alias": "etp65", "index": "65", "speed": "10000", "admin_status": "up"}},
    "INTERFACE": {"Ethernet0": {}, "Ethernet0|10.0.0.0/31": {}, "Ethernet512": {}, "Ethernet512|192.0.2.128/31": {}},
    "LOOPBACK_INTERFACE": {"Loopback0": {}, "Loopback0|10.1.0.1/32": {}, "Loopback1": {}, "Loopback1|192.0.2.9/32": {}},
    "BGP_NEIGHBOR": {"10.0.0.1": {"asn": "65200", "local_addr": "10.0.0.0"}},
    "VLAN": {"Vlan1000": {}},
    "VLAN_MEMBER": {"Vlan1000|Ethernet8": {"tagging_mode": "untagged"}, "Vlan1000|Ethernet512": {"tagging_mode": "untagged"}},
    "BUFFER_PG": {"Ethernet0|3-4": {"profile": "NULL"}},
    "BUFFER_QUEUE": {"Ethernet0|3-4": {"profile": "egress_lossless_profile"}},
    "QUEUE": {"Ethernet0|1": {"scheduler": "scheduler.0"}},
    "SCHEDULER": {"scheduler.0": {"type": "DWRR", "weight": "14"}},
    "SFLOW_SESSION": {"Ethernet0": {"admin_state": "up"}, "Ethernet4": {"admin_state": "up"}},
    "ACL_TABLE": {"SNMP": {"type": "CTRLPLANE", "ports": ["Ethernet0", "Ethernet4"]}},
}


def test_settings_of_the_base_are_kept_except_those_of_a_preset() -> None:
    plan = cluster()
    found = json.loads(rendered(plan, plan.switches[0], options(plan, PRESET)))
    own = json.loads(rendered(plan, plan.switches[0]))
    device = found["DEVICE_METADATA"]["localhost"]
    assert (device["mac"], device["timezone"], device["hostname"], device["type"]) == (
        "02:00:5e:00:00:01",
        "UTC",
        "rails-leaf-1",
        "ToRRouter",
    )
    assert {name: found[name] for name in ("MGMT_INTERFACE", "FEATURE", "VLAN")} == {
        name: PRESET[name] for name in ("MGMT_INTERFACE", "FEATURE", "VLAN")
    }
    for table in ("PORT", "INTERFACE", "QUEUE", "SCHEDULER", "BUFFER_PG", "BUFFER_QUEUE"):
        assert found[table] == own[table]
    assert not {"BGP_NEIGHBOR", "VLAN_MEMBER"} & found.keys()
    assert list(found["LOOPBACK_INTERFACE"]) == ["Loopback0", "Loopback0|10.255.128.1/32", "Loopback1", "Loopback1|192.0.2.9/32"]
    # A port that this breakout does not have.
    assert found["SFLOW_SESSION"] == {"Ethernet0": {"admin_state": "up"}}
    assert found["ACL_TABLE"]["SNMP"]["ports"] == ["Ethernet0"]


def test_kept_port_is_unchanged_from_the_base() -> None:
    plan = cluster()
    found = json.loads(rendered(plan, plan.switches[0], options(plan, PRESET, keep_ports=["Ethernet512"])))
    assert found["PORT"]["Ethernet512"] == PRESET["PORT"]["Ethernet512"]
    assert found["INTERFACE"]["Ethernet512|192.0.2.128/31"] == {}
    assert list(found["VLAN_MEMBER"]) == ["Vlan1000|Ethernet512"]


def test_device_unknown_to_sonic_has_the_ports_and_buffers_of_its_base() -> None:
    ports = {f"Ethernet{8 * port}": {"lanes": f"{port}", "alias": f"Eth1/{port}", "index": f"{port}"} for port in range(64)}
    lanes = {name: {**row, "lanes": ",".join([row["lanes"]] * 8)} for name, row in ports.items()}
    base = {
        "DEVICE_METADATA": {"localhost": {"platform": "x86_64-cls_ds5000-r0", "hwsku": "DS5000"}},
        "PORT": lanes,
        "BUFFER_POOL": {"egress_lossless_pool": {"size": "1000"}},
        "BUFFER_PROFILE": {"egress_lossless_profile": {"pool": "egress_lossless_pool", "size": "0"}},
    }
    plan = cluster(model="DS5000", speed="800Gb/s")
    chosen = options(plan, base)
    assert list(SONIC.check(chosen, plan.switches[0], plan)) == []
    found = json.loads(rendered(plan, plan.switches[0], chosen))
    assert found["PORT"]["Ethernet264"]["alias"] == "Eth1/33"
    assert (found["PORT"]["Ethernet264"]["admin_status"], found["PORT"]["Ethernet16"]["admin_status"]) == ("up", "down")
    assert found["BUFFER_POOL"] == base["BUFFER_POOL"]
    ((code, path, _, message),) = set(problems(plan))
    assert (code, path[-1]) == ("HW513", "base")
    assert message == "headway has no SONiC device of the model `DS5000`: its HwSKU, ports and buffers are unknown"


# --- reading back -----------------------------------------------------------------------------------------------------


SAYS = frozenset(
    {
        "queue of DSCP",
        "priority group of DSCP",
        "PFC of priority",
        "queue that PFC pauses for priority",
        "marking of queue",
        "bandwidth of queue",
    }
)


def expected(qos: QosPlan) -> QosView:
    """Return the view of every port if the file matches the plan."""
    classes = {dscp: qos.of_dscp(dscp) for dscp in range(64)}
    marks = {each.queue: EcnView(each.ecn.min_bytes, each.ecn.max_bytes, each.ecn.percent) for each in qos.classes if each.ecn}
    return QosView(
        priorities={dscp: each.priority if each else 0 for dscp, each in classes.items()},
        queues={dscp: each.queue if each else 0 for dscp, each in classes.items()},
        groups={dscp: each.priority_group if each else 0 for dscp, each in classes.items()},
        pfc={priority: priority in qos.lossless_priorities for priority in range(8)},
        paused_queues={0: 0, **{each.priority: each.queue for each in qos.classes}},
        ecn={0: None, **{each.queue: marks.get(each.queue) for each in qos.classes}},
        weights={0: qos.rest_percent, **{each.queue: each.bandwidth_percent for each in qos.classes}},
        says=SAYS,
    )


@pytest.mark.parametrize("model", ["SN5400", "Z9664F-ON"])
@pytest.mark.parametrize("classes", [name for name, classes in CLASSES.items() if classes])
def test_rendered_files_read_back_as_the_plan(classes: str, model: str) -> None:
    plan = cluster(CLASSES[classes], model=model)
    qos = plan.fabric("rails").qos
    assert qos is not None
    for switch in plan.switches:
        reading = SONIC.read(rendered(plan, switch))
        assert {port.name: reading.qos[port.name] for port in switch.ports} == {port.name: expected(qos) for port in switch.ports}
        others = [view for name, view in reading.qos.items() if name not in {port.name for port in switch.ports}]
        assert not any(view.says or view.queues.keys() - range(64) for view in others)
        assert reading.routing == RoutingView(switch.asn, switch.router_id)


def test_fabric_without_classes_has_ports_without_qos() -> None:
    plan = cluster([])
    reading = SONIC.read(rendered(plan, plan.switches[0]))
    found = {name: view for name, view in reading.qos.items() if view != QosView()}
    assert found == dict.fromkeys(["Ethernet0", "Ethernet8", "Ethernet256", "Ethernet264"], QosView(says=SAYS))


def test_every_setting_has_its_line() -> None:
    plan = cluster()
    text = rendered(plan, plan.switches[0])
    lines = text.splitlines()
    settings = SONIC.read(text).settings
    assert settings["PORT|Ethernet256|speed"].value == "400000"
    assert settings["INTERFACE|Ethernet0|10.10.0.0/31"].value == ""
    assert settings["SWITCH_HASH|GLOBAL|ecmp_hash"].value == "SRC_IP,DST_IP,IP_PROTOCOL,L4_SRC_PORT,L4_DST_PORT"
    for place, setting in settings.items():
        key = re.match(r'\s*"([^"]+)": ', lines[setting.line - 1])
        assert key is not None
        assert place.endswith(key[1])
    assert len({setting.line for setting in settings.values()}) == len(settings)


def test_settings_on_one_line_have_that_line() -> None:
    text = (
        '\n{"PORT": {"Ethernet0": {"speed": "1", "mtu": 9216, "up": true, "lists": [["{"], {"a": "b"}]}},\n"QUEUE": {}, "x": []}'
    )
    settings = {place: (setting.value, setting.line) for place, setting in SONIC.read(text).settings.items()}
    assert settings == {
        "PORT|Ethernet0|speed": ("1", 2),
        "PORT|Ethernet0|mtu": ("9216", 2),
        "PORT|Ethernet0|up": ("true", 2),
        "PORT|Ethernet0|lists": ('{,{"a": "b"}', 2),
        "QUEUE": ("", 3),
        "x": ("", 3),
    }


# --- mistakes that the YANG models accept -----------------------------------------------------------------------------


@pytest.mark.slow
def test_class_whose_pause_stops_another_queue_is_visible(sonic_models: SonicModels) -> None:
    tables = leaf()
    tables["TC_TO_QUEUE_MAP"]["AZURE"]["3"] = "5"
    assert sonic_models.complaints(json.dumps(tables)) == []
    view = view_of(tables)
    assert (view.queues[26], view.paused_queues[3], view.pfc[3]) == (5, 3, True)
    assert 26 not in view.priorities
    tables["MAP_PFC_PRIORITY_TO_QUEUE"]["AZURE"]["5"] = "5"
    assert (view_of(tables).priorities[26], view_of(tables).pfc[5]) == (5, False)


@pytest.mark.slow
def test_invalid_speed_of_a_port_is_visible(sonic_models: SonicModels) -> None:
    tables = leaf()
    tables["PORT"]["Ethernet0"]["speed"] = "999999"
    assert sonic_models.complaints(json.dumps(tables)) == []
    assert SONIC.read(json.dumps(tables)).settings["PORT|Ethernet0|speed"].value == "999999"


@pytest.mark.slow
def test_paused_priority_without_its_own_group_is_visible(sonic_models: SonicModels) -> None:
    tables = leaf()
    del tables["TC_TO_PRIORITY_GROUP_MAP"]["AZURE"]["3"]
    assert sonic_models.complaints(json.dumps(tables)) == []
    assert 26 not in view_of(tables).groups
    tables["TC_TO_PRIORITY_GROUP_MAP"]["AZURE"]["3"] = "0"
    assert view_of(tables).groups[26] == 0
    assert view_of(tables).pfc[3]


@pytest.mark.slow
@pytest.mark.parametrize("profile", [None, "ingress_lossy_profile"])
def test_paused_priority_without_headroom_is_not_lossless(sonic_models: SonicModels, profile: str | None) -> None:
    tables = leaf()
    del tables["BUFFER_PG"]["Ethernet0|3"]
    if profile is not None:
        tables["BUFFER_PG"]["Ethernet0|3"] = {"profile": profile}
    assert sonic_models.complaints(json.dumps(tables)) == []
    assert not view_of(tables).pfc[3]
    assert view_of(tables, "Ethernet8").pfc[3]


@pytest.mark.slow
def test_priority_that_pauses_for_another_group_is_not_lossless(sonic_models: SonicModels) -> None:
    tables = leaf()
    tables["PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"]["AZURE"]["3"] = "4"
    assert sonic_models.complaints(json.dumps(tables)) == []
    assert not view_of(tables).pfc[3]


@pytest.mark.slow
def test_priority_without_pfc_is_not_lossless(sonic_models: SonicModels) -> None:
    tables = leaf()
    tables["PORT_QOS_MAP"]["Ethernet0"]["pfc_enable"] = ""
    assert sonic_models.complaints(json.dumps(tables)) == []
    assert view_of(tables).pfc == dict.fromkeys(range(8), False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "row", "field", "value"),
    [
        ("WRED_PROFILE", "queue3", "wred_green_enable", "false"),
        ("WRED_PROFILE", "queue3", "wred_green_enable", None),
        ("WRED_PROFILE", "queue3", "ecn", "ecn_none"),
        ("WRED_PROFILE", "queue3", "ecn", "ecn_yellow_red"),
        ("QUEUE", "Ethernet0|3", "wred_profile", None),
    ],
)
def test_queue_that_never_marks_is_visible(
    sonic_models: SonicModels, table: str, row: str, field: str, value: str | None
) -> None:
    tables = leaf()
    tables[table][row].pop(field)
    if value is not None:
        tables[table][row][field] = value
    assert sonic_models.complaints(json.dumps(tables)) == []
    assert view_of(tables).ecn == {0: None, 3: None, 6: None}


FRRCFGD: dict[str, dict[str, Any]] = {
    "DEVICE_METADATA": {"localhost": {"frr_mgmt_framework_config": "true"}},
    "PORT": {port: {"lanes": lane, "speed": "25000"} for port, lane in (("Ethernet256", "256"), ("Ethernet264", "264"))},
    "INTERFACE": {"Ethernet256": {}, "Ethernet264": {}},
    "BGP_GLOBALS": {"default": {"local_asn": "65001", "router_id": "10.0.0.1"}},
    "BGP_GLOBALS_AF": {"default|ipv4_unicast": {"max_ebgp_paths": "2"}},
    "BGP_PEER_GROUP": {"default|FABRIC": {"peer_type": "external", "admin_status": "up"}},
    "BGP_PEER_GROUP_AF": {"default|FABRIC|ipv4_unicast": {"admin_status": "up"}},
    "BGP_NEIGHBOR": {f"default|{port}": {"peer_group_name": "FABRIC"} for port in ("Ethernet256", "Ethernet264")},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "row", "field", "value", "left"),
    [
        ("BGP_NEIGHBOR", "default|Ethernet256", "admin_status", "down", {"Ethernet264"}),
        ("BGP_NEIGHBOR", "default|Ethernet256", "peer_group_name", None, {"Ethernet264"}),
        ("BGP_NEIGHBOR_AF", "default|Ethernet256|ipv4_unicast", "admin_status", "down", {"Ethernet264"}),
        ("BGP_PEER_GROUP", "default|FABRIC", "admin_status", "down", set()),
        ("BGP_PEER_GROUP", "default|FABRIC", "peer_type", None, set()),
        ("BGP_PEER_GROUP_AF", "default|FABRIC|ipv4_unicast", "admin_status", None, set()),
        ("DEVICE_METADATA", "localhost", "frr_mgmt_framework_config", "false", set()),
        ("DEVICE_METADATA", "localhost", "docker_routing_config_mode", "unified", {"Ethernet256", "Ethernet264"}),
        ("DEVICE_METADATA", "localhost", "docker_routing_config_mode", "split-unified", None),
    ],
)
def test_neighbor_without_routes_is_omitted(
    sonic_models: SonicModels, *, table: str, row: str, field: str, value: str | None, left: set[str] | None
) -> None:
    tables: dict[str, dict[str, Any]] = json.loads(json.dumps(FRRCFGD))
    tables.setdefault(table, {}).setdefault(row, {}).pop(field, None)
    if value is not None:
        tables[table][row][field] = value
    assert sonic_models.complaints(json.dumps(tables)) == []
    routing = SONIC.read(json.dumps(tables)).routing
    assert routing is not None
    assert routing.neighbors == left


# --- foreign files ----------------------------------------------------------------------------------------------------


def test_ranges_of_queues_old_references_and_the_global_map_are_followed() -> None:
    old = {
        "DSCP_TO_TC_MAP": {"FIRST": {"26": "4", "48": "6"}, "SECOND": {"26": "3"}},
        "TC_TO_QUEUE_MAP": {"AZURE": {"3": "3", "4": "4", "6": "6"}},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"AZURE": {"3": "3", "4": "4"}},
        "PORT_QOS_MAP": {
            "global": {"dscp_to_tc_map": "FIRST"},
            "Ethernet0": {
                "tc_to_queue_map": "[TC_TO_QUEUE_MAP|AZURE]",
                "pfc_to_queue_map": "[MAP_PFC_PRIORITY_TO_QUEUE|AZURE]",
                "pfc_enable": "3,4",
            },
            "Ethernet4": {"dscp_to_tc_map": "[DSCP_TO_TC_MAP|SECOND]", "tc_to_queue_map": "AZURE"},
        },
        "SCHEDULER": {"scheduler.0": {"type": "WRR", "weight": "14"}, "scheduler.1": {"type": "WRR", "weight": "15"}},
        "WRED_PROFILE": {"LOSSLESS": {"ecn": "ecn_all", "wred_green_enable": "true", "green_max_threshold": "2097152"}},
        "QUEUE": {
            "Ethernet0,Ethernet4|3-4": {"wred_profile": "[WRED_PROFILE|LOSSLESS]", "scheduler": "[SCHEDULER|scheduler.1]"},
            "Ethernet0|4": {"scheduler": "[SCHEDULER|scheduler.0]"},
            "leaf|asic0|Ethernet4|0": {"scheduler": "scheduler.0"},
        },
        "BGP_NEIGHBOR": {"10.0.0.1": {"asn": "65100"}, "10.0.0.3": {"admin_status": "down"}, "default|Ethernet8": {"asn": "1"}},
        "BGP_GLOBALS": {"default": {"local_asn": "1", "router_id": "1.1.1.1"}},
        "DEVICE_METADATA": {"localhost": {"bgp_asn": "65001"}},
        "LOOPBACK_INTERFACE": {"Loopback0": {}, "Loopback0|fc00::1/128": {}, "Loopback0|10.1.0.1/32": {}},
    }
    reading = SONIC.read(json.dumps(old))
    marking = EcnView(None, 2097152, 100)
    assert reading.qos["Ethernet0"] == QosView(
        priorities={26: 4},
        queues={26: 4, 48: 6},
        pfc={priority: priority in (3, 4) for priority in range(8)},
        paused_queues={3: 3, 4: 4},
        ecn={3: marking, 4: marking, 6: None},
        weights={3: 52, 4: 48},
        says=SAYS,
    )
    assert reading.qos["Ethernet4"] == QosView(
        queues={26: 3}, ecn={0: None, 3: marking, 4: marking}, weights={0: 32, 3: 34, 4: 34}, says=SAYS
    )
    assert reading.routing == RoutingView(65001, "10.1.0.1", frozenset({"10.0.0.1"}), None)


def test_ports_separated_by_commas_in_a_row_of_maps_are_all_read() -> None:
    tables = leaf()
    ports = tables["PORT_QOS_MAP"]
    listed, alone = json.loads(json.dumps(tables)), json.loads(json.dumps(tables))
    listed["PORT_QOS_MAP"] = {"Ethernet0,Ethernet8,Ethernet256,Ethernet264": ports["Ethernet0"]}
    assert SONIC.read(json.dumps(listed)).qos == SONIC.read(json.dumps(tables)).qos
    listed["PORT_QOS_MAP"]["Ethernet8"] = {"pfc_enable": "4"}
    alone["PORT_QOS_MAP"]["Ethernet8"]["pfc_enable"] = "4"
    assert SONIC.read(json.dumps(listed)).qos == SONIC.read(json.dumps(alone)).qos


def test_only_a_port_that_is_up_or_has_rows_is_checked() -> None:
    tables = leaf()
    tables["PORT"]["Ethernet16"] = {"speed": "400000"}
    tables["PORT"]["Ethernet24"] = {"speed": "400000", "admin_status": "up"}
    tables["QUEUE"]["Ethernet32|3"] = {}
    views = SONIC.read(json.dumps(tables)).qos
    assert [
        port for port, view in views.items() if view.says and port not in {"Ethernet0", "Ethernet8", "Ethernet256", "Ethernet264"}
    ] == [
        "Ethernet24",
        "Ethernet32",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("hostname leaf\n", 1),
        ('{\n"PORT": {,}}', 2),
        ("[]", 1),
        ('{"PORTS": {}}', 1),
        ('{"PORT": "Ethernet0"}', 1),
        ("[" * 100_000, 1),
    ],
)
def test_text_of_another_kind_is_rejected_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"^line {line}: "):
        SONIC.read(text)


@pytest.mark.slow
def test_any_depth_is_read_or_rejected() -> None:
    for depth in range(100, 1500, 20):
        with contextlib.suppress(ValueError):
            assert len(SONIC.read('{"PORT": ' * depth + "1" + "}" * depth).settings) == 1


WORDS = st.sampled_from(["AZURE", "[X|AZURE]", "Ethernet0", "Ethernet0|3", "Ethernet0|3-4", "default|Ethernet0", "localhost"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS | st.integers(0, 64).map(str)
FIELDS = WORDS | st.sampled_from(sorted({field for rows in leaf().values() for row in rows.values() for field in row}))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3), max_leaves=4
)
ROWS = st.dictionaries(WORDS, st.dictionaries(FIELDS, VALUES, max_size=4) | VALUES, max_size=4)
TABLE_NAMES = st.sampled_from([*leaf(), "global", "GLOBAL"])


@pytest.mark.slow
@given(st.dictionaries(TABLE_NAMES, ROWS | VALUES, max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_tables_of_a_foreign_file_are_read(tables: dict[str, Any]) -> None:
    reading = SONIC.read(json.dumps({**tables, "PORT": {"Ethernet0": {"speed": "400000"}}}, indent=1))
    assert reading.settings["PORT|Ethernet0|speed"].value == "400000"
    assert "Ethernet0" in reading.qos


# --- limits of SONiC --------------------------------------------------------------------------------------------------


def problems(
    plan: ClusterPlan, base: dict[str, Any] | None = None, **given: Any
) -> list[tuple[str, tuple[str | int, ...], Severity, str]]:
    """Return the problems of all switches, each once."""
    chosen = options(plan, base, **given)
    found = dict.fromkeys(problem for switch in plan.switches for problem in SONIC.check(chosen, switch, plan))
    return [(problem.code, problem.path, problem.severity, problem.message) for problem in found]


def test_the_example_fabric_has_no_problem() -> None:
    plan = cluster()
    assert problems(plan) == []
    lanes = [",".join(map(str, range(first, first + 8))) for first in range(0, 512, 8)]
    stated: dict[str, Any] = {
        "platform": "x86_64-nvidia_sn5400-r0",
        "hwsku": "ACS-SN5400",
        "buffer_model": "dynamic",
        "egress_pool_bytes": 158229504,
    }
    assert problems(plan, **stated, lanes=lanes) == []


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("platform", "x86_64-nvidia_sn5600-r0", "`x86_64-nvidia_sn5400-r0`"),
        ("hwsku", "ACS-SN5600", "`ACS-SN5400`"),
        ("buffer_model", "traditional", "`dynamic`"),
        ("egress_pool_bytes", 1, "`158229504`"),
    ],
)
def test_option_that_contradicts_the_switch_model_is_a_problem(option: str, value: Any, found: str) -> None:
    ((code, path, severity, message),) = problems(cluster(), **{option: value})
    assert (code, path, severity) == ("HW513", ("fabrics", 1, "switches", "os", 1, "options", option), Severity.ERROR)
    assert message == f"`{option}` is `{value}`, but {found} for ports of 8 lanes of this model in SONiC"


def test_misspelt_hwsku_has_the_right_one_as_its_fix() -> None:
    plan = cluster()
    (problem,) = SONIC.check(options(plan, hwsku="ACS-SN540"), plan.switches[0], plan)
    assert (problem.code, problem.fix) == ("HW513", "ACS-SN5400")
    assert problem.hint == "write `ACS-SN5400`, or leave `hwsku` out: it follows from `model`"


def test_lanes_that_differ_from_the_hwsku_are_a_problem() -> None:
    ((_, path, severity, message),) = problems(cluster(), lanes=["0,1,2,3,4,5,6,7", "0,1,2,3,4,5,6,7"])
    assert (path[-1], severity) == ("lanes", Severity.ERROR)
    assert message == "port 2 has the lanes `0,1,2,3,4,5,6,7`, but `8,9,10,11,12,13,14,15` in SONiC's ACS-SN5400"


def test_model_must_have_such_ports_and_an_assumed_one_is_reported() -> None:
    ((code, path, severity, message),) = problems(cluster(model=None))
    assert (code, path, severity) == ("HW513", ("fabrics", 1, "switches"), Severity.WARNING)
    assert message.endswith("they are those of an SN5400")
    ((code, path, severity, message),) = problems(cluster(lanes=1, speed="50Gb/s"))
    assert (code, path, severity) == ("HW513", ("fabrics", 1, "switches", "lanes"), Severity.ERROR)
    assert message == "SONiC has no HwSKU of the SN5400 with ports of 1 lanes"
    ((code, path, severity, message),) = problems(cluster(model="7060X6-64PE", lanes=4, speed="200Gb/s"))
    assert (code, path, severity) == ("HW526", ("fabrics", 1, "switches", "speed"), Severity.ERROR)
    assert message == "ports of 4 lanes of the 7060X6-64PE have no 200Gb/s in SONiC"


@pytest.mark.slow
def test_switch_without_a_base_is_a_warning() -> None:
    plan = cluster()
    ((code, path, severity, _),) = [
        (each.code, each.path, each.severity, each.message) for each in SONIC.check(SonicOptions(), plan.switches[0], plan)
    ]
    assert (code, path, severity) == ("HW513", ("fabrics", 1, "switches", "os", 1, "kind"), Severity.WARNING)


def test_base_of_another_device_or_shared_by_switches_is_a_problem() -> None:
    plan = cluster()
    other = {"DEVICE_METADATA": {"localhost": {"platform": "x86_64-arista_7060x6_64pe"}}}
    found = problems(plan, other)
    assert {(path[-1], severity) for _, path, severity, _ in found} == {("base", Severity.ERROR)}
    assert found[0][3] == (
        f"the base of `rails-leaf-1` and {len(plan.switches) - 1} more"
        " is of the platform `x86_64-arista_7060x6_64pe`, but the SN5400 is `x86_64-nvidia_sn5400-r0`"
    )
    ((_, path, severity, message),) = shared_base(plan)
    assert (path[-1], severity) == ("base", Severity.ERROR)
    assert message == "several switches have one base with a MAC address, which only one of them can have"


def shared_base(plan: ClusterPlan) -> list[tuple[str, tuple[str | int, ...], Severity, str]]:
    chosen = options(plan).model_copy(update={"base": "base/{role}.json"})
    found = dict.fromkeys(problem for switch in plan.switches for problem in SONIC.check(chosen, switch, plan))
    return [(problem.code, problem.path, problem.severity, problem.message) for problem in found]


def test_kept_port_must_be_in_the_base_and_not_in_the_plan() -> None:
    plan = cluster()
    assert {message for *_, message in problems(plan, PRESET, keep_ports=["Ethernet512", "Ethernet0", "Ethernet520"])} == {
        *(
            f"`Ethernet0` of `{switch.name}` has a planned cable, so it cannot stay as the base has it"
            for switch in plan.switches
        ),
        *(f"`Ethernet520` is to stay as the base of `{switch.name}` has it, which has no such port" for switch in plan.switches),
    }


def test_cable_without_headroom_is_a_warning_if_the_hwsku_has_tables() -> None:
    assert problems(cluster(node_cable="3m", spine_cable="300m")) == []
    plan = cluster(model="Z9664F-ON", node_cable="3m", spine_cable="300m")
    ((code, path, severity, message),) = problems(plan)
    assert (code, path, severity) == ("HW513", ("fabrics", 1, "switches", "node_cable"), Severity.WARNING)
    assert message == "DellEMC-Z9664f-O64 has headroom at 400Gb/s for cables of 5, 40 or 300 metres, not for 3"
    assert problems(cluster(CLASSES["lossy"], model="Z9664F-ON", node_cable="3m")) == []


def test_platforms_of_sonic_reserve_buffers_for_two_lossless_classes() -> None:
    more = [
        {"name": f"class{dscp}", "carries": "checkpoints", "dscp": dscp, "lossless": True, "bandwidth_percent": 5}
        for dscp in (8, 16)
    ]
    ((code, path, _, message),) = problems(cluster([ROCE, CNP, *more]))
    assert (code, path) == ("HW513", ("fabrics", 1, "classes", 3, "lossless"))
    assert message == "3 classes are lossless, but SONiC's platforms have buffers for 2"
    other = {**ROCE, "priority": 5}
    ((_, path, _, _),) = problems(cluster([other, CNP], model="7060X6-64PE", speed="800Gb/s"))
    assert path == ("fabrics", 1, "classes", 0, "priority")


def test_file_in_another_json_layout_reads_the_same() -> None:
    text = rendered(plan := cluster(), plan.switches[0])
    for layout in (
        json.dumps(json.loads(text)),
        json.dumps(json.loads(text), indent=1),
        text.replace("\n", "\n\n"),
        f" {text}\n\n",
    ):
        reading = SONIC.read(layout)
        assert (reading.qos, reading.device, reading.routing) == (
            SONIC.read(text).qos,
            SONIC.read(text).device,
            SONIC.read(text).routing,
        )


def test_switches_with_equal_tables_keep_their_own_names_and_addresses() -> None:
    plan = cluster()
    first, second = (SONIC.read(rendered(plan, switch)) for switch in plan.switches[:2])
    assert first.qos is second.qos
    assert first.device is not None
    assert second.device is not None
    assert first.device.name != second.device.name
    ours, theirs = first.device.ports["Ethernet0"], second.device.ports["Ethernet0"]
    assert ours.addresses != theirs.addresses
    assert ours.mtu == theirs.mtu
