"""Decisions for `auto`: no allowed value is better, values of the job and its trainer are kept, and failures have a reason."""

import re
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.jobspec.auto import Decisions, with_values
from headway.jobspec.check.job import check_job
from headway.jobspec.check.layout import sizes_of
from headway.jobspec.check.placement import check_placement
from headway.jobspec.document import Path
from headway.jobspec.load import load_bytes
from headway.jobspec.parse import Parsed, parse, parse_job
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.job import resolve_job
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import TrainingJob
from headway.planner.decide import Limits, decide
from headway.planner.estimate import Estimate, estimate
from headway.planner.from_plan import training_of
from headway.planner.goodput.interval import expected_goodput, with_interval
from headway.planner.goodput.of_plan import run_of
from headway.planner.goodput.run import SimulatedRun
from headway.planner.goodput.spares import best_spares

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 64, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [a, b, c, d, e, f, g, h], nic_speed: 400Gb/s}
  - {name: rack, count: 72, arch: aarch64, cpus: 9, gpu: GB200-186, gpus: 4, nvlink_domain: 72, imex: true, nics: [a], nic_speed: 400Gb/s}
  - {name: slow, count: 2, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [a]}
  - {name: other, count: 1, cpus: 96, gpu: H9000, gpus: 8}
  - {name: cpu, count: 2, cpus: 96}
fabrics:
  - {name: rails, role: scale-out, transport: infiniband}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true, write: 10GB/s, read: 10GB/s}
