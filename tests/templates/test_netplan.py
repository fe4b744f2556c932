"""A node's file of netplan has the facts that the script has without it, is read back, and its faults are found with what they do."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from headway.cli.main import main
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.spec.cluster import Cluster
from headway.templates.cluster import reader_of, recognized
from headway.templates.hosts.netplan import read
from headway.templates.hosts.read import read as read_script
from headway.templates.hosts.render import NETPLAN, NETWORKD, SCRIPT, UNIT, render_host
from headway.templates.reading import Fault

CLUSTER = """
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - name: gpu
    count: 2
    cpus: 8
    gpu: H100-SXM-80
    gpus: 2
    nic_speed: 400Gb/s
    network_config: netplan
    nics:
      - {name: mlx5_0, interface: enp26s0np0}
      - {name: mlx5_1, interface: enp60s0np0}
      - {name: mlx5_2, interface: enp77s0np0, fabric: files}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    shape: rail-optimized
    classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]
    switches: {ports: 64, addresses: 10.10.0.0/16, os: [{kind: frr}]}
  - name: files
    role: storage
    transport: roce
    switches: {ports: 4, speed: 400Gb/s, asn: 4200100000, loopbacks: 10.254.0.0/16, addresses: 10.20.0.0/16, os: [{kind: frr}]}
  - {name: admin, role: management, transport: tcp, interface: eno1}
storage:
  - {name: runs, kind: posix, path: /runs, shared: true}
