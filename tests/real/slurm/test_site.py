"""Tests a cluster's plan on a real Slurm: its topology, tried before it is used, and the check of its nodes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.compile import compile_documents
from tests.faults.runs import LIMIT_S, wait_until

from .cluster import SlurmCluster
from .configuration import Shape
from .versions import INSTALLED, mostly

pytestmark = pytest.mark.slow

# Four nodes, two below each leaf.
TREE = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm, options: {partition: main, topology: tree, node_names: {gpu: "n[1-4]"}}}
node_groups: [{name: gpu, count: 4, cpus: 4, gpu: H100-SXM-80, gpus: 8, nics: [mlx5_0]}]
fabrics:
  - name: rails
    role: scale-out
    transport: infiniband
    switches: {ports: 4, node_ports: 2, tiers: 2, speed: 400Gb/s, os: [{kind: opensm}]}
storage: [{name: runs, kind: posix, path: /runs, shared: true}]
"""
BLOCKS = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: racks
scheduler: {kind: slurm, options: {partition: main, topology: block, node_names: {gpu: "n[1-4]"}}}
node_groups: [{name: gpu, count: 4, cpus: 4, arch: aarch64, gpu: GB200-186, gpus: 4, nvlink_domain: 8, imex: true, nics: [mlx5_0]}]
fabrics: [{name: rails, role: scale-out, transport: infiniband}]
storage: [{name: runs, kind: posix, path: /runs, shared: true}]
"""


def files(folder: Path, text: str) -> dict[str, str]:
    """The files for Slurm that the cluster is rendered to, by their names."""
    (folder / "cluster.yaml").write_text(text)
    (planned,) = compile_documents([folder / "cluster.yaml"], kinds=("Cluster",)).clusters
    return {path.name: text for path, text in planned.files().items() if path.parent.name == "slurm"}


def verify(cluster: SlurmCluster, folder: Path, *options: str) -> tuple[int, list[str]]:
    """The exit code of `headway verify-topology` next to the cluster's Slurm, and its output."""
    words = [sys.executable, "-m", "headway.cli.main", "verify-topology", str(folder / "cluster.yaml"), *options]
    done = cluster.run(*words, check=False, timeout_s=120)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def with_topology(files: dict[str, str], file: str, plugin: str) -> Shape:
    return Shape(nodes=4, files={file: files[file]}, settings={"TopologyPlugin": f"topology/{plugin}"})


@mostly(INSTALLED)
def test_slurm_places_jobs_by_the_topology_that_a_trial_accepted(each_slurm: SlurmCluster, tmp_path: Path) -> None:
    found = files(tmp_path, TREE)
    with SlurmCluster(with_topology(found, "topology.conf", "tree"), each_slurm.programs) as slurm:
        code, said = verify(slurm, tmp_path)
        assert code == 0, said
        assert "topology.conf: slurmctld " in said[0]
        assert said[0].endswith(" starts with 3 switches")
        shown = slurm.run("scontrol", "show", "topology").stdout
        assert [line.split()[0] for line in shown.splitlines()] == [
            "SwitchName=rails-leaf-1",
            "SwitchName=rails-leaf-2",
            "SwitchName=rails",
        ]
        # n1 is taken: two nodes below one leaf are n3 and n4.
        slurm.set_node("n1", "drain", "test")
        assert slurm.run("srun", "-N2", "--switches=1", "hostname").stdout.split() in (["n3", "n4"], ["n4", "n3"])
        slurm.set_node("n1", "resume", "test")


def test_a_trial_names_rejected_lines_and_leaves_slurmctld_running(slurm: SlurmCluster, tmp_path: Path) -> None:
    # Slurm has n1 and n2.
    files(tmp_path, TREE)
    code, said = verify(slurm, tmp_path)
    assert code == 1
    assert any(line.startswith("not in Slurm: n[3-4];") for line in said), said
    assert slurm.node_state("n1") == "idle"
    assert verify(slurm, tmp_path, "--offline")[0] == 0


def test_nvlink_domains_are_blocks_in_a_current_slurm(current_slurm: SlurmCluster, tmp_path: Path) -> None:
    found = files(tmp_path, BLOCKS)
    with SlurmCluster(with_topology(found, "topology.yaml", "tree"), current_slurm.programs) as slurm:
        code, said = verify(slurm, tmp_path)
        assert code == 0, said
        assert [line.partition(":")[0] for line in said] == ["topology.conf", "topology.yaml"]
        shown = slurm.run("scontrol", "show", "topology").stdout
        assert {"BlockName=gpu-domain-1", "BlockName=gpu-domain-2"} <= set(shown.split())
        placed = slurm.run("srun", "-N2", "--segment=2", "--exclude=n1", "hostname").stdout.split()
        assert sorted(placed) == ["n3", "n4"]


# --- node check -------------------------------------------------------------------------------------------------------

