"""Defines a Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, gated MLP (arXiv 2302.13971, 2305.13245).

A `Transformer` is the whole decoder or one stage of a pipeline; `parallel.py` splits it over ranks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from headway.runner.checkpoint.tensors import local_tensor
from headway.runner.contract import Execution, Model
from headway.runner.train.loss import VocabularyShard, cross_entropy
from headway.runner.train.ring_attention import ring_attention


class Attention(nn.Module):
    """Causal self-attention with `kv_heads` shared key and value heads. x: (batch, sequence, hidden).

    Of heads split over `tp`, a rank sees its own; of a sequence split over `cp`, `ring` are the ranks. `documents` keeps tokens
    to their own document: the mask of `document_mask`, or in a ring (batch, whole sequence) starts of documents.
    """

    def __init__(self, config: Model, recompute: str = "none") -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.is_grouped = config.heads != config.kv_heads
        self.dropout, self.recompute = config.dropout, recompute
        self.ring: dist.ProcessGroup | None = None
        self.wq = nn.Linear(config.hidden, config.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(config.hidden, config.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(config.hidden, config.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * self.head_dim, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, documents: Tensor | None = None) -> Tensor:
        batch, sequence, _ = x.shape
        q, k, v = (
            projection(x).view(batch, sequence, -1, self.head_dim).transpose(1, 2) for projection in (self.wq, self.wk, self.wv)
        )
        if self.recompute == "selective":
            out: Tensor = checkpoint(self._attend, q, k, v, cos, sin, documents, use_reentrant=False)
        else:
            out = self._attend(q, k, v, cos, sin, documents)
        mixed: Tensor = self.wo(out.transpose(1, 2).reshape(batch, sequence, -1))
        return mixed

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, documents: Tensor | None) -> Tensor:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.ring is not None:
            mixed: Tensor = ring_attention(q, k, v, self.ring, documents)
            return mixed
        dropout = self.dropout if self.training else 0.0
        if documents is not None:
            # No fused kernel of CUDA takes both a mask and shared heads.
            k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
            return functional.scaled_dot_product_attention(q, k, v, documents, dropout_p=dropout)
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=self.is_grouped)


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x) (arXiv 2002.05202)."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden, config.ffn_hidden, bias=False)
        self.w2 = nn.Linear(config.ffn_hidden, config.hidden, bias=False)
        self.w3 = nn.Linear(config.hidden, config.ffn_hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    """One decoder layer, pre-norm. This is the unit that FSDP shards, that is compiled, and that `full` recomputes."""

    def __init__(self, config: Model, execution: Execution = Execution()) -> None:  # noqa: B008  frozen
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.attention = Attention(config, execution.recompute)
        self.ffn_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)
        self.recompute = execution.recompute
        # Not the module: FSDP's hooks stay outside of what is compiled.
        self._compute: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = (
            torch.compile(self._layer) if execution.compile else self._layer
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, documents: Tensor | None = None) -> Tensor:
        if self.recompute == "full":
            out: Tensor = checkpoint(self._compute, x, cos, sin, documents, use_reentrant=False)
            return out
        return self._compute(x, cos, sin, documents)

    def _layer(self, x: Tensor, cos: Tensor, sin: Tensor, documents: Tensor | None) -> Tensor:
        # As a keyword: the hooks of `tp` handle what is positional.
        x = x + self.dropout(self.attention(self.attention_norm(x), cos, sin, documents=documents))
        out: Tensor = x + self.dropout(self.feed_forward(self.ffn_norm(x)))
        return out


@dataclass(frozen=True)
class ModelStage:
    """A stage of a pipeline: its layers, and whether the embedding or the output layer are with them."""

    layers: range
    is_first: bool
    is_last: bool


class Transformer(nn.Module):
    """Maps tokens (batch, sequence) to logits (batch, sequence, vocab_size), or, given targets, to their mean cross-entropy.

    `starts`, (batch, whole sequence), are the places at which each token's document begins: given these, no token sees another
    document.

    As one `stage` of a pipeline it has some of the layers, under their names in the whole; only the first stage has the
    embedding, and only the last one norm and output layer. Between stages go hidden states (batch, sequence, hidden).
    """

    def __init__(self, config: Model, execution: Execution = Execution(), stage: ModelStage | None = None) -> None:  # noqa: B008
        super().__init__()
        own = stage or ModelStage(range(config.layers), is_first=True, is_last=True)
        self.config, self.is_first, self.is_last = config, own.is_first, own.is_last
        # Of a sequence that is split over `cp`, the positions of this rank: set by parallel.py, as the next.
        self.positions: Tensor | None = None
        self.vocabulary: VocabularyShard | None = None
        if self.is_first:
            self.embedding = nn.Embedding(config.vocab_size, config.hidden)
        self.layers = nn.ModuleDict({str(layer): Block(config, execution) for layer in own.layers})
        if self.is_last:
            self.norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
            self.output = nn.Linear(config.hidden, config.vocab_size, bias=False)
        self.tie()

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its layers, in order."""
        return tuple(cast("Block", layer) for layer in self.layers.values())

    def tie(self) -> None:
        """Make the output layer share the embedding's parameter, if the model is so."""
        if self.config.tie_embeddings and self.is_first and self.is_last:
            self.output.weight = self.embedding.weight

    def forward(self, x: Tensor, targets: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device) if self.positions is None else self.positions
        documents = None
        if starts is not None:
            is_split = any(block.attention.ring is not None for block in self.blocks)
            documents = starts if is_split else document_mask(starts)
            # Positions count from the beginning of the document.
            positions = positions - starts[:, positions]
        head_dim = self.config.hidden // self.config.heads
        cos, sin = rotary_tables(positions, head_dim, self.config.rope_theta)
        if self.is_first:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x, cos, sin, documents)
        if not self.is_last:
            return x
        x = self.norm(x)
        if isinstance(x, DTensor):
            # Ranks of `tp` hold parts of the sequence, or copies; each needs all of it for its part of the vocabulary.
            x = x.full_tensor()
        if targets is None:
            logits: Tensor = self.output(x)
            return logits
        return cross_entropy(x, targets, self.output, self.config.vocab_size, self.vocabulary)