failures: {node_mtbf: 100d, repair: 1d}
"""
HEAD = "apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: case\ncluster: lab\nsteps: 100000\n"
SCRIPT = "trainer: {kind: script, options: {argv: [train.py], framework: torchtitan}}\n"
SMALL = "model: {vocab_size: 32000, layers: 8, hidden: 2048, heads: 16, kv_heads: 8, ffn_hidden: 5632}\n"
BATCH = "batch: {global: 64 sequences, micro: auto, sequence: 4096}\n"
JOB = HEAD + SCRIPT + SMALL + BATCH + "layout: auto\n"

# Parts of a layout that the builtin trainer supports.
BUILTIN: Limits = {("layout", axis): (1,) for axis in ("pp", "dp_replicate", "cp", "tp", "ep")} | {("recompute",): ("none",)}
# Parts of a layout for a script without such arguments.
UNTOLD: Limits = {
    **BUILTIN,
    ("layout", "virtual_stages"): (1,),
    ("layout", "schedule"): (),
    ("layout", "sequence_parallel"): (),
    ("recompute",): (),
}


def parsed_cluster(text: str) -> Parsed[Cluster]:
    document, unreadable = load_bytes("cluster.yaml", text.encode())
    found, problems = parse(document)
    assert (unreadable, problems) == ([], [])
    assert found is not None
    assert isinstance(found.spec, Cluster)
    return Parsed(found.document, found.spec, found.complete, found.sections)


LAB_SPEC = parsed_cluster(CLUSTER)
LAB = resolve_cluster(LAB_SPEC.spec)


def parsed(text: str) -> Parsed[TrainingJob]:
    document, unreadable = load_bytes("job.yaml", text.encode())
    found, problems = parse_job(document)
    assert (unreadable, problems) == ([], [])
    return found


def decided(text: str, limits: Limits | None = None, cluster: ClusterPlan = LAB) -> tuple[Decisions, Parsed[TrainingJob]]:
    """Return the decisions, and the job with them."""
    job = parsed(text)
    decisions, problems = decide(job, cluster, limits or {})
    assert problems == []
    after, problems = parse_job(with_values(job.document, {path: each.value for path, each in decisions.items()}))
    assert problems == []
    assert after.complete
    return decisions, after


def refused(text: str, limits: Limits | None = None) -> Problem:
    decisions, problems = decide(parsed(text), LAB, limits or {})
    assert decisions == {}
    (problem,) = problems
    assert problem.code == "HW212"
    return problem


def planned(job: Parsed[TrainingJob]) -> JobPlan:
    return resolve_job(job.spec, LAB, sizes_of(job), None)


def estimated(job: Parsed[TrainingJob]) -> Estimate:
    return estimate(training_of(planned(job), LAB))


def errors(job: Parsed[TrainingJob]) -> list[str]:
    return [problem.message for problem in (*check_job(job), *check_placement(job, LAB_SPEC)) if problem.is_error]


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_no_allowed_layout_that_fits_is_faster(recompute: str) -> None:
    text = JOB + f"recompute: {recompute}\n"
    best = estimated(decided(text)[1])
    assert best.memory.verdict == "fits"
    others = 0
    for pp, tp, cp, micro in (
        (p, t, c, m) for p in (1, 2, 4, 8) for t in (1, 2, 4, 8) for c in (1, 2, 4, 8) for m in (1, 2, 4, 8)
    ):
        if pp * tp * cp > 8:
            continue
        written = text.replace("layout: auto", f"layout: {{pp: {pp}, tp: {tp}, cp: {cp}}}").replace(
            "micro: auto", f"micro: {micro}"
        )
        job = parsed(written)
        if errors(job):
            continue
        other = estimated(job)
        if other.memory.verdict == "fits":
            others += 1
            # Of layouts within 0.5 % of each other, the simplest is chosen.
            assert best.step.seconds <= other.step.seconds * 1.005, written
    assert others >= 10


def test_every_auto_value_is_decided_in_the_order_of_the_document() -> None:
    text = JOB + "recompute: auto\ncheckpoint: {tiers: [{kind: shared, every: auto}]}\nresilience: {spares: auto}\n"
    decisions, _ = decided(text)
    assert list(decisions) == [
        ("batch", "micro"),
        ("layout",),
        ("recompute",),
        ("checkpoint", "tiers", 0, "every"),
        ("resilience", "spares"),
    ]
    assert all(decision.reason for decision in decisions.values())


@pytest.mark.slow
def test_same_job_gets_the_same_values() -> None:
    text = JOB + "nodes: 8\nrecompute: auto\ncheckpoint: {tiers: [{kind: shared, every: auto}]}\n"
    assert decided(text)[0] == decided(text)[0]


@pytest.mark.slow
@given(
    nodes=st.sampled_from([1, 2, 4, 8, 16]),
    preset=st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b"]),
    sequences=st.sampled_from([128, 256, 384, 512]),
    recompute=st.sampled_from(["auto", "none", "full"]),
    micro=st.sampled_from(["auto", "1"]),
    group=st.sampled_from(["gpu", "rack"]),
)
@settings(max_examples=8, deadline=None)
def test_decided_values_pass_every_check(nodes: int, preset: str, sequences: int, recompute: str, micro: str, group: str) -> None:
    text = f"{HEAD}{SCRIPT}nodes: {nodes}\ngroup: {group}\nmodel: {{preset: {preset}}}\nlayout: auto\nrecompute: {recompute}\n"
    text += f"batch: {{global: {sequences} sequences, micro: {micro}, sequence: 4096}}\n"
    decisions, problems = decide(parsed(text), LAB, {})
    if problems:
        assert {problem.code for problem in problems} == {"HW212"}
        return
    job = parse_job(with_values(parsed(text).document, {path: each.value for path, each in decisions.items()}))[0]
    assert errors(job) == []
    assert estimated(job).memory.verdict != "does not fit"


def test_group_of_ranks_is_placed_in_domains_with_enough_nodes() -> None:
    # Of 18 nodes in a domain, groups of 16 ranks can use 16: 64 of 72 in total.
    text = JOB.replace("layout: auto", "layout: {tp: auto, dp_shard: 18}") + "group: rack\nnodes: 72\n"
    text = text.replace("64 sequences", "36 sequences").replace("heads: 16, kv_heads: 8", "heads: 16, kv_heads: 16")
    assert refused(text).message.startswith(
        "`batch.micro`, `layout.tp` cannot be decided: no layout of its 288 GPUs has `layout.dp_shard: 18`"
    )
    assert (
        decided(text.replace("nodes: 72", "nodes: 64").replace("dp_shard: 18", "dp_shard: 16").replace("36 seq", "32 seq"))[0][
            ("layout", "tp")
        ].value
        == 16
    )


def test_stated_parts_of_the_layout_are_kept() -> None:
    text = (
        JOB.replace("layout: auto", "layout: {tp: 2, pp: auto, schedule: auto}").replace("micro: auto", "micro: 2") + "nodes: 2\n"
    )
    decisions, job = decided(text)
    layout = job.spec.layout
    assert decisions.keys() == {("layout", "pp"), ("layout", "schedule")}
    assert (layout.tp, layout.cp, layout.dp_replicate, layout.ep, layout.virtual_stages) == (2, 1, 1, 1, 1)
    assert job.spec.batch is not None
    assert job.spec.batch.micro_sequences == 2
    assert errors(job) == []


def test_omitted_part_of_a_layout_has_its_default_and_is_not_decided() -> None:
    text = JOB.replace("layout: auto", "layout: {dp_replicate: auto}") + "nodes: 4\n"
    decisions, job = decided(text)
    mesh = planned(job).mesh
    assert (mesh.pp, mesh.cp, mesh.tp) == (1, 1, 1)
    assert mesh.dp_replicate == decisions[("layout", "dp_replicate")].value
    assert mesh.dp_replicate * mesh.dp_shard == 32


def megatron_job(layout: str) -> str:
    return JOB.replace("torchtitan", "megatron").replace("layout: auto", f"layout: {layout}") + "nodes: 2\n"


@pytest.mark.parametrize("layout", ["auto", "{tp: 4, sharding: auto}"])
def test_sharding_is_decided_for_a_framework_with_an_option_for_it(layout: str) -> None:
    decisions, job = decided(megatron_job(layout))
    assert job.spec.layout.sharding in {"optimizer", "gradients"}
    assert estimated(job).training.degrees.sharding == job.spec.layout.sharding
    assert (("layout", "sharding") in decisions) == (layout != "auto")


def test_sharding_is_not_decided_if_the_script_does_not_get_it() -> None:
    _, job = decided(megatron_job("auto"), {("layout", "sharding"): ()})
    assert job.spec.layout.sharding is None
    assert estimated(job).training.degrees.sharding == "optimizer"


def test_a_stated_sharding_is_kept_for_every_layout() -> None:
    _, job = decided(megatron_job("{tp: auto, pp: auto, sharding: gradients}"))
    assert estimated(job).training.degrees.sharding == "gradients"


@pytest.mark.parametrize("limits", [BUILTIN, UNTOLD])
def test_decision_is_limited_to_what_the_trainer_supports(limits: Limits) -> None:
    decisions, _ = decided(JOB + "nodes: 2\nrecompute: auto\n", limits)
    assert decisions[("layout",)].value == {"dp_shard": 16}
    assert decisions[("recompute",)].value == ("none" if limits is BUILTIN else None)


def test_decided_layout_states_all_ranks_and_no_defaults() -> None:
    text = JOB.replace("64 sequences", "8 sequences").replace("micro: auto", "micro: 1") + "nodes: 4\n"
    decisions, job = decided(text)
    value = decisions[("layout",)].value
    mesh = planned(job).mesh
    assert mesh.world_size == 32
    assert value["dp_shard"] == mesh.dp_shard
    assert all(value[axis] > 1 for axis in value if axis not in {"dp_shard", "schedule", "sequence_parallel"})
    assert ("schedule" in value) == (mesh.pp > 1)


def run_with(job: Parsed[TrainingJob]) -> SimulatedRun:
    plan, found = planned(job), estimated(job)
    return run_of(plan, LAB, found.step.seconds, found.checkpoint_bytes)


@pytest.mark.slow
def test_no_other_interval_loses_less_time() -> None:
    _, job = decided(JOB + "nodes: 64\ncheckpoint: {tiers: [{kind: shared, every: auto}]}\n")
    run = run_with(job)
    goodput, interval = expected_goodput(run), run.tier("shared").interval_s
    for factor in (0.25, 0.5, 0.8, 1.25, 2, 4):
        assert expected_goodput(with_interval(run, "shared", max(interval * factor, run.step_s))) <= goodput + 1e-4


@pytest.mark.slow
def test_interval_is_a_round_number_of_steps_within_the_run() -> None:
    text = JOB + "nodes: 2\ncheckpoint: {tiers: [{kind: shared, every: auto}]}\n"
    path = ("checkpoint", "tiers", 0, "every")
    number, unit = str(decided(text)[0][path].value).split()
    assert unit == "steps"
    assert len(number.rstrip("0")) <= 2
    assert int(number) > 7
    assert decided(text.replace("steps: 100000", "steps: 7"))[0][path].value == "7 steps"


@pytest.mark.slow
def test_interval_is_at_least_the_time_to_write_a_checkpoint() -> None:
    slow = replace(LAB, storage=tuple(replace(storage, write_bytes_s=20_000_000) for storage in LAB.storage))
    text = JOB + "nodes: 64\ncheckpoint: {tiers: [{kind: shared, every: auto}]}\n"
    decisions, job = decided(text, cluster=slow)
    plan, found = planned(job), estimated(job)
    run = run_of(plan, slow, found.step.seconds, found.checkpoint_bytes)
    tier, steps = run.tier("shared"), int(decisions[("checkpoint", "tiers", 0, "every")].value.split()[0])
    assert tier.write_s > 60 * run.step_s
    assert steps * run.step_s >= tier.write_s - tier.block_s
    assert tier.spacing_s == tier.interval_s


@pytest.mark.slow
def test_less_durable_tiers_are_written_more_often() -> None:
    text = JOB + "nodes: 64\ncheckpoint: {tiers: [{kind: memory, every: auto}, {kind: shared, every: auto}]}\n"
    decisions, _ = decided(text)
    memory, disk = (int(str(each.value).split()[0]) for path, each in decisions.items() if path[0] == "checkpoint")
    assert memory <= disk


@pytest.mark.slow
def test_spares_are_the_fewest_with_almost_no_waiting_for_nodes() -> None:
    text = JOB.replace("64 sequences", "512 sequences") + "nodes: 64\nresilience: {spares: auto}\n"
    decisions, job = decided(text)
    spares = decisions[("resilience", "spares")].value
    assert spares == best_spares(run_with(job)) > 0
    spared = replace(LAB, groups=tuple(replace(group, held_back=8) for group in LAB.groups))
    assert decided(text, cluster=spared)[0][("resilience", "spares")].value == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (JOB + "group: cpu\n", "the nodes of group `cpu` have no GPU, and the planner only models GPUs"),
        (JOB + "group: other\n", "the catalogue does not have the GPU `H9000`"),
        (JOB + "group: slow\nnodes: 2\n", "the speed of the adapters of group `slow` is unknown"),
        (JOB.replace(SMALL, ""), "the job has no `model`"),
        (JOB.replace(BATCH, ""), "the job has no `batch`"),
    ],
)
def test_undecidable_value_is_reported_with_its_reason(text: str, why: str) -> None:
    problem = refused(text)
    assert f" cannot be decided: {why}" in problem.message
    assert problem.path == parsed(text).undecided[0]
    assert problem.hint is not None
    assert problem.hint.endswith("; or write the value itself")


def test_stated_value_that_no_layout_allows_is_reported_with_a_valid_one() -> None:
    problem = refused(JOB.replace("64 sequences", "63 sequences").replace("auto,", "2,"))
    assert problem.path == ("batch", "global")
    assert problem.hint == "write `global: 64 sequences` for example"
    problem = refused(JOB.replace("layout: auto", "layout: {pp: 3, tp: auto}"))
    assert problem.path == ("layout", "pp")
    assert "no layout of its 8 GPUs has `layout.pp: 3`: pp 3 does not divide 8 ranks" in problem.message


def test_model_that_does_not_fit_is_reported_with_further_auto_values() -> None:
    text = HEAD + SCRIPT + "model: {preset: llama-3.1-405b}\n" + BATCH + "layout: {tp: auto}\n"
    problem = refused(text)
    assert "no layout of its 8 GPUs can be used: does not fit with recompute none: " in problem.message
    assert problem.hint == (
        "use 32 nodes, or GPUs with more memory, or write `layout: auto` and `recompute: auto`; or write the value itself"
    )
    hint = refused(text + "group: slow\n").hint
    assert hint is not None
    assert hint.startswith("use 32 nodes (`slow` has 2 for jobs), or GPUs with more memory")


def test_reason_for_an_interval_has_its_times_and_a_goodput_never_rounded_up_to_100_percent() -> None:
    text = JOB + "nodes: 2\ncheckpoint: {tiers: [{kind: shared, every: auto}]}\n"
    reason = decided(text)[0]["checkpoint", "tiers", 0, "every"].reason
    time = r"\d+(\.\d+)? (days|h|min|s)"
    assert re.fullmatch(rf"{time}, for one failure every {time} and {time} a checkpoint; expected goodput > 99.9%", reason)


def test_interval_is_undecided_if_the_layout_cannot_be_decided() -> None:
    text = JOB.replace(SMALL, "") + "checkpoint: {tiers: [{kind: shared, every: auto}]}\n"
    assert refused(text).message.startswith("`batch.micro`, `layout`, `checkpoint.tiers[0].every` cannot be decided: ")


def test_run_without_an_end_has_no_best_interval() -> None:
    text = JOB.replace("steps: 100000\n", "") + "checkpoint: {tiers: [{kind: shared, every: auto}]}\n"
    problem = refused(text)
    assert problem.message == "`checkpoint.tiers[0].every` cannot be decided: the job has no `steps`"
    path: Path = ("checkpoint", "tiers", 0, "every")
    value: Any = decided(text + "limits: {attempt: {time: 7d}}\n")[0][path].value
    assert 0 < int(value.split()[0]) < inf
