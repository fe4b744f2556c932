"""Files of a cluster for slurmctld and slurmd: names of nodes, topology files, and the node check with stand-ins for Slurm."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from headway.compile import compile_documents
from headway.compile.cluster import PlannedCluster
from headway.templates.schedulers.slurm.node_names import compressed, counted_up_to, expanded

TREE = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm, options: {topology: tree, node_names: {gpu: "gpu[01-60]"}}}
node_groups:
  - {name: gpu, count: 60, cpus: 96, gpu: H100-SXM-80, gpus: 8, nic: ConnectX-7, nic_speed: 400Gb/s, nics: NICS}
  - {name: cpu, count: 2, cpus: 64}
fabrics:
  - {name: rails, role: scale-out, transport: infiniband, shape: rail-optimized, switches: {model: QM9700, SIZES os: [{kind: opensm}]}}
storage:
  - {name: runs, kind: posix, path: "/shared/{user}/runs", shared: true}
  - {name: data, kind: posix, path: /data, shared: true, groups: [cpu]}
"""
TWO_RAILS = "[mlx5_0, mlx5_1]"
RACKS = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: racks
scheduler: {kind: slurm, options: {topology: block}}
node_groups:
  - {name: gpu, count: 36, cpus: 144, arch: aarch64, gpu: GB200-186, gpus: 4, nvlink_domain: 72, imex: true, nics: [mlx5_0],
     hosts: [HOSTS]}
