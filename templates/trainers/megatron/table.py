"""The fields of a spec as arguments of Megatron-LM: NVIDIA/Megatron-LM core_v0.16.1, megatron/training/arguments.py.

A key is an option without its dashes, `-` written as `_`; true is an option without a value.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from headway.templates.trainers.framework import CHECKPOINTS
from headway.templates.trainers.schedule import decay_words
from headway.templates.trainers.table import Computed, Config, Elsewhere, Known, Lacks, Same, Table, ValueRow

_FSDP, _SPLITS = "use_megatron_fsdp", "data_parallel_sharding_strategy"
_SPLIT_OPTIMIZER, _INSTANCES = "use_distributed_optimizer", "num_distributed_optimizer_instances"
_STRATEGIES = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
_PP, _VIRTUAL = "pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"
_ENDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_GROUPS = ("group_query_attention", "num_query_groups")
_EXPERT_TP = "expert_tensor_parallel_size"
_STYLE, _MIN_LR, _WSD, _WSD_STYLE = "lr_decay_style", "min_lr", "lr_wsd_decay_iters", "lr_wsd_decay_style"
_STYLES = {"cosine": "cosine", "linear": "linear", "constant": "constant", "wsd": "WSD"}
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "fp8": {"bf16": True, "fp16": None, "fp8_format": "hybrid", "fp8_recipe": None, "fp4_format": None},
    "mxfp8": {"bf16": True, "fp16": None, "fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp4_format": None},
    "nvfp4": {"bf16": True, "fp16": None, "fp8_format": None, "fp4_format": "e2m1"},
    "bf16": {"bf16": True, "fp16": None, "fp8_format": None, "fp4_format": None},
    "fp16": {"bf16": None, "fp16": True, "fp8_format": None, "fp4_format": None},
    "fp32": {"bf16": None, "fp16": None, "fp8_format": None, "fp4_format": None},
}
_RECOMPUTE: Mapping[str, Mapping[str, Any]] = {
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "selective": {"recompute_granularity": "selective"},
    "none": {"recompute_granularity": None},
}


def _own(known: Known) -> dict[str, Any]:
    """Return what follows from the layout: experts are spread whole, since `ep` folds over `tp` too."""
    return {_EXPERT_TP: 1} if known["model.experts.count"] and known["layout.tp"] > 1 else {}


def _data_parallel(known: Known) -> dict[str, Any]:
    """Data-parallel ranks are what the other degrees leave. The distributed optimizer splits its state (ZeRO-1) in each of its
    instances; Megatron-FSDP splits more."""
    replicas = known["layout.dp_replicate"]
    several = {_INSTANCES: replicas} if replicas > 1 and known["layout.dp_shard"] > 1 else {}
    match known["layout.sharding"]:
        case "none":
            return {}
        case "gradients" | "parameters" as split:
            # It saves in a format of its own.
            return {_FSDP: True, _SPLITS: _STRATEGIES[split], _SPLIT_OPTIMIZER: True, "ckpt_format": "fsdp_dtensor", **several}
    return {_SPLIT_OPTIMIZER: True, **several}


def _data_parallel_back(config: Config, ranks: int) -> dict[str, Any]:
    others = config.get("tensor_model_parallel_size", 1) * config.get(_PP, 1) * config.get("context_parallel_size", 1)
    ranks //= others
    if not config.get(_SPLIT_OPTIMIZER) and not config.get(_FSDP):
        return {"layout.dp_replicate": ranks, "layout.dp_shard": 1, "layout.sharding": "none"}
    replicas = config.get(_INSTANCES, 1)
    split = {"no_shard": "none", "optim": "optimizer", **{theirs: ours for ours, theirs in _STRATEGIES.items()}}
    sharding = split[config.get(_SPLITS, "no_shard")] if config.get(_FSDP) else "optimizer"
    return {"layout.dp_replicate": replicas, "layout.dp_shard": ranks // replicas, "layout.sharding": sharding}


def _data_parallel_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["layout.sharding"] in _STRATEGIES and known["layout.pp"] > 1:
        why = "splits the optimizer's state alone with a pipeline: Megatron-FSDP has none"
        yield "layout.sharding", why, "set `sharding: optimizer`, or `pp: 1`"


def _pipeline(known: Known) -> dict[str, Any]:
    pp, each, layers = known["layout.pp"], known["layout.virtual_stages"], known["model.layers"]
    found: dict[str, Any] = {_PP: pp}
    if each > 1:
        found[_VIRTUAL] = each
    if pp > 1 and layers is not None and layers % (pp * each):
        # Embedding and output layer count as a layer each, or the output layer alone.
        ends = next((count for count in (2, 1) if (layers + count) % (pp * each) == 0), 0)
        found.update(dict.fromkeys(_ENDS[2 - ends :], True))
    return found


def _pipeline_back(config: Config, ranks: int) -> dict[str, Any]:
    pp, each = config.get(_PP, 1), config.get(_VIRTUAL) or 1
    per_stage = config.get("num_layers_per_virtual_pipeline_stage")
    if per_stage:
        ends = sum(bool(config.get(end)) for end in _ENDS)
        each = (config["num_layers"] + ends) // pp // per_stage
    schedule = None if pp == 1 else "Interleaved1F1B" if each > 1 else "1F1B"
    return {"layout.pp": pp, "layout.virtual_stages": each, "layout.schedule": schedule}


def _pipeline_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    schedule, each = known["layout.schedule"], known["layout.virtual_stages"]
    if schedule not in (None, "1F1B", "Interleaved1F1B"):
        hint = "use `Interleaved1F1B` with `virtual_stages` above 1, `1F1B` without, or the trainer `torchtitan`"
        yield "layout.schedule", f"has no schedule `{schedule}`", hint
    elif each > 1 and known["layout.pp"] == 1:
        yield "layout.virtual_stages", "has stages of a pipeline only", "set `pp`, or `virtual_stages: 1`"


def _tensor(known: Known) -> dict[str, Any]:
    degree = known["layout.tp"]
    return {"tensor_model_parallel_size": degree, "sequence_parallel": (degree > 1 and known["layout.sequence_parallel"]) or None}


def _tensor_back(config: Config, ranks: int) -> dict[str, Any]:
    degree = config.get("tensor_model_parallel_size", 1)
    return {"layout.tp": degree, "layout.sequence_parallel": bool(config.get("sequence_parallel")) and degree > 1}


def _tensor_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["model.experts.count"] and known["layout.tp"] > 1 and not known["layout.sequence_parallel"]:
        why = "splits the sequence over `tp` where a model has experts"
        yield "layout.sequence_parallel", why, "leave `sequence_parallel` out"


def _heads(known: Known) -> dict[str, Any]:
    heads, groups = known["model.heads"], known["model.kv_heads"]
    grouped = {_GROUPS[0]: True, _GROUPS[1]: groups} if groups != heads else {}
    latent = known["model.latent_attention.kv_rank"] is not None
    return {"num_attention_heads": heads, "kv_channels": None if latent else known["model.head_dim"], **grouped}


def _heads_back(config: Config, ranks: int) -> dict[str, Any]:
    heads = config.get("num_attention_heads")
    groups = config.get(_GROUPS[1], 1) if config.get(_GROUPS[0]) else heads
    return {"model.heads": heads, "model.kv_heads": groups, "model.head_dim": config.get("kv_channels")}


def _dropout(known: Known) -> dict[str, Any]:
    return dict.fromkeys(("hidden_dropout", "attention_dropout"), known["model.dropout"])


def _dropout_back(config: Config, ranks: int) -> dict[str, Any]:
    return {"model.dropout": config.get("hidden_dropout", 0.1)}


def _biases(known: Known) -> dict[str, Any]:
    return {
        "disable_bias_linear": True if known["model.linear_bias"] is False else None,
        "add_qkv_bias": True if known["model.qkv_bias"] and not known["model.linear_bias"] else None,
    }


def _biases_back(config: Config, ranks: int) -> dict[str, Any]:
    linear = not config.get("disable_bias_linear")
    return {"model.linear_bias": linear, "model.qkv_bias": linear or bool(config.get("add_qkv_bias"))}


def _biases_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["model.linear_bias"] and not known["model.qkv_bias"]:
        yield "model.linear_bias", "has a bias in queries, keys and values too", "set `qkv_bias: true`, or `linear_bias: false`"


def _positions(known: Known) -> dict[str, Any]:
    longest = known["model.max_positions"] or known["batch.sequence"]
    kinds = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}
    theta = known["model.rope_theta"]
    return {
        "position_embedding_type": kinds.get(known["model.positions"]),
        "max_position_embeddings": longest,
        "rotary_base": int(theta) if theta is not None and known["model.positions"] == "rotary" else None,
    }


def _positions_back(config: Config, ranks: int) -> dict[str, Any]:
    kind = {"rope": "rotary", "learned_absolute": "learned", "none": "none"}.get(
        config.get("position_embedding_type", "learned_absolute")
    )
    longest = config.get("max_position_embeddings") if kind == "learned" else None
    return {"model.positions": kind, "model.max_positions": longest, "model.rope_theta": config.get("rotary_base", 10000)}


def _frequency(known: Known) -> str | int | None:
    """Return which blocks have experts, 1 for each: ours begin after the dense ones, with the last of each period."""
    first, every, layers = known["model.experts.first_dense"], known["model.experts.every"], known["model.layers"]
    if first is None or (first, every) == (0, 1):
        return None
    whole, rest = divmod(layers - first, every)
    parts = [f"[0]*{first}"] if first else []
    parts += [f"([0]*{every - 1}+[1])*{whole}" if every > 1 else f"[1]*{whole}"]
    parts += [f"[0]*{rest}"] if rest else []
    return f"({'+'.join(parts)})"


def _experts(known: Known) -> dict[str, Any]:
    if known["model.experts.count"] is None:
        return {}
    shared = known["model.experts.shared"] * known["model.experts.shared_ffn_hidden"]
    return {
        "num_experts": known["model.experts.count"],
        "moe_router_topk": known["model.experts.top_k"],
        "moe_ffn_hidden_size": known["model.experts.ffn_hidden"],
        "moe_shared_expert_intermediate_size": shared or None,
        "moe_layer_freq": _frequency(known),
    }


def _experts_back(config: Config, ranks: int) -> dict[str, Any]:
    if config.get("num_experts") is None:
        return {"model.experts.count": None}
    width = config.get("moe_ffn_hidden_size") or config.get("ffn_hidden_size")
    shared = config.get("moe_shared_expert_intermediate_size")
    first, every = _period(config.get("moe_layer_freq", 1))
    return {
        "model.experts.count": config["num_experts"],
        "model.experts.top_k": config.get("moe_router_topk", 2),
        "model.experts.ffn_hidden": width,
        # One shared expert of the sum of their widths computes the same.
        "model.experts.shared": 1 if shared else 0,
        "model.experts.shared_ffn_hidden": shared or width,
        "model.experts.first_dense": first,
        "model.experts.every": every,
    }


def _period(frequency: Any) -> tuple[int | None, int | None]:
    """Return the dense blocks at the beginning and the period of those with experts, of the list that Megatron's parser returns; None
    for another pattern."""
    if frequency == 1:
        return 0, 1
    if not isinstance(frequency, list) or 1 not in frequency:
        return None, None
    places = [index for index, is_expert in enumerate(frequency) if is_expert]
    every = places[1] - places[0] if len(places) > 1 else 1
    first = places[0] - (every - 1)
    expected = [index >= first and (index - first + 1) % every == 0 for index in range(len(frequency))]
    return (first, every) if first >= 0 and expected == [bool(each) for each in frequency] else (None, None)


def _latent(known: Known) -> dict[str, Any]:
    if known["model.latent_attention.kv_rank"] is None:
        return {}
    names = {"q_rank": "q_lora_rank", "kv_rank": "kv_lora_rank", "nope_head": "qk_head_dim"}
    names |= {"rope_head": "qk_pos_emb_head_dim", "value_head": "v_head_dim"}
    return {"multi_latent_attention": True, **{key: known[f"model.latent_attention.{name}"] for name, key in names.items()}}


def _latent_back(config: Config, ranks: int) -> dict[str, Any]:
    if not config.get("multi_latent_attention"):
        return {"model.latent_attention.kv_rank": None}
    place = "model.latent_attention."
    return {
        f"{place}q_rank": config.get("q_lora_rank"),
        f"{place}kv_rank": config.get("kv_lora_rank", 32),
        f"{place}nope_head": config.get("qk_head_dim", 128),
        f"{place}rope_head": config.get("qk_pos_emb_head_dim", 64),
        f"{place}value_head": config.get("v_head_dim", 128),
    }


def _schedule(known: Known) -> dict[str, Any]:
    kind, lr = known["optimizer.schedule"], known["optimizer.lr"]
    if kind is None:
        return {}
    least = {} if kind == "constant" else {_MIN_LR: lr * known["optimizer.min_lr_ratio"]}
    decay = {_WSD: known["optimizer.decay_steps"], _WSD_STYLE: "linear"} if kind == "wsd" else {}
    return {_STYLE: _STYLES[kind], **least, **decay}


def _schedule_back(config: Config, ranks: int) -> dict[str, Any]:
    kind = {theirs: ours for ours, theirs in _STYLES.items()}.get(config.get(_STYLE, "linear"))
    least = config.get(_MIN_LR, 0.0) / config["lr"] if config.get("lr") else None
    return decay_words(kind, least or 0.0, config.get(_WSD))


def _overlap(known: Known) -> dict[str, Any]:
    pairs = {"gradients": "overlap_grad_reduce", "parameters": "overlap_param_gather", "tensor": "tp_comm_overlap"}
    pairs |= {"experts": "overlap_moe_expert_parallel_comm"}
    named = {key: known[f"overlap.{name}"] or None for name, key in pairs.items()}
    return {**named, "no_overlap_p2p_communication": True if known["overlap.pipeline"] is False else None}


def _overlap_back(config: Config, ranks: int) -> dict[str, Any]:
    pairs = {"gradients": "overlap_grad_reduce", "parameters": "overlap_param_gather", "tensor": "tp_comm_overlap"}
    pairs |= {"experts": "overlap_moe_expert_parallel_comm"}
    named = {f"overlap.{name}": bool(config.get(key)) for name, key in pairs.items()}
    return {**named, "overlap.pipeline": not config.get("no_overlap_p2p_communication")}


def _overlap_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["overlap.parameters"] and not known["overlap.gradients"]:
        yield "overlap.parameters", "gathers parameters early only if it reduces gradients early", "set `gradients: true` too"
    if known["overlap.parameters"] and known["layout.sharding"] == "none":
        yield (
            "overlap.parameters",
            "gathers no parameters that are not split",
            "leave `parameters` out, or set `sharding: optimizer`",
        )


def _saves(known: Known) -> dict[str, Any]:
    every = known["checkpoint.shared.steps"]
    return {} if every is None else {"save": CHECKPOINTS, "load": CHECKPOINTS, "save_interval": every}


def _saves_back(config: Config, ranks: int) -> dict[str, Any]:
    return {"checkpoint.shared.steps": config.get("save_interval") if config.get("save") else None}


def _wait(known: Known) -> dict[str, Any]:
    return {"distributed_timeout_minutes": math.ceil(known["resilience.timeouts.collective"] / 60)}


def _wait_back(config: Config, ranks: int) -> dict[str, Any]:
    return {"resilience.timeouts.collective": config.get("distributed_timeout_minutes", 10) * 60}


TABLE = Table(
    "Megatron-LM",
    "Megatron-LM core_v0.16.1",
    (
        Same("seed", "seed", 1234),
        Same("steps", "train_iters"),
        Same("model.vocab_size", "vocab_size"),
        Same("model.layers", "num_layers"),
        Same("model.hidden", "hidden_size"),
        Computed(
            ("model.heads", "model.kv_heads", "model.head_dim"),
            ("num_attention_heads", "kv_channels", *_GROUPS),
            _heads,
            _heads_back,
        ),
        Same("model.ffn_hidden", "ffn_hidden_size", None, lambda width: width or None),
        ValueRow("model.mlp", {"gated": {"swiglu": True}, "plain": {"swiglu": None}}),
        ValueRow("model.norm", {"rms": {"normalization": "RMSNorm"}, "layer": {"normalization": "LayerNorm"}}),
        Computed(
            ("model.positions", "model.rope_theta", "model.max_positions"),
            ("position_embedding_type", "rotary_base", "max_position_embeddings"),
            _positions,
            _positions_back,
        ),
        Same("model.norm_eps", "norm_epsilon", 1e-5),
        Computed(("model.dropout",), ("hidden_dropout", "attention_dropout"), _dropout, _dropout_back),
        ValueRow(
            "model.tie_embeddings",
            {False: {"untie_embeddings_and_output_weights": True}, True: {"untie_embeddings_and_output_weights": None}},
        ),
        Computed(
            ("model.linear_bias", "model.qkv_bias"),
            ("disable_bias_linear", "add_qkv_bias"),
            _biases,
            _biases_back,
            _biases_objection,
        ),
        ValueRow("model.qk_norm", {True: {"qk_layernorm": True}, False: {"qk_layernorm": None}}),
        Computed(
            tuple(
                f"model.experts.{name}"
                for name in ("count", "top_k", "ffn_hidden", "shared", "shared_ffn_hidden", "first_dense", "every")
            ),
            ("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_layer_freq"),
            _experts,
            _experts_back,
        ),
        Computed(
            tuple(f"model.latent_attention.{name}" for name in ("q_rank", "kv_rank", "nope_head", "rope_head", "value_head")),
            ("multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
            _latent,
            _latent_back,
        ),
        Computed(
            ("layout.pp", "layout.virtual_stages", "layout.schedule"),
            (_PP, _VIRTUAL, *_ENDS),
            _pipeline,
            _pipeline_back,
            _pipeline_objection,
        ),
        Computed(
            ("layout.dp_replicate", "layout.dp_shard", "layout.sharding"),
            (_SPLIT_OPTIMIZER, _INSTANCES, _FSDP, _SPLITS, "ckpt_format"),
            _data_parallel,
            _data_parallel_back,
            _data_parallel_objection,
        ),
        Same("layout.cp", "context_parallel_size", 1),
        Same("layout.ep", "expert_model_parallel_size", 1),
        Computed(
            ("layout.tp", "layout.sequence_parallel"),
            ("tensor_model_parallel_size", "sequence_parallel"),
            _tensor,
            _tensor_back,
            _tensor_objection,
        ),
        Same("batch.global", "global_batch_size"),
        Same("batch.micro", "micro_batch_size"),
        Same("batch.sequence", "seq_length"),
        Lacks(("precision.parameters",), ("fp32",), "updates parameters in fp32"),
        ValueRow("precision.compute", _FORMATS),
        ValueRow(
            "precision.reduce",
            {"bf16": {"grad_reduce_in_bf16": True}, "fp32": {"accumulate_allreduce_grads_in_fp32": True}},
        ),
        ValueRow("recompute", _RECOMPUTE),
        Lacks(("compile",), (False,), "compiles no blocks by a switch"),
        Computed(
            tuple(f"overlap.{name}" for name in ("gradients", "parameters", "tensor", "experts", "pipeline")),
            (
                "overlap_grad_reduce",
                "overlap_param_gather",
                "tp_comm_overlap",
                "overlap_moe_expert_parallel_comm",
                "no_overlap_p2p_communication",
            ),
            _overlap,
            _overlap_back,
            _overlap_objection,
        ),
        Same("optimizer.lr", "lr"),
        Same("optimizer.beta1", "adam_beta1", 0.9),
        Same("optimizer.beta2", "adam_beta2", 0.999),
        Same("optimizer.eps", "adam_eps", 1e-8),
        Same("optimizer.weight_decay", "weight_decay", 0.01),
        Same("optimizer.clip_norm", "clip_grad", 1.0),
        Same("optimizer.warmup_steps", "lr_warmup_iters", 0),
        Computed(
            ("optimizer.schedule", "optimizer.decay_steps", "optimizer.min_lr_ratio"),
            (_STYLE, _MIN_LR, _WSD, _WSD_STYLE),
            _schedule,
            _schedule_back,
        ),
        Computed(("checkpoint.shared.steps",), ("save", "load", "save_interval"), _saves, _saves_back),
        Elsewhere(("checkpoint.keep",), "keeps every checkpoint"),
        Lacks(("checkpoint.shared.seconds",), (), "saves after a number of steps", "write `every` in steps"),
        Computed(("resilience.timeouts.collective",), ("distributed_timeout_minutes",), _wait, _wait_back),
    ),
    _own,
)
