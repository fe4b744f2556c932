"""A report counts the same FLOPs for a run as the planner does for its plan."""

from pathlib import Path

import pytest

from headway.cli.documents import load_job_plan
from headway.planner.from_plan import training_of
from headway.planner.speed.flops import model_flops
from headway.runner.contract import step_flops, step_rates

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups: [{name: gpu, count: 4, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [a, b, c, d, e, f, g, h], nic: ConnectX-7}]
fabrics: [{name: rails, role: scale-out, transport: infiniband}]
storage: [{name: runs, kind: posix, path: /scratch/runs, shared: true}]
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: lab
nodes: 2
model: {vocab_size: 32000, layers: 16, hidden: 2048, heads: 16, kv_heads: 4, ffn_hidden: 5632, more}
data: {kind: python-stdlib}
layout: {tp: 2, dp_shard: 8}
batch: {global: 128 sequences, micro: 1, sequence: 4096}
optimizer: {lr: 0.001}
steps: 1000
checkpoint: {tiers: [{kind: shared, every: 100 steps}]}
"""


@pytest.mark.parametrize("more", ["dropout: 0.0", "tie_embeddings: true", "dropout: 0.1"])
def test_run_and_its_plan_have_the_same_flops(tmp_path: Path, more: str) -> None:
    (tmp_path / "lab.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB.replace("more", more))
    planned = load_job_plan(tmp_path / "job.yaml")
    assert planned is not None
    run = planned.plan.run
    assert run.model is not None
    assert run.batch is not None
    found = step_flops(run.model, run.batch)
    # The planner counts the vectors of norms in addition.
    assert found == pytest.approx(model_flops(training_of(planned.plan, planned.cluster)), rel=1e-3)
    assert run.peak_tflops == 989.0
    rates = step_rates(run, 128 * 4096, 2.0)
    assert rates["tokens_per_s"] == 128 * 4096 / 2
    assert rates["mfu_full"] == pytest.approx(found[1] / 2 / 16 / 989e12)
