"""The fields of a spec as torchtitan's command line: pytorch/torchtitan v0.3.0, torchtitan/config/configs.py and
each component's `Config`.

The model is not among them: a function of the registry builds it (`--module`, `--config`).
"""

import math
from collections.abc import Iterator
from typing import Any

from headway.templates.trainers.framework import Late
from headway.templates.trainers.schedule import decay_words
from headway.templates.trainers.table import Computed, Config, Elsewhere, Known, Lacks, Same, Table, ValueRow
from headway.templates.trainers.torchtitan.presets import REGISTRY

_REPLICATE, _SHARD = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
_RESHARD, _PP = "parallelism.fsdp_reshard_after_forward", "parallelism.pipeline_parallel_degree"
_SCHEDULE, _LAYERS = "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_layers_per_stage"
_LOCAL, _GLOBAL = "training.local_batch_size", "training.global_batch_size"
_MICRO = "parallelism.pipeline_parallel_microbatch_size"
_ADAMW = "optimizer.param_groups.0.optimizer_kwargs"
_DECAY, _SHAPE, _LEAST = "lr_scheduler.decay_ratio", "lr_scheduler.decay_type", "lr_scheduler.min_lr_factor"
_SAVES, _EVERY, _KEEP = "checkpoint.enable", "checkpoint.interval", "checkpoint.keep_latest_k"
_WAITS = ("comm.init_timeout_seconds", "comm.train_timeout_seconds")
# What a command line writes for it.
NONE = "None"
# torch.distributed.pipelining: those of one stage on each rank.
_SINGLE = ("GPipe", "1F1B")
# `fp8` and the like are converters of the model, which the function of the registry sets.
CONVERTED = ("fp8", "mxfp8", "nvfp4")
_PRECISION = "training.mixed_precision_param"


def _converting() -> str:
    return ", ".join(f"`{preset}` ({each.converts})" for preset, each in REGISTRY.items() if each.converts is not None)


def _own(known: Known) -> dict[str, Any]:
    """Return what a run needs whatever is in the job: its folder, a last checkpoint from which a run can resume, and no CUDA graphs
    where torchtitan refuses them (trainer.py, `_validate_cuda_graphs`)."""
    graphs = {"training.disable_cuda_graphs": True} if known["layout.pp"] > 1 or known["layout.ep"] > 1 else {}
    return {"dump_folder": Late("{run_directory}/torchtitan"), "checkpoint.last_save_model_only": False, **graphs}


def _replicas(known: Known) -> dict[str, Any]:
    """Shards by FSDP2. It keeps parameters between the passes where only gradients are split (ZeRO-2)."""
    replicate, shard = known["layout.dp_replicate"], known["layout.dp_shard"]
    if known["layout.sharding"] == "none":
        return {_REPLICATE: replicate * shard, _SHARD: 1}
    reshard = {"parameters": "always", "gradients": "never"}.get(known["layout.sharding"])
    return {_REPLICATE: replicate, _SHARD: shard, _RESHARD: reshard}


def _replicas_back(config: Config, ranks: int) -> dict[str, Any]:
    replicate, shard = config.get(_REPLICATE, 1), config.get(_SHARD, -1)
    others = replicate * config.get(_PP, 1)
    for axis in ("tensor", "context"):
        others *= config.get(f"parallelism.{axis}_parallel_degree", 1)
    shard = ranks // others if shard == -1 else shard
    sharding = {"always": "parameters", "never": "gradients"}.get(config.get(_RESHARD, "default"))
    return {"layout.dp_replicate": replicate, "layout.dp_shard": shard, "layout.sharding": sharding if shard > 1 else "none"}


def _replicas_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["layout.sharding"] == "optimizer":
        hint = "use `gradients` or `parameters`, or the trainer `megatron`"
        yield "layout.sharding", "splits no optimizer state alone: FSDP2 splits gradients with it", hint


def _stages(known: Known) -> dict[str, Any]:
    """Stages of one rank: a schedule for several has two, unless the layers of a stage say otherwise."""
    pp, each, layers = known["layout.pp"], known["layout.virtual_stages"], known["model.layers"]
    if pp == 1:
        return {}
    schedule = known["layout.schedule"]
    per_stage = math.ceil((layers + 2) / (pp * each)) if each > 2 and layers else None
    return {_PP: pp, _SCHEDULE: schedule, _LAYERS: per_stage}


def _stages_back(config: Config, ranks: int) -> dict[str, Any]:
    pp, schedule = config.get(_PP, 1), config.get(_SCHEDULE, "1F1B")
    if pp == 1:
        return {"layout.pp": 1, "layout.schedule": None, "layout.virtual_stages": 1}
    return {"layout.pp": pp, "layout.schedule": schedule, "layout.virtual_stages": _each(config, pp, schedule)}


