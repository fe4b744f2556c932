"""The memory ledger: a calculation by hand for a small model, laws for every layout, and memory of published runs."""

from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.resolve.model import ExpertSizes, LatentAttentionSizes, ModelSizes
from headway.planner.framework import Framework
from headway.planner.memory import profiles as memory_profiles
from headway.planner.memory.block import block_bytes
from headway.planner.memory.ledger import Item, MemoryUse, checkpoint_bytes, parameter_bytes, peak
from headway.planner.memory.profiles import constants, fits_up_to, profile
from headway.planner.schedules.orders import ScheduleError
from headway.planner.training import Degrees, Formats, Kernels, Network, Recompute, Training

GIB = 1 << 30
NODE = Network(8, 8, 450e9, 50e9, 8, "infiniband")
SMALL = ModelSizes(
    vocab_size=1000,
    layers=4,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn_hidden=160,
    mlp="gated",
    norm="rms",
    positions="rotary",
    rope_theta=10000.0,
    max_positions=None,
    norm_eps=1e-5,
    dropout=0.0,
    tie_embeddings=False,
    qkv_bias=False,
    linear_bias=False,
    qk_norm=False,
    experts=None,
    latent_attention=None,
)
LLAMA = replace(
    SMALL, vocab_size=128256, layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn_hidden=14336, rope_theta=500000.0
)
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)


def training(framework: Framework = "megatron", model: ModelSizes = SMALL, **changes: object) -> Training:
    """Return a training with two pipeline ranks, two tensor-parallel ranks and two data-parallel ranks."""
    degrees = Degrees(pp=2, dp_shard=2, tp=2, sequence_parallel=True, sharding="optimizer")
    whole = Training(
        model=model,
        gpu=gpus()["H100-SXM-80"],
        network=NODE,
        degrees=degrees,
        micro=2,
        accumulation=4,
        sequence=32,
        framework=framework,
    )
    return replace(whole, **changes)


def sizes(use: MemoryUse) -> dict[str, float]:
    return {item.name: item.bytes for item in use.ledger}


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_memory_of_a_small_megatron_model_matches_a_calculation_by_hand() -> None:
    """4 blocks of 64, MLP of 160, 4 heads and 2 for keys, of 16 each, 1,000 tokens; tp 2 with sequence parallelism, pp 2, dp 2.

    A block has 64 x (64 + 2 x 32) + 64 x 64 = 12,288 numbers in attention, 3 x 64 x 160 = 30,720 in the MLP, of which a rank has half, and
    128 in its norms: 21,632. The second pipeline rank has two blocks, half of 64,000 of the output layer and the last norm's 64: 75,328.
    Of each 2 bytes as bf16 and 4 as gradient, and half of 4 + 8 as fp32 and Adam's moments. Stand-ins: 2 bytes x 43,008 / 2.

    It holds one microbatch of 2 x 32 tokens in flight. A block keeps for each token, in bytes: its input 64 x 2 / 2 = 64; the norm's
    4 / 2 = 2 and its output 64; queries 64, keys and values 64; sums of the softmax 4 x 4 / 2 = 8; the attention's output 64; the MLP's
    input 64, its norm's 2 and 64; gate, up and product 160 each: 940. At the loss, 14 bytes for each of 64 x 500 logits, and the output
    layer's input twice, 2 x 64 x 64. Exchanged between the ranks: 2 x 64 x 64.
    """
    use = peak(training())
    assert sizes(use) == {
        "parameters": 150_656,
        "parameters in full precision": 150_656,
        "optimizer's state": 301_312,
        "gradients": 301_312,
        "stand-ins for weight gradients": 43_008,
        "activations": 64 * 2 * 940,
        "pipeline buffers": 8_192,
        "logits and loss": 448_000,
        "output layer's input": 8_192,
    }
    assert (use.allocated, use.stage, use.instant) == (1_531_648, 1, "at the loss")


