"""A job is checked by itself and against its cluster: only jobs that cannot run are rejected, and hints work."""

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.testing._internal.distributed.fake_pg import FakeStore

from headway.cli.documents import load_job_plan
from headway.compile import compile_documents
from headway.jobspec.check.environment import check_environment
from headway.jobspec.check.job import check_job
from headway.jobspec.check.layout import check_layout, check_mesh
from headway.jobspec.check.multiples import divisors, listed_numbers, nearest_multiples
from headway.jobspec.check.placement import check_placement
from headway.jobspec.load import load_bytes
from headway.jobspec.parse import Parsed, parse
from headway.jobspec.plan import JobPlan
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.model import ModelSizes, resolve_model
from headway.jobspec.spec.batch import Batch
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.layout import Layout
from headway.jobspec.spec.model import Experts, Model
from headway.jobspec.spec.training import Overlap, Precision
from headway.jobspec.units import Amount
from headway.runner import contract
from headway.runner.contract import Mesh
from headway.templates.trainers.builtin.check import _ONLY
from headway.templates.trainers.builtin.settings import EXECUTED

ROOT = Path(__file__).parents[2]
JOB = "apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: case\ncluster: lab\n"
CLUSTER = "apiVersion: headway/v1alpha1\nkind: Cluster\nname: lab\nscheduler: {kind: slurm}\n"
STORAGE = "storage: [{name: runs, kind: posix, path: /runs, shared: true}]\n"
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def job(text: str) -> Parsed[TrainingJob]:
    document, unreadable = load_bytes("job.yaml", (JOB + text).encode())
    found, problems = parse(document)
    assert (unreadable, problems) == ([], [])
    assert found is not None
    assert isinstance(found.spec, TrainingJob)
    return Parsed(found.document, found.spec, found.complete, found.sections)


def cluster(nodes: str, storage: str = STORAGE) -> Parsed[Cluster]:
    document, unreadable = load_bytes("cluster.yaml", f"{CLUSTER}node_groups: {nodes}\n{storage}".encode())
    found, problems = parse(document)
    assert (unreadable, problems) == ([], [])
    assert found is not None
    assert isinstance(found.spec, Cluster)
    return Parsed(found.document, found.spec, found.complete, found.sections)


def codes(problems: Sequence[Problem]) -> list[str]:
    return [problem.code for problem in problems]


def alone(text: str) -> list[str]:
    return codes(list(check_job(job(text))))


def placed(text: str, nodes: str, storage: str = STORAGE) -> list[str]:
    return codes(list(check_placement(job(text), cluster(nodes, storage))))


def numbers(hint: str | None) -> list[int]:
    """Return the numbers that a hint proposes, without those in its names."""
    return [int(number) for number in re.findall(r"(?<![\w.`])\d+(?![\w.])", hint or "")]


def sizes(**changes: int) -> ModelSizes:
    base = {"vocab_size": 1 << 20, "layers": 8, "hidden": 64, "heads": 8, "kv_heads": 8, "ffn_hidden": 1 << 10}
    return resolve_model(Model.model_validate({**base, **changes}), Path())


# --- pipeline schedules: the rules compared with torch ----------------------------------------------------------------------------


def torch_accepts(schedule: str, pp: int, stages: int, microbatches: int) -> bool:
    """Return whether torch builds the schedule for rank 0, which has `stages` of `pp` x `stages` stages, without other ranks."""
    dist.init_process_group("fake", rank=0, world_size=pp, store=FakeStore())
    try:
        kind = get_schedule_class(schedule)
        looped = [index * pp for index in range(stages)]
        held = [0, 2 * pp - 1] if schedule in ("ZBVZeroBubble", "DualPipeV") and stages == 2 else looped
        made = [PipelineStage(torch.nn.Linear(1, 1), index, pp * stages, torch.device("cpu")) for index in held]
        kind(made if issubclass(kind, PipelineScheduleMulti) else made[0], microbatches)
    except ValueError:
        return False
    finally:
        dist.destroy_process_group()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", [2, 4])
