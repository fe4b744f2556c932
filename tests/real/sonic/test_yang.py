"""Tests the validator itself: values that SONiC's models allow pass, and each kind of mistake has its own error."""

import copy
import json
from typing import Any

import pytest

from tests.real.sonic.yang import SonicModels, models, obstacle

BASE: dict[str, dict[str, Any]] = {
    "DEVICE_METADATA": {"localhost": {"hostname": "leaf", "type": "ToRRouter", "buffer_model": "dynamic"}},
    "PORT": {"Ethernet0": {"lanes": "0,1,2,3,4,5,6,7", "speed": "400000", "mtu": "9216", "adv_speeds": "100000,400000"}},
    "INTERFACE": {"Ethernet0": {"NULL": "NULL"}, "Ethernet0|10.0.0.0/31": {}},
    "DSCP_TO_TC_MAP": {"AZURE": {"0": "0", "26": "3"}},
    "TC_TO_QUEUE_MAP": {"AZURE": {"0": "0", "3": "3"}},
    "TC_TO_PRIORITY_GROUP_MAP": {"AZURE": {"0": "0", "3": "3"}},
    "MAP_PFC_PRIORITY_TO_QUEUE": {"AZURE": {"3": "3"}},
    "PORT_QOS_MAP": {
        "global": {"dscp_to_tc_map": "AZURE"},
        "Ethernet0": {"tc_to_queue_map": "AZURE", "tc_to_pg_map": "AZURE", "pfc_to_queue_map": "AZURE", "pfc_enable": "3"},
    },
    "SCHEDULER": {"roce": {"type": "DWRR", "weight": "60"}},
    "WRED_PROFILE": {"roce": {"ecn": "ecn_all", "green_min_threshold": "1000", "green_max_threshold": "2000"}},
    "QUEUE": {"Ethernet0|3": {"scheduler": "roce", "wred_profile": "roce"}},
    "CABLE_LENGTH": {"AZURE": {"Ethernet0": "5m"}},
    "PFC_WD": {"GLOBAL": {"POLL_INTERVAL": "400"}, "Ethernet0": {"action": "drop", "detection_time": "400"}},
    "BUFFER_POOL": {"pool": {"type": "ingress", "mode": "dynamic", "percentage": "50"}},
    "SWITCH_HASH": {"GLOBAL": {"ecmp_hash": ["SRC_IP", "DST_IP"]}},
    "BGP_GLOBALS": {"default": {"local_asn": "4200000001"}},
    "BGP_GLOBALS_AF": {"default|ipv4_unicast": {"max_ebgp_paths": "64"}},
}

MISTAKES = {
    "an unknown table": ("PORTS|Ethernet0|speed", "400000", "`PORTS` is no table"),
    "an unknown field": ("PORT|Ethernet0|spede", "400000", 'Node "spede" not found'),
    "an unknown row of a table of fixed rows": ("DEVICE_METADATA|remotehost|hostname", "x", "0 lists of the models have 1 keys"),
    "a key too many": ("PORT|Ethernet0/1|speed", "1", "0 lists of the models have 2 keys"),
    "a map of an unknown name": ("PORT_QOS_MAP|Ethernet0|tc_to_pg_map", "ROCE", 'Invalid leafref value "ROCE"'),
    "a WRED profile of an unknown name": ("QUEUE|Ethernet0/3|wred_profile", "cnp", 'Invalid leafref value "cnp"'),
    "a cable of an unknown port": ("CABLE_LENGTH|AZURE|Ethernet8", "5m", 'Invalid leafref value "Ethernet8"'),
    "an address of an unknown port": ("INTERFACE|Ethernet8", {}, 'Invalid leafref value "Ethernet8"'),
    "DSCP 64": ("DSCP_TO_TC_MAP|AZURE|64", "3", "Invalid DSCP"),
    "PFC for priority 9": ("PORT_QOS_MAP|Ethernet0|pfc_enable", "9", 'Unsatisfied pattern - "9"'),
    "a threshold above the one above it": ("WRED_PROFILE|roce|green_min_threshold", "3000", "Green max threshold must be"),
    "a speed out of range": ("PORT|Ethernet0|speed", "1600001", 'value "1600001" is out of the allowed range'),
    "a time shorter than the polling": ("PFC_WD|Ethernet0|detection_time", "300", "detection_time must be greater"),
    "a field that another table forbids": (
        "DEVICE_METADATA|localhost|buffer_model",
        "traditional",
        "Percentage must be configured in dynamic buffer model",
    ),
    "a field that is mandatory": ("PORT|Ethernet8", {"lanes": "8"}, 'Mandatory node "speed"'),
    "a number that is no text": ("PORT|Ethernet0|mtu", 9216, "`PORT|Ethernet0|mtu` is not text but 9216"),
    "a text that should be a list": ("SWITCH_HASH|GLOBAL|ecmp_hash", "SRC_IP", "`SWITCH_HASH|GLOBAL|ecmp_hash` must be a list"),
    "a list that should be a text": ("PORT|Ethernet0|speed", ["400000"], "`PORT|Ethernet0|speed` is no list"),
    "an unknown item of a list": ("SWITCH_HASH|GLOBAL|ecmp_hash", ["BTH_DEST_QP"], 'Invalid enumeration value "BTH_DEST_QP"'),
    "an unknown item of a list in one text": ("PORT|Ethernet0|adv_speeds", "100000,fast", "fast"),
    "a family of no BGP": ("BGP_GLOBALS_AF|red/ipv4_unicast|max_ebgp_paths", "64", 'Invalid leafref value "red"'),
    "a row that is no object": ("PORT|Ethernet0", "up", "`PORT|Ethernet0` is not an object"),
    "a table without rows": ("PORT", {}, "`PORT` holds no rows"),
}


@pytest.fixture(scope="module")
def sonic_models() -> SonicModels:
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    return models()


def changed(place: str, value: Any) -> str:
    """BASE with another value at `place`; a `/` in a name of `place` is replaced by the bar in that key."""
    document = copy.deepcopy(BASE)
    *parents, last = (part.replace("/", "|") for part in place.split("|"))
    inside: Any = document
    for part in parents:
        inside = inside.setdefault(part, {})
    inside[last] = value
    return json.dumps(document)


@pytest.mark.slow
def test_every_table_of_the_models_is_recognized(sonic_models: SonicModels) -> None:
    assert len(sonic_models.tables) > 200
    assert sonic_models.tables.keys() > BASE.keys()


@pytest.mark.slow
def test_values_that_the_models_allow_raise_no_error(sonic_models: SonicModels) -> None:
    assert sonic_models.complaints(json.dumps(BASE)) == []


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_by_its_own_rule(sonic_models: SonicModels, mistake: str) -> None:
    place, value, rule = MISTAKES[mistake]
    complaints = sonic_models.complaints(changed(place, value))
    assert any(rule in complaint for complaint in complaints), complaints
    assert sonic_models.complaints(json.dumps(BASE)) == []


@pytest.mark.slow
def test_a_duplicate_key_is_reported(sonic_models: SonicModels) -> None:
    text = json.dumps(BASE).replace('"mtu": "9216"', '"mtu": "9216", "mtu": "1500"')
    (complaint,) = sonic_models.complaints(text)
    assert "a key stands twice" in complaint


@pytest.mark.slow
def test_text_that_is_not_json_is_reported(sonic_models: SonicModels) -> None:
    assert sonic_models.complaints("{") != []
    assert sonic_models.complaints("[]") == ["not a JSON object"]