CHECKED = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm, options: {partition: main, node_check: {most_drained: 1, timeout: 5s}, node_names: {cpu: "n[1-3]"}}}
node_groups: [{name: cpu, count: 3, cpus: 4}]
storage: [{name: runs, kind: posix, path: FOLDER/lustre/runs, shared: true}]
"""
# slurmd starts both without the configuration's path, which a site has in its usual place.
WRAPPER = "#!/bin/sh\n[ -s FOLDER/conf ] || exit 0\nSLURM_CONF=$(cat FOLDER/conf) PATH=CLIENTS:$PATH exec FOLDER/node-check\n"


@pytest.fixture
def checked(slurm_here: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """Three nodes with the check as the program of these settings; a tmpfs over `lustre` hides the file system of a node."""
    (tmp_path / "lustre/runs").mkdir(parents=True)
    script = files(tmp_path, CHECKED.replace("FOLDER", str(tmp_path)))["node-check"]
    (tmp_path / "node-check").write_text(script.replace("lock=/run/", f"lock={tmp_path}/"))
    settings = {name: value.replace("CHECK", str(tmp_path / "wrapper")) for name, value in request.param.items()}
    cluster = SlurmCluster(Shape(nodes=3, settings=settings))
    text = WRAPPER.replace("FOLDER", str(tmp_path)).replace("CLIENTS", str(cluster.programs.clients))
    (tmp_path / "wrapper").write_text(text)
    for name in ("node-check", "wrapper"):
        (tmp_path / name).chmod(0o755)
    # slurmd runs the check before it registers: the nodes are healthy then, and no slurmctld is queried.
    (tmp_path / "conf").touch()
    with cluster:
        (tmp_path / "conf").write_text(f"{cluster.root}/etc/slurm.conf")
        yield cluster


def without_lustre(cluster: SlurmCluster, node: str, folder: Path) -> None:
    cluster.nsenter(node, ["mount", "-t", "tmpfs", "tmpfs", str(folder / "lustre")])


def reason(cluster: SlurmCluster, node: str) -> str:
    return cluster.run("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%E").stdout.strip()


PROLOG = {
    "Prolog": "CHECK",
    "PrologFlags": "Alloc",
    "SchedulerParameters": "nohold_on_prolog_fail,bf_interval=2,sched_interval=5",
}
HEALTH = {"HealthCheckProgram": "CHECK", "HealthCheckInterval": "2", "HealthCheckNodeState": "ANY"}


@pytest.mark.variant
@pytest.mark.parametrize("checked", [PROLOG], indirect=True, ids=["prolog"])
def test_a_job_moves_when_the_prolog_finds_a_node_without_its_file_system(checked: SlurmCluster, tmp_path: Path) -> None:
    without_lustre(checked, "n1", tmp_path)
    (tmp_path / "job.sbatch").write_text("#!/bin/sh\nsrun hostname\n")
    job = checked.submit(tmp_path / "job.sbatch", "--nodes=2", cwd=tmp_path)
    assert checked.wait(job, {"COMPLETED"}, LIMIT_S)["NodeList"] == "n[2-3]"
    assert checked.wait_node("n1", {"drained"}, LIMIT_S)
    assert reason(checked, "n1") == f"headway: storage-1: {tmp_path}/lustre/runs is not a directory"
    # Another node with the same fault is beyond the limit: the job starts there.
    without_lustre(checked, "n2", tmp_path)
    job = checked.submit(tmp_path / "job.sbatch", "--nodelist=n2", cwd=tmp_path)
    assert checked.wait(job, {"COMPLETED"}, LIMIT_S)["NodeList"] == "n2"
    assert "drain" not in checked.node_state("n2")


@pytest.mark.variant
@pytest.mark.parametrize("checked", [HEALTH], indirect=True, ids=["health"])
def test_the_health_check_drains_one_node_but_not_all_with_the_same_fault(checked: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(f"#!/bin/sh\nuntil [ -e {tmp_path}/go ]; do sleep 0.2; done\n")
    job = checked.submit(tmp_path / "job.sbatch", "--nodelist=n2", cwd=tmp_path)
    checked.wait(job, {"RUNNING"}, LIMIT_S)
    without_lustre(checked, "n2", tmp_path)
    checked.wait_node("n2", {"draining"}, LIMIT_S)
    assert reason(checked, "n2").startswith("headway: storage-1: ")
    for name in ("n1", "n3"):
        without_lustre(checked, name, tmp_path)
    # A lock that exists again shows that slurmd has run the check on the node since.
    for name in ("n1", "n3"):
        (tmp_path / f"headway-node-check.{name}.lock").unlink()
    wait_until(lambda: all((tmp_path / f"headway-node-check.{name}.lock").exists() for name in ("n1", "n3")), "another check")
    done = checked.nsenter("n1", ["env", "SLURMD_NODENAME=n1", str(tmp_path / "wrapper")])
    assert "not drained: 1 nodes are" in done.stderr
    assert [checked.node_state(name) for name in ("n1", "n3")] == ["idle", "idle"]
    assert checked.job(job)["JobState"] == "RUNNING"
    (tmp_path / "go").touch()
    assert checked.wait(job, {"COMPLETED"}, LIMIT_S)["NodeList"] == "n2"