def test_schedule_is_rejected_exactly_if_torch_rejects_it(schedule: str, pp: int) -> None:
    looped = issubclass(get_schedule_class(schedule), PipelineScheduleMulti)
    for stages in (2, 3) if looped else (1,):
        layout = Layout.model_validate({"pp": pp, "schedule": schedule, "virtual_stages": stages})
        for microbatches in range(1, 4 * pp * stages + 2):
            batch = Batch.model_construct(global_batch=Amount(sequences=microbatches), micro_sequences=1, sequence_length=8)
            problems = [*check_layout(layout, None, batch), *check_mesh(layout, Mesh(pp=pp), None, batch)]
            assert (problems == []) == torch_accepts(schedule, pp, stages, microbatches), (stages, microbatches)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule_without_its_stages_is_rejected_with_a_correct_hint(schedule: str) -> None:
    for stages in range(1, 5):
        layout = Layout.model_validate({"pp": 2, "schedule": schedule, "virtual_stages": stages})
        for problem in check_layout(layout, None, None):
            assert problem.code == "HW319"
            proposed = re.search(r"virtual_stages: (\d)", problem.hint or "")
            assert proposed is not None
            assert list(check_layout(layout.model_copy(update={"virtual_stages": int(proposed[1])}), None, None)) == []


@given(st.sampled_from(SCHEDULES), st.integers(2, 9), st.integers(1, 2), st.integers(1, 400), st.integers(1, 3))
def test_batch_proposed_by_a_hint_can_be_scheduled(schedule: str, pp: int, stages: int, microbatches: int, step: int) -> None:
    layout = Layout.model_validate({"pp": pp, "schedule": schedule, "virtual_stages": stages})
    mesh = Mesh(pp=pp, dp_shard=step)
    batch = Batch.model_construct(global_batch=Amount(sequences=microbatches * step), micro_sequences=1, sequence_length=8)
    for problem in check_mesh(layout, mesh, None, batch):
        assert problem.code == "HW320"
        offered = numbers(problem.hint)
        assert offered
        for sequences in offered:
            assert sequences % step == 0
            right = batch.model_copy(update={"global_batch": Amount(sequences=sequences)})
            assert list(check_mesh(layout, mesh, None, right)) == []


# --- sharding ---------------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 48), st.integers(1, 48), st.integers(1, 4), st.integers(1, 200))
def test_tensor_degrees_proposed_by_a_hint_divide_the_model(tp: int, kv_heads: int, group: int, width: int) -> None:
    model = sizes(heads=kv_heads * group, kv_heads=kv_heads, hidden=2 * kv_heads * group, ffn_hidden=width)
    for problem in check_layout(Layout(tp=tp), model, None):
        if problem.code == "HW314":
            for fitting in numbers(problem.hint):
                assert "HW314" not in codes(list(check_layout(Layout(tp=fitting), model, None)))


@pytest.mark.parametrize(
    ("tp", "kv_heads", "expected"),
    [(4, 8, []), (8, 8, []), (16, 8, ["HW315"]), (8, 2, ["HW315"]), (8, 3, ["HW314"]), (4, 6, ["HW314"])],
)
def test_key_value_heads_are_shared_evenly_or_rejected(tp: int, kv_heads: int, expected: list[str]) -> None:
    model = sizes(heads=48, kv_heads=kv_heads, hidden=96, ffn_hidden=96)
    assert codes(list(check_layout(Layout(tp=tp), model, None))) == expected


def test_experts_are_split_over_tensor_ranks_only_without_expert_parallel() -> None:
    experts = Experts(count=8, top_k=2, ffn_hidden=100)
    model = resolve_model(Model(vocab_size=64, layers=2, hidden=64, heads=8, experts=experts), Path())
    assert codes(list(check_layout(Layout(tp=8), model, None))) == ["HW314"]
    assert codes(list(check_layout(Layout(tp=8, ep=8), model, None))) == []


@given(st.integers(1, 300), st.integers(2, 16), st.integers(1, 4))
def test_layers_fit_stages_with_room_for_embedding_and_output(layers: int, pp: int, stages: int) -> None:
    layout = Layout.model_validate({"pp": pp, "virtual_stages": stages, "schedule": "LoopedBFS" if stages > 1 else "GPipe"})
    found = codes(list(check_layout(layout, sizes(layers=layers), None)))
    even = any(count % (pp * stages) == 0 for count in (layers, layers + 1, layers + 2))
    assert found == (["HW317"] if pp * stages > layers + 2 else [] if even else ["HW318"])


def test_126_layers_are_accepted_in_128_stages_like_llama_3() -> None:
    layout = Layout.model_validate({"pp": 16, "virtual_stages": 8, "schedule": "Interleaved1F1B"})
    assert list(check_layout(layout, sizes(layers=126), None)) == []


