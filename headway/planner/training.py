"""Describes a training step for the planner: a model, the layout of its ranks, its batch, and its hardware."""

from functools import cached_property
from typing import Literal

from msgspec import Struct

from headway.jobspec.catalog.gpus import Gpu
from headway.jobspec.resolve.model import ModelSizes
from headway.jobspec.spec.layout import Sharding
from headway.planner.framework import Framework

Recompute = Literal["none", "selective", "full"]
Verdict = Literal["fits", "tight", "does not fit"]


class Network(Struct, frozen=True):
    """The network of the GPUs. Rates are bytes a second that one GPU sends, in one direction, at the links' nominal speed.

    `scale_up_domain` GPUs reach each other over NVLink (or Infinity Fabric); the others over adapters, whose speed the GPUs of a node share
    alike. Of what comes into a leaf from below, 1 in `oversubscription` fits through its links up. Without `gpu_direct` all that passes an
    adapter is copied through the host's memory.
    """

    gpus_per_node: int
    scale_up_domain: int
    scale_up_bytes_s: float
    scale_out_bytes_s: float
    adapters_per_node: int
    transport: str
    oversubscription: float = 1.0
    gpu_direct: bool = True


class Degrees(Struct, frozen=True):
    """The layout of the ranks, `tp` innermost, then `cp`, `dp_shard`, `dp_replicate` and `pp`; experts fold over (dp_shard, cp, tp).

    `sharding` is what is split over the dp_shard x cp ranks: nothing (DDP), the optimizer's state (ZeRO-1, Megatron's distributed
    optimizer), gradients too (ZeRO-2), or parameters too (ZeRO-3, FSDP). `expert_tp` splits the matrices of one expert. A rank holds
    `chunks` stages (virtual pipeline stages); `schedule` is a name of torch.distributed.pipelining.
    """

    pp: int = 1
    chunks: int = 1
    schedule: str = "1F1B"
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    sequence_parallel: bool = False
    ep: int = 1
    expert_tp: int = 1
    sharding: Sharding = "parameters"

    @property
    def dp(self) -> int:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def gpus(self) -> int:
        """All ranks."""
        return self.pp * self.dp * self.cp * self.tp


class Formats(Struct, frozen=True):
    """Number formats: what matrices are multiplied in (`fp32`, `bf16`, `fp16`, `fp8`, `mxfp8`, `nvfp4`), what the optimizer keeps, what
    gradients are summed in over the ranks (`fp32`, `bf16`, `fp16`), what the optimizer's two moments are; None is the framework's own
    choice."""

    compute: str = "bf16"
    parameters: str | None = None
    reduce: str | None = None
    moments: str | None = None


class Kernels(Struct, frozen=True):
    """The kernels, as far as they change the cost.

    `attention`: `unfused` writes the scores to memory, `fused` only their softmax is one kernel; `flash1` to `flash3` never write them;
    None is the framework's own. `norm`, `loss`: whether the norm, and the loss after the output layer, are one kernel each. `dispatcher` of
    experts: `alltoall`, `allgather`, `deepep`, ... ; `compiled` is torch.compile; None is the framework's own.
    """

    attention: str | None = None
    norm: bool | None = None
    loss: bool | None = None
    dispatcher: str | None = None
    compiled: bool | None = None
    graphs: bool | None = None


class Overlaps(Struct, frozen=True):
    """Communication that runs in parallel with computation; None is the framework's own choice."""

    parameters: bool | None = None
    gradients: bool | None = None
    tensor: bool | None = None
    pipeline: bool | None = None
    experts: bool | None = None


class Training(Struct, frozen=True, dict=True):
    """The training step to estimate. `micro` sequences of `sequence` tokens a forward pass of a rank, `accumulation`
    such passes a step.

    `recompute` holds for `recomputed_share` of the blocks; the others keep everything. `recomputed_parts` are the parts
    of a block that selective recomputation drops, where a framework has a setting (`attention`, `norm`, `activation`,
    `experts`, ...). Of the blocks, `windowed_share` have attention over the last `window` tokens only. `framework` is
    the profile's name, `supposed` if it is not set. `expert_load` is what the rank gets whose experts are chosen most,
    relative to the mean: 1 where the router is forced to be even.
    """

    model: ModelSizes
    gpu: Gpu
    network: Network
    degrees: Degrees
    micro: int
    accumulation: int
    sequence: int
    framework: Framework
    formats: Formats = Formats()
    recompute: Recompute = "none"
    recomputed_share: float = 1.0
    recomputed_parts: tuple[str, ...] = ()
    kernels: Kernels = Kernels()
    overlaps: Overlaps = Overlaps()
    window: int | None = None
    windowed_share: float = 0.0
    supposed: bool = False
    expert_load: float = 1.0

    @property
    def gpus(self) -> int:
        """GPUs of one rank each."""
        return self.degrees.gpus

    @property
    def sequences(self) -> int:
        """Sequences of one optimizer step."""
        return self.micro * self.accumulation * self.degrees.dp

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequences * self.sequence

    @cached_property
    def tokens_per_rank(self) -> int:
        """Tokens of a microbatch that one rank sees between tensor-parallel parts."""
        return self.micro * self.sequence // self.degrees.cp
