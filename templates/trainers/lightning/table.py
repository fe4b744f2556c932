"""The fields of a spec as a LightningCLI's configuration: Lightning-AI/pytorch-lightning 2.6.6, pytorch/cli.py, strategies.

Keys below `ModelCheckpoint` are those of the callback, which joins the user's own in `trainer.callbacks`.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from headway.templates.trainers.framework import CHECKPOINTS, Late
from headway.templates.trainers.table import Computed, Config, Elsewhere, Known, Lacks, Same, Table

CALLBACK = "ModelCheckpoint"
_STRATEGY, _INIT = "trainer.strategy.class_path", "trainer.strategy.init_args"
_DDP, _FSDP, _MODEL = (f"lightning.pytorch.strategies.{name}Strategy" for name in ("DDP", "FSDP", "ModelParallel"))
_SHARDINGS = {"parameters": "FULL_SHARD", "gradients": "SHARD_GRAD_OP"}
_HYBRID = "HYBRID_SHARD"
_ADAMW = "optimizer.init_args"


def _own(known: Known) -> dict[str, Any]:
    """Return what a run of headway's needs whatever is in the job: its ranks, its folder, and steps instead of epochs."""
    found = {
        "trainer.devices": known["procs"],
        "trainer.num_nodes": known["slots"],
        "trainer.accelerator": "cpu" if known["backend"] == "gloo" else "gpu",
        "trainer.max_epochs": -1,
        "trainer.default_root_dir": Late("{run_directory}/lightning"),
    }
    optimizer = {} if known["optimizer.lr"] is None else {"optimizer.class_path": "torch.optim.AdamW"}
    return found | optimizer


def _is_sharded(known: Known) -> bool:
    return bool(known["layout.dp_shard"] > 1 and known["layout.sharding"] != "none")


def _strategy(known: Known) -> dict[str, Any]:
    """DDP, FSDP, or the strategy with a mesh of shards and `tp`, which the module splits."""
    replicate, shard, tp = known["layout.dp_replicate"], known["layout.dp_shard"], known["layout.tp"]
    wait = str(timedelta(seconds=int(known["resilience.timeouts.collective"])))
    if tp > 1:
        found: dict[str, Any] = {"data_parallel_size": replicate * shard, "tensor_parallel_size": tp}
        return {_STRATEGY: _MODEL, **{f"{_INIT}.{key}": value for key, value in {**found, "timeout": wait}.items()}}
    if not _is_sharded(known):
        return {_STRATEGY: _DDP, f"{_INIT}.timeout": wait}
    sharding = _SHARDINGS.get(known["layout.sharding"] or "parameters")
    found = {"sharding_strategy": sharding if replicate == 1 else _HYBRID}
    if replicate > 1:
        found["device_mesh"] = [replicate, shard]
    return {_STRATEGY: _FSDP, **{f"{_INIT}.{key}": value for key, value in {**found, "timeout": wait}.items()}}


def _strategy_back(config: Config, ranks: int) -> dict[str, Any]:
    hours, minutes, seconds = (int(part) for part in str(config.get(f"{_INIT}.timeout", "0:30:00")).split(":"))
    found: dict[str, Any] = {"resilience.timeouts.collective": hours * 3600 + minutes * 60 + seconds, "layout.tp": 1}
    match config.get(_STRATEGY):
        case strategy if strategy == _MODEL:
            shard = config.get(f"{_INIT}.data_parallel_size", 1)
            degrees = {"layout.dp_replicate": 1, "layout.dp_shard": shard, "layout.sharding": "parameters"}
            return {**found, **degrees, "layout.tp": config.get(f"{_INIT}.tensor_parallel_size", 1)}
        case strategy if strategy == _FSDP:
            replicate, shard = config.get(f"{_INIT}.device_mesh") or (1, ranks)
            sharding = {theirs: ours for ours, theirs in _SHARDINGS.items()}
            name = config.get(f"{_INIT}.sharding_strategy", "FULL_SHARD")
            return {
                **found,
                "layout.dp_replicate": replicate,
                "layout.dp_shard": shard,
                "layout.sharding": sharding.get(name, "parameters"),
            }
    return {**found, "layout.dp_replicate": ranks, "layout.dp_shard": 1, "layout.sharding": "none"}


def _strategy_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    sharding, replicate = known["layout.sharding"], known["layout.dp_replicate"]
    if sharding == "optimizer":
        yield (
            "layout.sharding",
            "splits no optimizer state alone: FSDP splits gradients with it",
            "use `gradients` or `parameters`",
        )
    if known["layout.tp"] > 1 and replicate > 1:
        yield "layout.dp_replicate", "has no replicas beside `tp`", "set `dp_replicate: 1`"
    if known["layout.tp"] > 1 and sharding in ("none", "gradients"):
        yield "layout.sharding", "splits parameters beside `tp`, by the module's own plan", "leave `sharding` out"
    if known["layout.tp"] == 1 and sharding == "gradients" and replicate > 1:
        yield "layout.sharding", "splits parameters too where it has replicas", "leave `sharding` out, or set `dp_replicate: 1`"
    if _is_sharded(known) and known["layout.tp"] == 1 and known["backend"] == "gloo":
        yield "layout.dp_shard", "shards on GPUs only", "set `sharding: none`, or use a cluster with GPUs"


