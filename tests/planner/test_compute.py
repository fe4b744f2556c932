"""A block's passes: products and attention computed by hand, and laws for every layout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.resolve.model import LatentAttentionSizes
from headway.planner.speed.attention import attended, core, projections
from headway.planner.speed.compute import attention_part, dense_block, mlp_part
from headway.planner.speed.cost import NOTHING, Cost
from headway.planner.speed.rates import filled, one_microbatch, rates_of
from headway.planner.speed.speed import Speed, constants
from headway.planner.training import Degrees, Formats, Kernels, Overlaps, Training
from tests.planner.test_memory import LLAMA, NODE

BASE = Training(LLAMA, gpus()["H100-SXM-80"], NODE, Degrees(), micro=1, accumulation=1, sequence=8192, framework="megatron")


def exact(**changes: object) -> Speed:
    """Return the constants with some replaced, so that a result can be computed by hand."""
    known = constants()
    chip = replace(
        known.chips["Hopper"], matmul=0.5, depth=0.0, multiprocessors=1, memory=1.0, flash3=0.5, attention_backward=0.5
    )
    profile = replace(known.profiles["megatron"], drag=1.0, launch_us=0.0, stall_us=0.0, accumulate=0.0, **changes)
    return replace(known, chips={"Hopper": chip}, profiles={"megatron": profile})


def test_product_takes_its_flops_at_their_share_of_the_peak() -> None:
    rates = rates_of(BASE, exact())
    assert rates.matmul(8192, 4096, 4096) == pytest.approx(2 * 8192 * 4096 * 4096 / (0.5 * 989e12))


def test_tile_takes_longer_by_its_prologue_and_epilogue() -> None:
    rates = rates_of(BASE, exact())
    deep = replace(rates, depth=512.0)
    assert deep.matmul(8192, 4096, 4096) == pytest.approx(rates.matmul(8192, 4096, 4096) * (1 + 512 / 4096))


def test_product_of_few_rows_takes_the_time_to_read_its_weights() -> None:
    rates = rates_of(BASE, exact())
    assert rates.matmul(1, 4096, 4096) == pytest.approx(2 * (4096 + 4096 * 4096 + 4096) / 3.35e12)


def test_tiles_fill_the_multiprocessors_in_full_waves() -> None:
    # 8 x 16 tiles of 256 x 128 on 132 multiprocessors are one wave; one column more makes it two, where smaller tiles do better.
    assert filled(2048, 2048, 132) == pytest.approx(128 / 132)
    assert filled(2048, 2049, 132) < 0.8
    assert filled(8192, 8192, 1) == 1


def test_passes_of_a_block_take_the_time_of_its_products() -> None:
    block = dense_block(BASE, exact())
    matrices = LLAMA.attention_parameters + LLAMA.mlp_parameters
    assert block.forward.matmul == pytest.approx(2 * 8192 * matrices / (0.5 * 989e12))
    assert block.input_gradient.matmul == pytest.approx(block.forward.matmul)
    assert block.weight_gradient.matmul == pytest.approx(block.forward.matmul)
    assert block.again == NOTHING


def test_attention_counts_the_causal_half_and_backward_5_products_for_2() -> None:
    forward, backward = core(BASE, rates_of(BASE, exact()))
    assert forward.attention == pytest.approx(4 * 8192 * (4096 + 64) * 4096 / (0.5 * 989e12))
    assert backward.attention == pytest.approx(2.5 * forward.attention / 0.5)


def test_window_limits_the_attended_tokens() -> None:
    assert attended(BASE) == 4096
    assert attended(replace(BASE, window=1024, windowed_share=1.0)) == 1024 * (1 - 1024 / 16384)
    assert attended(replace(BASE, window=1024, windowed_share=0.5)) == (4096 + 1024 * (1 - 1024 / 16384)) / 2
    assert attended(replace(BASE, window=10**6, windowed_share=1.0)) == 4096


def test_attention_takes_longer_with_an_older_kernel() -> None:
    def seconds(kernel: str) -> float:
        training = replace(BASE, kernels=Kernels(attention=kernel))
        return attention_part(training, rates_of(training, constants())).forward.attention

    kernels = ["flash3", "flash2", "flash1", "fused", "unfused"]
    assert [seconds(kernel) for kernel in kernels] == sorted(seconds(kernel) for kernel in kernels)


def test_norm_without_a_fused_kernel_reads_memory_repeatedly() -> None:
    one, many = (replace(BASE, kernels=Kernels(norm=norm)) for norm in (True, False))
    more = dense_block(many, exact()).forward.memory - dense_block(one, exact()).forward.memory
    assert more == pytest.approx(2 * 2 * 16 * 8192 * 4096 / 3.35e12)


@pytest.mark.parametrize("compute", ["fp8", "mxfp8", "nvfp4"])
def test_narrow_format_affects_only_products_and_element_wise_work(compute: str) -> None:
    narrow = replace(BASE, formats=Formats(compute))
    wide, other = dense_block(BASE, constants()), dense_block(narrow, constants())
    assert other.forward.matmul < 0.7 * wide.forward.matmul
    assert other.forward.memory > wide.forward.memory
    assert other.forward.attention == wide.forward.attention


def test_accelerator_without_the_format_computes_in_bf16() -> None:
    older = replace(BASE, gpu=gpus()["A100-SXM-80"])
    assert dense_block(replace(older, formats=Formats("fp8")), constants()) == dense_block(older, constants())
    no_fp4, fp8 = (dense_block(replace(BASE, formats=Formats(compute)), constants()) for compute in ("nvfp4", "fp8"))
    assert no_fp4.forward.matmul == fp8.forward.matmul


def test_recomputation_repeats_exactly_the_dropped_parts() -> None:
    def again(recompute: str, *parts: str) -> Cost:
        training = replace(BASE, recompute=recompute, recomputed_parts=parts)
        return dense_block(training, exact()).again

    forward = dense_block(BASE, exact()).forward
    assert again("none") == NOTHING
    assert again("full").seconds == pytest.approx(forward.seconds)
    assert again("selective", "attention") == pytest.approx(Cost(attention=forward.attention))
    assert again("selective", "mlp").matmul == pytest.approx(
        forward.matmul * LLAMA.mlp_parameters / (LLAMA.mlp_parameters + LLAMA.attention_parameters)
    )
    assert again("selective", "matmuls").matmul == pytest.approx(forward.matmul / 2)
    assert again("selective", "norm").memory < forward.memory


def test_sequence_parallel_ranks_share_norms_and_the_residual_stream() -> None:
    plain = replace(BASE, degrees=Degrees(tp=8))
    split = replace(BASE, degrees=Degrees(tp=8, sequence_parallel=True))
    numbers = 2 * 8192 * 4096 * (2 + 3 * constants().profiles["megatron"].passes)
    less = dense_block(plain, exact()).forward.memory - dense_block(split, exact()).forward.memory
    assert less == pytest.approx(2 * numbers * 7 / 8 / 3.35e12)


def test_two_reductions_per_pass_are_exposed_unless_overlapped() -> None:
    training = replace(BASE, degrees=Degrees(tp=8))
    open_ = exact(tensor=1.0, tensor_forward=0.0)
    one = rates_of(training, open_).links.all_reduce(rates_of(training, open_).groups.tp, 2 * 8192 * 4096)
    assert dense_block(training, open_).forward.tensor == pytest.approx(2 * one)
    assert dense_block(training, exact(tensor=1.0, tensor_forward=0.75)).forward.tensor == pytest.approx(one / 2)
    assert dense_block(replace(training, overlaps=Overlaps(tensor=False)), exact(tensor=1.0)).forward.tensor == pytest.approx(
        2 * one
    )


def test_short_kernels_wait_for_the_host_but_graphs_do_not() -> None:
    short = replace(BASE, sequence=128, model=replace(LLAMA, hidden=1024, ffn_hidden=2048, heads=8, kv_heads=8))
    assert dense_block(short, constants()).forward.launch > dense_block(short, constants()).forward.matmul
    assert dense_block(replace(short, kernels=Kernels(graphs=True)), constants()).forward.launch == 0
    assert dense_block(BASE, constants()).forward.launch < 0.01 * dense_block(BASE, constants()).forward.seconds


def test_latent_attention_replicates_its_down_projections() -> None:
    latent = LatentAttentionSizes(q_rank=1536, kv_rank=512, nope_head=128, rope_head=64, value_head=128)
    model = replace(LLAMA, hidden=5120, heads=128, kv_heads=128, head_dim=192, latent_attention=latent)
    whole = sum(outputs * inputs for outputs, inputs in projections(model, 1))
    norms = latent.kv_rank + 1536
    assert whole == model.attention_parameters - norms
    split = sum(outputs * inputs for outputs, inputs in projections(model, 8))
    down = 5120 * (1536 + 512 + 64)
    assert split == pytest.approx(down + (whole - down) / 8)


@given(tp=st.sampled_from([1, 2, 4, 8]), sequence=st.sampled_from([2048, 8192, 32768]), micro=st.integers(1, 4))
def test_no_pass_takes_less_time_than_its_flops_at_the_peak(tp: int, sequence: int, micro: int) -> None:
    training = one_microbatch(replace(BASE, degrees=Degrees(tp=tp), sequence=sequence, micro=micro))
    rates = rates_of(training, constants())
    for part, parameters in ((attention_part, LLAMA.attention_parameters), (mlp_part, LLAMA.mlp_parameters)):
        assert part(training, rates).forward.matmul > 2 * micro * sequence * parameters / tp / 989e12