@given(st.integers(1, 600), st.integers(1, 6), st.integers(1, 6), st.sampled_from([None, True, False]))
def test_sequence_divides_over_its_ranks_or_the_hint_has_one_that_does(
    length: int, cp: int, tp: int, sequence_parallel: bool | None
) -> None:
    assume(not (sequence_parallel and tp == 1))
    layout = Layout(cp=cp, tp=tp, sequence_parallel=sequence_parallel)
    batch = Batch.model_construct(global_batch=Amount(sequences=8), micro_sequences=1, sequence_length=length)
    parts = length / (2 * cp) if cp > 1 else float(length)
    share = length / cp / (tp if sequence_parallel is not False else 1)
    problems = list(check_layout(layout, None, batch))
    # Samples that are not sequences have the length 1.
    assert codes(problems) == ([] if length == 1 or (parts.is_integer() and share.is_integer()) else ["HW316"])
    for problem in problems:
        for fitting in numbers(problem.hint):
            right = batch.model_copy(update={"sequence_length": fitting})
            assert list(check_layout(layout, None, right)) == []


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.integers(2, 64), st.integers(2, 64))
def test_experts_divide_over_the_ranks_of_their_group(dp_shard: int, cp: int, tp: int, ep: int, count: int) -> None:
    layout, mesh = Layout(dp_shard=dp_shard, cp=cp, tp=tp, ep=ep), Mesh(dp_shard=dp_shard, cp=cp, tp=tp)
    experts = Experts(count=count, top_k=1, ffn_hidden=1 << 10)
    model = resolve_model(Model(vocab_size=64, layers=2, hidden=64, heads=12, experts=experts), Path())
    fold = list(check_mesh(layout, mesh, model, None))
    spread = [problem for problem in check_layout(layout, model, None) if problem.code == "HW321"]
    assert (len(fold), len(spread)) == (int(dp_shard * cp * tp % ep != 0), int(count % ep != 0))
    for problem in fold:
        for fitting in numbers(problem.hint):
            assert dp_shard * cp * tp % fitting == count % fitting == 0


@pytest.mark.parametrize(
    ("layout", "field"),
    [
        ("{virtual_stages: 2}", "virtual_stages"),
        ("{schedule: 1F1B}", "schedule"),
        ("{sequence_parallel: true}", "sequence_parallel"),
        ("{ep: 2}", "ep"),
    ],
)
def test_setting_that_requires_another_is_reported_at_its_key(layout: str, field: str) -> None:
    model = "model: {vocab_size: 64, layers: 8, hidden: 64, heads: 8, ffn_hidden: 64}\n"
    found = list(check_job(job(f"{model}layout: {layout}\n")))
    assert [(problem.code, problem.path, problem.at_key) for problem in found] == [("HW210", ("layout", field), True)]


def test_job_without_a_model_has_no_problems_of_the_model() -> None:
    assert alone("layout: {tp: 7, ep: 3, pp: 2}\n") == []


# --- against the cluster ----------------------------------------------------------------------------------------------------------


def split_over_domains(nodes: int, capacities: list[int], size: int, gpus: int) -> bool:
    """Return whether some choice of nodes, by trying all, keeps every group of consecutive ranks in one domain."""
    taken: list[int] = []

    def place(left: int, domain: int) -> bool:
        if domain == len(capacities):
            return left == 0 and stay_inside(taken, size, gpus)
        for count in range(min(left, capacities[domain]) + 1):
            taken.append(count)
            if place(left - count, domain + 1):
                return True
            taken.pop()
        return False

    return place(nodes, 0)


def stay_inside(taken: list[int], size: int, gpus: int) -> bool:
    """Return whether no group has members in two domains, by checking each rank."""
    of_rank = [domain for domain, count in enumerate(taken) for _ in range(count * gpus)]
    return all(len(set(of_rank[first : first + size])) == 1 for first in range(0, len(of_rank), size))