"""
OF_FILES = NETPLAN.with_name("90-headway-files.yaml")
SCRIPT_OF_FILES = SCRIPT.with_name("headway-qos-files")


@cache
def plan(config: str = "netplan") -> ClusterPlan:
    document = yaml.safe_load(CLUSTER.replace("network_config: netplan", f"network_config: {config}"))
    return resolve_cluster(Cluster.model_validate_json(json.dumps(document)))


@cache
def files(config: str = "netplan") -> Mapping[PurePosixPath, str]:
    """Those of gpu-2."""
    return render_host(plan(config).nodes[1], plan(config))


def ethernets(path: PurePosixPath = NETPLAN) -> Any:
    return yaml.safe_load(files()[path])["network"]["ethernets"]


# --- rendered ---------------------------------------------------------------------------------------------------------


def test_each_fabric_of_a_node_has_a_netplan_file_and_no_networkd_settings() -> None:
    units = {UNIT, UNIT.with_name("headway-qos-files.service")}
    assert set(files()) == {SCRIPT, SCRIPT_OF_FILES, NETPLAN, OF_FILES, *units}
    assert set(files("script")) == {SCRIPT, SCRIPT_OF_FILES, NETWORKD, *units}
    assert set(ethernets()) == {"enp26s0np0", "enp60s0np0"}
    assert set(ethernets(OF_FILES)) == {"enp77s0np0"}


def test_netplan_file_has_the_settings_of_the_script() -> None:
    calls = [line.split(" & ")[0].split()[1:] for line in files("script")[SCRIPT].splitlines() if line.startswith("set_address ")]
    assert [adapter for adapter, *_ in calls] == ["mlx5_0", "mlx5_1"]
    for (_, address, gateway, table), found in zip(calls, ethernets().values(), strict=True):
        number = int(table)
        assert found == {
            "renderer": "networkd",
            "dhcp4": False,
            "dhcp6": False,
            "accept-ra": False,
            "ignore-carrier": True,
            "optional": True,
            "mtu": 9000,
            "addresses": [address],
            "routes": [
                {"to": "default", "via": gateway, "table": number},
                {"to": "10.10.0.0/16", "via": gateway, "metric": number},
            ],
            "routing-policy": [{"from": address.partition("/")[0], "table": number, "priority": number}],
        }


def test_script_sets_no_address_and_names_a_missing_one() -> None:
    text = files()[SCRIPT]
    assert "set_address" not in text
    assert "ip route" not in text
    assert [line.split(" & ")[0] for line in text.splitlines() if " & wait" in line] == [
        "set_qos mlx5_0",
        "set_qos mlx5_1",
        "expect_address mlx5_0 10.10.0.3/31",
        "expect_address mlx5_1 10.10.0.67/31",
    ]
    assert {f'setting "$netdev" {name}' in text for name in ("arp_ignore 1", "arp_announce 2", "rp_filter 2")} == {True}


def test_unit_runs_again_when_the_netplan_file_changes() -> None:
    """infra/host.py restarts a unit whose text has the path of a file that changed."""
    for unit, path in ((UNIT, NETPLAN), (UNIT.with_name("headway-qos-files.service"), OF_FILES)):
        assert str(path) in files()[unit]
        assert "systemd-networkd.service" in next(line for line in files()[unit].splitlines() if line.startswith("After="))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare (util-linux)")
@pytest.mark.parametrize("has_address", [True, False])
def test_script_waits_for_addresses_and_fails_without_them(has_address: bool, tmp_path: Path) -> None:
    text = files()[SCRIPT]
    functions = text.partition("# Each is tried")[0].replace("SECONDS + 30", f"SECONDS + {9 if has_address else 1}")
    calls = text[text.index("failed=0") :]
    named = 'netdev_of() { echo "$1"; }\nset_qos() { :; }\n'
    (tmp_path / "script").write_text(functions + named + calls)
    links = "".join(f"ip link add {each} type veth peer name leaf-{each}; " for each in ("mlx5_0", "mlx5_1"))
    late = (
        "(sleep 0.7; ip address add 10.10.0.3/31 dev mlx5_0; ip address add 10.10.0.67/31 dev mlx5_1) & " if has_address else ""
    )
    command = ["unshare", "--net", "bash", "-c", f'{links}{late}bash "{tmp_path}/script"']
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == (0 if has_address else 1)
    wanted = [
        f"headway-qos: {adapter} does not have {address}; run `netplan apply`, unless {adapter} is not its interface in {NETPLAN}"
        for adapter, address in (("mlx5_0", "10.10.0.3/31"), ("mlx5_1", "10.10.0.67/31"))
    ]
    assert done.stderr.splitlines() == ([] if has_address else wanted)


# --- read back --------------------------------------------------------------------------------------------------------


def test_netplan_file_is_read_back_as_addresses_routes_and_rules() -> None:
    reading = read(files()[NETPLAN])
    lines = files()[NETPLAN].splitlines()
    assert {key: setting.value for key, setting in reading.settings.items() if "enp60" not in key and "67" not in key} == {
        "version": "2",
        "enp26s0np0|renderer": "networkd",
        "enp26s0np0|dhcp4": "no",
        "enp26s0np0|dhcp6": "no",
        "enp26s0np0|accept-ra": "no",
        "enp26s0np0|ignore-carrier": "yes",
        "enp26s0np0|optional": "yes",
        "enp26s0np0|mtu": "9000",
        "enp26s0np0|address|10.10.0.3/31": "10.10.0.3/31",
        "enp26s0np0|route|1000|default": "10.10.0.2",
        "enp26s0np0|route|main|10.10.0.0/16": "10.10.0.2",
        "enp26s0np0|route-metric|main|10.10.0.0/16": "1000",
        "rule|10.10.0.3": "1000",
        "rule-priority|10.10.0.3": "1000",
    }
    assert all(
        setting.value in lines[setting.line - 1] for setting in reading.settings.values() if setting.value not in {"yes", "no"}
    )
    assert reading.device is not None
    assert {name: (port.addresses, port.gateway, port.mtu) for name, port in reading.device.ports.items()} == {
        "enp26s0np0": (("10.10.0.3/31",), "10.10.0.2", 9000),
        "enp60s0np0": (("10.10.0.67/31",), "10.10.0.66", 9000),
    }
    assert reading.device.fabric is None
    assert list(reading.faults()) == []


def test_file_of_another_fabric_names_that_fabric() -> None:
    reading = read(files()[OF_FILES])
    assert reading.device is not None
    assert reading.device.fabric == "files"
    assert list(reading.faults()) == []


def test_script_is_read_back_with_its_expected_addresses() -> None:
    reading = read_script(files()[SCRIPT])
    expected = {key: setting.value for key, setting in reading.settings.items() if key.endswith("address-expected")}
    assert expected == {"mlx5_0|address-expected": "10.10.0.3/31", "mlx5_1|address-expected": "10.10.0.67/31"}
    assert set(reading.qos) == {"mlx5_0", "mlx5_1"}
    assert list(reading.faults()) == []


def test_file_is_recognized_by_its_path_and_by_its_first_key() -> None:
    text = files()[NETPLAN]
    for reader in (reader_of(PurePosixPath("etc/netplan/01-site.yaml")), recognized(text), recognized("---\n" + text)):
        assert reader is not None
        assert reader(text).settings == read(text).settings
    assert recognized("kind: Pod\nnetwork: {}\n") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network: [", "line 1: not YAML"),
        ("network:\n  version: 2\n  ethernets: {a: {b: c}\n", "line 3: not YAML"),
        ("", "line 1: no mapping `network`"),
        ("network: 2\n", "line 1: no mapping `network`"),
        ("- network: {}\n", "line 1: no mapping `network`"),
    ],
)
def test_text_other_than_netplan_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read(text)


# As Ubuntu's installer, cloud-init and MAAS write them: the interfaces by which a host is reached, bonds, and what headway has no rule for.
OF_SITES: Mapping[str, str] = {
    "the installer": "network:\n  ethernets:\n    eno1: {dhcp4: true}\n    enp26s0np0: {dhcp4: true, optional: true}\n  version: 2\n",
    "cloud-init": """
