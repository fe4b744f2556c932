"""Describes what each framework can run of a layout: axes, pipeline schedules, and how layers are assigned to stages.

A search excludes layouts that a framework refuses. Settings that this table does not have are allowed.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.resolve.model import ModelSizes
from headway.jobspec.spec.layout import Schedule, Sharding
from headway.planner.framework import Framework

Split = Literal["any", "ends", "even"]

_ALL = frozenset({"pp", "dp_replicate", "cp", "tp", "ep"})
_BOTH = (True, False)


class Abilities(Struct, frozen=True):
    """The layouts that a framework supports.

    `axes` may be larger than 1 in addition to `dp_shard`. `split` is the numbers of stages that the layers can be put
    on: `any`; those that divide the layers (`even`); or those that divide them when embedding and output layer may
    count as a layer each (`ends`). With `rounds`, an interleaved schedule requires a microbatch for each pipeline rank.
    `expert_sequence_parallel`: a model with experts splits the sequence over `tp`. Of a model's state, data-parallel ranks split
    `sharding` by default, `shardings` by a switch, and `pipelined` where they split parameters too and there is a pipeline.
    With `whole`, nothing is copied to fit: `tp` divides key and value heads and the vocabulary, a model whose output layer is its
    embedding has no pipeline, and one with dropout no `cp`.
    `laid_out`: a script can assign the layers to the stages itself, which no search tries. `selective` are the parts of a block
    (`Training.recomputed_parts`) that its own selective recomputation drops.
    """

    axes: frozenset[str] = _ALL
    schedules: tuple[Schedule, ...] = get_args(Schedule)
    sequence_parallel: tuple[bool, ...] = _BOTH
    split: Split = "any"
    laid_out: bool = False
    rounds: bool = False
    expert_sequence_parallel: bool = False
    sharding: Sharding = "parameters"
    pipelined: Sharding = "parameters"
    shardings: tuple[Sharding, ...] = ()
    whole: bool = False
    selective: tuple[str, ...] = ("attention",)


# Layers, sequence parallelism of experts: NVIDIA/Megatron-LM: megatron/training/arguments.py (`account_for_embedding_in_pipeline_split`);
# rounds: megatron/core/pipeline_parallel/schedules.py, "should range in [PP, M]"; what is split: docs of Megatron-FSDP,
# `--data-parallel-sharding-strategy`. Llama 3 was trained with gradients split too (arXiv 2407.21783, section 3.3.2).
_MEGATRON = Abilities(
    schedules=("1F1B", "Interleaved1F1B"),
    split="ends",
    # `--decoder-first-pipeline-num-layers` and `--pipeline-model-parallel-layout`.
    laid_out=True,
    rounds=True,
    expert_sequence_parallel=True,
    # The distributed optimizer.
    sharding="optimizer",
    shardings=("optimizer", "gradients"),
)
# With a pipeline, FSDP2 keeps parameters from the first forward to the last backward, and gradients whole until then:
# pytorch/torchtitan: torchtitan/distributed/fsdp.py (reshard_after_forward_policy), pytorch/pytorch: torch/distributed/pipelining/stage.py
# (set_requires_gradient_sync).
_FSDP2 = Abilities(pipelined="optimizer")
# Only data parallelism, sharded over all ranks or over groups of them.
_SHARDED = Abilities(axes=frozenset({"dp_replicate"}))
_OF: Mapping[Framework, Abilities] = {
    # runner/train/parallel.py; what templates/trainers/builtin/check.py refuses is `whole`.
    "headway": replace(_FSDP2, axes=_ALL - {"ep"}, shardings=("optimizer", "gradients", "parameters"), whole=True),
    "kempner-forge": _FSDP2,
    "automodel": _FSDP2,
    # pytorch/torchtitan: torchtitan/models/llama3/infra/parallelize.py, apply_tp: its plan splits the sequence. What its selective
    # recomputation keeps by operators: torchtitan/distributed/activation_checkpoint.py.
    "torchtitan": replace(_FSDP2, sequence_parallel=(True,), selective=("matmuls",)),
    "megatron": _MEGATRON,
    "megatron-fsdp": replace(_MEGATRON, sharding="parameters", shardings=("optimizer", "gradients", "parameters")),
    # NVIDIA/Megatron-LM v2.5 and v3.0: megatron/arguments.py, neither context parallelism nor experts.
    "megatron-2021": replace(
        _MEGATRON, axes=frozenset({"pp", "tp"}), split="even", laid_out=False, sharding="none", shardings=()
    ),
    # bigscience-workshop/Megatron-DeepSpeed: PipelineModule, layers split by type with the embedding (`type:transformer|embedding`).
    "megatron-deepspeed": Abilities(
        axes=frozenset({"pp", "tp"}), schedules=("1F1B",), sequence_parallel=(False,), split="ends", sharding="optimizer"
    ),
    # deepspeedai/DeepSpeed: deepspeed/runtime/pipe/engine.py, "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism".
    # deepspeedai/DeepSpeed: docs/_pages/config-json.md, `zero_optimization.stage`.
    "deepspeed": replace(_SHARDED, axes=frozenset(), shardings=("optimizer", "gradients", "parameters")),
    # DBRX, by MegaBlocks in mosaicml/llm-foundry: pytorch.org/blog/training-moes.
    "composer": replace(_SHARDED, axes=frozenset({"dp_replicate", "ep"})),
    "fms-fsdp": _SHARDED,
    # huggingface/nanotron: src/nanotron/parallel/pipeline_parallel/engine.py, all forward all backward, and 1F1B.
    "nanotron": Abilities(axes=frozenset({"pp", "tp", "ep"}), schedules=("1F1B", "GPipe"), sharding="optimizer"),
    "internevo": Abilities(schedules=("1F1B", "Interleaved1F1B"), split="ends", sharding="optimizer"),
    # arXiv 2311.05610, section 3.
    "aleph": Abilities(axes=frozenset({"pp", "tp"}), schedules=("1F1B",), split="even", sharding="optimizer"),
}


def abilities(framework: Framework) -> Abilities:
    """Return what the framework can run; all that torch can where nothing is known of it."""
    return _OF.get(framework, Abilities())


def sharding_of(framework: Framework, sharding: Sharding, pp: int) -> Sharding:
    """Return what data-parallel ranks split for the length of a step, for the setting `sharding`."""
    able = abilities(framework)
    # A pipeline that keeps parameters keeps gradients too.
    kept = ("gradients", "parameters") if able.pipelined == "optimizer" else ("parameters",)
    return able.pipelined if pp > 1 and sharding in kept else sharding


def setting_of(framework: Framework, sharding: Sharding) -> Sharding | None:
    """Return the value of `layout.sharding` with which data-parallel ranks split `sharding` for the length of a step; None
    where the framework has no switch."""
    return sharding if abilities(framework).shardings else None


def objection(framework: Framework, model: ModelSizes, axis: str, degree: int) -> str | None:
    """Return why the framework does not put the model onto so many ranks of an axis that it has; None if it does."""
    if degree == 1 or not abilities(framework).whole:
        return None
    if axis == "tp" and (model.kv_heads % degree or model.vocab_size % degree):
        return f"tp {degree} does not divide {model.kv_heads} key and value heads and {model.vocab_size} tokens, as {framework} requires"
    if axis == "pp" and model.tie_embeddings:
        return f"pp {degree}: {framework} keeps an embedding and an output layer that are one on one rank"
    if axis == "cp" and model.dropout:
        return f"cp {degree}: {framework} has no dropout in attention over split sequences"
    return None