def _each(config: Config, pp: int, schedule: str) -> int | None:
    """Return the stages of a rank; None where they depend on the layers of a model that is not known."""
    per_stage = config.get(_LAYERS)
    if per_stage is None:
        return 1 if schedule in _SINGLE else 2
    layers = config.get("model.layers")
    return None if layers is None else math.ceil((layers + 2) / per_stage) // pp


def _stages_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    """The ends count as a layer each: torchtitan/distributed/pipeline_parallel.py (`_get_pipeline_metadata`)."""
    pp, each, layers = known["layout.pp"], known["layout.virtual_stages"], known["model.layers"]
    if pp == 1 or each <= 2 or layers is None:
        return
    made = math.ceil((layers + 2) / math.ceil((layers + 2) / (pp * each)))
    if made != pp * each:
        why = f"puts {layers} layers and the two ends on {made} stages, where {pp * each} are asked for"
        yield "layout.virtual_stages", why, "use another `virtual_stages`"


def _batch(known: Known) -> dict[str, Any]:
    """A pipeline gets its microbatches at once: a rank's batch is all of them."""
    micro = known["batch.micro"]
    if known["layout.pp"] == 1:
        return {_GLOBAL: known["batch.global"], _LOCAL: micro}
    return {_GLOBAL: known["batch.global"], _LOCAL: micro * known["batch.accumulation"], _MICRO: micro}


def _batch_back(config: Config, ranks: int) -> dict[str, Any]:
    replicas = _replicas_back(config, ranks)
    local, whole = config.get(_LOCAL, 8), config.get(_GLOBAL, -1)
    degree = replicas["layout.dp_replicate"] * replicas["layout.dp_shard"]
    micro = local if config.get(_PP, 1) == 1 else config.get(_MICRO, 1)
    return {"batch.global": local * degree if whole < 0 else whole, "batch.micro": micro}


def _betas(known: Known) -> dict[str, Any]:
    first, second = known["optimizer.beta1"], known["optimizer.beta2"]
    return {} if first is None else {f"{_ADAMW}.betas": [first, second]}


def _betas_back(config: Config, ranks: int) -> dict[str, Any]:
    first, second = config.get(f"{_ADAMW}.betas", (0.9, 0.95))
    return {"optimizer.beta1": first, "optimizer.beta2": second}


def _schedule(known: Known) -> dict[str, Any]:
    """It decays from the warm-up on, or for a share of the steps at the end."""
    kind, least = known["optimizer.schedule"], known["optimizer.min_lr_ratio"]
    match kind:
        case None:
            return {}
        case "constant":
            return {_SHAPE: "linear", _DECAY: NONE, _LEAST: 1.0}
        case "wsd":
            steps, decay = known["steps"], known["optimizer.decay_steps"]
            # A job without `decay_steps` is refused for that.
            return {_SHAPE: "linear", _DECAY: None if None in (steps, decay) else decay / steps, _LEAST: least}
    return {_SHAPE: kind, _DECAY: NONE, _LEAST: least}


def _schedule_back(config: Config, ranks: int) -> dict[str, Any]:
    least, share = config.get(_LEAST, 0.0), config.get(_DECAY)
    if least == 1:
        return decay_words("constant", least, None)
    shape = config.get(_SHAPE, "linear")
    if share in (None, NONE):
        return decay_words(None if shape == "sqrt" else shape, least, None)
    return decay_words("wsd" if shape == "linear" else None, least, round(share * config.get("training.steps", 10000)))


def _saves(known: Known) -> dict[str, Any]:
    every = known["checkpoint.shared.steps"]
    return {_SAVES: False} if every is None else {_SAVES: True, _EVERY: every, _KEEP: known["checkpoint.keep"]}


def _saves_back(config: Config, ranks: int) -> dict[str, Any]:
    if not config.get(_SAVES):
        return {"checkpoint.shared.steps": None, "checkpoint.keep": None}
    return {"checkpoint.shared.steps": config.get(_EVERY, 500), "checkpoint.keep": config.get(_KEEP, 10)}


def _wait(known: Known) -> dict[str, Any]:
    return dict.fromkeys(_WAITS, int(known["resilience.timeouts.collective"]))


def _wait_back(config: Config, ranks: int) -> dict[str, Any]:
    return {"resilience.timeouts.collective": config.get(_WAITS[1], 100)}


