"""The simulated run of a job's plan: values of its documents, and published numbers for the rest."""

import dataclasses
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from headway.cli.documents import load_job_plan
from headway.compile import PlannedJob
from headway.jobspec.plan import FailurePlan
from headway.planner.from_plan import EstimateError
from headway.planner.goodput.defaults import defaults
from headway.planner.goodput.of_plan import run_of, with_latent_corruption, with_replicas
from headway.planner.goodput.run import Recovery, RestartBudget, SimulatedRun

TB = 10**12
CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 20, held_back: 4, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [mlx5_0, mlx5_1]}
fabrics:
  - {name: ib, role: scale-out, transport: infiniband}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true, write: 100GB/s, read: 200GB/s}
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: llama
cluster: lab
nodes: 16
model: {preset: llama-3.1-8b}
layout: {dp_replicate: 4}
batch: {global: 1024 sequences, micro: 1, sequence: 8192}
steps: 1000
trainer: {kind: script, options: {argv: [train.py]}}
checkpoint: {tiers: [{kind: shared, every: 100 steps}], keep: 5}
resilience: {restart: {budget: 7, refill_steps: 50, no_progress: 4}, timeouts: {agent: 20s, collective: 5m}}
"""


@pytest.fixture
def planned(tmp_path: Path) -> PlannedJob:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB)
    found = load_job_plan(tmp_path / "job.yaml")
    assert found is not None
    return found


def run(planned: PlannedJob, **failures: float) -> SimulatedRun:
    cluster = replace(planned.cluster, failures=FailurePlan(**failures))
    return run_of(planned.plan, cluster, 5.0, TB)


def test_run_has_nodes_work_spares_and_restarts_of_the_job(planned: PlannedJob) -> None:
    found = run(planned)
    assert (found.nodes, found.gpus_per_node, found.spares, found.pool) == (16, 8, 0, 4)
    assert (found.work_s, found.wall_s) == (5000.0, math.inf)
    assert found.budget == RestartBudget(7, 50, 4)
    assert found.recovery == Recovery(150, 600, 300)


def test_checkpoint_of_a_script_pauses_training_for_the_copy_to_the_host(planned: PlannedJob) -> None:
    (tier,) = run(planned).tiers
    assert (tier.kind, tier.interval_s, tier.keep) == ("shared", 500.0, 5)
    assert tier.block_s == pytest.approx(TB * 4 / 16 / (8 * 25e9))
    assert tier.write_s == pytest.approx(10)
    assert tier.load_s == pytest.approx(5)


def test_values_observed_on_the_cluster_override_published_ones(planned: PlannedJob) -> None:
    published, seen = run(planned), run(planned, node_mtbf_s=1e6, job_mtbf_s=2e6, rack_mtbf_s=3e6, repair_s=4e3)
    assert published.failures.node_mtbf_s == pytest.approx(1000 * 86400 / 3.79)
    assert published.failures.repair_s == 3 * 86400
    assert (published.failures.job_mtbf_s, published.failures.rack_mtbf_s) == (None, None)
    failures = seen.failures
    assert (failures.node_mtbf_s, failures.job_mtbf_s, failures.rack_mtbf_s, failures.repair_s) == (1e6, 2e6, 3e6, 4e3)
    assert failures.causes == published.failures.causes
    assert [line.partition(" (")[0] for line in published.assumed] == [
        "a node fails every 264 days",
        "a replaced node is repaired after 3 days",
        "a warm restart takes 150 s",
        "a cold restart takes 600 s",
    ]
    assert len(seen.assumed) == 2


def test_hangs_are_detected_by_the_collective_timeout_others_by_agents(planned: PlannedJob) -> None:
    found = {cause.name: cause.detect_s for cause in run(planned).failures.causes}
    assert found.pop("hang") == 300
    assert set(found.values()) == {20.0}


def test_storage_of_unknown_speed_is_assumed_to_have_1_gb_s_per_node(planned: PlannedJob) -> None:
    unknown = replace(planned.cluster, storage=(replace(planned.cluster.storage[0], write_bytes_s=None, read_bytes_s=None),))
    (tier,) = run_of(planned.plan, unknown, 5.0, TB).tiers
    assert (tier.write_s, tier.load_s) == pytest.approx((TB / 16e9, TB / 16e9))


def test_a_job_without_steps_needs_a_length(planned: PlannedJob) -> None:
    endless = replace(planned.plan, run=dataclasses.replace(planned.plan.run, steps=None))
    with pytest.raises(EstimateError, match="the job has no `steps`"):
        run_of(endless, planned.cluster, 5.0, TB)
    found = run_of(endless, planned.cluster, 5.0, TB, 7200.0)
    assert (found.work_s, found.wall_s) == (math.inf, 7200.0)


def test_rack_is_the_nvlink_domain_if_larger_than_a_node(planned: PlannedJob) -> None:
    wide = replace(planned.cluster, groups=(replace(planned.cluster.groups[0], gpus=4, nvlink_domain=72),))
    assert run_of(planned.plan, wide, 5.0, TB).failures.rack_nodes == 18
    assert run(planned).failures.rack_nodes == 8


def test_replicas_return_after_a_cold_restart(planned: PlannedJob) -> None:
    replicas = with_replicas(run(planned), 4).replicas
    assert replicas is not None
    assert (replicas.count, replicas.stall_s, replicas.rejoin_s) == (4, 180, 600)


def test_only_silent_corruption_has_a_detection_latency(planned: PlannedJob) -> None:
    causes = with_latent_corruption(run(planned), 3600.0).failures.causes
    assert {cause.name: cause.latent_s for cause in causes if cause.latent_s} == {"silent corruption": 3600.0}


def test_counts_of_causes_match_llama_3() -> None:
    assert sum(cause.count for cause in defaults().causes.values()) == 419
    assert sum(defaults().weights(8).values()) == pytest.approx(1)


def test_a_node_with_fewer_accelerators_fails_less_often() -> None:
    known = defaults()
    eight, four, none = (known.node_mtbf_s("GB200-186", gpus) for gpus in (8, 4, 0))
    accelerators = (190 + 72 + 6) / 419
    assert eight / four == pytest.approx(1 - accelerators / 2)
    assert eight / none == pytest.approx(1 - accelerators)


def test_gpu_generations_have_their_published_failure_rates() -> None:
    known = defaults()
    assert known.rate("A100-SXM-80").per_1000_node_days == 6.5
    assert known.rate("H100-SXM-80").per_1000_node_days == 3.79
    assert known.rate("B300-288") == known.rate(None) == known.rates["other"]
    assert all(rate.low <= rate.per_1000_node_days <= rate.high for rate in known.rates.values())