def test_recomputed_blocks_keep_their_input_and_one_is_held_completely() -> None:
    """With the loss in one kernel, of 4 bytes per logit, the first rank is the worst: two microbatches of two blocks' inputs of 64 bytes a
    token; one block's other 876; the gradients of the stream, 64, and of gate and up, 320."""
    use = peak(training(recompute="full", kernels=Kernels(loss=True), model=replace(SMALL, vocab_size=2)))
    assert (use.stage, use.instant) == (0, "in the first block's backward pass")
    found = sizes(use)
    assert found["activations"] == 2 * 64 * 2 * 64
    assert found["block computed again"] == 64 * 876
    assert found["gradients of activations"] == 64 * 384


def test_fsdp_holds_two_full_blocks_and_outer_layers_and_sharded_state() -> None:
    """8 ranks of torchtitan: 43,136 numbers a block, and 2 x 2 x 64 + 64 outside of the blocks; a rank has an eighth of all.

    At the end of the backward pass: parameters 4, moments 8, gradients 4 of the part; two blocks and the outer layers of 2 bytes; a
    block's gradients of 2 bytes, and 4 of those that are being reduced.
    """
    alone = Degrees(dp_shard=8, sharding="parameters")
    use = peak(training("torchtitan", replace(SMALL, vocab_size=2), degrees=alone, micro=1, sequence=2, accumulation=1))
    part = (4 * 43_136 + 2 * 2 * 64 + 64) / 8
    found = sizes(use)
    assert use.instant == "in the last block's backward pass"
    assert found["parameters"] == 4 * part
    assert found["optimizer's state"] == 8 * part
    assert found["gradients"] == 4 * part
    assert found["blocks, whole"] == 2 * 2 * 43_136
    assert found["embedding and output layer, whole"] == 2 * (2 * 2 * 64 + 64)
    assert found["gradients of a block"] == 2 * 43_136
    assert found["gradients being reduced"] == 4 * 43_136


def test_gradients_reduced_after_the_last_microbatch_are_unsharded() -> None:
    alone = Degrees(dp_shard=8, sharding="parameters")
    once = peak(training("kempner-forge", LLAMA, degrees=alone, micro=4, sequence=4096, accumulation=1))
    twice = peak(training("kempner-forge", LLAMA, degrees=alone, micro=4, sequence=4096, accumulation=2))
    assert "gradients, not reduced" not in sizes(once)
    assert sizes(twice)["gradients, not reduced"] == 2 * LLAMA.parameters


def test_checkpoint_has_14_bytes_per_parameter_with_megatron_12_with_fsdp() -> None:
    assert checkpoint_bytes(training("megatron", LLAMA)) == 14 * LLAMA.parameters
    assert checkpoint_bytes(training("torchtitan", LLAMA)) == 12 * LLAMA.parameters
    assert checkpoint_bytes(training("megatron", LLAMA, formats=Formats(moments="bf16"))) == 10 * LLAMA.parameters


# --- laws -------------------------------------------------------------------------------------------------------------

STATE = ("parameters", "parameters in full precision", "optimizer's state")


def state(use: MemoryUse) -> float:
    return sum(item.bytes for item in use.ledger if item.name in STATE)