@pytest.mark.slow
@settings(deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 6), st.integers(1, 40), st.integers(1, 12), st.integers(0, 8))
def test_tensor_group_is_rejected_exactly_if_no_choice_of_nodes_fits_it(
    gpus: int, domain_nodes: int, tp: int, nodes: int, unused: int
) -> None:
    count = nodes + unused
    group = f"[{{name: gpu, count: {count}, cpus: 8, gpu: B200, gpus: {gpus}, nvlink_domain: {gpus * domain_nodes}}}]"
    assume(nodes * gpus % tp == 0)
    found = list(check_placement(job(f"nodes: {nodes}\nlayout: {{tp: {tp}}}\n"), cluster(group)))
    refused = [problem for problem in found if problem.code in ("HW413", "HW415")]
    capacities = [min(domain_nodes, count - first) for first in range(0, count, domain_nodes)]
    assert (refused == []) == split_over_domains(nodes, capacities, tp, gpus)
    for problem in refused:
        assert numbers((problem.hint or "").split("`tp`")[-1])


@pytest.mark.parametrize(
    ("tp", "count", "nodes", "expected", "hint"),
    [
        # 16 of the 18 nodes of two racks: nemotron-4-340b on 128 GPUs.
        (8, 72, 32, [], ""),
        (8, 72, 20, [], ""),
        (16, 72, 64, [], ""),
        (16, 72, 68, ["HW415"], "use at most 64 nodes, or a `tp` within a node: 1, 2 or 4"),
        (16, 20, 20, ["HW415"], "use at most 16 nodes, or a `tp` within a node: 1, 2 or 4"),
        # HW301 reports that 60 is not a multiple of 64.
        (64, 15, 15, [], ""),
        (80, 72, 20, ["HW413"], "`tp` can be 1, 2, 3, 4, 6, 8, 9, 12, 18, 24, 36 or 72 there"),
    ],
)
def test_groups_over_nodes_need_nodes_of_one_rack_but_not_whole_racks(
    tp: int, count: int, nodes: int, expected: list[str], hint: str
) -> None:
    group = f"[{{name: gpu, count: {count}, cpus: 8, gpu: B200, gpus: 4, nvlink_domain: 72}}]"
    found = [
        problem
        for problem in check_placement(job(f"nodes: {nodes}\nlayout: {{tp: {tp}}}\n"), cluster(group))
        if problem.code in ("HW413", "HW415")
    ]
    assert [(problem.code, problem.hint) for problem in found] == [(code, hint) for code in expected]


@pytest.mark.parametrize(
    ("gpus", "domain", "ep", "nodes", "expected"),
    [
        # Between nodes, over the network, as usual.
        (8, 8, 64, 8, []),
        (4, 72, 8, 18, []),
        (4, 72, 8, 36, []),
        (4, 72, 32, 64, []),
        (4, 72, 64, 16, []),
        (4, 72, 144, 36, ["HW414"]),
        (4, 72, 8, 20, []),
        # 16 nodes of each of 5 full racks and 8 of the last 9 are 88.
        (4, 72, 32, 96, ["HW414"]),
        (4, 72, 4, 20, []),
    ],
)
def test_expert_groups_beyond_one_rack_are_reported(gpus: int, domain: int, ep: int, nodes: int, expected: list[str]) -> None:
    group = f"[{{name: gpu, count: 99, cpus: 8, gpu: B200, gpus: {gpus}, nvlink_domain: {domain}}}]"
    assert placed(f"nodes: {nodes}\nlayout: {{ep: {ep}}}\n", group) == expected


@pytest.mark.parametrize(
    ("tp", "nodes", "spares", "expected"),
    [(8, 36, 0, ["HW416"]), (8, 36, 18, []), (4, 36, 0, []), (8, 16, 0, []), (8, 18, 2, ["HW416"])],
)
def test_cost_of_a_lost_node_is_reported_without_a_spare_domain(tp: int, nodes: int, spares: int, expected: list[str]) -> None:
    group = f"[{{name: gpu, count: 72, held_back: {spares}, cpus: 8, gpu: B200, gpus: 4, nvlink_domain: 72}}]"
    assert placed(f"nodes: {nodes}\nlayout: {{tp: {tp}}}\n", group) == expected


