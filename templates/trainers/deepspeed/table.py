"""The fields of a spec as DeepSpeed's JSON: deepspeedai/DeepSpeed v0.19.8, deepspeed/runtime/config.py, zero/config.py, lr_schedules.py.

DeepSpeed's configuration has no keys for steps, sequence length, checkpoints or recomputation: the script sets them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.templates.trainers.schedule import decay_words
from headway.templates.trainers.table import Computed, Config, Elsewhere, Known, Lacks, Same, Table, ValueRow

_STAGE, _ADAMW = "zero_optimization.stage", "optimizer.params"
_STAGES = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}
_KIND, _PARAMS = "scheduler.type", "scheduler.params"
_SCHEDULE_KEYS = ("total_num_steps", "warmup_num_steps", "warmup_type", "warmup_max_lr", "warmup_min_lr", "cos_min_ratio")
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"bf16.enabled": True, "fp16.enabled": None},
    "fp16": {"bf16.enabled": None, "fp16.enabled": True},
    "fp32": {"bf16.enabled": None, "fp16.enabled": None},
}


def _own(known: Known) -> dict[str, Any]:
    """Return what names the optimizer: that of a spec is AdamW."""
    if known["optimizer.lr"] is None:
        return {}
    return {"optimizer.type": "AdamW", f"{_ADAMW}.torch_adam": True, f"{_ADAMW}.adam_w_mode": True}


def _split(known: Known) -> dict[str, Any]:
    sharding = known["layout.sharding"] or "parameters"
    return {_STAGE: 0 if known["layout.dp_shard"] == 1 else _STAGES[sharding]}


def _split_back(config: Config, ranks: int) -> dict[str, Any]:
    sharding = {stage: name for name, stage in _STAGES.items()}[config.get(_STAGE, 0)]
    whole = sharding == "none"
    return {
        "layout.sharding": sharding,
        "layout.dp_shard": 1 if whole else ranks,
        "layout.dp_replicate": ranks if whole else 1,
    }


def _split_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["layout.dp_replicate"] > 1 and known["layout.dp_shard"] > 1 and known["layout.sharding"] != "none":
        yield "layout.dp_replicate", "splits over all ranks", "set `dp_replicate: 1`, or `sharding: none`"


def _accumulation(known: Known) -> dict[str, Any]:
    return {"train_batch_size": known["batch.global"], "gradient_accumulation_steps": known["batch.accumulation"]}


def _accumulation_back(config: Config, ranks: int) -> dict[str, Any]:
    whole = config.get("train_batch_size")
    micro, times = config.get("train_micro_batch_size_per_gpu"), config.get("gradient_accumulation_steps", 1)
    return {"batch.global": whole if whole or not micro else micro * times * ranks}


def _betas(known: Known) -> dict[str, Any]:
    first, second = known["optimizer.beta1"], known["optimizer.beta2"]
    return {} if first is None else {f"{_ADAMW}.betas": [first, second]}


def _betas_back(config: Config, ranks: int) -> dict[str, Any]:
    first, second = config.get(f"{_ADAMW}.betas", (0.9, 0.999))
    return {"optimizer.beta1": first, "optimizer.beta2": second}


def _schedule(known: Known) -> dict[str, Any]:
    """A warm-up in a line, which has a step at least, then the shape."""
    kind, warmup, lr = known["optimizer.schedule"], known["optimizer.warmup_steps"], known["optimizer.lr"]
    steps = {"warmup_num_steps": max(1, warmup or 0), "warmup_type": "linear"}
    ends = {"warmup_min_lr": 0.0, "warmup_max_lr": lr}
    match kind:
        case "cosine":
            found = {"total_num_steps": known["steps"], **steps, "cos_min_ratio": known["optimizer.min_lr_ratio"]}
        case "linear":
            found = {"total_num_steps": known["steps"], **steps, **ends}
        case "constant":
            found = {**steps, **ends}
        case _:
            return {}
    names = {"cosine": "WarmupCosineLR", "linear": "WarmupDecayLR", "constant": "WarmupLR"}
    return {_KIND: names[kind], **{f"{_PARAMS}.{name}": value for name, value in found.items()}}


def _schedule_back(config: Config, ranks: int) -> dict[str, Any]:
    names = {"WarmupCosineLR": "cosine", "WarmupDecayLR": "linear", "WarmupLR": "constant"}
    kind = names.get(config.get(_KIND, "WarmupLR"))
    least = config.get(f"{_PARAMS}.cos_min_ratio", 0.0001) if kind == "cosine" else 0.0
    warmup = config.get(f"{_PARAMS}.warmup_num_steps", 1000) if _KIND in config else 0
    return {**decay_words(kind, least, None), "optimizer.warmup_steps": warmup}


def _schedule_objection(known: Known) -> Iterator[tuple[str, str, str]]:
    if known["optimizer.schedule"] == "wsd":
        yield "optimizer.schedule", "has no schedule that is stable before it decays", "use `cosine`, `linear` or `constant`"
    if known["optimizer.schedule"] == "linear" and known["optimizer.min_lr_ratio"]:
        yield "optimizer.min_lr_ratio", "decays in a line to 0 only", "set `min_lr_ratio: 0`, or `schedule: cosine`"


TABLE = Table(
    "DeepSpeed",
    "DeepSpeed 0.19.8",
    (
        Elsewhere(("seed",), "the script sets it"),
        Elsewhere(("steps",), "the script's loop; the schedule's `total_num_steps` too"),
        Elsewhere(("model",), "the script builds the model"),
        Computed(
            ("layout.dp_shard", "layout.dp_replicate", "layout.sharding"),
            (_STAGE,),
            _split,
            _split_back,
            _split_objection,
        ),
        Lacks(
            ("layout.pp", "layout.cp", "layout.tp", "layout.ep"),
            (1,),
            "lays out data-parallel ranks only by its JSON: other axes are built by a script",
            "set it to 1, or use the trainer `torchtitan` or `megatron`",
        ),
        Lacks(("layout.sequence_parallel",), (False,), "has no tensor parallelism by its JSON"),
        Lacks(("layout.schedule",), (), "has no pipeline by its JSON"),
        Lacks(("layout.virtual_stages",), (1,), "has no pipeline by its JSON"),
        Computed(("batch.global",), ("train_batch_size", "gradient_accumulation_steps"), _accumulation, _accumulation_back),
        Same("batch.micro", "train_micro_batch_size_per_gpu"),
        Elsewhere(("batch.sequence",), "the script's data has sequences of a length"),
        Lacks(("precision.parameters",), ("fp32",), "updates parameters in fp32"),
        ValueRow("precision.compute", _FORMATS, "computes in fp32, bf16 or fp16"),
        ValueRow(
            "precision.reduce",
            {"fp32": {"communication_data_type": "fp32"}, "bf16": {"communication_data_type": "bf16"}},
        ),
        Elsewhere(("recompute",), "the script calls `torch.utils.checkpoint`"),
        Elsewhere(("compile",), "the script calls `engine.compile()`"),
        Lacks(("overlap.parameters",), (True,), "gathers parameters ahead where it splits them"),
        Same("overlap.gradients", "zero_optimization.overlap_comm"),
        Lacks(("overlap.tensor", "overlap.pipeline", "overlap.experts"), (False,), "has none of these axes by its JSON"),
        Same("optimizer.lr", f"{_ADAMW}.lr"),
        Computed(("optimizer.beta1", "optimizer.beta2"), (f"{_ADAMW}.betas",), _betas, _betas_back),
        Same("optimizer.eps", f"{_ADAMW}.eps", 1e-8),
        Same("optimizer.weight_decay", f"{_ADAMW}.weight_decay", 0.0),
        Same("optimizer.clip_norm", "gradient_clipping"),
        Computed(
            ("optimizer.schedule", "optimizer.warmup_steps", "optimizer.decay_steps", "optimizer.min_lr_ratio"),
            (_KIND, *(f"{_PARAMS}.{name}" for name in _SCHEDULE_KEYS)),
            _schedule,
            _schedule_back,
            _schedule_objection,
        ),
        Elsewhere(
            ("checkpoint.shared.steps", "checkpoint.shared.seconds", "checkpoint.keep"), "the script calls `save_checkpoint`"
        ),
        Elsewhere(("resilience.timeouts.collective",), "the script passes it to `deepspeed.init_distributed`"),
    ),
    _own,
)