def rotary_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin of position times frequency (arXiv 2104.09864, equation 15).

    For positions (sequence,) each is (sequence, head_dim / 2); for those of every sample, (batch, sequence), each is
    (batch, 1, sequence, head_dim / 2), where the 1 is for all heads.
    """
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim)
    angles = positions.float().unsqueeze(-1) * frequencies
    if positions.dim() == 2:
        angles = angles.unsqueeze(1)
    return angles.cos(), angles.sin()


def document_mask(starts: Tensor) -> Tensor:
    """Return which keys each query attends to: those of its own document up to itself, (batch, 1, sequence, sequence), boolean.

    starts: (batch, sequence), the place at which the token's document begins.
    """
    places = torch.arange(starts.shape[1], device=starts.device)
    is_same = starts.unsqueeze(2) == starts.unsqueeze(1)
    return (is_same & (places.unsqueeze(1) >= places)).unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[..., i], x[..., i + head_dim / 2]) by its position's angle. x: (batch, heads, sequence, head_dim)."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).type_as(x)


@torch.no_grad()
def initialize(model: nn.Module, config: Model, seed: int) -> None:
    """Fill all parameters, sharded or not, from (seed, name): the values do not depend on the layout.

    Normal with standard deviation 0.02, the projections into the residual stream by 1 / sqrt(2 * layers) less (GPT-2's
    rule), norms 1.
    """
    for name, parameter in model.named_parameters():
        local = local_tensor(parameter)
        if parameter.dim() == 1:
            local.data.fill_(1.0)
            continue
        deviation = 0.02 / math.sqrt(2 * config.layers) if name.endswith(("wo.weight", "w2.weight")) else 0.02
        generator = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(name.encode(), seed=seed) >> 1)
        whole = torch.empty(local.shape).normal_(0.0, deviation, generator=generator)
        place = tuple(slice(offset, offset + length) for offset, length in zip(local.box.offset, local.box.shape, strict=True))
        local.data.copy_(whole[place])