def _tensor(known: Known) -> dict[str, Any]:
    split = known["layout.sequence_parallel"]
    return {"parallelism.tensor_parallel_degree": known["layout.tp"]} | (
        {"parallelism.enable_sequence_parallel": split} if known["layout.tp"] > 1 else {}
    )


def _tensor_back(config: Config, ranks: int) -> dict[str, Any]:
    degree = config.get("parallelism.tensor_parallel_degree", 1)
    split = degree > 1 and config.get("parallelism.enable_sequence_parallel", True)
    return {"layout.tp": degree, "layout.sequence_parallel": split}


def _async_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["overlap.tensor"] and not known["compile"]:
        yield "overlap.tensor", "overlaps tensor-parallel collectives in compiled blocks only", "set `compile: true`"


def _async_tensor(known: Known) -> dict[str, Any]:
    return {"compile.enable_async_tensor_parallel": known["overlap.tensor"]}


def _async_back(config: Config, ranks: int) -> dict[str, Any]:
    return {"overlap.tensor": config.get("compile.enable_async_tensor_parallel", False)}


TABLE = Table(
    "torchtitan",
    "torchtitan 0.3.0",
    (
        Same("seed", "debug.seed"),
        Same("steps", "training.steps", 10000),
        Elsewhere(("model",), "`--module` and `--config`, by the preset or the options", asked=False),
        Computed(
            ("layout.dp_replicate", "layout.dp_shard", "layout.sharding"),
            (_REPLICATE, _SHARD, _RESHARD),
            _replicas,
            _replicas_back,
            _replicas_objection,
        ),
        Computed(
            ("layout.pp", "layout.schedule", "layout.virtual_stages"),
            (_PP, _SCHEDULE, _LAYERS),
            _stages,
            _stages_back,
            _stages_objection,
        ),
        Same("layout.cp", "parallelism.context_parallel_degree", 1),
        Same("layout.ep", "parallelism.expert_parallel_degree", 1),
        Computed(
            ("layout.tp", "layout.sequence_parallel"),
            ("parallelism.tensor_parallel_degree", "parallelism.enable_sequence_parallel"),
            _tensor,
            _tensor_back,
        ),
        Computed(("batch.global", "batch.micro"), (_GLOBAL, _LOCAL, _MICRO), _batch, _batch_back),
        Same("batch.sequence", "training.seq_len", 2048),
        ValueRow("precision.parameters", {"fp32": {"training.dtype": "float32"}, "bf16": {"training.dtype": "bfloat16"}}),
        ValueRow(
            "precision.compute",
            {"bf16": {_PRECISION: "bfloat16"}, "fp32": {_PRECISION: "float32"}}
            | {each: {_PRECISION: "bfloat16"} for each in CONVERTED},
            "has no fp16",
            "use `bf16`",
            f"the last three only where the configuration has the converter, of the presets {_converting()}",
        ),
        Lacks(("precision.reduce",), ("fp32",), "reduces gradients in fp32"),
        ValueRow("recompute", {each: {"activation_checkpoint": each} for each in ("none", "selective", "full")}),
        Same("compile", "compile.enable", False),
        Lacks(("overlap.parameters", "overlap.gradients"), (True,), "leaves it to FSDP2, which does"),
        Computed(("overlap.tensor",), ("compile.enable_async_tensor_parallel",), _async_tensor, _async_back, _async_objection),
        Lacks(("overlap.pipeline",), (), "leaves sends and receives to the schedule"),
        Lacks(("overlap.experts",), (False,), "overlaps no dispatch by a switch"),
        Same("optimizer.lr", f"{_ADAMW}.lr", 8e-4),
        Computed(("optimizer.beta1", "optimizer.beta2"), (f"{_ADAMW}.betas",), _betas, _betas_back),
        Same("optimizer.eps", f"{_ADAMW}.eps", 1e-8),
        Same("optimizer.weight_decay", f"{_ADAMW}.weight_decay", 0.1),
        Same("optimizer.clip_norm", "training.max_norm", 1.0),
        Same("optimizer.warmup_steps", "lr_scheduler.warmup_steps", 200),
        Computed(
            ("optimizer.schedule", "optimizer.decay_steps", "optimizer.min_lr_ratio"),
            (_SHAPE, _DECAY, _LEAST),
            _schedule,
            _schedule_back,
        ),
        Computed(("checkpoint.shared.steps", "checkpoint.keep"), (_SAVES, _EVERY, _KEEP), _saves, _saves_back),
        Lacks(("checkpoint.shared.seconds",), (), "saves after a number of steps", "write `every` in steps"),
        Computed(("resilience.timeouts.collective",), _WAITS, _wait, _wait_back),
    ),
    _own,
)
