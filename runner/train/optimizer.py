"""Defines AdamW with its learning rate as a pure function of the step."""

import math

import torch
from torch import nn

from headway.runner.contract import Optimizer


def make_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.AdamW:
    """Return AdamW; matrices decay, norms do not (the usual split)."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)


def set_hyperparameters(optimizer: torch.optim.AdamW, config: Optimizer, step: int, steps: int) -> None:
    """Set the values for optimizer step `step` (0-based) of `steps`: a history may change them at any step."""
    for group, decay in zip(optimizer.param_groups, (config.weight_decay, 0.0), strict=True):
        group.update(
            lr=learning_rate(config, step, steps), betas=(config.beta1, config.beta2), eps=config.eps, weight_decay=decay
        )


def learning_rate(config: Optimizer, step: int, steps: int) -> float:
    """Return the rate of optimizer step `step` (0-based) of `steps`: linear warm-up, then a cosine down to
    `min_lr_ratio * lr`."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * cosine)
