"""Defines how values are computed: optimizer, precision, recompute, overlap. The trainer decides what is left out."""

from typing import Literal

from pydantic import Field

from headway.jobspec.spec.section import Section
from headway.runner import contract


class Optimizer(Section):
    """AdamW with linear warm-up, then the schedule."""

    lr: float = Field(gt=0, examples=[3e-4])
    """Learning rate after the warm-up."""
    beta1: float = Field(contract.Optimizer.beta1, ge=0, lt=1, examples=[0.9])
    """Decay of the first moment."""
    beta2: float = Field(contract.Optimizer.beta2, ge=0, lt=1, examples=[0.95])
    """Decay of the second moment."""
    eps: float = Field(contract.Optimizer.eps, gt=0, examples=[1e-8])
    """Term that avoids division by zero in the update."""
    weight_decay: float = Field(contract.Optimizer.weight_decay, ge=0, examples=[0.1])
    """Decoupled weight decay."""
    clip_norm: float = Field(contract.Optimizer.clip_norm, gt=0, examples=[1.0])
    """Largest norm of the gradient over all parameters."""
    warmup_steps: int = Field(contract.Optimizer.warmup_steps, ge=0, examples=[2000])
    """Steps of linear warm-up."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] = Field("cosine", examples=["linear"])
    """Shape after the warm-up; `wsd` is constant until the last `decay_steps` (warm-up, stable, decay)."""
    decay_steps: int | None = Field(None, ge=1, examples=[10000])
    """Steps of the decay at the end of `wsd`."""
    min_lr_ratio: float = Field(contract.Optimizer.min_lr_ratio, ge=0, le=1, examples=[0.1])
    """Learning rate at the last step, as a share of `lr`."""


class Precision(Section):
    """Number formats."""

    parameters: Literal["fp32", "bf16"] | None = Field(None, examples=["fp32"])
    """Format that the optimizer keeps and updates."""
    compute: Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"] | None = Field(None, examples=["bf16"])
    """Format of matrix multiplication."""
    reduce: Literal["fp32", "bf16"] | None = Field(None, examples=["fp32"])
    """Format in which gradients are summed over the ranks."""


class Overlap(Section):
    """Communication that overlaps with computation."""

    parameters: bool | None = Field(None, examples=[True])
    """Gathering the next block's parameters."""
    gradients: bool | None = Field(None, examples=[True])
    """Reducing the gradients of the previous block."""
    tensor: bool | None = Field(None, examples=[True])
    """Tensor-parallel collectives, in pieces, in parallel with their matrix products (async TP)."""
    pipeline: bool | None = Field(None, examples=[True])
    """Sends and receives between stages."""
    experts: bool | None = Field(None, examples=[True])
    """Dispatch and combine of experts."""
