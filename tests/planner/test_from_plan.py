"""The training to estimate follows from a plan: degrees, microbatches, links, and the framework of the steps."""

from pathlib import Path

import pytest

from headway.cli.documents import load_job_plan
from headway.compile import compile_documents
from headway.planner.estimate import estimate
from headway.planner.from_plan import EstimateError, training_of
from headway.planner.memory.ledger import GIB
from headway.planner.training import Training
from tests.cli.test_plan_estimate import CLUSTER, JOB


def training(folder: Path, job: str = JOB, cluster: str = CLUSTER) -> Training:
    (folder / "lab.yaml").write_text(cluster)
    (folder / "train.py").touch()
    (folder / "job.yaml").write_text(job)
    planned = load_job_plan(folder / "job.yaml")
    assert planned is not None
    return training_of(planned.plan, planned.cluster)


def test_sequences_and_gpus_match_the_spec(tmp_path: Path) -> None:
    found = training(tmp_path)
    assert (found.gpus, found.sequences, found.accumulation, found.tokens) == (16, 128, 16, 128 * 8192)
    assert (found.recompute, found.framework, found.degrees.sequence_parallel) == ("full", "megatron", True)


def test_script_without_a_framework_gets_an_assumed_one(tmp_path: Path) -> None:
    unnamed = training(tmp_path, JOB.replace(", framework: megatron", ""))
    assert (unnamed.framework, unnamed.supposed) == ("torchtitan", True)
    assert not training(tmp_path).supposed