network:
    version: 2
    ethernets:
        eth0:
            match: {macaddress: '52:54:00:6b:3c:58'}
            set-name: eth0
            mtu: 1500
            addresses: [192.0.2.10/24, "2001:db8::10/64"]
            gateway4: 192.0.2.1
            nameservers: {addresses: [192.0.2.53], search: [example.org]}
""",
    "a bond": """
network:
  version: 2
  renderer: networkd
  ethernets: {eno1: {}, eno2: {}}
  bonds:
    bond0:
      interfaces: [eno1, eno2]
      mtu: 9000
      parameters: {mode: 802.3ad, mii-monitor-interval: 100}
  vlans:
    bond0.12:
      id: 12
      link: bond0
      addresses:
        - 198.51.100.7/24: {label: "maas"}
      routes: [{to: 0.0.0.0/0, via: 198.51.100.1}]
""",
    "nothing": "network: {version: 2}\n",
}


@pytest.mark.parametrize("site", OF_SITES)
def test_files_of_a_site_have_no_fault_and_no_rail(site: str) -> None:
    reading = read(OF_SITES[site])
    assert list(reading.faults()) == []
    assert reading.device is not None
    assert not reading.device.ports.keys() & {"eno1", "eth0", "bond0.12", "enp26s0np0"}


def fault(old: str, new: str, count: int = 1) -> list[Fault]:
    text = files()[NETPLAN]
    assert old in text
    return list(read(text.replace(old, new, count)).faults())


@pytest.mark.parametrize(
    ("old", "new", "code", "words", "doubtful"),
    [
        ("ignore-carrier: true", "ignore-carrier: false", "HW851", "when its link goes down", True),
        ("      ignore-carrier: true\n", "", "HW851", "when its link goes down", True),
        ("      mtu: 9000\n", "", "HW820", "sets the address of enp26s0np0 and no MTU", True),
        ("mtu: 9000", "mtu: 1500", "HW820", "the MTU is 1500", True),
        ("mtu: 9000", "mtu: 4096", "HW820", "the MTU is 4096", False),
        ('        - {from: "10.10.0.3", table: 1000, priority: 1000}\n', "        []\n", "HW851", "no rule leads to it", False),
        ('{to: default, via: "10.10.0.2", table: 1000}', "{to: 192.0.2.0/24, via: 10.10.0.2}", "HW851", "has no route", False),
        ('{to: default, via: "10.10.0.2"', '{to: default, via: "10.10.0.4"', "HW851", "is not a neighbor", False),
        ("priority: 1000", "priority: 32800", "HW851", "after the main table", False),
        ("10.10.0.3/31", "10.10.0.3", "HW851", "is not an address with its prefix length", False),
    ],
)
def test_fault_is_found_with_its_effect(old: str, new: str, code: str, words: str, doubtful: bool) -> None:
    found = fault(old, new)
    assert [(each.code, each.doubtful) for each in found] == [(code, doubtful)], found
    assert words in found[0].message
    assert read(files()[NETPLAN].replace(old, new, 1)).line_of(found[0].key) is not None


def test_two_rails_in_one_table_are_found() -> None:
    messages = [each.message for each in fault("table: 1001", "table: 1000", 2)]
    assert any("enp60s0np0 and enp26s0np0 share routing table 1000" in message for message in messages)


def test_rails_without_a_route_to_each_other_are_found() -> None:
    lines = [line for line in files()[NETPLAN].splitlines() if "metric" not in line]
    (found,) = read("\n".join(lines)).faults()
    assert "no route of the main table leads to 10.10.0.3" in found.message


# --- with a cluster file ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "cluster.yaml").write_text(CLUSTER)
    assert main(["render", str(folder / "cluster.yaml"), "-o", str(folder / "rendered")]) == 0
    return folder


def audit(folder: Path, *arguments: str) -> int:
    return main(["audit", str(folder / "rendered"), *arguments])


def test_rendered_files_match_the_cluster_file_and_have_no_fault(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tree, "--cluster", str(tree / "cluster.yaml")) == 0
    assert "netplan" not in capsys.readouterr().out
    assert audit(tree) == 0
    assert "netplan" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "severity", "words"),
    [
        ("10.10.0.67/31", "10.10.0.69/31", "error", "enp60s0np0|address|10.10.0.67/31"),
        ("mtu: 9000", "mtu: 8000", "error", "`enp26s0np0|mtu` is 8000, but 9000"),
        ("metric: 1000", "metric: 10", "error", "`enp26s0np0|route-metric|main|10.10.0.0/16` is 10, but 1000"),
        ("  ethernets:\n", "  ethernets:\n    eno9: {optional: true}\n", "warning", "`eno9|optional` is yes"),
    ],
)
def test_changed_file_differs_from_the_cluster_file(
    tree: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, severity: str, words: str
) -> None:
    file = tree / "rendered/lab/hosts/gpu-2" / NETPLAN.relative_to("/")
    text = file.read_text()
    assert old in text
    try:
        file.write_text(text.replace(old, new, 1))
        assert audit(tree, "--cluster", str(tree / "cluster.yaml")) == (severity == "error")
    finally:
        file.write_text(text)
    out = capsys.readouterr().out
    assert f"{severity}[HW603]" in out
    assert words in out


def test_wrong_address_differs_from_that_of_the_leafs_link(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the cluster file: two nodes with one address, as after a copy of a file."""
    there, here = (tree / f"rendered/lab/hosts/gpu-{number}" / NETPLAN.relative_to("/") for number in (1, 2))
    text = here.read_text()
    try:
        here.write_text(there.read_text())
        assert audit(tree) == 1
    finally:
        here.write_text(text)
    assert "10.10.0.1" in capsys.readouterr().out


