"""Tests jobs of real Slurm that request part of a node or a range of nodes, with a command, a setup and a secret."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headway.cli.main import main
from tests.faults.runs import LIMIT_S, wait_until

from .cluster import SlurmCluster
from .configuration import Shape

pytestmark = pytest.mark.slow

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm, options: {partition: main}}
node_groups:
  - {name: gpu, count: 1, cpus: 4, host_memory: 16GB, gpu: H100-SXM-80, gpus: 4, nics: [mlx5_0]}
  - {name: cpu, count: 2, cpus: 2}
fabrics: [{name: rails, role: scale-out, transport: infiniband}]
storage: [{name: runs, kind: posix, path: runs, shared: true}]
"""
HEAD = "apiVersion: headway/v1alpha1\nkind: TrainingJob\ncluster: lab\n"
# Each rank writes its parameters, and waits until the test has seen them.
RANK = 'echo "$RANK of $WORLD_SIZE, $FROM_SETUP, $SOME_KEY" >"$0/rank-$RANK"; until [ -e "$1" ]; do sleep 0.2; done'
COMMAND = f"""\
setup: ["export FROM_SETUP='a b'"]
secrets: [SOME_KEY]
trainer: {{kind: script, options: {{python: false, argv: [sh, -c, '{RANK}', "{{run_directory}}", GO]}}}}
"""
TWO_GPUS = f"{HEAD}name: part\nnodes: 1\ngpus: 2\n{COMMAND}"
RANGE = (
    f"{HEAD}name: range\ngroup: cpu\nnodes: {{min: 1, max: 2}}\nresilience: {{timeouts: {{last_call: 1s}}}}\n"
    f"scheduler: {{slurm: {{sbatch: [--nodelist=n1]}}}}\n{COMMAND}"
)


@pytest.fixture
def cluster(slurm_here: None) -> Iterator[SlurmCluster]:
    with SlurmCluster(Shape(nodes=2, cpus=4, gpus=4)) as cluster:
        yield cluster


def submit(cluster: SlurmCluster, folder: Path, job: str, name: str) -> int:
    (folder / "lab.yaml").write_text(CLUSTER)
    (folder / f"{name}.yaml").write_text(job.replace("GO", str(folder / "go")))
    assert main(["render", str(folder / f"{name}.yaml"), "-o", str(folder / "rendered")]) == 0
    script = folder / f"rendered/{name}/lab/slurm/job.sbatch"
    environment = {"PATH": f"{Path(sys.executable).parent}:{cluster.env['PATH']}", "SOME_KEY": "s3cret"}
    assert "s3cret" not in script.read_text()
    return cluster.submit(script, env=environment, cwd=folder)


def said(folder: Path, name: str) -> Mapping[Path, str]:
    """The output of the ranks of the job's runs, by file."""
    return {path: path.read_text() for path in folder.glob(f"runs/{name}-*/rank-*")}


def test_jobs_share_a_node_and_a_range_takes_the_free_nodes(cluster: SlurmCluster, tmp_path: Path) -> None:
    parts = [submit(cluster, tmp_path, TWO_GPUS.replace("name: part", f"name: part-{each}"), f"part-{each}") for each in "ab"]
    wait_until(lambda: len(said(tmp_path, "part")) == 4 and all(said(tmp_path, "part").values()), "all ranks of both jobs")
    jobs = [cluster.job(number) for number in parts]
    assert [job["JobState"] for job in jobs] == ["RUNNING"] * 2
    assert len({job["NodeList"] for job in jobs}) == 1
    assert sorted(said(tmp_path, "part").values()) == [f"{rank} of 2, a b, s3cret\n" for rank in (0, 0, 1, 1)]
    (tmp_path / "go").touch()
    for number in parts:
        assert cluster.wait(number, {"COMPLETED", "FAILED"}, LIMIT_S)["JobState"] == "COMPLETED"
    cluster.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    number = submit(cluster, tmp_path, RANGE, "range")
    assert cluster.wait(number, {"COMPLETED", "FAILED"}, LIMIT_S)["JobState"] == "COMPLETED"
    assert list(said(tmp_path, "range").values()) == ["0 of 1, a b, s3cret\n"]


GROUPS = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm, options: {partition: main, node_names: {first: n1, second: n2}}}
node_groups: [{name: first, count: 1, cpus: 2}, {name: second, count: 1, cpus: 2}]
storage: [{name: runs, kind: posix, path: runs, shared: true}]
"""
ONE_GROUP = GROUPS.replace(", node_names: {first: n1, second: n2}", "").replace(
    "[{name: first, count: 1, cpus: 2}, {name: second, count: 1, cpus: 2}]", "[{name: both, count: 2, cpus: 2}]"
)


@pytest.mark.parametrize(
    ("cluster", "job", "nodes"),
    [
        (GROUPS, "group: first\nnodes: 1\n", "n1"),
        (GROUPS, "group: second\nnodes: 1\n", "n2"),
        # Nodes that differ in their features: one group.
        (ONE_GROUP, "nodes: 2\nscheduler: {slurm: {constraint: old|new}}\n", "n[1-2]"),
        (ONE_GROUP, "nodes: 1\nscheduler: {slurm: {constraint: new}}\n", "n2"),
    ],
)
def test_a_job_gets_nodes_of_its_group_and_of_a_single_kind_on_request(
    slurm: SlurmCluster, cluster: str, job: str, nodes: str, tmp_path: Path
) -> None:
    (tmp_path / "lab.yaml").write_text(cluster)
    (tmp_path / "job.yaml").write_text(f"{HEAD}name: job\n{job}trainer: {{kind: script, options: {{argv: [train.py]}}}}\n")
    assert main(["render", str(tmp_path / "job.yaml"), "-o", str(tmp_path / "rendered")]) == 0
    features = {"n1": "old", "n2": "new"}
    try:
        for node, feature in features.items():
            slurm.run("scontrol", "update", f"nodename={node}", f"availablefeatures={feature}", f"activefeatures={feature}")
        said = slurm.run("sbatch", "--test-only", str(tmp_path / "rendered/job/lab/slurm/job.sbatch")).stderr
    finally:
        for node in features:
            slurm.run("scontrol", "update", f"nodename={node}", "activefeatures=", "availablefeatures=")
    assert f" on nodes {nodes} in partition main" in said