def _precision(known: Known) -> dict[str, Any]:
    compute, kept = known["precision.compute"], known["precision.parameters"]
    if compute is None:
        return {}
    mixed = {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true", "fp8": "transformer-engine"}
    return {"trainer.precision": "bf16-true" if (compute, kept) == ("bf16", "bf16") else mixed.get(compute)}


def _precision_back(config: Config, ranks: int) -> dict[str, Any]:
    named = {
        "32-true": ("fp32", "fp32"),
        "bf16-mixed": ("bf16", "fp32"),
        "16-mixed": ("fp16", "fp32"),
        "bf16-true": ("bf16", "bf16"),
        "transformer-engine": ("fp8", None),
    }
    compute, kept = named.get(str(config.get("trainer.precision") or "32-true"), (None, None))
    return {"precision.compute": compute, "precision.parameters": kept}


def _precision_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    compute, kept = known["precision.compute"], known["precision.parameters"]
    if compute in ("mxfp8", "nvfp4"):
        yield "precision.compute", "has no such format", "use `fp8`, which is Transformer Engine's, or `bf16`"
    if kept == "bf16" and compute != "bf16":
        yield (
            "precision.parameters",
            "keeps parameters in bf16 only if it computes in it",
            "set `compute: bf16`, or `parameters: fp32`",
        )


def _accumulation(known: Known) -> dict[str, Any]:
    return {"trainer.accumulate_grad_batches": known["batch.accumulation"]}


def _no_batch(config: Config, ranks: int) -> dict[str, Any]:
    """The sequences of a rank are the module's."""
    return {}


def _betas(known: Known) -> dict[str, Any]:
    first, second = known["optimizer.beta1"], known["optimizer.beta2"]
    return {} if first is None else {f"{_ADAMW}.betas": [first, second]}


def _betas_back(config: Config, ranks: int) -> dict[str, Any]:
    first, second = config.get(f"{_ADAMW}.betas", (0.9, 0.999))
    return {"optimizer.beta1": first, "optimizer.beta2": second}


def _saves(known: Known) -> dict[str, Any]:
    steps, seconds = known["checkpoint.shared.steps"], known["checkpoint.shared.seconds"]
    if steps is None and seconds is None:
        return {"trainer.enable_checkpointing": False}
    every = {"every_n_train_steps": steps} if steps else {"train_time_interval": str(timedelta(seconds=seconds))}
    found = {"dirpath": CHECKPOINTS, "save_last": True, "save_top_k": -1, **every}
    return {f"{CALLBACK}.{key}": value for key, value in found.items()}


def _saves_back(config: Config, ranks: int) -> dict[str, Any]:
    interval = config.get(f"{CALLBACK}.train_time_interval")
    hours, minutes, seconds = (int(part) for part in str(interval or "0:0:0").split(":"))
    return {
        "checkpoint.shared.steps": config.get(f"{CALLBACK}.every_n_train_steps"),
        "checkpoint.shared.seconds": hours * 3600 + minutes * 60 + seconds if interval else None,
    }


TABLE = Table(
    "Lightning",
    "lightning 2.6.6",
    (
        Same("seed", "seed_everything"),
        Same("steps", "trainer.max_steps", -1),
        Elsewhere(("model",), "the script builds the model"),
        Computed(
            ("layout.dp_shard", "layout.dp_replicate", "layout.tp", "layout.sharding", "resilience.timeouts.collective"),
            (
                _STRATEGY,
                *(
                    f"{_INIT}.{key}"
                    for key in ("sharding_strategy", "device_mesh", "data_parallel_size", "tensor_parallel_size", "timeout")
                ),
            ),
            _strategy,
            _strategy_back,
            _strategy_objection,
        ),
        Lacks(
            ("layout.pp", "layout.cp", "layout.ep"),
            (1,),
            "has no strategy with this axis",
            "set it to 1, or use the trainer `torchtitan` or `megatron`",
        ),
        Elsewhere(("layout.sequence_parallel",), "the module's own plan (`configure_model`)"),
        Lacks(("layout.schedule",), (), "has no pipeline"),
        Lacks(("layout.virtual_stages",), (1,), "has no pipeline"),
        Computed(("batch.global",), ("trainer.accumulate_grad_batches",), _accumulation, _no_batch),
        Elsewhere(("batch.micro",), "the script's data loader"),
        Elsewhere(("batch.sequence",), "the script's data has sequences of a length"),
        Computed(
            ("precision.compute", "precision.parameters"),
            ("trainer.precision",),
            _precision,
            _precision_back,
            _precision_objection,
        ),
        Lacks(("precision.reduce",), (), "sums gradients in the format that its strategy has them in"),
        Elsewhere(("recompute",), "the script's module"),
        Elsewhere(("compile",), "the script calls `torch.compile`"),
        Lacks(("overlap.parameters", "overlap.gradients"), (True,), "leaves it to FSDP and DDP, which do"),
        Lacks(("overlap.tensor", "overlap.pipeline", "overlap.experts"), (False,), "overlaps none of these by a switch"),
        Same("optimizer.lr", f"{_ADAMW}.lr", 1e-3),
        Computed(("optimizer.beta1", "optimizer.beta2"), (f"{_ADAMW}.betas",), _betas, _betas_back),
        Same("optimizer.eps", f"{_ADAMW}.eps", 1e-8),
        Same("optimizer.weight_decay", f"{_ADAMW}.weight_decay", 0.01),
        Same("optimizer.clip_norm", "trainer.gradient_clip_val"),
        Elsewhere(
            ("optimizer.warmup_steps", "optimizer.schedule", "optimizer.decay_steps", "optimizer.min_lr_ratio"),
            "the script's module: LightningCLI would step a schedule once an epoch",
        ),
        Computed(
            ("checkpoint.shared.steps", "checkpoint.shared.seconds"),
            tuple(
                f"{CALLBACK}.{key}"
                for key in ("every_n_train_steps", "train_time_interval", "dirpath", "save_last", "save_top_k")
            ),
            _saves,
            _saves_back,
        ),
        Elsewhere(("checkpoint.keep",), "keeps every checkpoint"),
    ),
    _own,
)
