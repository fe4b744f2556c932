"""Puts the model onto the ranks: one DeviceMesh, and each axis of it in its own function, from the innermost out.

`pp` cuts the model into stages, `tp` splits matrices, `cp` splits sequences, and the data-parallel ranks of `dp_replicate`,
`dp_shard` and `cp` replicate or split what is left.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from headway.runner.checkpoint.format import UnfitError
from headway.runner.contract import Execution, Mesh, Model, coordinates
from headway.runner.train.loss import VocabularyShard
from headway.runner.train.model import ModelStage, Transformer, initialize
from headway.runner.train.ring_attention import held_positions

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class RankMesh:
    """This rank among all of the job. `root` has the axes of more than one rank, `data` those that replicate (`dp_replicate`,
    first) and split (`dp_shard`) the model."""

    degrees: Mesh
    at: dict[str, int]
    root: DeviceMesh
    data: DeviceMesh
    is_sharded: bool
    context: DeviceMesh | None

    @property
    def shares(self) -> int:
        """The parts of a batch: the other axes work on one part together."""
        return self.degrees.dp_replicate * self.degrees.dp_shard

    @property
    def share(self) -> int:
        """This rank's part of a batch."""
        return self.at["dp_replicate"] * self.degrees.dp_shard + self.at["dp_shard"]

    @property
    def is_first_of_share(self) -> bool:
        """Whether no other rank of the part comes before this one."""
        return self.at["pp"] == self.at["cp"] == self.at["tp"] == 0

    def axis(self, name: str) -> DeviceMesh | None:
        """Return the ranks along `pp` or `tp`; None if it has one rank."""
        return self.root[name] if getattr(self.degrees, name) > 1 else None