@st.composite
def layouts(draw: st.DrawFn) -> Training:
    """Draw a layout of a model with 32 blocks, dense or with experts, in any framework."""
    tp, pp, dp, cp = (draw(st.sampled_from(values)) for values in ((1, 2, 4), (1, 2, 4), (1, 2, 8), (1, 2)))
    experts = draw(st.booleans())
    chunks = draw(st.sampled_from((1, 2))) if pp > 1 else 1
    degrees = Degrees(
        pp=pp,
        chunks=chunks,
        schedule="Interleaved1F1B" if chunks > 1 else "1F1B",
        dp_shard=dp,
        cp=cp,
        tp=tp,
        sequence_parallel=experts or draw(st.booleans()),
        ep=draw(st.sampled_from((1, 2))) if experts and dp > 1 else 1,
        sharding=draw(st.sampled_from(("none", "optimizer", "gradients", "parameters"))),
    )
    return training(
        draw(st.sampled_from(FRAMEWORKS)),
        replace(LLAMA, experts=ExpertSizes(8, 2, 2048, 1, 2048, 2, 1)) if experts else LLAMA,
        degrees=degrees,
        micro=draw(st.sampled_from((1, 2, 4))),
        accumulation=pp * draw(st.integers(1, 4)),
        sequence=4096,
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        kernels=Kernels(attention=draw(st.sampled_from((None, "unfused", "flash2")))),
    )


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_ledger_is_the_memory_of_one_rank_at_one_instant(step: Training) -> None:
    use = peak(step)
    names = [item.name for item in use.ledger]
    assert len(set(names)) == len(names)
    assert all(item.bytes > 0 for item in use.ledger)
    assert sum(item.bytes for item in use.ledger) == pytest.approx(use.allocated)
    assert use.allocated <= use.needed <= use.kept
    assert use.allocated <= use.reserved


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_optimizer_step_and_loss_are_never_added(step: Training) -> None:
    names = {item.name for item in peak(step).ledger}
    assert not {"optimizer's temporaries", "activations"} <= names
    assert not {"logits and loss", "block computed again"} <= names


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_more_recomputation_never_keeps_more_in_flight(step: Training) -> None:
    def held(recompute: Recompute) -> float:
        return block_bytes(replace(step, recompute=recompute), experts=step.model.experts is not None).kept

    assert held("full") <= held("selective") <= held("none")


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_more_ranks_that_shard_state_never_hold_more_of_it(step: Training) -> None:
    wider = replace(step, degrees=replace(step.degrees, dp_shard=step.degrees.dp_shard * 2))
    assert peak(wider).needed <= peak(step).needed + constants().communicator * (step.degrees.dp == 1)


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_replicas_change_nothing_but_their_communicator(step: Training) -> None:
    copies = replace(step, degrees=replace(step.degrees, dp_replicate=2))
    assert peak(copies).ledger == peak(step).ledger


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_smaller_microbatch_never_needs_more_memory(step: Training) -> None:
    assume(step.micro > 1 and step.accumulation > 1)
    less = replace(step, micro=step.micro // 2, accumulation=step.accumulation * 2)
    assert peak(less).needed <= peak(step).needed


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_more_tensor_parallel_ranks_hold_less_of_the_state(step: Training) -> None:
    assume(step.degrees.tp < 4)
    wider = replace(step, degrees=replace(step.degrees, tp=step.degrees.tp * 2))
    assert state(peak(wider)) <= state(peak(step))


def test_layout_that_its_schedule_rejects_is_an_error() -> None:
    odd = Degrees(pp=4, chunks=2, schedule="DualPipeV", sharding="optimizer")
    with pytest.raises(ScheduleError, match="a microbatch for each of 8 stages"):
        peak(training(model=LLAMA, degrees=odd, accumulation=4))


# --- the verdict ------------------------------------------------------------------------------------------------------


def use_of(kept: float, needed: float) -> MemoryUse:
    return MemoryUse(needed, needed, 0.0, needed, kept, 100.0, 0.86, 0, "at the loss", (Item("activations", needed),))


def test_verdict_is_fits_below_the_band_and_does_not_fit_above_capacity() -> None:
    assert constants().fails == 1.0
    assert use_of(86.0, 80.0).verdict == "fits"
    assert use_of(86.1, 80.0).verdict == "tight"
    assert use_of(120.0, 100.0).verdict == "tight"
    assert use_of(120.0, 100.1).verdict == "does not fit"


def test_validated_framework_fits_closer_to_the_capacity_than_others() -> None:
    assert (fits_up_to("megatron"), fits_up_to("torchtitan")) == (0.95, 0.95)
    assert {fits_up_to(name) for name in FRAMEWORKS if name not in {"megatron", "torchtitan"}} == {0.86}
    near = training("torchtitan", LLAMA, degrees=Degrees(dp_shard=8), micro=11, accumulation=1, sequence=2048, recompute="full")
    assert 0.86 < peak(near).kept / peak(near).capacity <= 0.95
    assert (peak(near).verdict, peak(replace(near, framework="maxtext")).verdict) == ("fits", "tight")
    assert peak(replace(near, supposed=True)).verdict == "tight"


def test_llama_70b_fits_sharded_on_64_h100_but_not_on_8() -> None:
    model = replace(LLAMA, layers=80, hidden=8192, heads=64, ffn_hidden=28672)
    many = training("torchtitan", model, degrees=Degrees(dp_shard=64), micro=1, accumulation=1, sequence=8192, recompute="full")
    assert peak(many).verdict == "fits"
    assert peak(replace(many, degrees=Degrees(dp_shard=8))).verdict == "does not fit"


# --- published runs ---------------------------------------------------------------------------------------------------

PUBLISHED = [
    # MooreThreads/SimuMax, eight B200: Llama 3 70B cut to 12 blocks, GiB allocated.
    ("pp 2", Degrees(pp=2, dp_shard=4, sharding="optimizer"), 4096, 66.55),
    ("tp 2", Degrees(tp=2, sequence_parallel=True, dp_shard=4, sharding="optimizer"), 4096, 60.68),
    ("tp 4", Degrees(tp=4, sequence_parallel=True, dp_shard=2, sharding="optimizer"), 4096, 39.07),
    ("tp 8", Degrees(tp=8, sequence_parallel=True, sharding="optimizer"), 4096, 28.29),
    ("cp 8", Degrees(cp=8, sharding="optimizer"), 32768, 104.51),
]


@pytest.mark.parametrize(("layout", "degrees", "sequence", "measured"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_memory_of_megatron_on_8_b200_is_predicted_within_2_percent(
    layout: str, degrees: Degrees, sequence: int, measured: float
) -> None:
    model = replace(LLAMA, layers=12, hidden=8192, heads=64, ffn_hidden=28672)
    step = training(
        model=model,
        gpu=gpus()["B200-180"],
        degrees=degrees,
        micro=1,
        accumulation=4,
        sequence=sequence,
        kernels=Kernels(loss=True),
    )
    assert peak(step).allocated / GIB == pytest.approx(measured, rel=0.02)


def test_moonlight_with_moments_in_16_bits_is_predicted_within_3_percent() -> None:
    """NVIDIA-NeMo/Megatron-Bridge: src/megatron/bridge/recipes/moonlight/moonlight_16b.py: gradients and moments in bf16, fused loss; its
    skill on memory prints 36.618 GB for eight H100."""
    model = replace(
        SMALL,
        vocab_size=163840,
        layers=27,
        hidden=2048,
        heads=16,
        kv_heads=16,
        head_dim=192,
        ffn_hidden=11264,
        experts=ExpertSizes(64, 6, 1408, 2, 1408, 1, 1),
        latent_attention=LatentAttentionSizes(None, 512, 128, 64, 128),
    )
    degrees = Degrees(tp=2, sequence_parallel=True, dp_shard=4, ep=8, sharding="optimizer")
    formats = Formats("bf16", reduce="bf16", moments="bf16")
    step = training(
        model=model, degrees=degrees, micro=1, accumulation=1, sequence=4096, formats=formats, kernels=Kernels(loss=True)
    )
    assert peak(step).allocated / 1e9 == pytest.approx(36.618, rel=0.03)


# --- profiles ---------------------------------------------------------------------------------------------------------


def test_every_framework_has_a_profile() -> None:
    assert {parameter_bytes(training(framework)) for framework in FRAMEWORKS} == {2, 4}
    assert {profile(framework).attention for framework in FRAMEWORKS} == {"flash2", "fused"}


def test_each_number_of_a_profile_has_a_source() -> None:
    text = Path(memory_profiles.__file__).with_name("memory.yaml").read_text(encoding="utf-8")
    found = yaml.safe_load(text)
    assert all(entry["why"] for entry in found["constants"].values())
    for name, own in found["frameworks"].items():
        assert set(own) - {"like", "why"} == set(own["why"]), name
        assert all(own["why"].values()), name
    assert set(found["frameworks"]) == set(FRAMEWORKS)
