"""What a job says of checkpoints and of its history, as run.json has it."""

from pathlib import Path

import pytest

from headway.cli.documents import load_job_plan
from headway.jobspec.plan import GroupPlan
from headway.jobspec.resolve.domains import partner_segment
from headway.jobspec.resolve.qos import resolve_qos
from headway.jobspec.spec.fabric import TrafficClass
from headway.runner.contract import Change, Checkpoint, RunConfig, Tier
from headway.runner.train.history import at

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
nodes:
  - {group: gpu, count: 4, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [a, b]}
fabrics:
  - name: rails
    role: scale_out
    transport: roce
    classes:
      - {name: roce, carries: collectives, dscp: 26, lossless: true}
      - {name: copies, carries: checkpoints, dscp: 10}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true}
  - {name: far, kind: object, url: "s3://training/checkpoints"}
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: lab
nodes: 4
model: {vocab_size: 256, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn_hidden: 176}
data: {kind: python_stdlib}
batch: {global: 64 sequences, micro: 2, sequence: 128}
optimizer: {lr: 0.003}
steps: 1000
checkpoint:
  keep: 4
  horizon: 500 steps
  host_memory: 10GiB
  tiers:
    - {kind: memory, every: 5 steps}
    - {kind: peer, every: 10 steps}
    - {kind: disk, every: 15m}
    - {kind: remote, every: 1h, url: "s3://training/checkpoints/case", keep: 9}
history:
  - {from_step: 300, skip_samples: 64, set: {optimizer.lr: 0.001, batch.global: 16Ki tokens}}
  - {from_step: 500, rollback_to: 400, set: {steps: 1200}}
"""


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB)
    planned = load_job_plan(tmp_path / "job.yaml")
    assert planned is not None
    return planned.plan.run


def test_every_tier_has_its_interval_in_steps_or_seconds_and_what_stays_there(run: RunConfig) -> None:
    far = "s3://training/checkpoints/case"
    assert run.checkpoint == Checkpoint(
        (Tier("memory", 5, keep=1), Tier("peer", 10, keep=1), Tier("disk", None, 900.0, 4), Tier("remote", None, 3600.0, 9, far)),
        horizon_steps=500,
        host_memory_bytes=10 << 30,
    )


def test_history_has_its_values_where_run_json_has_them(run: RunConfig) -> None:
    first, second = run.history
    assert first == Change(300, None, 64, {"optimizer.lr": 0.001, "batch.global_sequences": 128})
    assert second == Change(500, 400, 0, {"steps": 1200})
    found = at(run, 400)
    assert found.optimizer is not None
    assert found.batch is not None
    assert (found.optimizer.lr, found.batch.global_sequences, found.steps) == (0.001, 128, 1200)


def test_copies_for_a_peer_are_marked_as_their_class_says(run: RunConfig) -> None:
    assert run.peer_dscp == 10


def test_copies_of_checkpoints_take_a_small_share_of_a_full_link() -> None:
    collectives = TrafficClass(name="roce", carries="collectives", dscp=26, lossless=True)
    qos = resolve_qos((collectives, TrafficClass(name="copies", carries="checkpoints", dscp=10)))
    assert [each.bandwidth_percent for each in qos.classes] == [50, 10]
    assert qos.rest_percent == 40


@pytest.mark.parametrize(
    ("domain", "count", "slots", "together", "segment"),
    [
        (8, 100, 100, None, 1),  # a node is a domain of its own
        (72, 72, 18, None, 1),  # the job lies in one domain
        (72, 72, 36, None, 18),
        (72, 72, 36, 16, 16),  # 16 of 18 nodes of each domain
        (72, 72, 36, 4, 16),
        (0, 100, 100, None, 1),
    ],
)
def test_slots_that_may_be_lost_together_are_those_of_one_nvlink_domain(
    domain: int, count: int, slots: int, together: int | None, segment: int
) -> None:
    gpus = 4 if domain == 72 else 8 if domain else 0
    group = GroupPlan("gpu", count, 64, max(1, gpus), "any" if gpus else None, gpus, (), nvlink_domain=domain)
    assert partner_segment(group, slots, together) == segment