@pytest.mark.parametrize(
    ("layout", "count", "spares", "expected"),
    [
        ("tp: 8", 72, 0, []),
        ("tp: 8", 72, 1, ["HW713"]),
        ("tp: 8", 72, 2, []),
        ("tp: 16", 72, 3, ["HW713"]),
        ("tp: 4", 72, 1, []),
        ("tp: 4, ep: 8", 72, 1, ["HW713"]),
        # All nodes are in one domain.
        ("tp: 8", 18, 1, []),
    ],
)
def test_spares_that_cannot_replace_a_group_of_ranks_are_reported(
    layout: str, count: int, spares: int, expected: list[str]
) -> None:
    group = f"[{{name: gpu, count: {count}, cpus: 8, gpu: B200, gpus: 4, nvlink_domain: 72}}]"
    assert placed(f"nodes: 16\nlayout: {{{layout}}}\nresilience: {{spares: {spares}}}\n", group) == expected


@pytest.mark.parametrize(("spares", "expected"), [(0, ["HW416"]), (2, [])])
def test_lost_node_costs_no_domain_if_the_job_has_spares_for_its_group(spares: int, expected: list[str]) -> None:
    group = "[{name: gpu, count: 72, cpus: 8, gpu: B200, gpus: 4, nvlink_domain: 72}]"
    assert placed(f"nodes: 36\nlayout: {{tp: 8}}\nresilience: {{spares: {spares}}}\n", group) == expected


@pytest.mark.parametrize(("nodes", "spares", "path"), [(5, 0, ("nodes",)), (5, 1, ("nodes",)), (4, 1, ("resilience", "spares"))])
def test_too_many_nodes_are_reported_at_the_field_that_causes_it(nodes: int, spares: int, path: tuple[str, ...]) -> None:
    text = f"nodes: {nodes}\nresilience: {{spares: {spares}}}\n"
    found = [
        each.path for each in check_placement(job(text), cluster("[{name: cpu, count: 4, cpus: 4}]")) if each.code == "HW403"
    ]
    assert found == [path]


def test_ranks_without_gpus_have_no_domain() -> None:
    assert placed("nodes: 4\nlayout: {tp: 8}\n", "[{name: cpu, count: 4, cpus: 4, procs: 2}]") == []


@given(st.integers(1, 12), st.integers(1, 6), st.none() | st.integers(1, 12), st.integers(1, 6), st.integers(1, 6))
def test_degree_proposed_by_a_hint_makes_the_degrees_fit(nodes: int, procs: int, dp_shard: int | None, pp: int, tp: int) -> None:
    group = f"[{{name: cpu, count: 99, cpus: 4, procs: {procs}}}]"
    shard = "" if dp_shard is None else f"dp_shard: {dp_shard}, "
    for problem in check_placement(job(f"nodes: {nodes}\nlayout: {{{shard}pp: {pp}, tp: {tp}}}\n"), cluster(group)):
        assert problem.code == "HW301"
        named = re.search(r"`(\w+)` can be |set it to ", problem.hint or "")
        if more := re.search(r"for these degrees, write `nodes: (\d+)`", problem.hint or ""):
            assert int(more[1]) * procs == (dp_shard or 1) * pp * tp
        for degree in numbers((problem.hint or "")[named.end() :].partition(";")[0]) if named else []:
            degrees = {"pp": pp, "tp": tp, "dp_shard": dp_shard or 1, named[1] or "dp_shard" if named else "": degree}
            product = prod(degrees.values())
            assert product == nodes * procs if dp_shard else nodes * procs % product == 0


@pytest.mark.parametrize(
    ("url", "reached"),
    [
        ("s3://training/checkpoints", True),
        ("s3://training/checkpoints/", True),
        ("s3://training/checkpoints/run-1", True),
        ("s3://training/checkpoints-2", False),
        ("s3://training", False),
        ("gs://training/checkpoints", False),
        ("s3://old/run-1", False),
    ],
)
def test_remote_tier_matches_a_store_by_whole_path_segments(url: str, reached: bool) -> None:
    stores = """\
storage:
  - {name: runs, kind: posix, path: /runs, shared: true}
  - {name: new, kind: object, url: "s3://training/checkpoints/", groups: [gpu]}
  - {name: old, kind: object, url: "s3://old", groups: [other]}
"""
    text = f'checkpoint: {{tiers: [{{kind: remote, every: 10 steps, url: "{url}"}}]}}\n'
    assert placed(text, "[{name: gpu, count: 1, cpus: 4}, {name: other, count: 1, cpus: 4}]", stores) == (
        [] if reached else ["HW705"]
    )


