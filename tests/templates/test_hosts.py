"""A node's files: the script configures the classes on a machine's files, and is read back as the settings that it makes."""

import os
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from headway.compile import compile_documents
from headway.templates.hosts.read import read
from headway.templates.hosts.render import SCRIPT, UNIT, render_host
from headway.templates.reading import QosView

from .test_sonic import cluster as sonic_cluster

CLUSTER = """
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 1, cpus: 8, gpu: H100, gpus: 2, nics: [mlx5_0, mlx5_1]}
  - {name: login, count: 1, cpus: 8}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes:
      - name: roce
        carries: collectives
        dscp: 26
        priority: 4
        lossless: true
        ecn: {min: 1000B, max: 2000B, percent: 5}
      - {name: cnp, carries: cnp, dscp: 48}
storage:
  - {name: runs, kind: posix, path: /runs, shared: true}
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[PurePosixPath, str]:
    """Return the files of gpu-1."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    compiled = compile_documents([tmp_path / "cluster.yaml"])
    assert len(compiled.clusters) == 1, list(compiled.problems)
    planned = compiled.clusters[0]
    assert render_host(planned.plan.nodes[1], planned.plan) == {}
    return render_host(planned.plan.nodes[0], planned.plan)


def test_adapters_with_another_driver_get_no_script(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("nics: [mlx5_0", "nic: BCM57608, nics: [mlx5_0"))
    compiled = compile_documents([tmp_path / "cluster.yaml"])
    (cluster,) = compiled.clusters
    assert [problem.code for problem in compiled.problems] == ["HW231", "HW531", "HW532"], "a marking threshold below a packet"
    assert render_host(cluster.plan.nodes[0], cluster.plan) == {}


def test_script_reads_back_as_the_classes_of_its_fabric(files: dict[PurePosixPath, str]) -> None:
    views = read(files[SCRIPT]).qos
    assert set(views) == {"mlx5_0", "mlx5_1"}
    assert views["mlx5_0"] == QosView(
        marks={"collectives": 26, "cnp": 48},
        marks_priority={"cnp": 6},
        priorities={26: 4, 48: 6},
        pfc={priority: priority == 4 for priority in range(8)},
        reacts={priority: priority == 4 for priority in range(8)},
        says=frozenset(
            {
                "DSCP that marks",
                "priority that marks",
                "priority of DSCP",
                "PFC of priority",
                "congestion control of priority",
            }
        ),
    )
    assert views["mlx5_1"] == views["mlx5_0"]


def test_settings_of_the_script_apply_to_all_adapters_and_have_lines(files: dict[PurePosixPath, str]) -> None:
    lines = files[SCRIPT].splitlines()
    settings = read(files[SCRIPT]).settings
    assert {key: setting.value for key, setting in settings.items()} == {
        "dscp-prio|26": "4",
        "dscp-prio|48": "6",
        "pause|rx": "off",
        "pause|tx": "off",
        "prio-pfc|all": "off",
        "prio-pfc|4": "on",
        "default_roce_tos": "106",
        "tc/1/traffic_class": "106",
        "ecn/roce_np/enable/4": "1",
        "ecn/roce_rp/enable/4": "1",
        "ecn/roce_np/cnp_dscp": "48",
        "ecn/roce_np/cnp_802p_prio": "6",
        "adapter|0": "mlx5_0",
        "adapter|1": "mlx5_1",
    }
    assert all(setting.value in lines[setting.line - 1] for setting in settings.values())


def test_adapter_with_an_overriding_line_is_a_separate_end(files: dict[PurePosixPath, str]) -> None:
    reading = read(files[SCRIPT] + "dcb app replace dev eth0 dscp-prio 26:2\n")
    assert set(reading.qos) == {"mlx5_0", "mlx5_1", "eth0"}
    assert (reading.qos["mlx5_0"].priorities[26], reading.qos["eth0"].priorities) == (4, {26: 2})
    assert reading.settings["eth0|dscp-prio|26"].value == "2"


def test_flush_removes_the_priorities_before_it(files: dict[PurePosixPath, str]) -> None:
    later = files[SCRIPT].replace("  dcb app add dev", '  dcb app flush dev "$netdev" dscp-prio\n  dcb app add dev')
    assert set(read(later).qos["mlx5_0"].priorities) == {48}