def make_mesh(device: str, degrees: Mesh, execution: Execution, rank: int) -> RankMesh:
    """Return the mesh of a job; collective. An axis of one rank gets no process group, which would be one for each rank."""
    data = degrees.dp_replicate * degrees.dp_shard * degrees.cp
    shard = 1 if execution.sharding == "none" else degrees.dp_shard * degrees.cp
    # With one rank in all, FSDP runs too: it converts the formats.
    is_sharded = shard > 1 or data == 1
    sizes = {"pp": degrees.pp, "dp_replicate": data // shard, "dp_shard": shard, "tp": degrees.tp}
    wanted = [name for name, size in sizes.items() if size > 1 or (name == "dp_shard" and is_sharded)]
    root = init_device_mesh(device, tuple(sizes[name] for name in wanted), mesh_dim_names=tuple(wanted))
    axes = tuple(name for name in wanted if name.startswith("dp_"))
    context = None
    if degrees.cp > 1:
        # `cp` is the inner part of the last data-parallel axis.
        outer = root[axes[-1]].size() // degrees.cp
        if not hasattr(root, "_unflatten"):
            raise UnfitError(f"a DeviceMesh of torch {torch.__version__} cannot split an axis, which `cp` needs; use torch 2.13")
        context = root._unflatten(axes[-1], (outer, degrees.cp), ("dp_outer", "cp"))["cp"]
    return RankMesh(degrees, coordinates(degrees, rank), root, root[axes], is_sharded, context)


# --- the model ----------------------------------------------------------------------------------------------------------


class Parts(nn.ModuleList):
    """The stages of one pipeline rank, or the whole model; parameters have their names in the whole model.

    `syncs`: whether backward passes reduce gradients, as FSDP does by itself.
    """

    syncs = True

    def __iter__(self) -> Iterator[Transformer]:
        yield from super().__iter__()  # type: ignore[misc]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for part in self:
            yield from part.named_parameters(*args, **kwargs)


def build(config: Model, execution: Execution, mesh: RankMesh, device: torch.device, sequence: int, seed: int) -> Parts:
    """Return this rank's shards of the model, with the values of step 0, which do not depend on the mesh."""
    with torch.device("meta"):
        parts = Parts(Transformer(config, execution, stage) for stage in own_stages(config.layers, execution, mesh))
    parts.to(DTYPES[execution.parameters])
    for part in parts:
        if (tensor := mesh.axis("tp")) is not None:
            split_matrices(part, tensor, sequence=execution.sequence_parallel)
        split_data(part, mesh, execution)
    parts.to_empty(device=device)
    for part in parts:
        # After the parameters have their device: a buffer would be emptied too.
        if mesh.context is not None:
            split_sequence(part, mesh.context, sequence, device)
        elif mesh.degrees.pp > 1 or mesh.degrees.tp > 1:
            part.positions = torch.arange(sequence, device=device)
    initialize(parts, config, seed)
    return parts


def own_stages(layers: int, execution: Execution, mesh: RankMesh) -> Iterator[ModelStage]:
    """Yield the stages of this rank; without a pipeline, the whole model."""
    count = mesh.degrees.pp * execution.virtual_stages
    sizes = stage_sizes(layers, count)
    for stage in stages_of(execution, mesh):
        first = sum(sizes[:stage])
        yield ModelStage(range(first, first + sizes[stage]), stage == 0, stage == count - 1)


def stage_sizes(layers: int, stages: int) -> list[int]:
    """Return the number of layers of each stage: each layer goes to the stage with the least so far, where the embedding
    counts next to nothing and the output layer half a layer, so that the stages between the ends have one more."""
    if stages == 1:
        return [layers]
    loads = [0.1, *[0.0] * (stages - 2), 0.5]
    sizes = [0] * stages
    for _ in range(layers):
        least = min(range(stages), key=loads.__getitem__)
        sizes[least] += 1
        loads[least] += 1
    return sizes


def stages_of(execution: Execution, mesh: RankMesh) -> tuple[int, ...]:
    """Return the stages of this rank: in rounds over the ranks, or, where the schedule is a V, there and back."""
    ranks, at = mesh.degrees.pp, mesh.at["pp"]
    if execution.schedule in ("ZBVZeroBubble", "DualPipeV") and ranks > 1:
        return at, 2 * ranks - 1 - at
    return tuple(range(at, ranks * execution.virtual_stages, ranks))


# --- each axis ----------------------------------------------------------------------------------------------------------


def split_matrices(part: Transformer, ranks: DeviceMesh, *, sequence: bool) -> None:
    """Split every matrix over `tp` (arXiv 1909.08053), and norms and dropout along the `sequence` (arXiv 2205.05198).

    A column-wise matrix computes some heads or some of the MLP's width, the row-wise one after it a partial sum.
    """
    outer = Shard(1) if sequence else Replicate()
    norm: ParallelStyle = SequenceParallel() if sequence else Replicated()
    for block in part.blocks:
        plan: dict[str, ParallelStyle] = {
            "attention_norm": norm,
            "attention": PrepareModuleInput(input_layouts=(outer, None, None), desired_input_layouts=(Replicate(), None, None)),
            **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
            "attention.wo": RowwiseParallel(output_layouts=outer),
            "ffn_norm": norm,
            "feed_forward": PrepareModuleInput(input_layouts=(outer,), desired_input_layouts=(Replicate(),)),
            **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
            "feed_forward.w2": RowwiseParallel(output_layouts=outer),
        }
        parallelize_module(block, ranks, plan)
    if part.is_first:
        parallelize_module(part, ranks, {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=outer)})
    if part.is_last:
        parallelize_module(part, ranks, {"norm": norm, "output": ColwiseParallel()})
        first = ranks.get_local_rank() * -(-part.config.vocab_size // ranks.size())
        part.vocabulary = VocabularyShard(ranks.get_group(), first)
    part.tie()


class Replicated(ParallelStyle):
    """A module that each rank of `tp` computes whole, on the same input: its parameters are on the mesh all the same."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
            return tuple(
                DTensor.from_local(each, mesh, (Replicate(),), run_check=False) if not isinstance(each, DTensor) else each
                for each in inputs
            )

        # torch's annotation is not what it calls.
        return distribute_module(module, device_mesh, input_fn=enter)  # type: ignore[arg-type]


def split_sequence(part: Transformer, ranks: DeviceMesh, sequence: int, device: torch.device) -> None:
    """Split every sequence over `cp`: attention sends keys and values round, and all else computes each token alone."""
    part.positions = held_positions(sequence, ranks.get_local_rank(), ranks.size()).to(device)
    for block in part.blocks:
        block.attention.ring = ranks.get_group()


def split_data(part: Transformer, mesh: RankMesh, execution: Execution) -> None:
    """Replicate the parameters over the data-parallel ranks, or split them, block by block.

    `replicate` and `fully_shard` are torch's DDP and FSDP over the same hooks, so that formats, gradients and saves are the
    same for both. FSDP gathers a block's parameters before it computes. With `parameters` it frees them again before the
    backward pass; a pipeline, which computes a block many times, keeps them (pytorch/torchtitan does so too).
    """
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[execution.compute], reduce_dtype=DTYPES[execution.reduce], cast_forward_inputs=False
    )
    if mesh.is_sharded:
        frees = execution.sharding == "parameters" and mesh.degrees.pp == 1
        wrap = partial(fully_shard, mesh=mesh.data, mp_policy=policy)
        wrap_block = partial(wrap, reshard_after_forward=frees)
    else:
        wrap = wrap_block = partial(_replicate(), mesh=mesh.data, mp_policy=policy)
    blocks: list[Any] = list(part.blocks)
    for block in blocks:
        wrap_block(block)
    wrap(part)
    if execution.prefetch:
        for block, following in pairwise(blocks):
            block.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([block])


def _replicate() -> Callable[..., Any]:
    """Return torch's DDP over FSDP's hooks. Raises UnfitError for a torch that does not have it."""
    try:
        from torch.distributed._composable.replicate_with_fsdp import replicate  # noqa: PLC0415
    except ImportError:
        raise UnfitError(
            f"torch {torch.__version__} has no DDP that goes with other axes; set `dp_shard`, or use torch 2.13"
        ) from None
    return replicate


def sync_gradients(parts: Parts, execution: Execution, *, is_last: bool) -> None:
    """Set whether the next backward pass reduces gradients over the data-parallel ranks: in each microbatch if they are split,
    or else in the last one of a step."""
    wanted = is_last or execution.sharding in ("gradients", "parameters")
    if parts.syncs == wanted:
        return
    parts.syncs = wanted
    for part in parts:
        assert isinstance(part, FSDPModule)  # noqa: S101
        part.set_requires_gradient_sync(wanted)