def test_nodes_of_the_job_must_reach_the_storage_of_its_runs() -> None:
    nodes = "[{name: a, count: 1, cpus: 4}, {name: b, count: 1, cpus: 4}]"
    stores = "storage: [{name: runs, kind: posix, path: /runs, shared: true, groups: [a]}]\n"
    tiers = "checkpoint: {tiers: [{kind: shared, every: 10 steps}]}\n"
    assert placed(f"{tiers}group: a\n", nodes, stores) == []
    assert placed(f"{tiers}group: b\n", nodes, stores) == ["HW706"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("{time: 1h, gpu_hours: 16}", []),
        ("{time: 1h, gpu_hours: 15.9}", ["HW417"]),
        ("{time: 1h}", []),
    ],
)
def test_gpu_hours_are_nodes_times_gpus_times_hours(limits: str, expected: list[str]) -> None:
    group = "[{name: gpu, count: 2, cpus: 8, gpu: B200, gpus: 8}]"
    assert placed(f"nodes: 2\nlimits: {{attempt: {limits}}}\n", group) == expected


# --- the rest of a job ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch: {global: 8Ki tokens, micro: 1, sequence: 4096}\n", []),
        ("batch: {global: 8k tokens, micro: 1, sequence: 4096}\n", ["HW323"]),
        ("limits: {attempt: {gpu_hours: 4}}\n", ["HW210"]),
        ("limits: {attempt: {time: 2m}}\nresilience: {grace: 2m}\n", ["HW708"]),
        ("limits: {attempt: {time: 11m}}\n", []),
        ("code: {image: train}\n", ["HW221"]),
        ("code: {image: registry.example.com:5000/train}\n", ["HW221"]),
        ("code: {image: registry.example.com:5000/train:v1}\n", ["HW221"]),
        (f"code: {{image: registry.example.com:5000/train:v1@sha256:{'0a' * 32}}}\n", []),
        (f"code: {{image: train@sha512:{'0a' * 64}}}\n", []),
        (f"code: {{image: 'user@registry.example.com#train@sha256:{'0a' * 32}'}}\n", []),
        (f"code: {{image: train@sha256:{'0A' * 32}}}\n", ["HW221"]),
        (f"code: {{image: train@sha256:{'0a' * 31}}}\n", ["HW221"]),
        (f"code: {{image: train@sha512:{'0a' * 32}}}\n", ["HW221"]),
        ("code: {image: 'train@sha256:'}\n", ["HW221"]),
        ("code: {image: train@abc}\n", ["HW221"]),
        ("code: {image: /images/train}\n", []),
        ("code: {image: images/train.sif}\n", []),
        ("code: {image: /images/train.sqsh}\n", []),
        ("mounts: [{source: /a}, {source: /b, target: /a}]\n", ["HW209"]),
        ("mounts: [{source: /a}, {source: /b}]\n", []),
        ("environment: {RANK: '0', HEADWAY_RUNS: /runs, TORCHELASTIC_RUN_ID: a}\n", ["HW418"] * 3),
        ("environment: {NODE_RANK: '0', CUDA_VISIBLE_DEVICES: '0', NVIDIA_VISIBLE_DEVICES: all}\n", ["HW418"] * 3),
        ("environment: {PATH: /opt/bin, PYTHONHOME: /opt, UID: '1000'}\n", ["HW418"] * 3),
        ("environment: {RANKS: '0', HF_HOME: /hf, PYTHONPATH: /opt, LD_PRELOAD: /opt/a.so, LD_LIBRARY_PATH: /opt}\n", []),
    ],
)
def test_job_is_checked_without_a_cluster(text: str, expected: list[str]) -> None:
    assert alone(text) == expected


