"""The catalog of SONiC's devices and their rendered files, compared with SONiC's own tables (sonic-buildimage 086b03b)."""

import csv
import json
from collections import defaultdict
from pathlib import PurePosixPath
from typing import Any

import pytest

from headway.jobspec.catalog.switches import switches
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.problem import Problem
from headway.templates.switches.sonic import SONIC
from headway.templates.switches.sonic.hardware import HwSku, hardware
from headway.templates.switches.sonic.options import SonicOptions
from tests.real.sonic.yang import shared_data

from .test_sonic import cluster

FACTS = shared_data("sonic-hwsku")
EVERY = [(model, lanes) for model, device in hardware().items() for lanes in device.breakouts]
OF_SONIC = [(model, hwsku) for model, device in hardware().items() for hwsku in device.hwskus.values()]


@pytest.fixture(scope="module")
def facts() -> None:
    if not (FACTS / "ports.csv").is_file():
        pytest.skip(f"no ports.csv in `{FACTS}`: SONiC's own port tables are not here")


def rows_of(file: str) -> list[dict[str, str]]:
    with (FACTS / file).open() as text:
        return list(csv.DictReader(text))


def plan_of(model: str, lanes: int) -> ClusterPlan:
    device = hardware()[model]
    gbps = max(device.speeds(lanes), default=switches()[model].gbps)
    return cluster(model=model, lanes=lanes, speed=f"{gbps}Gb/s")


def rendered(plan: ClusterPlan, index: int = 0) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the tables of a switch, which must have no errors."""
    chosen, switch = SonicOptions(), plan.switches[index]
    found: list[Problem] = [each for each in SONIC.check(chosen, switch, plan) if each.is_error]
    assert found == []
    tables: dict[str, dict[str, dict[str, Any]]] = json.loads(SONIC.render(chosen, switch, plan)[PurePosixPath(SONIC.file)])
    return tables


# --- ports ------------------------------------------------------------------------------------------------------------


def test_every_device_is_a_model_of_the_catalog_with_its_ports() -> None:
    for model, device in hardware().items():
        known = switches()[model]
        assert (len(device.cages), device.cage_lanes) == (known.ports, known.lanes)
        assert device.source.startswith("https://")


@pytest.mark.parametrize(("model", "hwsku"), OF_SONIC, ids=lambda each: getattr(each, "name", each))
def test_ports_match_the_port_config_of_sonic(facts: None, model: str, hwsku: HwSku) -> None:
    expected = {row["port"]: row for row in rows_of("ports.csv") if row["hwsku"] == hwsku.name}
    found = rendered(plan_of(model, hwsku.lanes))
    assert found["DEVICE_METADATA"]["localhost"]["hwsku"] == hwsku.name
    assert found["DEVICE_METADATA"]["localhost"]["platform"] == next(iter(expected.values()))["platform"]
    assert {name: (row["lanes"], row["alias"], row["index"]) for name, row in found["PORT"].items()} == {
        name: (row["lanes"], row["alias"], row["index"]) for name, row in expected.items()
    }
    for name, row in expected.items():
        assert row["speed"] in ("", found["PORT"][name]["speed"], "10000")


@pytest.mark.parametrize(("model", "lanes"), EVERY)
def test_broken_out_ports_match_the_breakout_mode_of_sonic(facts: None, model: str, lanes: int) -> None:
    """src/sonic-config-engine/portconfig.py, BreakoutCfg.get_config: name, lanes, alias, index and subport of each part."""
    device = hardware()[model]
    cages = {row["port"]: row for row in rows_of("breakouts.csv") if row["platform"] == device.platform}
    found = rendered(plan_of(model, lanes))
    if not device.modes:
        assert (cages, "BREAKOUT_CFG" in found) == ({}, False)
        return
    assert found["BREAKOUT_CFG"].keys() == cages.keys()
    expected: dict[str, tuple[str, ...]] = {}
    for cage, row in cages.items():
        mode = found["BREAKOUT_CFG"][cage]["brkout_mode"]
        aliases, all_lanes = json.loads(row["breakout_modes"])[mode], row["lanes"].split(",")
        width = len(all_lanes) // len(aliases)
        for part, alias in enumerate(aliases):
            name = f"Ethernet{int(cage.removeprefix('Ethernet')) + part * width}"
            own = ",".join(all_lanes[part * width : (part + 1) * width])
            subport = str(part + 1 if len(aliases) > 1 else 0)
            expected[name] = (own, alias, row["index"].split(",")[part * width], subport)
    assert {
        name: tuple(row[key] for key in ("lanes", "alias", "index", "subport")) for name, row in found["PORT"].items()
    } == expected


def test_ports_of_the_reference_leaf_have_four_lanes_by_default() -> None:
    """An SN5600 with ConnectX-7: 128 ports of 400 Gb/s, 4 lanes of 100 Gb/s each, two to a cage."""
    plan = cluster(model="SN5600", speed="400Gb/s", ports=128)
    tables = rendered(plan)
    assert tables["DEVICE_METADATA"]["localhost"]["hwsku"] == "Mellanox-SN5600-O128"
    assert plan.switches[0].uplinks[0].name == "Ethernet256"
    row = tables["PORT"]["Ethernet256"]
    assert (row["lanes"], row["alias"], row["index"], row["subport"]) == ("256,257,258,259", "etp33a", "33", "1")
    assert {model: plan.switches[0].ports[0].lanes for model, plan in each_model("400Gb/s").items()} == {
        "SN4700": 8,
        "SN5400": 8,
        "SN5600": 4,
        "7060X6-64PE": 4,
        "Z9664F-ON": 4,
    }


def each_model(speed: str) -> dict[str, ClusterPlan]:
    return {model: cluster(model=model, speed=speed) for model in hardware()}


# --- buffers ----------------------------------------------------------------------------------------------------------

# Differences from SONiC's own templates, with the reason: the templates are independent of a cluster, and always reserve
# priorities 3 and 4 for lossless traffic.
DIFFERENCES = {
    "BUFFER_PG": "only priorities of a lossless class have headroom, here 3",
    "BUFFER_QUEUE": "only queues of a lossless class are lossless, here 3; all others up to 6 are lossy, as in the templates",
    "CABLE_LENGTH": "the plan's own lengths",
    "LOSSLESS_TRAFFIC_PATTERN": "packets of 4096 bytes and the worst case, where the templates have 1024 bytes and a half",
    "DSCP_TO_TC_MAP": "the classes' DSCPs; everything else is class 0",
    "TC_TO_QUEUE_MAP": "classes that no DSCP leads to are left out",
    "TC_TO_PRIORITY_GROUP_MAP": "as TC_TO_QUEUE_MAP",
    "MAP_PFC_PRIORITY_TO_QUEUE": "as TC_TO_QUEUE_MAP",
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": "only priorities of a lossless class",
    "PORT_QOS_MAP": "PFC and its watchdog only for priorities of a lossless class",
    "SCHEDULER": "the classes' shares",
    "WRED_PROFILE": "the classes' thresholds, by the queue's name",
    "QUEUE": "only queues of a class, and queue 0",
}


def known_differences(table: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Return SONiC's rows for one lossless class of priority 3, if that is the only difference."""
    if table == "BUFFER_PG":
        return {key.replace("|3-4", "|3"): row for key, row in rows.items()}
    if table == "BUFFER_QUEUE":
        return {key.replace("|3-4", "|3").replace("|5-6", "|4-6"): row for key, row in rows.items()}
    return rows


