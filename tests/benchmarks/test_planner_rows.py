"""Published rows as trainings: spellings of each column, reasons for excluding a row, and a parser that no text stops."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planner.rows import PUBLISHED, Peak, Row, as_row, read
from benchmarks.planner.shape import shape
from benchmarks.planner.texts import (
    DataParallel,
    Extras,
    Recomputing,
    adapter_gbit_s,
    data_parallel,
    extras,
    formats,
    memory_kind,
    recomputing,
    transport,
)
from headway.jobspec.resolve.model import ExpertSizes, LatentAttentionSizes
from headway.planner.training import Formats, Kernels, Overlaps, Training

LLAMA = {
    "id": "dgxc-0007",
    "source": "dgxc",
    "model": "llama3-70b",
    "params_b": "70.55",
    "hidden": "8192",
    "layers": "80",
    "heads": "64",
    "kv_heads": "8",
    "ffn": "28672",
    "vocab": "128256",
    "seq": "8192",
    "gpu": "H100-SXM-80",
    "n_gpus": "64",
    "gpus_per_node": "8",
    "fabric": "400Gb/s IB per GPU",
    "tp": "4",
    "sp": "yes",
    "pp": "4",
    "vp": "5",
    "cp": "2",
    "ep": "1",
    "dp": "2",
    "dp_kind": "dist-optimizer(zero1)",
    "mbs": "1",
    "gbs_seqs": "128",
    "act_ckpt": "none",
    "precision": "FP8",
    "step_time_s": "9.5",
    "outcome": "ok",
}
QWEN = "E128 top8 moe_ffn=1536 head_dim=128"
DEEPSEEK = "E256 top8 moe_ffn=2048 shared1 dense_first=3 MLA(q1536,kv512,nope128,rope64,v128)"


def _training(**columns: str) -> Training:
    row = as_row({**LLAMA, **columns})
    assert row.training is not None, row.reason
    return row.training


def test_row_of_llama_becomes_the_training_of_its_columns() -> None:
    row = as_row(LLAMA)
    assert (row.complete, row.timed, row.step_s, row.not_modelled, row.assumed) == (True, True, 9.5, (), ())
    training = _training()
    degrees = training.degrees
    assert (degrees.pp, degrees.chunks, degrees.schedule, degrees.tp, degrees.cp) == (4, 5, "Interleaved1F1B", 4, 2)
    assert (degrees.dp_shard, degrees.dp_replicate, degrees.sharding, degrees.sequence_parallel) == (2, 1, "optimizer", True)
    assert (training.micro, training.accumulation, training.sequences, training.gpus) == (1, 64, 128, 64)
    assert (training.framework, training.formats, training.recompute) == ("megatron", Formats("fp8"), "none")
    network = training.network
    assert (network.gpus_per_node, network.scale_up_domain, network.adapters_per_node) == (8, 8, 8)
    assert (network.scale_up_bytes_s, network.scale_out_bytes_s, network.transport) == (450e9, 50e9, "infiniband")


def test_fsdp_groups_are_ranks_that_share_experts_if_the_source_does_so() -> None:
    titan = {
        "source": "oellm-jupiter",
        "model": "qwen3-30b-a3b-v50k",
        "moe": QWEN,
        "n_gpus": "8",
        "tp": "1",
        "pp": "1",
        "vp": "1",
        "cp": "1",
        "ep": "4",
        "dp": "8",
        "dp_kind": "fsdp2-full",
        "extras": "eager; backend=titan",
    }
    degrees = _training(**titan).degrees
    assert (degrees.dp_shard, degrees.dp_replicate, degrees.sharding) == (4, 2, "parameters")
    megatron = _training(**titan | {"dp_kind": "dist-optimizer(zero1)", "extras": "backend=megatron"}).degrees
    assert (megatron.dp_shard, megatron.dp_replicate, megatron.sharding) == (8, 1, "optimizer")
    other = _training(**titan | {"model": "qwen3-235b-a22b"}).degrees
    assert (other.dp_shard, other.dp_replicate) == (8, 1)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("none", Recomputing()),
        ("none (playbook base config)", Recomputing()),
        ("none; megatron-fsdp; activation CPU offload 40 layers", Recomputing()),
        ("recipe (none unless stated)", Recomputing()),
        ("full", Recomputing("full")),
        ("full on 5 of 32 layers (block)", Recomputing("full", 5 / 32)),
        ("selective-layer (every 4th layer)", Recomputing("full", 0.25)),
        ("selective-op (every 2nd matmul)", Recomputing("selective", parts=("matmuls",))),
        ("selective", Recomputing("selective", parts=("attention",))),
        ("selective(attn core)", Recomputing("selective", parts=("attention",))),
        ("selective (mla_up_proj ... per recipe)", Recomputing("selective", parts=("mla_up_proj",))),
        ("selective mla_up_proj+mlp", Recomputing("selective", parts=("mla_up_proj", "mlp"))),
        ("selective norm,act,shared_expert", Recomputing("selective", parts=("norm", "shared_experts", "activation"))),
        ("selective layernorm+moe", Recomputing("selective", parts=("norm", "experts"))),
        ("selective layernorm+moe_act", Recomputing("selective", parts=("norm", "activation"))),
        ("recompute core_attn", Recomputing("selective", parts=("attention",))),
        ("", Recomputing(known=False)),
        ("unknown (may use full at long seq)", Recomputing(known=False)),
        ("recipe-dependent", Recomputing(known=False)),
        ("as the authors like", Recomputing(known=False)),
    ],
)
def test_recomputation_is_parsed_from_every_spelling(text: str, meant: Recomputing) -> None:
    assert recomputing(text) == meant


def test_unparsable_number_of_recomputed_blocks_is_reported() -> None:
    row = as_row({**LLAMA, "act_ckpt": "full (block, 5)"})
    assert row.training is not None
    assert (row.training.recompute, row.training.recomputed_share, row.not_modelled) == ("full", 1.0, ("full (block, 5)",))


def test_missing_sizes_of_a_known_model_family_are_supplied_and_reported() -> None:
    found = shape(
        {**LLAMA, "model": "gpt-104b-bs", "params_b": "", "hidden": "8192", "heads": "", "kv_heads": "", "ffn": "32768"}
    )
    assert (found.sizes.heads, found.sizes.kv_heads, found.assumed) == (64, 64, ("heads 64",))
    found = shape({**LLAMA, "model": "megascale-175b", "params_b": "", "hidden": "12288", "heads": "96", "ffn": ""})
    assert (found.sizes.ffn_hidden, found.assumed) == (49152, ("ffn 49152",))


def test_unprinted_recomputed_share_follows_from_model_and_hardware_flops() -> None:
    found = recomputing("selective (1 of N blocks)", mfu_pct=60, hfu_pct=70)
    assert (found.mode, round(found.share, 6)) == ("full", 0.5)
    assert recomputing("selective (1 of N blocks)") == Recomputing("selective", parts=("attention",))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ddp (no zero)", DataParallel("none")),
        ("zero0", DataParallel("none")),
        ("zero1 group=8", DataParallel("optimizer", 8)),
        ("zero1 group=all", DataParallel("optimizer")),
        ("fsdp1-grad-op", DataParallel("gradients")),
        ("fsdp2-full (reshard_after_forward off)", DataParallel("gradients")),
        ("fsdp2-full over dp*cp", DataParallel("parameters")),
        ("zero3 (DeepSpeed)", DataParallel("parameters")),
        ("megatron-fsdp", DataParallel("parameters")),
        ("hsdp", DataParallel("parameters", 8)),
        ("", DataParallel(None)),
        ("by hand", None),
    ],
)
def test_sharding_is_parsed_from_every_spelling(text: str, meant: DataParallel | None) -> None:
    assert data_parallel(text, gpus_per_node=8) == meant


def test_sharding_groups_smaller_than_dp_leave_replicas() -> None:
    degrees = _training(source="fms-fsdp", tp="1", pp="1", vp="", cp="1", dp="64", dp_kind="hsdp").degrees
    assert (degrees.dp_shard, degrees.dp_replicate, degrees.sharding) == (8, 8, "parameters")


@pytest.mark.parametrize(
    ("text", "gpu", "meant"),
    [
        ("bf16 (amp_bf16, MP DEFAULT)", "A100-SXM-80", Formats("bf16", reduce="fp32")),
        ("bf16 (bf16, MP PURE)", "A100-SXM-80", Formats("bf16", reduce="bf16")),
        ("fp8 (amp_fp8, MP DEFAULT)", "H100-SXM-80", Formats("fp8", reduce="fp32")),
        ("bf16 pure (bf16 params+Adam states, fp32 reduce)", "H200-SXM-141", Formats("bf16", "bf16", "fp32")),
        ("fp16 (fp16 grad accumulation)", "A100-SXM-80", Formats("fp16", reduce="fp16")),
        ("bf16+fp8 rowwise linear", "H100-SXM-80", Formats("fp8")),
        ("FP8-CS", "H100-SXM-80", Formats("fp8")),
        ("FP8-MX/subchannel", "H100-SXM-80", Formats("fp8")),
        ("FP8-MX/subchannel", "GB300-288", Formats("mxfp8")),
        ("NVFP4", "B300-288", Formats("nvfp4")),
    ],
)
def test_number_formats_are_parsed_from_every_spelling(text: str, gpu: str, meant: Formats) -> None:
    assert _training(precision=text, gpu=gpu).formats == meant


def test_an_unknown_number_format_is_not_guessed() -> None:
    assert formats("posit16", block_scaled=True) is None
    assert as_row({**LLAMA, "precision": "posit16"}).reason == "precision `posit16`"


@pytest.mark.parametrize(
    ("text", "gpus_per_node", "rate", "kind"),
    [
        ("4x100Gb/s RoCE per node", 8, 50, "roce"),
        ("Jean Zay 4x100Gb/s Omni-Path per node", 8, 50, "infiniband"),
        ("4x NDR200 IB per node (GDR off)", 4, 200, "infiniband"),
        ("1600Gb/s node RoCE", 8, 200, "roce"),
        ("800Gb/s per node (config)", 8, 100, "infiniband"),
        ("EFA 6400Gb/s per node (p6-b300)", 8, 800, "efa"),
        ("HF cluster (EFA 3200Gb/s node)", 8, 400, "efa"),
        ("400Gb/s RDMA per GPU", 8, 400, "roce"),
        ("NVLink within 4-GPU node; NDR 400Gb/s IB between nodes", 4, 400, "infiniband"),
        ("NVL72 NVLink5 1800GB/s", 4, None, "infiniband"),
        ("8 x 400 Gb/s Spectrum-X", 8, 400, "roce"),
        ("GPUDirect-TCPXO 1600Gbps", 8, 200, "tcpxo"),
        ("EFA 3.2Tb/s", 8, 400, "efa"),
        ("", 8, None, "infiniband"),
    ],
)
def test_adapter_bandwidth_is_parsed_from_every_spelling(text: str, gpus_per_node: int, rate: float | None, kind: str) -> None:
    assert (adapter_gbit_s(text, gpus_per_node), transport(text)) == (rate, kind)


def test_nvlink_domain_is_a_rack_or_the_gpus_of_a_node() -> None:
    rack = _training(gpu="GB200-186", gpus_per_node="4", fabric="NVL72 NVLink5").network
    assert (rack.scale_up_domain, rack.scale_up_bytes_s, rack.scale_out_bytes_s) == (72, 900e9, 50e9)
    assert _training(gpu="H200-SXM-141", gpus_per_node="4", fabric="").network.scale_up_domain == 4


@pytest.mark.parametrize(
    ("text", "notes", "meant"),
    [
        ("kernel=flash_attention2 + RMS kernel", "", Extras(Kernels(attention="flash2", norm=True))),
        ("kernel=flash_attentionv1.0.8", "", Extras(Kernels(attention="flash1", norm=False))),
        ("kernel=fused", "", Extras(Kernels(attention="fused", norm=False))),
        ("kernel=torch", "", Extras(Kernels(attention="unfused", norm=False))),
        ("CE fusion; CP a2a", "", Extras(Kernels(loss=True), not_modelled=("cp a2a",))),
        ("CUDA graphs full scope, fused CE; backend=megatron", "", Extras(Kernels(loss=True, graphs=True))),
        ("torch.compile; asyncTP", "", Extras(Kernels(compiled=True), Overlaps(tensor=True))),
        ("tp-comm-overlap; vboost", "", Extras(overlaps=Overlaps(tensor=True))),
        ("TE+DeepEP+TorchSDPA; no grad clip", "", Extras(Kernels(attention="flash2", dispatcher="deepep"))),
        (
            "dispatcher=nccl-a2a; EP-A2A overlap=on; force-balanced router",
            "",
            Extras(Kernels(dispatcher="alltoall"), Overlaps(experts=True)),
        ),
        ("", "DeepEP; 1f1b a2a overlap", Extras(Kernels(dispatcher="deepep"), Overlaps(experts=True))),
        ("", "use for schedule ratios", Extras()),
        ("eager; job 320814; moon phase 3", "", Extras(Kernels(compiled=False), not_modelled=("moon phase 3",))),
    ],
)
def test_kernels_and_overlaps_are_parsed_from_every_spelling(text: str, notes: str, meant: Extras) -> None:
    assert extras(text, notes) == meant


@pytest.mark.parametrize(
    ("text", "kind", "gib"),
    [
        ("max_memory_allocated GiB, rank 0", "allocated", 10.0),
        ("GB peak allocated, post-optimizer", "allocated", 10 * 1e9 / (1 << 30)),
        ("max reserved GiB (torchtitan log)", "reserved", 10.0),
        ("percent of 95 GiB x 95 (Megatron log)", "reserved", 10.0),
        ("GB as printed, max over first/last stage nodes", "device", 10.0),
    ],
)
def test_printed_memory_peak_keeps_its_kind_and_unit(text: str, kind: str, gib: float) -> None:
    assert memory_kind(text).kind == kind
    assert as_row({**LLAMA, "peak_mem_gib": "10", "mem_kind": text}).peak == Peak(gib, kind)


@pytest.mark.parametrize(
    "columns",
    [
        {
            "model": "gpt3-175b",
            "hidden": "12288",
            "layers": "96",
            "heads": "96",
            "kv_heads": "96",
            "ffn": "49152",
            "vocab": "51200",
        },
        {"model": "mpt-7b", "hidden": "4096", "layers": "32", "heads": "32", "kv_heads": "32", "ffn": "16384", "vocab": "50368"},
        {"model": "nemotron4-340b", "hidden": "18432", "layers": "96", "heads": "96", "ffn": "73728", "vocab": "256000"},
        {
            "model": "qwen3-235b-a22b",
            "hidden": "4096",
            "layers": "94",
            "kv_heads": "4",
            "ffn": "",
            "vocab": "151936",
            "moe": QWEN,
        },
        {
            "model": "deepseek-v3",
            "hidden": "7168",
            "layers": "61",
            "heads": "128",
            "ffn": "18432",
            "vocab": "129280",
            "moe": DEEPSEEK,
        },
        {
            "model": "unheard-of",
            "hidden": "12288",
            "layers": "96",
            "heads": "96",
            "kv_heads": "96",
            "ffn": "49152",
            "vocab": "51200",
        },
    ],
    ids=lambda columns: columns["model"],
)
def test_model_has_the_printed_number_of_parameters(columns: dict[str, str]) -> None:
    printed = {"mpt-7b": 6.66, "nemotron4-340b": 340, "qwen3-235b-a22b": 235, "deepseek-v3": 671}.get(columns["model"], 175)
    found = shape({**LLAMA, "seq": "2048", **columns, "params_b": str(printed)})
    assert found.sizes.parameters / 1e9 == pytest.approx(printed, rel=0.01)
    assert found.assumed == ()


def test_experts_and_latent_attention_are_parsed_from_the_column_moe() -> None:
    sizes = shape({**LLAMA, "model": "deepseek-v3", "moe": DEEPSEEK}).sizes
    assert sizes.experts == ExpertSizes(256, 8, 2048, 1, 2048, 3, 1)
    assert sizes.latent_attention == LatentAttentionSizes(1536, 512, 128, 64, 128)
    assert sizes.head_dim == 192
    sparse = shape({**LLAMA, "model": "gpt-oss-120b", "ffn": "", "moe": "E128 top4 moe_ffn=2880 head_dim=64 alternating SWA128"})
    assert (sparse.window, sparse.windowed_share, sparse.sizes.head_dim, sparse.sizes.ffn_hidden) == (128, 0.5, 64, 0)


@pytest.mark.parametrize(
    ("columns", "lacks", "reason"),
    [
        ({"source": "dgxc-ft"}, "fine-tuning", "fine-tuning, not training"),
        ({"model": "llama3-70b-sft"}, "fine-tuning", "fine-tuning, not training"),
        ({"moe": "hybrid Mamba2+MoE; see HF config"}, "hybrid model", "hybrid model: hybrid Mamba2+MoE; see HF config"),
        ({"mbs": ""}, "not printed", "mbs not printed"),
        ({"hidden": "", "vocab": ""}, "not printed", "the model's hidden, vocab not printed"),
        ({"vp": "interleaved; v not in table"}, "not printed", "virtual stages `interleaved; v not in table`"),
        ({"act_ckpt": "recipe-dependent"}, "recompute not known", "recomputation not known: `recipe-dependent`"),
        ({"n_gpus": "128"}, "layout", "128 GPUs, but tp x pp x cp x dp is 64"),
        ({"gbs_seqs": "129"}, "layout", "a batch of 129 is not whole micro-batches of 1 on 2 ranks"),
        ({"ffn": "", "moe": QWEN, "ep": "3"}, "layout", "ep 3 divides not both 128 experts and 16 ranks of a stage"),
        ({"pp_schedule": "v-half"}, "layout", "schedule v-half: torch.distributed.pipelining has no such one"),
        ({"gpu": "TPU-v5p"}, "not understood", "accelerator `TPU-v5p`"),
        ({"dp_kind": "by hand"}, "not understood", "data parallelism `by hand`"),
    ],
)
def test_row_is_excluded_with_its_id_and_a_reason(columns: dict[str, str], lacks: str, reason: str) -> None:
    row = as_row({**LLAMA, **columns})
    assert (row.id, row.lacks, row.reason, row.timed) == ("dgxc-0007", lacks, reason, False)


def test_row_without_its_batch_is_still_used_for_memory() -> None:
    row = as_row({**LLAMA, "gbs_seqs": "", "peak_mem_gib": "60", "mem_kind": "max allocated GiB"})
    assert (row.lacks, row.peak) == ("not printed", Peak(60.0, "allocated"))
    assert row.training is not None
    assert row.training.accumulation == 8


def test_unprinted_step_time_follows_from_the_token_rate() -> None:
    row = as_row({**LLAMA, "step_time_s": "", "tokens_s_gpu": "1024"})
    assert row.step_s == 128 * 8192 / 64 / 1024


@pytest.mark.parametrize(
    ("columns", "framework"),
    [
        ({"source": "oellm-jupiter", "extras": "eager; backend=titan; job 1"}, "torchtitan"),
        ({"source": "oellm-jupiter", "extras": "dispatcher=allgather; backend=megatron; job 1"}, "megatron"),
        ({"source": "mbridge", "dp_kind": "megatron-fsdp"}, "megatron-fsdp"),
        ({"source": "sc21-t2", "dp_kind": "zero3 (DeepSpeed)"}, "deepspeed"),
        ({"source": "sc21-t2", "dp_kind": "ddp"}, "megatron-2021"),
    ],
)
def test_source_with_several_frameworks_gets_its_framework_by_row(columns: dict[str, str], framework: str) -> None:
    assert _training(**columns).framework == framework


def test_formats_kept_in_bf16_depend_on_the_source() -> None:
    assert _training(source="mbridge-mem", precision="BF16").formats == Formats("bf16", reduce="bf16", moments="bf16")
    assert _training(source="mbridge", precision="BF16").formats == Formats("bf16")


def test_source_named_after_a_listed_one_is_assumed_to_have_its_framework() -> None:
    row = as_row({**LLAMA, "source": "nanotron-2026"})
    assert row.training is not None
    assert (row.training.framework, row.assumed) == ("nanotron", ("framework of source nanotron-2026",))


def test_framework_of_an_unlisted_source_is_assumed_from_its_sharding() -> None:
    row = as_row({**LLAMA, "source": "weblog", "dp_kind": "fsdp2-full"})
    assert row.training is not None
    assert row.training.framework == "torchtitan"
    assert row.assumed == ("framework of source weblog",)


COLUMNS = (
    *LLAMA,
    "moe",
    "extras",
    "notes",
    "pp_schedule",
    "etp",
    "tokens_s_gpu",
    "peak_mem_gib",
    "mem_kind",
    "mfu_pct",
    "hfu_pct",
)
TEXTS = st.one_of(
    st.sampled_from(["", "0", "-1", "1e9", "nan", "inf", "none", "E0 top0 moe_ffn=0", "MLA", "1 of 0 layers", "every 0th layer"]),
    st.text(max_size=12),
    st.integers(0, 10**6).map(str),
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(COLUMNS), TEXTS, max_size=6))
def test_no_text_in_any_column_stops_the_parser(columns: dict[str, str]) -> None:
    row = as_row({**LLAMA, **columns}, "file.csv:7")
    assert row.id == (columns.get("id", "dgxc-0007") or "file.csv:7")
    assert row.complete or (row.lacks and row.reason)


def test_rows_keep_their_order_and_a_row_without_id_is_named_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,source,unheard_of\nfirst,aleph,1\n,aleph\n", encoding="utf-8")
    assert [(row.id, row.lacks) for row in read([file])] == [("first", "not printed"), ("rows.csv:3", "not printed")]


@pytest.fixture(scope="module")
def published() -> list[Row]:
    if not PUBLISHED.is_file():
        pytest.skip(f"{PUBLISHED} is not there")
    return read()


def test_every_published_row_is_understood_or_excluded_with_a_reason(published: list[Row]) -> None:
    assert (len(published), sum(row.complete for row in published), sum(row.timed for row in published)) == (2737, 2591, 2081)
    assert not [row.id for row in published if row.lacks == "not understood"]
    assert all(row.reason for row in published if not row.complete)


def test_published_models_have_the_parameters_in_their_names(published: list[Row]) -> None:
    off = {row.id for row in published for text in row.assumed if text.startswith("parameters")}
    # This row has ten layers in a table of models with six.
    assert off == {"bloom-0048"}