def test_variable_reserved_by_bash_is_rejected() -> None:
    listed = subprocess.run(["bash", "-c", "readonly -p"], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^declare -\w+ (\w+)=", listed, re.MULTILINE)
    assert "UID" in names
    for name in names:
        assert alone(f"environment: {{{name}: '1'}}\n") == ["HW418"]


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        ("[{kind: memory, every: 10 steps}, {kind: shared, every: 100 steps}]", []),
        ("[{kind: shared, every: 100 steps}, {kind: memory, every: 10 steps}]", []),
        ("[{kind: memory, every: 100 steps}, {kind: shared, every: 10 steps}]", ["HW707"]),
        ("[{kind: peer, every: 20m}, {kind: shared, every: 10m}]", ["HW707"]),
        ("[{kind: memory, every: 100 steps}, {kind: shared, every: 10m}]", []),
        ("[{kind: shared, every: 10 steps}, {kind: shared, every: 10 steps}]", ["HW704"]),
        ('[{kind: shared, every: 10 steps, url: "s3://a"}]', ["HW210"]),
        ("[{kind: remote, every: 10 steps}]", ["HW210"]),
        ("[{kind: memory, every: 10 steps}]", ["HW709"]),
        ("[{kind: memory, every: 10 steps}, {kind: peer, every: 20 steps}]", ["HW709"]),
        ('[{kind: remote, every: 10m, url: "gs://a/b", keep: 5}]', []),
        ("[{kind: memory, every: 10 steps, keep: 2}, {kind: shared, every: 1h, keep: 2}]", ["HW210"]),
    ],
)
def test_tiers_have_distinct_kinds_and_less_durable_ones_are_more_frequent(tiers: str, expected: list[str]) -> None:
    assert alone(f"nodes: 2\ncheckpoint: {{tiers: {tiers}}}\n") == expected


def test_peer_tier_requires_another_node() -> None:
    text = "checkpoint: {tiers: [{kind: peer, every: 10 steps}, {kind: shared, every: 20 steps}]}\n"
    assert (alone(text), alone(f"nodes: 2\n{text}")) == (["HW710"], [])


# --- environment and trainer, which need a plan -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> JobPlan:
    planned = load_job_plan(ROOT / "examples" / "two-node-roce" / "job.yaml")
    assert planned is not None
    return planned.plan


def with_environment(folder: Path, environment: Mapping[str, str]) -> tuple[JobPlan, list[Problem]]:
    """Return the plan of examples/two-node-roce with the job's own variables for its first cluster, and check_environment's problems."""
    shutil.copytree(ROOT / "examples" / "two-node-roce", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("rendered"))
    with (folder / "job.yaml").open("a") as file:
        file.write(f"environment: {json.dumps(environment)}\n")
    plan = compile_documents([folder / "job.yaml"]).jobs[0].plan
    return plan, list(check_environment(plan))


def test_variable_decided_by_the_cluster_file_is_rejected_with_the_reason(plan: JobPlan, tmp_path: Path) -> None:
    changed, problems = with_environment(tmp_path, {variable.name: "1" for variable in plan.env})
    # All of them accept `1` except the log level of NCCL.
    found = {problem.path[-1]: problem for problem in problems if problem.path[-1] != "NCCL_DEBUG"}
    following = {variable.name: variable for variable in plan.env if variable.decided_by is not None}
    assert found.keys() == following.keys() >= {"NCCL_NET", "NCCL_IB_HCA", "NCCL_IB_TC", "NCCL_SOCKET_IFNAME"}
    for name, variable in following.items():
        assert found[name].code == "HW418"
        assert variable.reason in found[name].message
        assert found[name].hint == f"leave it out: {variable.decided_by} in the cluster file determines it"
        assert variable in changed.env


def test_job_overrides_a_variable_that_the_plan_only_suggests(plan: JobPlan, tmp_path: Path) -> None:
    suggested = {variable.name: variable for variable in plan.env if variable.decided_by is None}
    changed, problems = with_environment(tmp_path, dict.fromkeys(suggested, "7") | {"HF_HOME": "/hf"})
    assert [problem.path[-1] for problem in problems] == ["NCCL_DEBUG"]
    assert [variable.name for variable in changed.env] == [*(variable.name for variable in plan.env), "HF_HOME"]
    for variable in changed.env:
        if variable.name in suggested:
            before = suggested[variable.name]
            assert variable.value == "7"
            assert variable.reason == f"set by the job, in place of {before.value}: {before.reason}"
            assert variable.source == before.source
    assert suggested.keys() == {
        "OMP_NUM_THREADS",
        "PYTHONUNBUFFERED",
        "NCCL_DEBUG",
        "NCCL_IB_TIMEOUT",
        "NCCL_IB_QPS_PER_CONNECTION",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "PYTORCH_ALLOC_CONF",
    }


SIZES = {"layers": 61, "heads": 64, "kv_heads": 8, "vocab_size": 50257}