@pytest.mark.parametrize(("framework", "parts"), [("torchtitan", ("matmuls",)), ("megatron", ("attention",))])
def test_selective_recomputation_follows_the_definition_of_the_framework(
    framework: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    job = JOB.replace("recompute: full", "recompute: selective").replace("framework: megatron", f"framework: {framework}")
    assert training(tmp_path, job).recomputed_parts == parts


TITAN = """apiVersion: headway/v1alpha1
kind: TrainingJob
name: titan
cluster: lab
nodes: 16
model: {preset: llama-3.1-8b}
layout: {dp_shard: 128}
batch: {global: 256 sequences, micro: 2, sequence: 8192}
recompute: selective
trainer: {kind: script, options: {framework: torchtitan, argv: [train.py, "{model.preset}"]}}
"""


# pytorch/torchtitan: benchmarks/llama3_h100_202412_torchtitan.md, table 3.
@pytest.mark.parametrize(("compiled", "gib"), [(False, 67.0), (True, 62.0)])
def test_published_memory_of_torchtitan_is_predicted(compiled: bool, gib: float, tmp_path: Path) -> None:
    job = TITAN + f"compile: {str(compiled).lower()}\n"
    found = estimate(training(tmp_path, job, CLUSTER.replace("count: 4", "count: 16")))
    assert found.memory.allocated / GIB == pytest.approx(gib, rel=0.05)


def test_network_follows_from_the_cluster(tmp_path: Path) -> None:
    network = training(tmp_path).network
    assert (network.gpus_per_node, network.scale_up_domain, network.adapters_per_node) == (8, 8, 8)
    assert (network.scale_up_bytes_s, network.scale_out_bytes_s) == (450e9, 50e9)
    half = training(tmp_path, cluster=CLUSTER.replace("[a, b, c, d, e, f, g, h]", "[a, b, c, d]")).network
    assert half.scale_out_bytes_s == 25e9


OWN = "gpu: X9, gpu_model: {like: H100-SXM-80, memory: 16GiB, bf16_tflops: 500, fp8_tflops: 0, nvlink: 400GB/s}"


def test_gpu_is_that_described_by_the_cluster(tmp_path: Path) -> None:
    found, known = training(tmp_path, cluster=CLUSTER.replace("gpu: H100-SXM-80", OWN)), training(tmp_path).gpu
    assert (found.gpu.name, found.gpu.arch, found.gpu.memory_tb_s) == ("X9", "Hopper", known.memory_tb_s)
    assert (found.gpu.memory_bytes, found.gpu.bf16_tflops, found.gpu.fp8_tflops) == (16 << 30, 500, None)
    assert found.network.scale_up_bytes_s == 200e9
    # Half the rate: the step takes longer, and the reason of the interval is that no such accelerator was measured.
    slow, fast = estimate(found), estimate(training(tmp_path))
    assert 1.3 < fast.tokens_s / slow.tokens_s < 2.1


def test_memory_is_checked_against_the_gpu_described_by_the_cluster(tmp_path: Path) -> None:
    def codes(cluster: str) -> list[str]:
        training(tmp_path, cluster=cluster)
        return [problem.code for problem in compile_documents([tmp_path / "job.yaml"]).problems]

    assert codes(CLUSTER.replace("gpu: H100-SXM-80", OWN)) == ["HW427"]
    assert codes(CLUSTER.replace("gpu: H100-SXM-80", OWN.replace("16GiB", "160GiB"))) == []


@pytest.mark.parametrize(
    ("framework", "pp", "sharding"),
    [
        ("megatron", 1, "optimizer"),
        ("torchtitan", 1, "parameters"),
        ("torchtitan", 2, "optimizer"),
        ("deepspeed", 1, "parameters"),
    ],
)
def test_default_sharding_is_that_of_the_framework(framework: str, pp: int, sharding: str, tmp_path: Path) -> None:
    job = JOB.replace("framework: megatron", f"framework: {framework}").replace(
        "tp: 2, dp_shard: 8", f"pp: {pp}, dp_shard: {16 // pp}"
    )
    assert training(tmp_path, job).degrees.sharding == sharding


@pytest.mark.parametrize(
    ("stated", "pp", "sharding"), [("gradients", 1, "gradients"), ("none", 1, "none"), ("parameters", 2, "optimizer")]
)
def test_stated_sharding_overrides_the_default_of_the_framework(stated: str, pp: int, sharding: str, tmp_path: Path) -> None:
    job = JOB.replace("framework: megatron", "framework: torchtitan").replace(
        "tp: 2, dp_shard: 8", f"pp: {pp}, dp_shard: {16 // pp}, sharding: {stated}"
    )
    found = training(tmp_path, job)
    assert found.degrees.sharding == sharding
    assert "HW313" in codes_of(tmp_path)


def codes_of(folder: Path) -> list[str]:
    """Return the problems of the job; no argument of its script has the sharding."""
    return [problem.code for problem in compile_documents([folder / "job.yaml"]).problems]


def test_pipeline_without_a_schedule_has_the_usual_one(tmp_path: Path) -> None:
    def schedule(layout: str) -> str:
        return training(tmp_path, JOB.replace("tp: 2, dp_shard: 8", layout)).degrees.schedule

    assert schedule("pp: 4") == "1F1B"
    assert schedule("pp: 4, virtual_stages: 2") == "Interleaved1F1B"
    assert schedule("pp: 4, schedule: GPipe") == "GPipe"


def test_adapters_do_not_matter_inside_an_nvlink_domain(tmp_path: Path) -> None:
    silent = CLUSTER.replace(", nic: ConnectX-7", "")
    with pytest.raises(EstimateError, match="the speed of the adapters"):
        training(tmp_path, cluster=silent)
    one = JOB.replace("nodes: 2", "nodes: 1").replace("dp_shard: 8", "dp_shard: 4")
    assert training(tmp_path, one, silent).gpus == 8


def test_token_budget_is_rounded_up_to_steps(tmp_path: Path) -> None:
    found = estimate(training(tmp_path))
    budget = found.budget(found.training.tokens * 3 + 1)
    assert budget.steps == 4
    assert budget.gpu_hours == pytest.approx(budget.days * 24 * 16)
    assert budget.days == pytest.approx(4 * found.step.seconds / 86400)


def test_the_largest_costs_come_first(tmp_path: Path) -> None:
    costs = estimate(training(tmp_path)).costs
    assert len(costs) == 3
    assert [share for _, share in costs] == sorted((share for _, share in costs), reverse=True)
    assert costs[0][0] == "matmul"
