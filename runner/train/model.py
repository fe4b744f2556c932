"""Defines a Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, gated MLP (arXiv 2302.13971, 2305.13245)."""

import math

import torch
import xxhash
from torch import Tensor, nn
from torch.nn import functional

from headway.runner.checkpoint.tensors import local_tensor
from headway.runner.contract import Model


class Attention(nn.Module):
    """Causal self-attention with `kv_heads` shared key and value heads. x: (batch, sequence, hidden)."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.hidden // config.heads
        self.dropout = config.dropout
        self.wq = nn.Linear(config.hidden, config.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(config.hidden, config.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(config.hidden, config.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * self.head_dim, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        q, k, v = (
            projection(x).view(batch, sequence, heads, self.head_dim).transpose(1, 2)
            for projection, heads in ((self.wq, self.heads), (self.wk, self.kv_heads), (self.wv, self.kv_heads))
        )
        out = functional.scaled_dot_product_attention(
            rotate(q, cos, sin),
            rotate(k, cos, sin),
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            enable_gqa=self.heads != self.kv_heads,
        )
        mixed: Tensor = self.wo(out.transpose(1, 2).reshape(batch, sequence, -1))
        return mixed


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
    """One decoder layer, pre-norm. This is the unit that FSDP shards."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), cos, sin))
        out: Tensor = x + self.dropout(self.feed_forward(self.ffn_norm(x)))
        return out


class Transformer(nn.Module):
    """Maps tokens (batch, sequence) to logits (batch, sequence, vocab_size)."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.output = nn.Linear(config.hidden, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        head_dim = self.config.hidden // self.config.heads
        cos, sin = rotary_tables(tokens.shape[1], head_dim, self.config.rope_theta, tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits: Tensor = self.output(self.norm(x))
        return logits


def rotary_tables(sequence: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cos and sin of position times frequency, each (sequence, head_dim / 2) (arXiv 2104.09864, equation 15)."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(sequence, device=device, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


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
