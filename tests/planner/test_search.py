"""The layout search compared with an exhaustive one that enumerates and scores every legal layout."""

from collections.abc import Iterator
from itertools import product
from math import gcd
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import Gpu, gpus
from headway.jobspec.check.layout import check_layout, check_mesh
from headway.jobspec.resolve.model import ModelSizes, resolve_model
from headway.jobspec.spec.batch import Batch
from headway.jobspec.spec.layout import Layout, Schedule
from headway.jobspec.spec.model import Experts, Model
from headway.planner.estimate import Estimate, estimate
from headway.planner.search.frameworks import abilities, sharding_of
from headway.planner.search.layouts import Layouts
from headway.planner.search.placement import placements
from headway.planner.search.search import Allowed, Request, SearchResult, headroom, in_order, request_like, search
from headway.planner.training import Degrees, Kernels, Network, Recompute, Training
from headway.runner.contract import Mesh

DENSE = Model(vocab_size=32000, layers=6, hidden=2048, heads=16, kv_heads=4, ffn_hidden=6144)
DEEP = DENSE.model_copy(update={"layers": 10})
UNEVEN = DENSE.model_copy(update={"layers": 7})
WORDY = DENSE.model_copy(update={"layers": 13, "hidden": 1024, "ffn_hidden": 14336, "vocab_size": 128256})
SPARSE = DENSE.model_copy(update={"experts": Experts(count=8, top_k=2, ffn_hidden=1024)})
NODE = Network(8, 8, 450e9, 50e9, 8, "infiniband")
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


def sizes(model: Model) -> ModelSizes:
    return resolve_model(model, Path())


def with_memory(gib: int, name: str = "H100-SXM-80") -> Gpu:
    return replace(gpus()[name], memory_gib=gib, usable_gib=None)


def small(model: Model = DENSE, memory_gib: int = 6, **changes: object) -> Request:
    """Return a request for a model of 0.4 billion parameters on 16 GPUs; about half of its layouts do not fit."""
    request = Request(sizes(model), with_memory(memory_gib), NODE, 16, 32, 2048, "torchtitan")
    return replace(request, **changes)


def llama_405b(**changes: object) -> Request:
    """Return the pretraining of Llama 3 405B: arXiv 2407.21783, table 4 and section 3.3.2, with sharded gradients."""
    model = sizes(Model(preset="llama-3.1-405b"))
    request = Request(model, gpus()["H100-SXM-80"], NODE, 16384, 2048, 8192, "megatron", sharding="gradients")
    return replace(request, **changes)


def divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def every_layout(request: Request) -> Iterator[tuple[Degrees, int, int, Recompute]]:
    """Yield all layouts that the checks allow, without those that another one makes pointless."""
    degrees, experts = divisors(request.gpus), request.model.experts
    eps = [1] if experts is None else divisors(experts.count)
    for tp, cp, pp, replicas, ep in product(degrees, degrees, degrees, degrees, eps):
        shards, rest = divmod(request.gpus, tp * cp * pp * replicas)
        if rest or not shards or tp > 8 or request.sequences % (replicas * shards):
            continue
        share = request.sequences // (replicas * shards)
        for micro, (schedule, chunks), split in product(divisors(share), stage_counts(request, pp), (False, True)):
            written = Layout(
                pp=pp,
                dp_replicate=replicas,
                dp_shard=shards,
                cp=cp,
                tp=tp,
                ep=ep,
                sequence_parallel=split,
                schedule=schedule if pp > 1 else None,
                virtual_stages=chunks,
            )
            if gcd(cp, micro) > 1 or not is_legal(request, written, micro) or not is_supported(request, written, share // micro):
                continue
            whole = Degrees(
                pp=pp,
                chunks=chunks,
                schedule=schedule,
                dp_replicate=replicas,
                dp_shard=shards,
                cp=cp,
                tp=tp,
                sequence_parallel=split,
                ep=ep,
                expert_tp=tp if experts is not None and ep == 1 else 1,
                sharding=sharding_of(request.framework, request.sharding, pp),
            )
            yield from ((whole, micro, share // micro, recompute) for recompute in RECOMPUTES)


def stage_counts(request: Request, pp: int) -> Iterator[tuple[Schedule, int]]:
    if pp == 1:
        yield "1F1B", 1
    else:
        yield from product(SCHEDULES, range(1, request.model.layers + 3))


def is_legal(request: Request, layout: Layout, micro: int) -> bool:
    """Return whether `headway check` finds no error."""
    batch = Batch.model_validate({"global": f"{request.sequences} sequences", "micro": micro, "sequence": request.sequence})
    mesh = Mesh(layout.pp, layout.dp_replicate, layout.dp_shard or 1, layout.cp, layout.tp)
    found = [*check_layout(layout, request.model, batch), *check_mesh(layout, mesh, request.model, batch)]
    return not any(problem.is_error for problem in found)


def is_supported(request: Request, layout: Layout, accumulation: int) -> bool:
    """Return whether the framework supports the layout, and no other schedule does the same with less memory."""
    able, stages, layers = abilities(request.framework), layout.pp * layout.virtual_stages, request.model.layers
    larger = {axis for axis in ("pp", "dp_replicate", "cp", "tp", "ep") if getattr(layout, axis) > 1}
    if not larger <= able.axes or (layout.tp > 1 and layout.sequence_parallel not in able.sequence_parallel):
        return False
    if layout.tp > 1 and request.model.experts is not None and able.expert_sequence_parallel and not layout.sequence_parallel:
        return False
    if layout.pp == 1:
        return True
    even = any((layers + ends) % stages == 0 for ends in ((0,) if able.split == "even" else (0, 1, 2)))
    if layout.schedule not in able.schedules or not (even or (able.split == "any" and layout.virtual_stages == 1)):
        return False
    if able.rounds and layout.virtual_stages > 1 and accumulation < layout.pp:
        return False
    return layout.schedule not in {"GPipe", "LoopedBFS"} or not leaner_is_legal(layout, accumulation)


def leaner_is_legal(layout: Layout, accumulation: int) -> bool:
    schedule = {"GPipe": "1F1B", "LoopedBFS": "Interleaved1F1B"}[str(layout.schedule)]
    leaner = Layout.model_validate({"pp": layout.pp, "virtual_stages": layout.virtual_stages, "schedule": schedule})
    batch = Batch.model_validate({"global": f"{accumulation} sequences", "micro": 1, "sequence": 2048})
    return not any(problem.is_error for problem in check_mesh(leaner, Mesh(layout.pp, 1, 1, 1, 1), None, batch))


def enumerated(request: Request) -> set[tuple[Degrees, int, int, Recompute]]:
    layouts, found = Layouts(request), set()
    for degrees in layouts.degrees():
        for each in layouts.variants(degrees):
            whole = replace(degrees, schedule=each.schedule, chunks=each.chunks, sequence_parallel=each.sequence_parallel)
            found.add((whole, each.micro, each.accumulation, each.recompute))
    return found


def all_scored(request: Request) -> list[Estimate]:
    scored = [estimate(request.training(*layout)) for layout in every_layout(request)]
    return [each for each in scored if each.memory.verdict != "does not fit"]


def ranking(request: Request) -> list[Estimate]:
    """Return the fastest of all layouts for each combination of tp, cp, pp and ep."""
    families: dict[tuple[int, int, int, int], list[Estimate]] = {}
    for each in all_scored(request):
        families.setdefault(family(each.training), []).append(each)
    return list(in_order(next(in_order(alike)) for alike in families.values()))[: request.top]


def family(training: Training) -> tuple[int, int, int, int]:
    degrees = training.degrees
    return degrees.tp, degrees.cp, degrees.pp, degrees.ep


SMALL = {
    "fsdp": small(),
    "optimizer state is split": small(framework="megatron", sharding="optimizer"),
    "experts": small(SPARSE, 5, framework="megatron", sharding="optimizer"),
    "experts and fsdp": small(SPARSE, 5, sequences=16),
    "stages that fold evenly and do not loop evenly": small(UNEVEN, 5, gpus=8, sequences=16, framework="automodel"),
    "all microbatches in flight at once": small(WORDY, gpus=8, sequences=12, sequence=1024, framework="automodel"),
    "nothing fits": small(memory_gib=1),
}
# The two with experts have thousands of layouts.
CASES = [pytest.param(each, id=name, marks=[pytest.mark.variant] * name.startswith("experts")) for name, each in SMALL.items()]


@pytest.mark.slow
@pytest.mark.parametrize("request_", CASES)
def test_exactly_the_legal_layouts_are_enumerated_once(request_: Request) -> None:
    expected = list(every_layout(request_))
    found = Layouts(request_)
    count = sum(found.count(degrees) for degrees in found.degrees())
    assert enumerated(request_) == set(expected)
    assert count == len(expected) == len(set(expected))


@pytest.mark.slow
@pytest.mark.parametrize("request_", CASES)
def test_ranking_equals_that_of_an_exhaustive_search(request_: Request) -> None:
    found = search(request_)
    assert [each.training for each in found.ranked] == [each.training for each in ranking(request_)]
    assert found.counts.legal == found.counts.unfit + found.counts.slow + found.counts.scored


def test_most_layouts_are_not_scored() -> None:
    """If all layouts were scored, the tests above would compare the exhaustive search with itself."""
    counts = search(replace(SMALL["fsdp"], top=1)).counts
    assert counts.scored < counts.legal / 4
    assert min(counts.unfit, counts.slow, counts.scored) > 0


@pytest.mark.slow
def test_same_request_has_the_same_result() -> None:
    assert search(SMALL["experts"]) == search(SMALL["experts"])


def test_search_like_a_step_uses_its_gpus_batch_and_kernels() -> None:
    request = small(kernels=Kernels(compiled=True), supposed=True, allowed=Allowed(tp=(2,)), top=3)
    best = search(request).ranked[0]
    again = request_like(best.training, Allowed(tp=(2,)), top=3)
    assert again == replace(request, sharding=best.training.degrees.sharding)


def test_values_fixed_by_the_caller_are_kept() -> None:
    allowed = Allowed(
        tp=(2,),
        cp=(1,),
        pp=(2,),
        chunks=(3,),
        schedule=("Interleaved1F1B",),
        dp_replicate=(2,),
        sequence_parallel=(True,),
        micro=(2,),
        recompute=("full",),
    )
    found = search(small(allowed=allowed))
    degrees = Degrees(
        pp=2, chunks=3, schedule="Interleaved1F1B", dp_replicate=2, dp_shard=2, tp=2, sequence_parallel=True, sharding="optimizer"
    )
    assert found.counts.legal == 1
    assert [(each.training.degrees, each.training.micro, each.training.recompute) for each in found.ranked] == [
        (degrees, 2, "full")
    ]


def test_fixed_layout_may_be_one_that_an_open_search_skips() -> None:
    uneven = search(small(DEEP, allowed=Allowed(tp=(1,), cp=(1,), pp=(2,), chunks=(4,), micro=(1,)))).counts.legal
    scattered = Layouts(small(allowed=Allowed(tp=(1,), cp=(2,), micro=(2,))))
    assert uneven > 0
    assert sum(scattered.count(degrees) for degrees in scattered.degrees()) > 0


def test_equally_fast_layouts_are_ordered_by_simplicity() -> None:
    plain, deep = (estimate(small().training(degrees, 1, 16, "none")) for degrees in (Degrees(dp_shard=2), Degrees(pp=2)))
    close = replace(plain, step=replace(plain.step, seconds=deep.step.seconds * 1.004))
    apart = replace(plain, step=replace(plain.step, seconds=deep.step.seconds * 1.006))
    assert list(in_order([deep, close])) == [close, deep]
    assert list(in_order([apart, deep])) == [deep, apart]


@pytest.mark.slow
def test_pareto_front_has_layouts_with_more_free_memory_than_faster_ones() -> None:
    found = search(SMALL["fsdp"])
    for each in found.ranked:
        faster = [other for other in found.ranked if other.step.seconds < each.step.seconds]
        beaten = any(headroom(other.memory) >= headroom(each.memory) for other in faster)
        assert (each in found.pareto) == (not beaten)
    assert 1 < len(found.pareto) < len(found.ranked)


@pytest.mark.slow
def test_search_without_tight_layouts_finds_only_certain_fits() -> None:
    request = small(memory_gib=5)
    assert "tight" in {each.memory.verdict for each in search(request).ranked}
    certain = search(replace(request, tight=False))
    assert {each.memory.verdict for each in certain.ranked} == {"fits"}
    assert any(rejection.reason.startswith("does not fit, or is tight with") for rejection in certain.rejections)


def test_fsdp2_pipeline_keeps_its_parameters_during_the_step() -> None:
    shardings = {(degrees.pp > 1, degrees.sharding) for degrees in Layouts(small()).degrees()}
    assert shardings == {(False, "parameters"), (True, "optimizer")}


# Reasons for excluding layouts.


def reasons(request: Request) -> set[str]:
    return {rejection.reason for rejection in search(request).rejections}


ODD = DENSE.model_copy(update={"heads": 12, "kv_heads": 6, "head_dim": 128})
LEARNED = DENSE.model_copy(update={"positions": "learned", "max_positions": 1024})
WIDE = DENSE.model_copy(update={"ffn_hidden": 6152})
RACK = Network(4, 64, 900e9, 50e9, 4, "infiniband")
RULES: dict[str, tuple[Request, str]] = {
    "tp leaves the domain": (small(), "tp 16 leaves the NVLink domain of 8 GPUs"),
    "tp crosses domains": (
        small(network=replace(NODE, scale_up_domain=4, gpus_per_node=4)),
        "tp 8 leaves the NVLink domain of 4 GPUs",
    ),
    "heads": (small(ODD, allowed=Allowed(tp=(8,))), "tp 8 does not divide heads 12, kv_heads 6"),
    "widths on a rack": (small(WIDE, network=RACK), "tp 16 does not divide ffn_hidden 6152"),
    "sequences": (small(sequences=8), "8 sequences do not divide over 16 data-parallel ranks"),
    "tokens": (small(sequence=2056), "a sequence of 2056 tokens is not a multiple of 16, for 2 x 8 parts over cp"),
    "positions": (small(LEARNED), "a sequence of 2048 tokens is longer than the learned positions of the model, 1024"),
    "stages": (small(), "16 stages (pp 16) are more than the model's 6 layers"),
    "uneven stages": (small(DEEP), "10 layers over 2 x 4 stages: each round of an interleaved schedule waits for the largest"),
    "stages with ends": (
        small(DEEP, framework="megatron"),
        "10 layers do not divide over 2 x 4 stages, with embedding and output layer counted or not, which megatron requires",
    ),
    "even stages": (
        small(framework="aleph", sharding="optimizer"),
        "6 layers do not divide over 4 x 1 stages, which aleph requires",
    ),
    "microbatches": (
        small(allowed=Allowed(pp=(4,), schedule=("1F1B",))),
        "1F1B needs a microbatch for each of 4 stages, but a step has 2",
    ),
    "rounds": (
        small(framework="megatron", sharding="optimizer"),
        "megatron interleaves 2 microbatches or more on 2 pipeline ranks, not 1",
    ),
    "a schedule for other frameworks": (
        small(allowed=Allowed(pp=(2,), chunks=(2,), schedule=("1F1B",))),
        "1F1B needs one stage per rank, but virtual_stages is 2",
    ),
    "a leaner schedule": (small(), "GPipe waits as long as 1F1B and holds every microbatch"),
    "fewer ranks for a sequence": (
        small(),
        "cp 2 with micro 2 exchanges more than cp 1 with micro 1, for the same tokens per rank",
    ),
    "experts": (small(SPARSE, allowed=Allowed(ep=(3,))), "8 experts do not spread evenly over 3 ranks of ep"),
    "experts fold": (
        small(SPARSE, allowed=Allowed(tp=(1,), cp=(1,), pp=(1,), dp_replicate=(4,), ep=(8,))),
        "ep 8 does not divide the ranks that it folds over: dp_shard 4 x cp 1 x tp 1 = 4",
    ),
    "no experts": (small(allowed=Allowed(ep=(2,))), "ep spreads experts over 2 ranks, but the model has none"),
    "DeepEP": (
        small(
            DENSE.model_copy(update={"experts": Experts(count=256, top_k=8, ffn_hidden=256)}),
            kernels=Kernels(dispatcher="deepep"),
            allowed=Allowed(ep=(256,)),
        ),
        "ep 256: DeepEP stops at 160 ranks",
    ),
    "an unsupported axis": (small(framework="composer"), "tp 2: composer has no tp"),
    "a degree that does not divide": (small(allowed=Allowed(tp=(3,))), "tp 3 does not divide 16 ranks"),
    "a microbatch that does not divide": (
        small(allowed=Allowed(micro=(3,), cp=(1,), pp=(1,), tp=(8,))),
        "micro 3 does not divide the 16 sequences that a rank reads per step",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("request_", "reason"), RULES.values(), ids=RULES)
def test_choice_excluded_by_a_rule_has_its_reason(request_: Request, reason: str) -> None:
    assert reason in reasons(request_)


@pytest.mark.slow
def test_layouts_that_do_not_fit_report_their_minimum_memory() -> None:
    rejected = [each for each in search(SMALL["nothing fits"]).rejections if each.layouts]
    assert [each.reason.split(":")[0] for each in rejected] == [f"does not fit with recompute {each}" for each in RECOMPUTES]
    assert all(each.reason.endswith(" GiB or more of 1.00 GiB") for each in rejected)


def test_layouts_that_are_too_slow_name_the_bound() -> None:
    found = search(llama_405b(allowed=Allowed(tp=(8,), cp=(1,)), top=2))
    slow = {each.reason for each in found.rejections if each.layouts and not each.reason.startswith("does not fit")}
    assert slow == {
        "at best as fast as another with the same tp, cp, pp and ep",
        "computation and the waits of each microbatch alone take longer than the 2 fastest",
        "the bubble alone makes it slower than the 2 fastest",
    }


@pytest.mark.slow
def test_every_layout_is_scored_or_counted_in_one_rejection() -> None:
    found = search(SMALL["optimizer state is split"])
    assert sum(each.layouts for each in found.rejections) + found.counts.scored == found.counts.legal


# Llama 3 405B on 16,384 GPUs.


@pytest.fixture(scope="module")
def llama() -> SearchResult:
    return search(llama_405b())


@pytest.mark.slow
def test_llama_405b_has_35853_legal_layouts(llama: SearchResult) -> None:
    assert llama.counts.legal == 35853
    assert llama.counts.scored < llama.counts.legal / 20


@pytest.mark.slow
def test_published_layout_of_llama_405b_is_in_the_top_10(llama: SearchResult) -> None:
    """arXiv 2407.21783, table 4: tp 8, cp 1, pp 16, dp 128 on 16,384 GPUs, 16 million tokens a step."""
    found = {(each.training.degrees.tp, each.training.degrees.cp, each.training.degrees.pp): each for each in llama.ranked}
    published = found[8, 1, 16].training
    assert (published.degrees.dp, published.micro, published.recompute) == (128, 1, "none")


@pytest.mark.slow
def test_every_ranked_layout_uses_all_gpus_and_the_whole_batch(llama: SearchResult) -> None:
    assert {(each.training.gpus, each.training.sequences) for each in llama.ranked} == {(16384, 2048)}


# Placement of groups.


def test_groups_use_nvlink_one_rail_or_both() -> None:
    degrees = Degrees(tp=4, cp=4, dp_shard=2, pp=2, ep=8)
    found = {each.axis: (each.ranks, each.stride, each.per_node, each.over) for each in placements(degrees, NODE)}
    assert found == {
        "tp": (4, 1, 4, "NVLink"),
        "cp": (4, 4, 2, "NVLink and rails"),
        "dp_shard": (2, 16, 1, "one rail each"),
        "pp": (2, 32, 1, "one rail each"),
        "ep": (8, 1, 8, "NVLink"),
    }
