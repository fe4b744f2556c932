"""Defines AdamW with its learning rate as a pure function of the step, and the clipping of gradients over all ranks."""

import math
from math import prod

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from headway.runner.contract import Optimizer


def make_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.AdamW:
    """Return AdamW; matrices decay, norms do not (the usual split)."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    # One kernel instead of a dozen passes over parameters and moments. On CPUs torch's own choice: the sums differ.
    fused = True if parameters[0].is_cuda else None
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=fused)


def set_hyperparameters(optimizer: torch.optim.AdamW, config: Optimizer, step: int, steps: int) -> None:
    """Set the values for optimizer step `step` (0-based) of `steps`: a history may change them at any step."""
    for group, decay in zip(optimizer.param_groups, (config.weight_decay, 0.0), strict=True):
        group.update(
            lr=learning_rate(config, step, steps), betas=(config.beta1, config.beta2), eps=config.eps, weight_decay=decay
        )


def learning_rate(config: Optimizer, step: int, steps: int) -> float:
    """Return the rate of optimizer step `step` (0-based) of `steps`: linear warm-up, then the schedule; where it decays, the
    last step has `min_lr_ratio * lr`."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    first = config.warmup_steps
    if config.schedule == "wsd":
        # Warm-up, stable, decay (arXiv 2404.06395, section 4): the first step below the peak is the first of the decay.
        first = max(first, steps - 1 - (config.decay_steps or 0))
    progress = min(1.0, max(0, step - first) / max(1, steps - 1 - first))
    match config.schedule:
        case "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * progress))
        case "linear" | "wsd":
            left = 1.0 - progress
        case "constant":
            left = 1.0
        case unknown:
            raise ValueError(f"run.json: the schedule {unknown!r} of the learning rate is unknown")
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * left)


@torch.no_grad()
def clip_gradients(model: nn.Module, limit: float, device: torch.device) -> torch.Tensor:
    """Scale all gradients so that their norm over the whole model is at most `limit`. Returns the norm before; collective
    over all ranks.

    A rank adds up the squares of its shards, each divided by the number of ranks that hold the same one. The sum of that
    over all ranks is the whole model's, whatever the meshes, and also over pipeline stages, which share no mesh.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    shards = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    total = torch.zeros((), dtype=torch.float64, device=device)
    for norm, gradient in zip(torch._foreach_norm(shards, dtype=torch.float32), gradients, strict=True):
        total += norm.double().square() / _copies(gradient)
    dist.all_reduce(total)
    norm = total.sqrt().float()
    # The same constant as torch.nn.utils.clip_grad_norm_.
    torch._foreach_mul_(shards, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _copies(gradient: torch.Tensor) -> int:
    """Return how many ranks hold the same shard."""
    if not isinstance(gradient, DTensor):
        return dist.get_world_size()
    axes = enumerate(gradient.placements)
    return prod(gradient.device_mesh.size(axis) for axis, placement in axes if isinstance(placement, Replicate))
