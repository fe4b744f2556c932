"""Captures of checkpoints in host memory: the size of those of a job's ranks and of its partner's copies, and their plan."""

from pathlib import Path

import pytest

from headway.cli.documents import load_job_plan
from headway.cli.views.plan_checkpoints import checkpoint_facts
from headway.compile import PlannedJob
from headway.planner.memory.captures import CaptureMemory, captures_of, host_load
from headway.planner.memory.host import HostLoad

CPU = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups: [{name: cpu, count: 2, cpus: 8, procs: 4, host_memory: 64GiB}]
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true}
  - {name: far, kind: object, url: "s3://training"}
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: lab
nodes: 2
model: {vocab_size: 256, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn_hidden: 176}
data: {kind: python-stdlib}
batch: {global: 16 sequences, micro: 2, sequence: 128}
optimizer: {lr: 0.003}
steps: 1000
"""
DISK = "{kind: shared, every: 100 steps}"
ALL = f'{{kind: memory, every: 5 steps}}, {{kind: peer, every: 10m}}, {DISK}, {{kind: remote, every: 1h, url: "s3://training/a"}}'


def planned(folder: Path, tiers: str, job: str = JOB) -> PlannedJob:
    (folder / "cluster.yaml").write_text(CPU)
    (folder / "train.py").touch()
    (folder / "job.yaml").write_text(f"{job}checkpoint: {{horizon: 300 steps, tiers: [{tiers}]}}\n")
    found = load_job_plan(folder / "job.yaml")
    assert found is not None
    return found


def captures(folder: Path, tiers: str, job: str = JOB) -> CaptureMemory | None:
    found = planned(folder, tiers, job)
    return captures_of(found.plan, found.cluster)


def test_builtin_trainer_captures_12_bytes_per_parameter_over_its_ranks(tmp_path: Path) -> None:
    found = captures(tmp_path, DISK)
    parameters = planned(tmp_path, DISK).plan.model
    assert found is not None
    assert parameters is not None
    assert found.stored_bytes == 12 * parameters.parameters
    assert found.rank_bytes == found.stored_bytes / 8
    assert found.node_bytes == found.rank_bytes * 4 * 2


@pytest.mark.parametrize(("tiers", "held"), [(DISK, (2, 0)), (ALL, (3, 2))])
def test_remote_tier_needs_a_third_capture_and_a_peer_two_copies(tmp_path: Path, tiers: str, held: tuple[int, int]) -> None:
    found = captures(tmp_path, tiers)
    assert found is not None
    assert (found.buffers, found.copies) == held
    assert host_load(planned(tmp_path, tiers).plan) == HostLoad(staged=held[0], peers=held[1])


SCRIPT = JOB.replace("data: {kind: python-stdlib}\n", "") + "trainer: {kind: script, options: {argv: [train.py]}}\n"


def test_script_that_saves_to_disk_may_need_no_capture(tmp_path: Path) -> None:
    assert captures(tmp_path, DISK, SCRIPT) is None
    assert host_load(planned(tmp_path, DISK, SCRIPT).plan) == HostLoad(staged=1, peers=0)


def test_captures_of_a_script_on_unknown_gpus_have_no_size(tmp_path: Path) -> None:
    assert captures(tmp_path, ALL, SCRIPT) is None


def test_plan_shows_each_tier_and_the_total_memory(tmp_path: Path) -> None:
    found = planned(tmp_path, ALL)
    assert dict(checkpoint_facts(found.plan, found.cluster)) == {
        "checkpoints in memory": "every 5 steps, the newest stays, 733.9KiB a node",
        "checkpoints with a peer": "every 10m, the newest stays, 733.9KiB a node",
        "checkpoints in shared storage": "every 100 steps, 3 stay, 1.4MiB each",
        "checkpoints in remote storage": "every 1h, 3 stay, 1.4MiB each, s3://training/a",
        "one older checkpoint": "at least 300 steps behind the newest",
        "memory for checkpoints": "3.6MiB of 64GiB a node: 3 captures and 2 copies of another node's",
    }