@pytest.mark.parametrize(
    ("layout", "framework", "changed", "expected"),
    [
        ({"tp": 8}, "megatron-2021", {}, []),
        ({"tp": 8}, "megatron", {}, []),
        ({"tp": 8}, "torchtitan", {}, ["HW315"]),
        ({"tp": 8}, None, {"vocab_size": 50304, "kv_heads": 1}, []),
        ({"tp": 8}, None, {"vocab_size": 50304, "kv_heads": 2}, ["HW315"]),
        ({"pp": 16}, "megatron", {}, ["HW318"]),
    ],
)
def test_common_layout_causes_no_warning(
    layout: dict[str, int], framework: str | None, changed: dict[str, int], expected: list[str]
) -> None:
    model = sizes(**(SIZES | changed))
    assert codes(list(check_layout(Layout.model_validate(layout), model, None, framework))) == expected


def test_stages_proposed_by_a_hint_divide_evenly_and_are_close() -> None:
    (found,) = check_layout(Layout(pp=16), sizes(layers=61), None, "megatron")
    assert found.hint is not None
    assert "`pp` x `virtual_stages` 3, 7, 9 or 21 divide evenly" in found.hint
    assert "--decoder-first-pipeline-num-layers" in found.hint
    for stages in (3, 7, 9, 21):
        assert list(check_layout(Layout(pp=stages), sizes(layers=61), None)) == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("NCCL_IB_DISABLE", "leave it out: `nics` of the group `h100` in the cluster file determines it"),
        ("NCCL_IB_GID_INDEX", "leave it out: `classes` of the fabric `rails` in the cluster file determines it"),
    ],
)
def test_variable_that_contradicts_the_plan_is_rejected(name: str, hint: str, tmp_path: Path) -> None:
    _, (found,) = with_environment(tmp_path, {name: "1"})
    assert (found.code, found.hint) == ("HW418", hint)


def test_job_may_repeat_the_values_of_the_plan_and_defaults(plan: JobPlan, tmp_path: Path) -> None:
    same = {variable.name: variable.value for variable in plan.env} | {"NCCL_IB_DISABLE": "0", "NCCL_IB_GID_INDEX": "-1"}
    changed, problems = with_environment(tmp_path, same)
    assert problems == []
    assert {variable.name: variable.value for variable in changed.env} == same


@pytest.mark.parametrize(
    ("name", "planned"),
    [
        ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
        ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    ],
)
def test_job_may_set_a_suggested_variable_by_its_older_name(name: str, planned: str, tmp_path: Path) -> None:
    changed, problems = with_environment(tmp_path, {name: "3"})
    assert problems == []
    assert [(each.name, each.value) for each in changed.env if each.name in (name, planned)] == [(name, "3")]


def test_job_may_set_a_variable_that_is_not_in_the_plan(tmp_path: Path) -> None:
    changed, problems = with_environment(tmp_path, {"NCCL_DEBUG_SUBSYS": "INIT", "HF_HOME": "/hf"})
    assert problems == []
    assert [(each.name, each.value) for each in changed.env[-2:]] == [("NCCL_DEBUG_SUBSYS", "INIT"), ("HF_HOME", "/hf")]


def test_builtin_trainer_supports_or_rejects_every_numeric_field() -> None:
    answered = {*_ONLY, *EXECUTED}
    computed = {("precision", name) for name in Precision.model_fields} | {("overlap", name) for name in Overlap.model_fields}
    built = {field.name for field in dataclasses.fields(contract.Model)}
    # Sources of sizes, and sizes that follow from others or that only a rejected model has.
    elsewhere = {"preset", "config", "head_dim", "max_positions", "linear_bias"}
    models = {("model", name) for name in Model.model_fields.keys() - built - elsewhere}
    assert answered >= computed | models | {("recompute",), ("compile",)}


# --- numbers in hints -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5000))
def test_divisors_are_complete(number: int) -> None:
    assert divisors(number) == [each for each in range(1, number + 1) if number % each == 0]


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_nearest_multiples_are_on_both_sides(number: int, of: int) -> None:
    assume(number % of)
    found = nearest_multiples(number, of)
    assert all(each % of == 0 and 0 < abs(each - number) < of for each in found)
    assert [each > number for each in found] == ([False, True] if number > of else [True])


def test_many_numbers_are_listed_by_the_smallest_and_the_largest() -> None:
    assert listed_numbers([1]) == "1"
    assert listed_numbers([1, 2]) == "1 or 2"
    assert listed_numbers([1, 2, 4]) == "1, 2 or 4"
    assert listed_numbers(range(1, 101)) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ..., 100"
