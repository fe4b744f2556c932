"""The fields of a spec as TrainingArguments of transformers: huggingface/transformers, src/transformers/training_args.py.

FSDP is accelerate's, version 2. Its mesh (`ParallelismConfig`) is an object that no JSON file can give, so only the layouts that need
none are here: replicas, or shards over all ranks.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.templates.trainers.framework import CHECKPOINTS, Late
from headway.templates.trainers.schedule import decay_words
from headway.templates.trainers.table import Computed, Config, Elsewhere, Known, Lacks, Same, Table, ValueRow

_NO_AXIS = "is given no mesh: `ParallelismConfig` of accelerate cannot be given as text"
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"bf16": None, "fp16": None},
    "bf16": {"bf16": True, "fp16": None},
    "fp16": {"bf16": None, "fp16": True},
}
# What decides on FSDP.
SHARDED = "fsdp"


def _own(known: Known) -> dict[str, Any]:
    """Return what a run of headway's needs whatever is in the job: its folder, its name, a device for its backend."""
    on_cpu = {"use_cpu": True, "ddp_backend": "gloo"} if known["backend"] == "gloo" else {}
    return {"output_dir": CHECKPOINTS, "run_name": Late("{run}"), "do_train": True, **on_cpu}


def _is_sharded(known: Known) -> bool:
    return bool(known["layout.dp_shard"] > 1 and known["layout.sharding"] != "none")


def _sharding(known: Known) -> dict[str, Any]:
    """Shards over all ranks by FSDP; a block's parameters stay gathered after its forward pass where only gradients are split (ZeRO-2)."""
    if not _is_sharded(known):
        return {}
    keep = known["layout.sharding"] == "gradients"
    recompute = {"fsdp_config.activation_checkpointing": True} if known["recompute"] == "full" else {}
    return {SHARDED: True, "fsdp_config.version": 2, "fsdp_config.reshard_after_forward": not keep, **recompute}


def _sharding_back(config: Config, ranks: int) -> dict[str, Any]:
    if not config.get(SHARDED):
        return {"layout.dp_replicate": ranks, "layout.dp_shard": 1, "layout.sharding": "none"}
    sharding = "parameters" if config.get("fsdp_config.reshard_after_forward", True) else "gradients"
    return {"layout.dp_replicate": 1, "layout.dp_shard": ranks, "layout.sharding": sharding}


def _sharding_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["layout.sharding"] == "optimizer":
        hint = "use `gradients` or `parameters`, or the trainer `deepspeed`"
        yield "layout.sharding", "splits no optimizer state alone: FSDP splits gradients with it", hint
    if known["layout.dp_replicate"] > 1 and _is_sharded(known):
        yield "layout.dp_replicate", f"{_NO_AXIS}, and shards over all ranks", "set `dp_replicate: 1`, or `sharding: none`"


def _recompute(known: Known) -> dict[str, Any]:
    """Whole blocks; FSDP has a switch of its own, next to which this one would gather parameters once more."""
    return {"gradient_checkpointing": True} if known["recompute"] == "full" and not _is_sharded(known) else {}


def _recompute_back(config: Config, ranks: int) -> dict[str, Any]:
    found = config.get("gradient_checkpointing") or config.get("fsdp_config.activation_checkpointing")
    return {"recompute": "full" if found else "none"}


def _recompute_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["recompute"] == "selective":
        yield "recompute", "computes whole blocks again, or nothing", "use `full` or `none`"


def _accumulation(known: Known) -> dict[str, Any]:
    return {"gradient_accumulation_steps": known["batch.accumulation"]}


def _accumulation_back(config: Config, ranks: int) -> dict[str, Any]:
    micro = config.get("per_device_train_batch_size", 8)
    return {"batch.global": micro * config.get("gradient_accumulation_steps", 1) * ranks}


