"""opensm's files: settings that follow from a fabric, roots from an inventory, and reading them back."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from headway.cli.read_back import changed_settings
from headway.compile import compile_documents
from headway.jobspec.document import Document
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.environment import resolve_environment
from headway.jobspec.spec.inventory import Inventory
from headway.templates.cluster import reader_of, render_cluster
from headway.templates.switches.opensm.check import check
from headway.templates.switches.opensm.options import OpensmOptions
from headway.templates.switches.opensm.read import read
from headway.templates.switches.opensm.render import render_fabric
from tests.jobspec.test_sizes import Site

# Two units of two nodes, two rails: four leaves and two spines.
SITE = Site(4, nics=2, transport="infiniband", switches={"ports": 4}, fabric={"shape": "rail-optimized"})


def plan(guids: dict[str, str] | None = None, **fabric: Any) -> ClusterPlan:
    head = {"apiVersion": "headway/v1alpha1", "kind": "Inventory", "name": "all", "cluster": "site"}
    rows = [{"name": name, "guid": guid} for name, guid in (guids or {}).items()]
    inventory = Inventory.model_validate_json(json.dumps({**head, "switches": rows}))
    return resolve_cluster(replace(SITE, fabric={**SITE.fabric, **fabric}).spec(), [inventory])


def files(cluster: ClusterPlan, **options: Any) -> dict[str, str]:
    found = render_fabric(OpensmOptions(**options), cluster.fabrics[0], cluster)
    return {str(path): text for path, text in found.items()}


def settings(cluster: ClusterPlan, **options: Any) -> dict[str, str]:
    return {name: setting.value for name, setting in read(files(cluster, **options)["opensm.conf"]).settings.items()}


def test_static_routing_is_up_down_without_service_levels() -> None:
    assert settings(plan()) == {
        "routing_engine": "updn",
        "partition_config_file": "/etc/opensm/partitions.conf",
        "qos": "FALSE",
    }


@pytest.mark.parametrize(("routing", "engines"), [(None, "ar_updn,updn"), ("ftree", "ar_ftree,ftree"), ("minhop", "minhop")])
def test_engine_of_adaptive_routing_comes_first(routing: str | None, engines: str) -> None:
    assert settings(plan(balancing="adaptive"), routing=routing)["routing_engine"] == engines


def test_collectives_with_a_service_level_have_a_separate_lane() -> None:
    found = settings(plan(service_level=3))
    assert found["qos"] == "TRUE"
    assert found["qos_sl2vl"].split(",") == ["1" if level == 3 else "0" for level in range(16)]
    assert found["qos_vlarb_low"] == "0:16,1:64"


def test_sharp_is_enabled_only_on_request() -> None:
    assert "sharp_enabled" not in settings(plan())
    assert settings(plan(sharp=True))["sharp_enabled"] == "2"


def test_roots_are_listed_once_an_inventory_has_all_of_them() -> None:
    spines = {"rails-spine-1": "0x00000000000000a1", "rails-spine-2": "0x00000000000000a2"}
    found = files(plan(spines), directory="/srv/sm/")
    assert found["root-guids"] == "0x00000000000000a1\n0x00000000000000a2\n"
    assert found["ib-node-name-map"] == '0x00000000000000a1 "rails-spine-1"\n0x00000000000000a2 "rails-spine-2"\n'
    assert "root_guid_file /srv/sm/root-guids\n" in found["opensm.conf"]
    assert "root-guids" not in files(plan({"rails-spine-1": "0x00000000000000a1"}))


def test_unknown_roots_are_reported_once() -> None:
    def problems(cluster: ClusterPlan) -> list[str]:
        return [found.message for switch in cluster.switches for found in check(OpensmOptions(), switch, cluster)]

    # A new cluster has no GUIDs.
    assert problems(plan()) == []
    assert problems(plan({"rails-spine-1": "0x00000000000000a1"})) == [
        "1 of the 2 roots of the tree have no GUID, from `rails-spine-2` on: opensm finds the roots itself"
    ]
    assert problems(plan({"rails-spine-1": "0x00000000000000a1", "rails-spine-2": "0x00000000000000a2"})) == []


def test_all_ports_are_in_one_partition() -> None:
    text = files(plan(), ipoib=False)["partitions.conf"]
    assert text.splitlines()[-1] == "Default=0x7fff, sl=0, defmember=full : ALL, ALL_SWITCHES=full, SELF=full ;"


def test_files_of_the_fabric_are_in_its_folder_and_read_back() -> None:
    cluster = plan()
    tree = render_cluster(cluster, {("rails", "opensm"): OpensmOptions()})
    folder = PurePosixPath("site/fabrics/rails")
    assert {path for path in tree if folder in path.parents} == {
        folder / name for name in ("opensm.conf", "partitions.conf", "topology.net")
    }
    assert not any("switches" in path.parts for path in tree)
    reader = reader_of(folder / "opensm.conf")
    assert reader is not None
    assert reader(tree[folder / "opensm.conf"]).settings["routing_engine"].value == "updn"


def test_unset_options_in_files_from_opensm_are_skipped() -> None:
    found = read("#\n# options\nrouting_engine (null)\nqos FALSE\nsweep_interval 10 # seconds\n").settings
    assert {name: setting.value for name, setting in found.items()} == {"qos": "FALSE", "sweep_interval": "10"}
    with pytest.raises(ValueError, match="this is not an opensm"):
        read("frr defaults datacenter\n")


def test_nccl_gets_service_level_and_sharp_without_excluding_the_plugin() -> None:
    cluster = plan(sharp=True, service_level=3)
    found = {each.name: each.value for each in resolve_environment(cluster, cluster.groups[0])}
    assert (found["NCCL_IB_SL"], found["NCCL_COLLNET_ENABLE"]) == ("3", "1")
    assert "NCCL_NET" not in found
    plain = plan()
    assert not {"NCCL_IB_SL", "NCCL_COLLNET_ENABLE"} & {each.name for each in resolve_environment(plain, plain.groups[0])}


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("routing_engine ar_updwn", "routing_engine"),
        ("routing_engine minhop", "routing_engine"),
        ("routing_engine updn", "routing_engine"),
        ("lmc 8", "lmc"),
        ("sweep_interval 0", "sweep_interval"),
        ("sweep_on_trap FALSE", "sweep_on_trap"),
        ("subnet_timeout 31", "subnet_timeout"),
        ("max_op_vls 1", "max_op_vls"),
        ("packet_life_time 0x1", "packet_life_time"),
        ("subnet_prefix 0x0", "subnet_prefix"),
    ],
)
def test_setting_that_harms_any_fabric_is_reported(line: str, key: str) -> None:
    assert [(fault.code, fault.key) for fault in read(f"qos FALSE\n{line}\n").faults()] == [("HW870", key)]


def test_defaults_of_opensm_have_no_fault() -> None:
    # opensm --create-config of opensm 3.3.23 writes these.
    text = (
        "routing_engine (null)\nroot_guid_file (null)\nlmc 0\nsweep_interval 10\nsweep_on_trap TRUE\nsubnet_timeout 18\n"
        "max_op_vls 5\npacket_life_time 0x12\nsubnet_prefix 0xfe80000000000000\nqos FALSE\n"
    )
    assert list(read(text).faults()) == []


@pytest.mark.parametrize("name", ["root-guids", "partitions.conf", "ib-node-name-map", "topology.net"])
def test_line_missing_next_to_opensm_conf_is_reported(name: str) -> None:
    example = Path(__file__).parents[2] / "examples" / "infiniband"
    (cluster,) = compile_documents([example / "cluster.yaml"], kinds=("Cluster",)).clusters
    path = example / "rendered" / "pod-of-31" / "fabrics" / "compute" / name
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    for kept, expected in ((lines, []), (lines[:-1], ["HW603"])):
        text = "".join(f"{line}\n" for line in kept)
        reader = reader_of(path)
        assert reader is not None
        found = changed_settings({str(path): reader(text)}, {str(path): Document(str(path), text)}, cluster)
        assert [problem.code for problem in found] == expected