def test_netplan_files_alone_identify_cables(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The switches' descriptions name RDMA devices, and netplan's files network interfaces: their addresses join them."""
    shutil.copytree(tree / "rendered", tmp_path / "rendered")
    for path in (tmp_path / "rendered").rglob("headway-qos*"):
        path.unlink()
    assert audit(tmp_path) == 0
    file = tmp_path / "rendered/lab/hosts/gpu-2" / NETPLAN.relative_to("/")
    file.write_text(file.read_text().replace('via: "10.10.0.66"', 'via: "10.10.0.67"'))
    capsys.readouterr()
    assert audit(tmp_path) == 1
    assert "10.10.0.67 is not a neighbor" in capsys.readouterr().out


def test_file_at_a_rendered_path_belongs_to_headway(tree: Path) -> None:
    (tree / "cluster.yaml").write_text(CLUSTER.replace("network_config: netplan", "network_config: script"))
    try:
        assert main(["render", str(tree / "cluster.yaml"), "-o", str(tree / "rendered")]) == 0
        found = {path.name for path in (tree / "rendered").rglob("*.yaml")}
        assert not {NETPLAN.name, OF_FILES.name} & found
    finally:
        (tree / "cluster.yaml").write_text(CLUSTER)
        assert main(["render", str(tree / "cluster.yaml"), "-o", str(tree / "rendered")]) == 0
