"""A job's checkpoints, history, spares and timeouts in run.json."""

from pathlib import Path

import pytest

from headway.cli.documents import load_job_plan
from headway.jobspec.plan import GroupPlan, JobPlan
from headway.jobspec.resolve.domains import partner_segment
from headway.jobspec.resolve.qos import resolve_qos
from headway.jobspec.spec.fabric import TrafficClass
from headway.runner.contract import DEFAULT_TIMEOUTS, Change, Checkpoint, Domain, Notify, RunConfig, Tier, Timeout
from headway.runner.history import at

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 4, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [a, b]}
fabrics:
  - name: rails
    role: scale-out
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
data: {kind: python-stdlib}
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
    - {kind: shared, every: 15m}
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


def test_every_tier_has_its_interval_and_its_retention(run: RunConfig) -> None:
    far = "s3://training/checkpoints/case"
    assert run.checkpoint == Checkpoint(
        (
            Tier("memory", 5, keep=1),
            Tier("peer", 10, keep=1),
            Tier("shared", None, 900.0, 4),
            Tier("remote", None, 3600.0, 9, far),
        ),
        horizon_steps=500,
        host_memory_bytes=10 << 30,
    )


def test_history_uses_the_field_names_of_run_json(run: RunConfig) -> None:
    first, second = run.history
    assert first == Change(300, None, 64, {"optimizer.lr": 0.001, "batch.global_sequences": 128})
    assert second == Change(500, 400, 0, {"steps": 1200})
    found = at(run, 400)
    assert found.optimizer is not None
    assert found.batch is not None
    assert (found.optimizer.lr, found.batch.global_sequences, found.steps) == (0.001, 128, 1200)


def test_copies_for_a_peer_have_the_dscp_of_their_class(run: RunConfig) -> None:
    assert run.peer_dscp == 10


def test_checkpoint_copies_get_a_small_share_of_a_full_link() -> None:
    collectives = TrafficClass(name="roce", carries="collectives", dscp=26, lossless=True)
    qos = resolve_qos((collectives, TrafficClass(name="copies", carries="checkpoints", dscp=10)))
    assert [each.bandwidth_percent for each in qos.classes] == [50, 10]
    assert qos.rest_percent == 40


@pytest.mark.parametrize(
    ("domain", "count", "slots", "together", "segment"),
    [
        # A node is a separate domain.
        (8, 100, 100, None, 1),
        # The job is in one domain.
        (72, 72, 18, None, 1),
        (72, 72, 36, None, 18),
        # 16 of 18 nodes of each domain.
        (72, 72, 36, 16, 16),
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


# --- spares, domains, timeouts ------------------------------------------------------------------------------------------------------

RACKS = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: racks
scheduler: {kind: slurm, options: {topology: block}}
node_groups:
  - {name: rack, count: 6, cpus: 8, gpu: GB200-186, gpus: 4, nvlink_domain: 12, imex: true, arch: aarch64, nics: [a], HOSTS}
fabrics:
  - {name: rails, role: scale-out, transport: infiniband}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true}
"""
LARGE = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: racks
nodes: 2
trainer: {kind: script, options: {argv: [train.py, "{layout.tp}", "{model.preset}"]}}
model: {preset: llama-3.1-8b}
"""


def planned(folder: Path, more: str, hosts: str = "hosts: [n1, n2, n3, n4, n5, n6]") -> JobPlan:
    (folder / "cluster.yaml").write_text(RACKS.replace("HOSTS", hosts))
    (folder / "job.yaml").write_text(LARGE + more)
    found = load_job_plan(folder / "job.yaml")
    assert found is not None
    return found.plan


def test_spares_are_nodes_of_the_plan_without_ranks(tmp_path: Path) -> None:
    plan = planned(tmp_path, "resilience: {spares: 2}\n")
    assert (plan.slots, plan.spares, plan.nodes, plan.world_size, len(plan.ranks)) == (2, 2, 4, 8, 8)
    assert (plan.run.slots, plan.run.spares) == (2, 2)


def test_run_config_has_the_domains_of_groups_over_nodes_with_known_hosts(tmp_path: Path) -> None:
    run = planned(tmp_path, "layout: {tp: 8}\n").run
    assert (run.segment_required, run.segment_slots) == (True, 2)
    assert run.domains == (Domain("rack-domain-1", ("n1", "n2", "n3")), Domain("rack-domain-2", ("n4", "n5", "n6")))
    assert planned(tmp_path, "layout: {tp: 8}\n", hosts="").run.domains == ()


def test_a_group_within_a_node_needs_no_domain(tmp_path: Path) -> None:
    run = planned(tmp_path, "layout: {tp: 4}\n").run
    assert (run.segment_required, run.segment_slots, run.domains) == (False, 1, ())


def test_given_timeouts_set_the_floor_and_others_keep_their_default(tmp_path: Path) -> None:
    run = planned(tmp_path, "resilience: {timeouts: {compile: 2h, replace: 5m, agent: 40s}}\n").run
    given = {"compile": Timeout(7200.0, 10.0), "replace": Timeout(300.0), "agent": Timeout(40.0)}
    assert run.timeouts == {**DEFAULT_TIMEOUTS, **given}


def test_run_config_has_the_cluster_and_the_variable_of_the_webhook(tmp_path: Path) -> None:
    run = planned(tmp_path, "resilience: {notify: {webhook_env: RUN_WEBHOOK}}\n").run
    assert (run.cluster, run.notify) == ("racks", Notify("RUN_WEBHOOK"))
    assert planned(tmp_path, "").run.notify is None