def test_unit_runs_the_script_before_jobs_can_start(files: dict[PurePosixPath, str]) -> None:
    lines = files[UNIT].splitlines()
    assert f"ExecStart={SCRIPT}" in lines
    assert "Before=slurmd.service kubelet.service" in lines
    # A node whose adapters do not have a setting starts nevertheless; its unit has failed.
    assert "WantedBy=multi-user.target slurmd.service kubelet.service" in lines
    assert not [line for line in lines if line.startswith("Required")]


@pytest.mark.parametrize("text", ["", "echo hello\n", "set_qos 'mlx5_0\n"])
def test_text_that_is_not_such_a_script_is_rejected_with_its_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 1: "):
        read(text)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare (util-linux)")
@pytest.mark.parametrize("driver", ["nvidia", "kernel"])
def test_script_writes_each_number_to_the_file_of_each_driver(
    files: dict[PurePosixPath, str], driver: str, tmp_path: Path
) -> None:
    sys_tree = tmp_path / "sys"
    _sys_of_mlx5(sys_tree, driver)
    assert _run(files[SCRIPT], sys_tree, tmp_path).returncode == 0
    for index in (0, 1):
        assert _written(sys_tree, driver, index) == {"tos": "106", "dscp": "48", "priority": "6", **_EXTRA[driver]}
    commands = (tmp_path / "log").read_text().splitlines()
    for netdev in ("eth0", "eth1"):
        flush, *added = [command for command in commands if command.startswith("dcb app") and f" dev {netdev} " in command]
        assert flush == f"dcb app flush dev {netdev} dscp-prio"
        assert added == [f"dcb app add dev {netdev} dscp-prio 26:4", f"dcb app add dev {netdev} dscp-prio 48:6"]
        assert f"dcb pfc set dev {netdev} prio-pfc all:off 4:on" in commands
        assert f"ethtool -A {netdev} rx off tx off" in commands


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare (util-linux)")
def test_missing_adapter_fails_the_unit_after_the_others_are_configured(files: dict[PurePosixPath, str], tmp_path: Path) -> None:
    sys_tree = tmp_path / "sys"
    _sys_of_mlx5(sys_tree, "nvidia")
    (sys_tree / "class/infiniband/mlx5_0/device").unlink()
    done = _run(files[SCRIPT], sys_tree, tmp_path)
    assert (done.returncode, done.stderr) == (1, "headway-qos: no adapter mlx5_0, or it has no network interface\n")
    assert _written(sys_tree, "nvidia", 1) == {"tos": "106", "dscp": "48", "priority": "6", **_EXTRA["nvidia"]}


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare (util-linux)")
def test_setting_that_the_driver_does_not_have_is_reported(files: dict[PurePosixPath, str], tmp_path: Path) -> None:
    """With kernel lockdown, and with other drivers, debugfs does not have the file."""
    sys_tree = tmp_path / "sys"
    _sys_of_mlx5(sys_tree, "kernel")
    shutil.rmtree(sys_tree / "kernel/debug")
    done = _run(files[SCRIPT], sys_tree, tmp_path)
    assert done.returncode == 1
    expected = "headway-qos: neither /sys/class/net/eth0/ecn/roce_np/cnp_dscp nor /sys/kernel/debug/mlx5/0000:10:00.0/cc_params/np_cnp_dscp"
    assert expected in done.stderr