def _schedule(known: Known) -> dict[str, Any]:
    """The scheduler with the job's shape and end: src/transformers/optimization.py."""
    kind, least, lr = known["optimizer.schedule"], known["optimizer.min_lr_ratio"], known["optimizer.lr"]
    match kind:
        case None:
            return {}
        case "constant":
            return {"lr_scheduler_type": "constant_with_warmup"}
        case "cosine" if least:
            return {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs.min_lr_rate": least}
        case "linear" if least:
            # A polynomial of power 1 is a line, and has an end.
            kwargs = {"lr_scheduler_kwargs.lr_end": lr * least, "lr_scheduler_kwargs.power": 1.0}
            return {"lr_scheduler_type": "polynomial", **kwargs}
        case "wsd":
            kwargs = {"num_decay_steps": known["optimizer.decay_steps"], "decay_type": "linear", "min_lr_ratio": least}
            named = {f"lr_scheduler_kwargs.{key}": value for key, value in kwargs.items()}
            return {"lr_scheduler_type": "warmup_stable_decay", **named}
    return {"lr_scheduler_type": kind}


def _schedule_back(config: Config, ranks: int) -> dict[str, Any]:
    kind, kwargs = config.get("lr_scheduler_type", "linear"), "lr_scheduler_kwargs"
    schedule, least, decay = kind, 0.0, None
    match kind:
        case "constant_with_warmup" | "constant":
            schedule = "constant"
        case "cosine_with_min_lr":
            schedule, least = "cosine", config.get(f"{kwargs}.min_lr_rate", 0.0)
        case "polynomial" if config.get(f"{kwargs}.power", 1.0) == 1.0:
            schedule, least = "linear", config.get(f"{kwargs}.lr_end", 1e-7) / config["learning_rate"]
        case "warmup_stable_decay":
            schedule, decay = "wsd", config.get(f"{kwargs}.num_decay_steps")
            least = config.get(f"{kwargs}.min_lr_ratio", 0.0)
        case "cosine" | "linear":
            pass
        case _:
            schedule = None
    return decay_words(schedule, least, decay)


def _saves(known: Known) -> dict[str, Any]:
    every = known["checkpoint.shared.steps"]
    if every is None:
        return {"save_strategy": "no"}
    return {"save_strategy": "steps", "save_steps": every, "save_total_limit": known["checkpoint.keep"]}


def _saves_back(config: Config, ranks: int) -> dict[str, Any]:
    if config.get("save_strategy", "steps") != "steps":
        return {"checkpoint.shared.steps": None, "checkpoint.keep": None}
    return {"checkpoint.shared.steps": config.get("save_steps", 500), "checkpoint.keep": config.get("save_total_limit")}


TABLE = Table(
    "the Hugging Face Trainer",
    "transformers 5.23, accelerate 1.15",
    (
        Same("seed", "seed", 42),
        Same("steps", "max_steps"),
        Elsewhere(("model",), "the script builds the model"),
        Computed(
            ("layout.dp_shard", "layout.dp_replicate", "layout.sharding"),
            (SHARDED, "fsdp_config.version", "fsdp_config.reshard_after_forward"),
            _sharding,
            _sharding_back,
            _sharding_objection,
        ),
        Lacks(("layout.pp",), (1,), "has no pipeline", "use the trainer `torchtitan` or `megatron`, or set `pp: 1`"),
        Lacks(
            ("layout.cp", "layout.tp", "layout.ep"), (1,), _NO_AXIS, "set it to 1, or use the trainer `torchtitan` or `megatron`"
        ),
        Lacks(("layout.sequence_parallel",), (False,), "has no tensor parallelism"),
        Lacks(("layout.schedule",), (), "has no pipeline"),
        Lacks(("layout.virtual_stages",), (1,), "has no pipeline"),
        Computed(("batch.global",), ("gradient_accumulation_steps",), _accumulation, _accumulation_back),
        Same("batch.micro", "per_device_train_batch_size", 8),
        Elsewhere(("batch.sequence",), "the script's data has sequences of a length"),
        Elsewhere(("precision.parameters",), "the script loads the model in a format"),
        ValueRow("precision.compute", _FORMATS, "computes in fp32, bf16 or fp16"),
        Lacks(("precision.reduce",), (), "sums gradients in the format that FSDP or DDP has them in"),
        Computed(
            ("recompute",),
            ("gradient_checkpointing", "fsdp_config.activation_checkpointing"),
            _recompute,
            _recompute_back,
            _recompute_objection,
        ),
        Same("compile", "torch_compile", False),
        Lacks(("overlap.parameters", "overlap.gradients"), (True,), "leaves it to FSDP and DDP, which do"),
        Lacks(("overlap.tensor", "overlap.pipeline", "overlap.experts"), (False,), "has none of these axes"),
        Same("optimizer.lr", "learning_rate", 5e-5),
        Same("optimizer.beta1", "adam_beta1", 0.9),
        Same("optimizer.beta2", "adam_beta2", 0.999),
        Same("optimizer.eps", "adam_epsilon", 1e-8),
        Same("optimizer.weight_decay", "weight_decay", 0.0),
        Same("optimizer.clip_norm", "max_grad_norm", 1.0),
        Same("optimizer.warmup_steps", "warmup_steps", 0),
        Computed(
            ("optimizer.schedule", "optimizer.decay_steps", "optimizer.min_lr_ratio"),
            (
                "lr_scheduler_type",
                *(
                    f"lr_scheduler_kwargs.{key}"
                    for key in ("min_lr_rate", "lr_end", "power", "num_decay_steps", "decay_type", "min_lr_ratio")
                ),
            ),
            _schedule,
            _schedule_back,
        ),
        Computed(
            ("checkpoint.shared.steps", "checkpoint.keep"),
            ("save_strategy", "save_steps", "save_total_limit"),
            _saves,
            _saves_back,
        ),
        Lacks(("checkpoint.shared.seconds",), (), "saves after a number of steps", "write `every` in steps"),
        Same("resilience.timeouts.collective", "ddp_timeout", 1800, int),
    ),
    _own,
)