fabrics: [{name: rails, role: scale-out, transport: infiniband}]
storage: [{name: runs, kind: posix, path: /scratch/runs, shared: true}]
"""


def planned(folder: Path, text: str) -> PlannedCluster:
    (folder / "cluster.yaml").write_text(text)
    compiled = compile_documents([folder / "cluster.yaml"], kinds=("Cluster",))
    assert not compiled.problems.errors, [problem.message for problem in compiled.problems]
    return compiled.clusters[0]


def files(folder: Path, text: str) -> dict[str, str]:
    """Return the files of `slurm/` by name."""
    return {path.name: text for path, text in planned(folder, text).files().items() if path.parent.name == "slurm"}


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


# --- names of nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("gpu[01-03,10],login1", ["gpu01", "gpu02", "gpu03", "gpu10", "login1"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[3,1-2]", ["n3", "n1", "n2"]),
        ("rack1-n5,rack2-n[5-6]", ["rack1-n5", "rack2-n5", "rack2-n6"]),
        ("head", ["head"]),
        ("n9,m10", ["n9", "m10"]),
        ("n[99-100,0100]", ["n99", "n100", "n0100"]),
    ],
)
def test_list_of_nodes_is_in_the_notation_of_slurm(written: str, names: list[str]) -> None:
    assert list(expanded(written)) == names
    assert compressed(names) == written


def test_names_are_counted_without_expanding_them() -> None:
    assert counted_up_to("r[1-2]n[1-4],x", 100) == 9
    assert list(expanded("r[1-2]n[1-2]")) == ["r1n1", "r1n2", "r2n1", "r2n2"]
    assert counted_up_to("n[1-999999999]", 8) == 9
    assert counted_up_to("n[1-99999999999999999999]", 8) == 9


# --- topology ---------------------------------------------------------------------------------------------------------


def test_nodes_on_the_same_leaves_share_a_leaf_switch(tmp_path: Path) -> None:
    found = files(tmp_path, TREE.replace("NICS", TWO_RAILS).replace("SIZES", "leaf_rails: 1,"))
    assert sorted(found) == ["topology.conf", "topology.yaml"]
    assert "# rails-leaf-1, rails-leaf-2\nSwitchName=rails-unit-1 Nodes=gpu[01-32]\n" in found["topology.conf"]
    assert lines(found["topology.conf"]) == [
        "SwitchName=rails-unit-1 Nodes=gpu[01-32]",
        "SwitchName=rails-unit-2 Nodes=gpu[33-60]",
        "SwitchName=cpu-nodes Nodes=cpu-[1-2]",
        "SwitchName=rails Switches=rails-unit-[1-2],cpu-nodes",
    ]
    (topology,) = yaml.safe_load(found["topology.yaml"])
    assert topology == {
        "topology": "lab",
        "cluster_default": True,
        "tree": {
            "switches": [
                {"switch": "rails-unit-1", "nodes": "gpu[01-32]"},
                {"switch": "rails-unit-2", "nodes": "gpu[33-60]"},
                {"switch": "cpu-nodes", "nodes": "cpu-[1-2]"},
                {"switch": "rails", "children": "rails-unit-[1-2],cpu-nodes"},
            ]
        },
    }


def test_pods_of_a_fabric_are_switches_between_leaf_switches_and_root(tmp_path: Path) -> None:
    # Switches with 8 ports: 4 nodes on a leaf, 4 leaves in a pod.
    text = TREE.replace("NICS", "[mlx5_0]").replace("model: QM9700, SIZES", "ports: 8, tiers: 3,")
    found = lines(files(tmp_path, text)["topology.conf"])
    assert found[:2] == ["SwitchName=rails-leaf-1 Nodes=gpu[01-04]", "SwitchName=rails-leaf-2 Nodes=gpu[05-08]"]
    assert found[-5:] == [
        "SwitchName=rails-pod-1 Switches=rails-leaf-[1-4]",
        "SwitchName=rails-pod-2 Switches=rails-leaf-[5-8]",
        "SwitchName=rails-pod-3 Switches=rails-leaf-[9-12]",
        "SwitchName=rails-pod-4 Switches=rails-leaf-[13-15]",
        "SwitchName=rails Switches=rails-pod-[1-4],cpu-nodes",
    ]


def test_nvlink_domain_is_a_block_of_its_hosts(tmp_path: Path) -> None:
    hosts = ", ".join(f"gb{number:02}.example.com" for number in range(1, 37))
    found = files(tmp_path, RACKS.replace("HOSTS", hosts))
    assert lines(found["topology.conf"]) == [
        "BlockName=gpu-domain-1 Nodes=gb[01-18]",
        "BlockName=gpu-domain-2 Nodes=gb[19-36]",
        "BlockSizes=18",
    ]
    (topology,) = yaml.safe_load(found["topology.yaml"])
    assert topology["block"] == {
        "block_sizes": [18],
        "blocks": [
            {"block": "gpu-domain-1", "nodes": "gb[01-18]"},
            {"block": "gpu-domain-2", "nodes": "gb[19-36]"},
        ],
    }


def test_cluster_without_a_planned_fabric_has_no_topology(tmp_path: Path) -> None:
    assert files(tmp_path, RACKS.replace("topology: block", "topology: tree, leaf_nodes: 18").replace("hosts: [HOSTS]", "")) == {}


def test_each_node_has_one_name_in_slurm(tmp_path: Path) -> None:
    wrong = TREE.replace("NICS", TWO_RAILS).replace("SIZES", "leaf_rails: 1,")
    for written, message in (
        ('{gpu: "gpu[01-59]"}', "`gpu[01-59]` has 59 names, but `gpu` has 60 nodes"),
        ('{gpu: "gpu[01-61]"}', "`gpu[01-61]` has more names, but `gpu` has 60 nodes"),
        ('{gpus: "gpu[01-60]"}', "`gpus` is not a group of nodes of `lab`"),
        ('{gpu: "gpu[01-60]", cpu: "gpu[60-61]"}', "`gpu60` is the name of two nodes"),
    ):
        (tmp_path / "cluster.yaml").write_text(wrong.replace('{gpu: "gpu[01-60]"}', written))
        problems = compile_documents([tmp_path / "cluster.yaml"], kinds=("Cluster",)).problems
        assert [(problem.code, problem.message) for problem in problems if problem.is_error] == [("HW437", message)]


# --- the check of the nodes -------------------------------------------------------------------------------------------

# `drained` has a line `TIME|NODE|REASON` for each drained node.
SCONTROL = """#!/bin/bash
case $* in
"show hostnames gpu[01-60]") printf 'gpu%02d\\n' {1..60} ;;
"show hostnames cpu-[1-2]") printf 'cpu-%d\\n' 1 2 ;;
update*state=drain*)
  echo "$*" >>FOLDER/calls
  node=${2#nodename=}
  reason=${@: -1}
  echo "2026-11-26T12:00:05|$node|${reason#reason=}" >>FOLDER/drained
  cat FOLDER/at-the-same-time >>FOLDER/drained 2>/dev/null || :
  ;;
update*state=resume*) echo "$*" >>FOLDER/calls; sed -i "/|${2#nodename=}|/d" FOLDER/drained ;;
esac
"""
SINFO = "#!/bin/sh\ncat FOLDER/drained\n"


@pytest.fixture
def check(tmp_path: Path) -> Path:
    """Write the node check, which drains at most two nodes, with a folder for the file systems and stand-ins for its commands."""
    text = (
        TREE.replace("NICS", "[]")
        .replace("transport: infiniband", "transport: tcp, interface: eth0")
        .replace("topology: tree, ", "node_check: {most_drained: 2, timeout: 1s}, ")
    )
    text = text.replace(", shape: rail-optimized, switches: {model: QM9700, SIZES os: [{kind: opensm}]}", "")
    script = files(tmp_path, text.replace("/shared/", f"{tmp_path}/shared/"))["node-check"]
    # No file of the test machine outside of the folder is changed.
    script = script.replace("lock=/run/", f"lock={tmp_path}/")
    path = tmp_path / "node-check"
    path.write_text(script)
    (tmp_path / "shared").mkdir()
    (tmp_path / "drained").touch()
    (tmp_path / "calls").touch()
    (tmp_path / "programs").mkdir()
    stand_in(tmp_path, "scontrol", SCONTROL.replace("FOLDER", str(tmp_path)))
    stand_in(tmp_path, "sinfo", SINFO.replace("FOLDER", str(tmp_path)))
    stand_in(tmp_path, "nvidia-smi", "#!/bin/sh\nseq 0 7\n")
    # The wait between two queries of the drained nodes.
    stand_in(tmp_path, "sleep", '#!/bin/sh\ncase $1 in 2) ;; *) exec /bin/sleep "$1" ;; esac\n')
    return path


def stand_in(folder: Path, name: str, text: str) -> None:
    (folder / "programs" / name).write_text(text)
    (folder / "programs" / name).chmod(0o755)


def run(check: Path, node: str = "gpu07", **variables: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    path = f"{check.parent / 'programs'}:{os.environ['PATH']}"
    environment = {"PATH": path, "SLURMD_NODENAME": node, **variables}
    done = subprocess.run(["dash", str(check)], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def calls(check: Path) -> list[str]:
    return (check.parent / "calls").read_text().splitlines()


def test_healthy_node_is_not_drained(check: Path) -> None:
    assert run(check) == (0, "")
    assert run(check, SLURM_JOB_ID="7") == (0, "")
    assert calls(check) == []


def test_node_is_checked_for_the_devices_of_its_group(check: Path) -> None:
    stand_in(check.parent, "nvidia-smi", "#!/bin/sh\nexit 9\n")
    # The group's storage is missing, and no GPU is required.
    assert run(check, node="cpu-1") == (0, "headway node-check on cpu-1: storage-2: /data is not a directory\n")
    assert calls(check) == ["update nodename=cpu-1 state=drain reason=headway: storage-2: /data is not a directory"]


@pytest.mark.parametrize(
    ("smi", "fault"),
    [
        ("seq 0 6", "gpus: 7 of 8"),
        (
            "echo 'Unable to determine the device handle for GPU'; exit 2",
            "gpus: nvidia-smi: Unable to determine the device handle for GPU",
        ),
        ("exec /bin/sleep 60", "gpus: no answer"),
    ],
)
def test_node_without_its_gpus_is_drained_and_its_prolog_fails(check: Path, smi: str, fault: str) -> None:
    stand_in(check.parent, "nvidia-smi", f"#!/bin/sh\n{smi}\n")
    assert run(check) == (0, f"headway node-check on gpu07: {fault}\n")
    # The second time, it is already drained.
    assert run(check, SLURM_JOB_ID="7") == (1, f"headway node-check on gpu07: {fault}\n")
    assert calls(check) == [f"update nodename=gpu07 state=drain reason=headway: {fault}"]


def test_fault_of_all_nodes_drains_no_more_than_the_limit(check: Path) -> None:
    shutil.rmtree(check.parent / "shared")
    ends = [run(check, node=f"gpu0{number}", SLURM_JOB_ID="7") for number in range(1, 5)]
    # If the node stays in service, its jobs start.
    assert [code for code, _ in ends] == [1, 1, 0, 0]
    assert all("not drained: 2 nodes are" in output for _, output in ends[2:])
    assert [line.split("|")[1] for line in (check.parent / "drained").read_text().splitlines()] == ["gpu01", "gpu02"]


def test_drains_by_operators_do_not_count(check: Path) -> None:
    (check.parent / "drained").write_text("2026-11-26T11:00:00|gpu30|broken fan\n2026-11-26T11:00:00|gpu31|broken fan\n")
    stand_in(check.parent, "nvidia-smi", "#!/bin/sh\nexit 1\n")
    assert run(check, SLURM_JOB_ID="7")[0] == 1
    assert len(calls(check)) == 1


def test_nodes_drained_at_the_same_time_beyond_the_limit_are_resumed(check: Path) -> None:
    shutil.rmtree(check.parent / "shared")
    (check.parent / "at-the-same-time").write_text(
        "2026-11-26T12:00:05|gpu02|headway: storage\n2026-11-26T12:00:05|gpu01|headway: storage\n"
    )
    code, output = run(check, SLURM_JOB_ID="7")
    assert code == 0
    assert "not drained: 2 nodes are" in output
    assert [call.split()[2] for call in calls(check)] == ["state=drain", "state=resume"]


def test_nothing_is_drained_if_slurmctld_does_not_answer(check: Path) -> None:
    shutil.rmtree(check.parent / "shared")
    stand_in(check.parent, "sinfo", "#!/bin/sh\nexit 1\n")
    code, output = run(check, SLURM_JOB_ID="7")
    assert code == 0
    assert "not drained: slurmctld does not answer" in output
    assert calls(check) == []


def test_check_requires_active_adapters_and_passes_shellcheck(tmp_path: Path) -> None:
    text = TREE.replace("NICS", TWO_RAILS).replace("SIZES", "leaf_rails: 1,")
    script = files(tmp_path, text.replace("topology: tree, ", "node_check: {most_drained: 2}, "))["node-check"]
    assert "      check mlx5_1 is_active mlx5_1\n" in script
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck (Debian: apt install shellcheck)")
    (tmp_path / "node-check").write_text(script)
    done = subprocess.run(["shellcheck", str(tmp_path / "node-check")], capture_output=True, text=True, check=False)
    assert done.stdout == ""