@pytest.mark.parametrize("name", ["ACS-SN5400", "ACS-SN5600", "Mellanox-SN5600-O128"])
def test_buffers_and_maps_match_sonic_except_for_listed_differences(facts: None, name: str) -> None:
    model, hwsku = next((model, hwsku) for model, hwsku in OF_SONIC if hwsku.name == name)
    expected = json.loads((FACTS / "expected-qos-buffers.json").read_text())[name]
    found = rendered(plan_of(model, hwsku.lanes))
    port = "Ethernet0"
    differing = set()
    for table, rows in expected.items():
        required = {key: row for key, row in rows.items() if not key.startswith(("Ethernet", "|")) and key} | {
            key: row for key, row in rows.items() if key.split("|")[0] == port
        }
        ours = {key: row for key, row in found[table].items() if not key.startswith("Ethernet") or key.split("|")[0] == port}
        if required != ours:
            differing.add(table)
        if table in {"BUFFER_PG", "BUFFER_QUEUE"}:
            assert ours == known_differences(table, required)
    assert differing <= DIFFERENCES.keys()
    # Pools, profiles, lists of them and the default parameter equal those of SONiC, to the last byte.
    same = {"BUFFER_POOL", "BUFFER_PROFILE", "BUFFER_PORT_INGRESS_PROFILE_LIST", "BUFFER_PORT_EGRESS_PROFILE_LIST"}
    assert not differing & {*same, "DEFAULT_LOSSLESS_BUFFER_PARAMETER"}


@pytest.mark.parametrize(("model", "hwsku"), OF_SONIC, ids=lambda each: getattr(each, "name", each))
def test_pools_and_headroom_match_the_hwsku(facts: None, model: str, hwsku: HwSku) -> None:
    rows = [row for row in rows_of("buffers.csv") if row["hwsku"] == hwsku.name]
    tables = rendered(plan_of(model, hwsku.lanes))
    if hwsku.is_dynamic:
        sizes = {row["value"] for row in rows if row["name"] == "egress_lossless_pool_size"}
        assert {tables["BUFFER_POOL"]["egress_lossless_pool"]["size"]} == sizes
        two = any(row["name"] == "ingress_lossy_pool_size" for row in rows)
        assert ("ingress_lossy_pool" in tables["BUFFER_POOL"]) == two
        pool = "ingress_lossy_pool" if two else "ingress_lossless_pool"
        assert tables["BUFFER_PROFILE"]["ingress_lossy_profile"]["pool"] == pool
        return
    headroom: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
    for row in rows:
        if row["topology"] == "pg_profile":
            speed, _, cable = row["name"].partition("@")
            size, xon, xoff, *_ = map(int, row["value"].split())
            headroom[int(speed) // 1000][int(cable.removesuffix("m"))] = (size, xon, xoff)
    assert {gbps: {metres: tuple(each) for metres, each in row.items()} for gbps, row in hwsku.headroom.items()} == headroom
    assert ("BUFFER_POOL" in tables) == bool(headroom)


def test_spines_have_separate_pools_if_sonic_has_them() -> None:
    plan = plan_of("7060X6-64PE", 2)
    leaf, spine = (rendered(plan, index)["BUFFER_POOL"]["egress_lossless_pool"]["size"] for index in (0, -1))
    assert (leaf, spine) == ("165660324", "121964196")
