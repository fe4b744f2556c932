"""A complete step: its parts, its pipeline, the exchange of its ranks, and FLOPs counted as in published tables."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.spec.layout import Sharding
from headway.planner.framework import Framework
from headway.planner.schedules.schedule import make_schedule
from headway.planner.schedules.timeline import Times, run
from headway.planner.speed import speed
from headway.planner.speed.collectives import groups_of
from headway.planner.speed.data_parallel import dense_exchange
from headway.planner.speed.pipeline import makespan
from headway.planner.speed.rates import one_microbatch, rates_of
from headway.planner.speed.speed import constants
from headway.planner.speed.stages import held_parameters, stages_of
from headway.planner.speed.step import step_time
from headway.planner.training import Degrees, Kernels, Overlaps, Training
from tests.planner.test_compute import BASE
from tests.planner.test_memory import LLAMA, NODE

LLAMA_405B = replace(LLAMA, layers=126, hidden=16384, heads=128, ffn_hidden=53248)
# arXiv 2407.21783, table 4: 16,384 GPUs, 8,192 tokens per sequence, 16 million per step; microbatch and stages per rank are not printed.
PUBLISHED = replace(
    BASE,
    model=LLAMA_405B,
    degrees=Degrees(tp=8, pp=16, dp_shard=128, sequence_parallel=True, sharding="optimizer"),
    accumulation=16,
)


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    """Draw a layout of Llama 3.1 8B on an accelerator of the catalog."""
    tp, pp, cp = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    sharding: Sharding = draw(st.sampled_from(get_args(Sharding)))
    degrees = Degrees(
        pp=pp,
        dp_shard=draw(st.sampled_from([1, 2, 16])),
        dp_replicate=draw(st.sampled_from([1, 4])),
        cp=cp,
        tp=tp,
        sequence_parallel=draw(st.booleans()),
        sharding=sharding,
    )
    return replace(
        BASE,
        gpu=gpus()[draw(st.sampled_from(sorted(gpus())))],
        degrees=degrees,
        micro=draw(st.integers(1, 4)),
        accumulation=draw(st.integers(1, 40)),
        framework=draw(st.sampled_from(get_args(Framework))),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        recomputed_parts=("attention",),
    )


@settings(max_examples=60, deadline=None)
@given(training=trainings())
def test_parts_of_a_step_sum_to_its_time(training: Training) -> None:
    step = step_time(training)
    assert sum(step.parts.values()) == pytest.approx(step.seconds)
    assert all(seconds > 0 for seconds in step.parts.values())
    assert step.low < step.seconds < step.high
    assert 0 <= step.bubble < 1
    assert step.flops_causal < step.flops_full
    assert step.flops_causal / step.seconds / training.gpus < training.gpu.bf16_tflops * 1e12
    assert "dp" in step.bytes_per_rank or training.degrees.dp * training.degrees.cp == 1


@settings(max_examples=40, deadline=None)
@given(training=trainings())
def test_overlap_never_makes_a_step_longer(training: Training) -> None:
    beside = replace(training, overlaps=Overlaps(parameters=True, gradients=True, tensor=True, pipeline=True))
    after = replace(training, overlaps=Overlaps(parameters=False, gradients=False, tensor=False, pipeline=False))
    assert step_time(beside).seconds <= step_time(after).seconds * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(training=trainings())
def test_recomputation_costs_time(training: Training) -> None:
    seconds = [step_time(replace(training, recompute=recompute)).seconds for recompute in ("none", "selective", "full")]
    assert seconds[0] < seconds[1] < seconds[2]
    half = step_time(replace(training, recompute="full", recomputed_share=0.5)).seconds
    assert seconds[0] < half < seconds[2]


def test_flops_are_counted_as_in_published_tables() -> None:
    step = step_time(replace(BASE, degrees=Degrees(dp_shard=8), accumulation=2))
    tokens = 8 * 2 * 8192
    matrices = LLAMA.parameters - LLAMA.embedding_parameters
    assert step.flops_full == tokens * (6 * matrices + 12 * 32 * 4096 * 8192)
    assert step.flops_causal == tokens * (6 * matrices + 6 * 32 * 4096 * 8192)


def test_tied_output_layer_is_still_counted_as_a_product() -> None:
    tied = replace(BASE, model=replace(LLAMA, tie_embeddings=True))
    assert step_time(tied).flops_full == step_time(BASE).flops_full


def test_published_speed_of_llama_405b_is_between_1_and_8_stages_per_rank() -> None:
    def tflops(chunks: int) -> float:
        degrees = replace(PUBLISHED.degrees, chunks=chunks, schedule="Interleaved1F1B" if chunks > 1 else "1F1B")
        step = step_time(replace(PUBLISHED, degrees=degrees))
        return step.flops_full / step.seconds / PUBLISHED.gpus / 1e12

    assert (PUBLISHED.gpus, PUBLISHED.tokens) == (16384, 2**24)
    assert tflops(1) < 400 < tflops(8)
    assert tflops(2) == pytest.approx(400, rel=0.05)


@pytest.mark.parametrize(("name", "chunks"), [("1F1B", 1), ("Interleaved1F1B", 3), ("ZBVZeroBubble", 2), ("GPipe", 1)])
def test_shortcut_for_long_pipelines_matches_the_full_schedule(name: str, chunks: int) -> None:
    ranks, count = 4, 64
    one = tuple(1.0 + 0.1 * (stage % 3) for stage in range(ranks * chunks))
    transfer = 0.05
    whole = run(make_schedule(name, ranks, count, chunks), Times(one, one, one, (transfer,) * (ranks * chunks - 1), True))
    end, busy = makespan(name, ranks, chunks, count, (one, one, one), transfer)
    assert end == pytest.approx(whole.makespan, rel=0.003)
    assert busy == pytest.approx(whole.busy)


def test_bubble_shrinks_with_microbatches_and_stages_per_rank() -> None:
    piped = replace(BASE, degrees=Degrees(pp=4, sharding="optimizer"))

    def bubble(count: int, chunks: int) -> float:
        degrees = replace(piped.degrees, chunks=chunks, schedule="Interleaved1F1B" if chunks > 1 else "1F1B")
        return step_time(replace(piped, accumulation=count, degrees=degrees)).bubble

    assert bubble(4, 1) > bubble(16, 1) > bubble(16, 2) > bubble(64, 2) > 0


def test_first_and_last_stage_get_fewer_of_indivisible_blocks() -> None:
    profile = constants().profile("megatron")
    sizes = [stage.dense for stage in stages_of(PUBLISHED, profile)]
    assert sizes == [7, *[8] * 14, 7]
    ends = [(stage.first, stage.last) for stage in stages_of(PUBLISHED, profile)]
    assert ends == [(True, False), *[(False, False)] * 14, (False, True)]


def test_balancing_framework_moves_blocks_from_the_output_stage() -> None:
    training = replace(BASE, degrees=Degrees(pp=4), model=replace(LLAMA, vocab_size=256000))
    equal = [stage.dense for stage in stages_of(training, constants().profile("megatron"))]
    balanced = [stage.dense for stage in stages_of(training, constants().profile("nanotron"))]
    assert equal == [8, 8, 8, 8]
    assert sum(balanced) == 32
    assert balanced[-1] < min(balanced[:-1])
    entries_ = [stage.dense for stage in stages_of(training, constants().profile("aleph"))]
    assert entries_ == [8, 9, 9, 6]


def test_ranks_of_a_stage_hold_all_of_its_parameters() -> None:
    training = replace(BASE, degrees=Degrees(tp=4, pp=2))
    held = [held_parameters(training, stage) for stage in stages_of(training, constants().profile("megatron"))]
    # No stage counts the last norm.
    assert 4 * sum(dense for dense, _ in held) == LLAMA.parameters - LLAMA.hidden
    assert [experts for _, experts in held] == [0, 0]


@pytest.mark.parametrize(("sharding", "bytes_"), [("none", 2 * 4), ("optimizer", 4 + 2), ("parameters", 4 + 2)])
def test_ranks_exchange_gradients_and_sharded_parameters(sharding: Sharding, bytes_: int) -> None:
    training = replace(BASE, degrees=Degrees(dp_shard=8, sharding=sharding))
    rates = rates_of(one_microbatch(training), constants())
    exchange = dense_exchange(training, 1e9, rates.profile, rates.links, groups_of(training.degrees, training.network))
    assert exchange.gathered_bytes + exchange.reduced_bytes == pytest.approx(bytes_ * 1e9 * 7 / 8)


def test_fsdp_gathers_per_microbatch_and_a_distributed_optimizer_once() -> None:
    split = replace(BASE, degrees=Degrees(dp_shard=8, sharding="parameters"), framework="torchtitan")
    once = replace(split, degrees=Degrees(dp_shard=8, sharding="optimizer"))
    sent = {count: step_time(replace(split, accumulation=count)).bytes_per_rank["dp"] for count in (1, 2)}
    assert sent[2] == pytest.approx(2 * sent[1])
    assert step_time(replace(once, accumulation=2)).bytes_per_rank == step_time(once).bytes_per_rank


def test_bytes_of_each_dimension_match_its_collectives() -> None:
    degrees = Degrees(tp=2, cp=2, pp=2, sequence_parallel=True, sharding="optimizer")
    sent = step_time(replace(BASE, degrees=degrees, accumulation=2)).bytes_per_rank
    stream = 2 * 4096 * 4096
    assert sent["tp"] == 2 * 16 * 2 * 2 * 2 * stream / 2
    assert sent["cp"] == 2 * 16 * 3 * (2 * 2 * 4096 * 4 * 128)
    assert sent["pp"] == 2 * 2 * stream / 2


def test_hybrid_sharding_is_faster_than_one_group_over_a_slow_network() -> None:
    far = replace(BASE, network=replace(NODE, scale_out_bytes_s=3e9), framework="torchtitan")
    whole = replace(far, degrees=Degrees(dp_shard=64))
    hybrid = replace(far, degrees=Degrees(dp_shard=8, dp_replicate=8))
    assert step_time(hybrid).seconds < step_time(whole).seconds


def test_unsharded_loss_is_computed_fully_on_every_tensor_parallel_rank() -> None:
    training = replace(BASE, degrees=Degrees(tp=8), framework="kempner-forge")
    known = constants()
    split = replace(
        known, profiles=dict(known.profiles) | {"kempner-forge": replace(known.profile("kempner-forge"), loss_split=True)}
    )
    assert step_time(training).parts["loss"] > 2 * step_time(training, split).parts["loss"]


def test_graphs_remove_kernel_launches() -> None:
    captured = replace(BASE, sequence=128, kernels=Kernels(graphs=True))
    assert step_time(captured).parts["launch"] == pytest.approx(constants().profile("megatron").step)


def test_every_framework_and_accelerator_has_its_constants() -> None:
    assert set(constants().profiles) == set(get_args(Framework))
    assert {gpu.arch for gpu in gpus().values()} == set(constants().chips) == set(constants().links)


def test_every_constant_has_a_source_and_every_fitted_one_a_prior() -> None:
    found = list(entries({name: table for name, table in speed.read().items() if name != "likeness"}))
    assert all(entry["source"].strip() for entry in found)
    fitted = [entry for entry in found if "prior" in entry]
    assert all(entry["within"] > 0 and entry["value"] > 0 for entry in fitted)
    assert 40 < len(fitted) < len(found) / 3


def entries(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the constants of a table at any depth."""
    if "value" in table:
        yield table
        return
    for inner in table.values():
        if isinstance(inner, dict):
            yield from entries(inner)
