"""Computes the cross-entropy piece by piece, so that the logits of a whole batch are never in memory, over a vocabulary that
ranks of `tp` may have split."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# Logits of one piece on a rank: 1 GiB in fp32.
PIECE_LOGITS = 1 << 28


@dataclass(frozen=True)
class VocabularyShard:
    """The ranks of `tp` that have split the vocabulary, and the first token of this one."""

    group: dist.ProcessGroup
    first: int


def cross_entropy(
    hidden: Tensor, targets: Tensor, output: nn.Module, vocab_size: int, shard: VocabularyShard | None, limit: int = PIECE_LOGITS
) -> Tensor:
    """Return the mean cross-entropy over all targets, in fp32.

    hidden: (batch, sequence, hidden); targets: (batch, sequence); `output` maps to this rank's logits. If there are more than
    `limit` logits, each piece of the sequence is computed again in the backward pass.
    """
    ranks = 1 if shard is None else shard.group.size()
    pieces = -(-targets.numel() * vocab_size // (limit * ranks))
    if pieces == 1:
        return _sum_of_piece(hidden, targets, output, shard) / targets.numel()
    parts = zip(hidden.chunk(pieces, dim=1), targets.chunk(pieces, dim=1), strict=True)
    sums = [checkpoint(_sum_of_piece, *part, output, shard, use_reentrant=False) for part in parts]
    return torch.stack(sums).sum() / targets.numel()


def _sum_of_piece(hidden: Tensor, targets: Tensor, output: nn.Module, shard: VocabularyShard | None) -> Tensor:
    logits, wanted = output(hidden).flatten(0, 1).float(), targets.flatten()
    if shard is None:
        return functional.cross_entropy(logits, wanted, reduction="sum")
    losses: Tensor = _SplitCrossEntropy.apply(logits, wanted, shard)  # type: ignore[no-untyped-call]
    return losses.sum()


class _SplitCrossEntropy(torch.autograd.Function):
    """Cross-entropy of each token over logits of which each rank has some columns (arXiv 1909.08053, section 3): the ranks
    exchange three numbers for each token instead of its logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, shard: VocabularyShard) -> Tensor:
        largest = logits.max(dim=-1).values
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=shard.group)
        shifted = logits - largest.unsqueeze(-1)
        is_here = (targets >= shard.first) & (targets < shard.first + logits.shape[-1])
        column = torch.where(is_here, targets - shard.first, 0).unsqueeze(-1)
        chosen = torch.where(is_here, shifted.gather(-1, column).squeeze(-1), 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack((exponentials.sum(dim=-1), chosen))
        dist.all_reduce(sums, group=shard.group)
        total, chosen = sums
        ctx.save_for_backward(exponentials.div_(total.unsqueeze(-1)), is_here, column)
        losses: Tensor = total.log() - chosen
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the softmax less 1 at the target, times the gradient."""
        shares, is_here, column = ctx.saved_tensors
        found = shares.scatter_add(-1, column, -is_here.to(shares.dtype).unsqueeze(-1))
        return found.mul_(gradients[0].unsqueeze(-1)), None, None