STORAGE = """
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: store, count: 1, cpus: 8, nics: [{name: mlx5_0, fabric: files}, {name: mlx5_1, fabric: files}]}
fabrics:
  - name: files
    role: storage
    transport: roce
    classes:
      - {name: nfs, carries: storage, dscp: 18, priority: 4, lossless: true, ecn: {min: 150kB, max: 1500kB, percent: 100}}
      - {name: cnp, carries: cnp, dscp: 48}
storage:
  - {name: runs, kind: posix, path: /runs, shared: true}
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare (util-linux)")
@pytest.mark.parametrize("driver", ["nvidia", "kernel"])
def test_script_of_a_storage_network_marks_packets_of_file_systems(driver: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(STORAGE)
    (cluster,) = compile_documents([tmp_path / "cluster.yaml"]).clusters
    text = render_host(cluster.plan.nodes[0], cluster.plan)[SCRIPT.with_name("headway-qos-files")]
    sys_tree = tmp_path / "sys"
    _sys_of_mlx5(sys_tree, driver)
    assert _run(text, sys_tree, tmp_path).returncode == 0
    extra = {**_EXTRA[driver], "tc": "74"} if driver == "nvidia" else {}
    for index in (0, 1):
        assert _written(sys_tree, driver, index) == {"tos": "74", "dscp": "48", "priority": "6", **extra}
    (sys_tree / "class/infiniband/mlx5_0/device").unlink()
    shutil.rmtree(tmp_path / "bin")
    done = _run(text, sys_tree, tmp_path)
    assert (done.returncode, done.stderr) == (1, "headway-qos-files: no adapter mlx5_0, or it has no network interface\n")


def test_addresses_and_routes_match_the_plan() -> None:
    """Each adapter has one table: its address, its leaf, and nothing that depends on another adapter."""
    plan = sonic_cluster()
    text = render_host(plan.nodes[1], plan)[SCRIPT]
    calls = [line for line in text.splitlines() if line.startswith("set_address ")]
    assert calls == [
        'set_address mlx5_0 10.10.0.3/31 10.10.0.2 1000 & wait "$!" || failed=1',
        'set_address mlx5_1 10.10.0.67/31 10.10.0.66 1001 & wait "$!" || failed=1',
    ]
    assert 'ip link set dev "$netdev" mtu 9000 up' in text
    assert 'ip route replace 10.10.0.0/16 via "$gateway" dev "$netdev" metric "$table"' in text
    assert {f'setting "$netdev" {name}' in text for name in ("arp_ignore 1", "arp_announce 2", "rp_filter 2")} == {True}


def _run(text: str, sys_tree: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run the script with `sys_tree` instead of /sys; `dcb` and `ethtool`, which access the adapter, write to `log`."""
    programs, script = scratch / "bin", scratch / "headway-qos"
    programs.mkdir()
    for name, code in (("dcb", 0), ("ethtool", 78), ("modprobe", 1), ("mountpoint", 0)):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{scratch / "log"}"\nexit {code}\n')
        (programs / name).chmod(0o755)
    script.write_text(text)
    mounted = f'mount --bind "{sys_tree}" /sys && PATH="{programs}:$PATH" bash "{script}"'
    return subprocess.run(["unshare", "--mount", "bash", "-c", mounted], check=False, capture_output=True, text=True, timeout=60)


_EXTRA = {"nvidia": {"np": "1", "rp": "1", "tc": "106"}, "kernel": {}}


def _sys_of_mlx5(root: Path, driver: str) -> None:
    """Create two adapters as NVIDIA's driver or that of the kernel shows them."""
    for index in (0, 1):
        bus = f"0000:{index + 1}0:00.0"
        device = root / "devices" / bus
        (device / "net" / f"eth{index}").mkdir(parents=True)
        adapter = root / "class/infiniband" / f"mlx5_{index}"
        (adapter / "tc/1").mkdir(parents=True)
        (adapter / "device").symlink_to(f"../../../devices/{bus}")
        (root / "kernel/config/rdma_cm" / f"mlx5_{index}" / "ports/1").mkdir(parents=True)
        if driver == "nvidia":
            (adapter / "tc/1/traffic_class").touch()
            for side in ("roce_np", "roce_rp"):
                (root / "class/net" / f"eth{index}" / "ecn" / side / "enable").mkdir(parents=True)
                (root / "class/net" / f"eth{index}" / "ecn" / side / "enable/4").touch()
            for name in ("cnp_dscp", "cnp_802p_prio"):
                (root / "class/net" / f"eth{index}" / "ecn/roce_np" / name).touch()
        else:
            params = root / "kernel/debug/mlx5" / bus / "cc_params"
            params.mkdir(parents=True)
            for name in ("np_cnp_dscp", "np_cnp_prio"):
                (params / name).touch()


def _written(root: Path, driver: str, index: int) -> dict[str, str]:
    cm = root / "kernel/config/rdma_cm" / f"mlx5_{index}" / "ports/1/default_roce_tos"
    if driver == "kernel":
        params = root / "kernel/debug/mlx5" / f"0000:{index + 1}0:00.0" / "cc_params"
        places = {"tos": cm, "dscp": params / "np_cnp_dscp", "priority": params / "np_cnp_prio"}
    else:
        ecn = root / "class/net" / f"eth{index}" / "ecn"
        places = {
            "tos": cm,
            "dscp": ecn / "roce_np/cnp_dscp",
            "priority": ecn / "roce_np/cnp_802p_prio",
            "np": ecn / "roce_np/enable/4",
            "rp": ecn / "roce_rp/enable/4",
            "tc": root / "class/infiniband" / f"mlx5_{index}" / "tc/1/traffic_class",
        }
    return {name: place.read_text().strip() for name, place in places.items()}
