"""Blocks with experts: routing of tokens, bytes sent by ranks, launches of the host, and their sum in a step."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.catalog.models import preset
from headway.jobspec.resolve.model import ModelSizes, resolve_model
from headway.planner.framework import Framework
from headway.planner.speed.collectives import Group, groups_of
from headway.planner.speed.data_parallel import Exchange
from headway.planner.speed.experts import host as experts_host
from headway.planner.speed.experts.block import expert_block, expert_part, load_of
from headway.planner.speed.experts.exchange import dispatcher_of, exchanged, one_way, sent_bytes
from headway.planner.speed.experts.host import operations
from headway.planner.speed.experts.speed import expert_constants, read
from headway.planner.speed.rates import Rates, one_microbatch, rates_of
from headway.planner.speed.speed import constants
from headway.planner.speed.step import step_time
from headway.planner.training import Degrees, Kernels, Network, Overlaps, Training

NODES = Network(8, 8, 450e9, 50e9, 8, "infiniband")
RACK = Network(4, 72, 900e9, 50e9, 4, "infiniband")
EFA = replace(NODES, transport="efa")
DISPATCHERS = ("alltoall", "allgather", "deepep", "hybridep", "deepep-uccl", "deepep-nvshmem")


def model(name: str) -> ModelSizes:
    return resolve_model(preset(name).model, Path())


QWEN, DEEPSEEK, LLAMA = model("qwen3-30b-a3b"), model("deepseek-v3"), model("llama-3-8b")


def training(ep: int = 8, ranks: int = 32, framework: Framework = "megatron", **changes: object) -> Training:
    """Return Qwen3-30B-A3B on nodes of eight H100, its data-parallel ranks in groups of `ep`."""
    whole = Training(
        model=QWEN,
        gpu=gpus()["H100-SXM-80"],
        network=NODES,
        degrees=Degrees(dp_shard=ranks, ep=ep, sharding="optimizer"),
        micro=1,
        accumulation=2,
        sequence=4096,
        framework=framework,
    )
    return replace(whole, **changes)


def by(dispatcher: str, ep: int = 8, **changes: object) -> Training:
    return replace(training(ep), kernels=Kernels(dispatcher=dispatcher), **changes)


def rates(whole: Training) -> Rates:
    return rates_of(one_microbatch(whole), constants())


def block_seconds(whole: Training) -> float:
    block = expert_block(one_microbatch(whole), constants())
    return sum(cost.seconds for cost in (block.forward, block.input_gradient, block.weight_gradient, block.again))


def one_way_seconds(whole: Training) -> float:
    return one_way(one_microbatch(whole), rates(whole), expert_constants())


# --- routing of tokens ------------------------------------------------------------------------------------------------


def test_rank_receives_as_many_routed_tokens_as_it_sends() -> None:
    """4,096 tokens of each of 8 ranks to 8 of 128 experts are 8 x 4,096 x 8 rows over 8 ranks of 16 experts."""
    load = load_of(one_microbatch(training()))
    assert (load.tokens, load.rows, load.local, load.each) == (4096, 32768, 16, 2048)
    assert load.parameters == 16 * 3 * 2048 * 768


def test_rows_of_an_expert_are_rounded_up_to_tiles() -> None:
    load = load_of(one_microbatch(training(ep=1, sequence=1000)))
    assert load.rows / load.local == 62.5
    assert load.each == 128


def test_ranks_that_share_an_expert_all_get_its_tokens() -> None:
    split = training(ep=4, degrees=Degrees(dp_shard=32, ep=4, expert_tp=2))
    whole = training(ep=4)
    assert load_of(split).rows == 2 * load_of(whole).rows
    assert load_of(split).parameters == load_of(whole).parameters / 2


def test_sequence_parallel_ranks_send_only_their_own_tokens() -> None:
    degrees = Degrees(dp_shard=4, tp=8, sequence_parallel=True, ep=8)
    assert load_of(training(degrees=degrees)).tokens == 512
    assert load_of(training(degrees=replace(degrees, sequence_parallel=False))).tokens == 4096


def test_a_model_without_experts_has_no_load() -> None:
    with pytest.raises(ValueError, match="the model has no experts"):
        load_of(training(model=LLAMA))


# --- bytes sent by ranks ----------------------------------------------------------------------------------------------


def test_an_all_to_all_sends_a_token_to_each_of_its_experts() -> None:
    """8 experts on 16 ranks: 15 of 16 are elsewhere."""
    micro = one_microbatch(by("alltoall", ep=16))
    assert sent_bytes(micro, Group(16, 8)) == 2 * 2048 * 4096 * 8 * 15 / 16


def test_deepep_sends_a_token_once_per_domain_and_forwards_it_inside() -> None:
    """Two domains: some of 8 experts are in the other with probability 1 - 1 / 2^8, and on each of the 14 ranks that did not receive the
    token with 1 - (15 / 16)^8."""
    micro = one_microbatch(by("deepep", ep=16))
    copies = 1 - 0.5**8 + 14 * (1 - (15 / 16) ** 8)
    assert sent_bytes(micro, Group(16, 8)) == pytest.approx(2 * 2048 * 4096 * copies)


def test_an_all_gather_sends_every_token_to_every_rank() -> None:
    assert sent_bytes(one_microbatch(by("allgather", ep=8)), Group(8, 8)) == 2 * 2048 * 4096 * 7


@given(st.sampled_from((2, 4, 8, 16, 32, 64)), st.sampled_from((1, 2, 4, 8)), st.integers(1, 16))
def test_deepep_never_sends_more_between_domains_than_an_all_to_all(size: int, local: int, top_k: int) -> None:
    group = Group(size, min(size, local))
    experts = replace(QWEN.experts, top_k=top_k)  # type: ignore[type-var]
    micro = one_microbatch(by("deepep", model=replace(QWEN, experts=experts)))
    beyond = top_k * (size - group.local) / size
    once = (group.domains - 1) * (1 - (1 - 1 / group.domains) ** top_k)
    assert once <= beyond * (1 + 1e-9)
    assert sent_bytes(micro, group) >= 0


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_single_rank_exchanges_nothing(dispatcher: str) -> None:
    whole = by(dispatcher, ep=1)
    assert one_way_seconds(whole) == 0
    assert sent_bytes(one_microbatch(whole), Group(1, 1)) == 0


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_exchange_takes_longer_between_domains_than_inside_one(dispatcher: str) -> None:
    rack = replace(NODES, scale_up_domain=32)
    assert one_way_seconds(by(dispatcher, ep=32)) > one_way_seconds(by(dispatcher, ep=32, network=rack))


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_exchange_takes_longer_through_host_memory(dispatcher: str) -> None:
    assert one_way_seconds(by(dispatcher, 16, network=replace(NODES, gpu_direct=False))) > one_way_seconds(by(dispatcher, 16))


def test_exchange_takes_longer_over_oversubscribed_links() -> None:
    assert one_way_seconds(by("alltoall", 32, network=replace(NODES, oversubscription=2.0))) > one_way_seconds(by("alltoall", 32))


def test_twice_the_tokens_take_less_than_twice_the_time() -> None:
    one, two = one_way_seconds(by("alltoall", 32)), one_way_seconds(by("alltoall", 32, micro=2))
    assert one < two < 2 * one


def test_cpu_posted_messages_slow_dispatchers_more_on_hopper() -> None:
    direct, uccl, nvshmem = (one_way_seconds(by(name, 32, network=EFA)) for name in ("deepep", "deepep-uccl", "deepep-nvshmem"))
    assert direct < nvshmem < uccl
    blackwell = [one_way_seconds(by(f"deepep-{name}", 32, network=EFA, gpu=gpus()["B300-288"])) for name in ("uccl", "nvshmem")]
    assert max(blackwell) < nvshmem


def test_unknown_dispatcher_is_treated_as_an_all_to_all() -> None:
    assert one_way_seconds(by("mori", 16)) == one_way_seconds(by("alltoall", 16))


def test_megatron_and_plain_pytorch_use_their_own_dispatchers() -> None:
    assert dispatcher_of(training()).once
    assert not dispatcher_of(training(framework="torchtitan")).once


# --- overlap ----------------------------------------------------------------------------------------------------------


def hidden_share(whole: Training) -> float:
    apart = replace(whole, overlaps=Overlaps(experts=False))
    beside, alone = (exchanged(one_microbatch(one), rates(one), expert_constants()) for one in (whole, apart))
    return 1 - beside / alone


def test_overlap_hides_its_share_and_half_of_it_with_cpu_posting() -> None:
    share = expert_constants().hidden
    both = Overlaps(experts=True)
    assert hidden_share(by("deepep", 32, overlaps=both)) == pytest.approx(share)
    assert hidden_share(by("deepep-uccl", 32, overlaps=both)) == pytest.approx(share / 2)


def test_nothing_is_hidden_without_overlap() -> None:
    for whole in (training(ep=32), training(ep=8), by("deepep", 32), training(ep=32, framework="torchtitan")):
        assert hidden_share(whole) == 0


def test_group_beyond_its_domain_does_not_exchange_faster() -> None:
    inside, beyond = (exchanged(one_microbatch(one), rates(one), expert_constants()) for one in (training(ep=8), training(ep=16)))
    assert beyond > inside


# --- launches of the host ---------------------------------------------------------------------------------------------


def test_graphs_and_compilation_launch_fewer_operations() -> None:
    plain = operations(training())
    assert operations(training(kernels=Kernels(compiled=True))) == plain - 10
    assert operations(training(kernels=Kernels(graphs=True))) == plain - 25
    assert operations(training(network=RACK)) == plain - 25
    assert operations(training(network=RACK, kernels=Kernels(graphs=False))) == plain


def test_latent_attention_shared_experts_and_tp_launch_more_operations() -> None:
    degrees = Degrees(dp_shard=16, tp=2, sequence_parallel=True, ep=8)
    assert operations(training(model=DEEPSEEK)) == operations(training()) + 15
    assert operations(training(degrees=degrees)) == operations(training()) + 6


def test_small_microbatch_waits_for_the_host_more_than_a_large_one() -> None:
    costs = [expert_block(one_microbatch(training(micro=micro)), constants()).forward for micro in (1, 4, 16)]
    shares = [cost.launch / cost.seconds for cost in costs]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 5 * shares[2]


def test_wait_for_the_host_is_at_most_the_time_of_the_host() -> None:
    micro = one_microbatch(training())
    block = expert_block(micro, constants())
    for cost in (block.forward, block.input_gradient, block.weight_gradient):
        assert max(0.0, cost.host - (cost.seconds - cost.launch)) <= cost.launch <= cost.host


def test_parameters_are_gathered_late_only_if_the_host_awaits_the_router() -> None:
    assert experts_host.prefetched(training(framework="kempner-forge"), 0.75) == 0.25
    assert experts_host.prefetched(training(framework="torchtitan"), 0.75) == 1


def test_late_exchange_takes_longer_but_sends_the_same_bytes() -> None:
    found, sent = expert_constants(), Exchange(2.0, 3.0, 100.0, 200.0)
    assert experts_host.late(sent, training(framework="torchtitan"), found) == sent
    expected = Exchange(2 * found.late, 3 * found.late, 100.0, 200.0)
    assert experts_host.late(sent, training(framework="kempner-forge"), found) == expected


# --- a block ----------------------------------------------------------------------------------------------------------


def test_full_recomputation_repeats_the_forward_pass() -> None:
    part = expert_part(one_microbatch(training(recompute="full")), rates(training()), expert_constants())
    assert part.again == part.forward
    none = expert_part(one_microbatch(training()), rates(training()), expert_constants())
    assert not any(none.again)


def test_selective_recomputation_repeats_its_parts() -> None:
    def again(*parts: str) -> Any:
        whole = training(model=DEEPSEEK, recompute="selective", recomputed_parts=parts)
        return expert_part(one_microbatch(whole), rates(whole), expert_constants()).again

    assert again("attention").seconds == 0
    assert again("activation").memory > 0
    assert again("activation").matmul == 0
    assert again("mla_up_proj").matmul > 0
    assert again("experts").experts > 0


def test_scatter_in_plain_pytorch_costs_more_than_one_kernel() -> None:
    fused = expert_part(one_microbatch(by("alltoall")), rates(training()), expert_constants())
    plain = expert_part(one_microbatch(by("alltoall", framework="torchtitan")), rates(training()), expert_constants())
    assert plain.forward.memory > fused.forward.memory


def test_fewer_experts_per_rank_mean_larger_products_and_fewer_gradients() -> None:
    rack = replace(NODES, scale_up_domain=64)
    few, many = (expert_part(one_microbatch(one), rates(one), expert_constants()) for one in wide(rack))
    assert few.forward.matmul <= many.forward.matmul
    assert few.weight_gradient.matmul < many.weight_gradient.matmul


def wide(network: Network) -> Iterator[Training]:
    for ep in (64, 8):
        yield training(ep=ep, ranks=64, network=network, model=DEEPSEEK)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(DISPATCHERS),
    st.sampled_from((1, 2, 4, 8, 16, 32)),
    st.sampled_from((1, 4)),
    st.sampled_from(("megatron", "torchtitan", "automodel", "megatron-fsdp")),
    st.sampled_from((QWEN, DEEPSEEK)),
)
def test_more_tokens_or_an_uneven_router_never_take_less_time(
    dispatcher: str, ep: int, micro: int, framework: Framework, sizes: ModelSizes
) -> None:
    whole = by(dispatcher, ep, micro=micro, framework=framework, model=sizes)
    seconds = block_seconds(whole)
    assert math.isfinite(seconds)
    assert seconds > 0
    assert block_seconds(replace(whole, micro=2 * micro)) > seconds
    assert block_seconds(replace(whole, expert_load=1.65)) > seconds


# --- a step -----------------------------------------------------------------------------------------------------------


def test_step_includes_the_time_and_bytes_of_the_exchange() -> None:
    whole = by("alltoall", ep=16)
    found = step_time(whole)
    assert found.seconds == pytest.approx(sum(found.parts.values()))
    assert found.parts["ep communication"] > 0
    each = sent_bytes(one_microbatch(whole), groups_of(whole.degrees, whole.network).ep)
    assert found.bytes_per_rank["ep"] == 2 * 48 * 2 * 2 * each


def test_a_dense_model_exchanges_no_tokens() -> None:
    found = step_time(training(ep=1, model=LLAMA))
    assert "ep communication" not in found.parts
    assert "ep" not in found.bytes_per_rank


def test_blocks_without_experts_are_dense() -> None:
    """DeepSeek-V3's first three blocks have a plain MLP."""
    assert DEEPSEEK.expert_layers == 58
    whole = training(model=DEEPSEEK)
    each = sent_bytes(one_microbatch(whole), groups_of(whole.degrees, whole.network).ep)
    assert step_time(whole).bytes_per_rank["ep"] == 2 * 58 * 2 * 2 * each


# --- the constants ----------------------------------------------------------------------------------------------------


def entries(table: Any) -> Iterator[dict[str, Any]]:
    if "value" in table:
        yield table
        return
    for each in table.values():
        yield from entries(each)


def test_every_constant_has_a_source() -> None:
    found = list(entries(read()))
    assert len(found) == 15
    for entry in found:
        assert len({"source", "fitted"} & entry.keys()) == 1
        assert all(entry.values())
