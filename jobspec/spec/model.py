"""Defines the model that a job trains: a preset of the catalogue, a config.json, or its sizes."""

from typing import Literal

from pydantic import Field

from headway.jobspec.spec.section import Section


class Experts(Section):
    """A mixture of experts in place of the MLP."""

    count: int = Field(ge=2, le=65536, examples=[128])
    """Routed experts of one block."""
    top_k: int = Field(ge=1, le=1024, examples=[8])
    """Routed experts that each token goes through."""
    ffn_hidden: int = Field(ge=1, examples=[1536])
    """Inner width of one routed expert."""
    shared: int = Field(0, ge=0, le=64, examples=[1])
    """Experts that every token goes through."""
    shared_ffn_hidden: int | None = Field(None, ge=1, examples=[2048])
    """Inner width of one shared expert; a routed one's when left out."""
    first_dense: int = Field(0, ge=0, examples=[3])
    """Blocks at the beginning that have a plain MLP and no experts."""
    every: int = Field(1, ge=1, examples=[2])
    """Of the blocks after those, every n-th has experts, starting with the n-th; 1 means all."""


class LatentAttention(Section):
    """Multi-head latent attention (arXiv 2405.04434, section 2.1)."""

    q_rank: int | None = Field(None, ge=1, examples=[1536])
    """Width that queries are compressed to; not compressed when left out."""
    kv_rank: int = Field(ge=1, examples=[512])
    """Width that keys and values are compressed to."""
    nope_head: int = Field(ge=1, examples=[128])
    """Part of a query or key head without positions."""
    rope_head: int = Field(ge=1, examples=[64])
    """Part of a query or key head with rotary positions."""
    value_head: int = Field(ge=1, examples=[128])
    """Width of a value head."""


class Model(Section):
    """A decoder. Fields set in addition to `preset` or `config` override its values."""

    preset: str | None = Field(None, examples=["llama-3.1-70b"])
    """Name in the catalogue of published models (docs/models.md)."""
    config: str | None = Field(None, min_length=1, examples=["llama/config.json"])
    """Path of a Hugging Face `config.json`, from this document's folder."""
    vocab_size: int | None = Field(None, ge=1, examples=[256])
    """Tokens in the vocabulary."""
    layers: int | None = Field(None, ge=1, le=10_000, examples=[32])
    """Decoder blocks."""
    hidden: int | None = Field(None, ge=1, examples=[4096])
    """Width of the residual stream."""
    heads: int | None = Field(None, ge=1, examples=[32])
    """Query heads of one block."""
    kv_heads: int | None = Field(None, ge=1, examples=[8])
    """Key and value heads of one block; as many as `heads` when left out."""
    head_dim: int | None = Field(None, ge=1, examples=[128])
    """Width of one head; `hidden` / `heads` when left out, which is the only one that `builtin` takes."""
    ffn_hidden: int | None = Field(None, ge=1, examples=[14336])
    """Inner width of the MLP."""
    mlp: Literal["gated", "plain"] | None = Field(None, examples=["gated"])
    """`gated`: three matrices, as in Llama; `plain`: two, as in GPT. Gated when left out."""
    norm: Literal["rms", "layer"] | None = Field(None, examples=["rms"])
    """RMSNorm or LayerNorm. RMSNorm when left out."""
    positions: Literal["rotary", "learned", "none"] | None = Field(None, examples=["rotary"])
    """Encoding of token positions. Rotary when left out."""
    rope_theta: float | None = Field(None, gt=0, examples=[500000.0])
    """Base of the rotary positions; 10000 when left out."""
    max_positions: int | None = Field(None, ge=1, examples=[8192])
    """Longest sequence that learned positions cover."""
    norm_eps: float | None = Field(None, gt=0, examples=[1e-5])
    """Term that avoids division by zero in norms; 1e-5 when left out."""
    dropout: float | None = Field(None, ge=0, lt=1, examples=[0.1])
    """Share of activations set to zero in training; none when left out."""
    tie_embeddings: bool | None = Field(None, examples=[True])
    """Whether the output layer shares the embedding's weights; not when left out."""
    qkv_bias: bool | None = Field(None, examples=[True])
    """Whether the projections of queries, keys and values have a bias; not when left out."""
    linear_bias: bool | None = Field(None, examples=[True])
    """Whether the attention's output and the matrices of the MLP have a bias; not when left out."""
    qk_norm: bool | None = Field(None, examples=[True])
    """Whether queries and keys go through a norm with weights before attention; not when left out."""
    experts: Experts | None = Field(None, examples=[{"count": 8, "top_k": 2, "ffn_hidden": 14336}])
    """Mixture of experts; a dense model when left out."""
    latent_attention: LatentAttention | None = Field(
        None, examples=[{"kv_rank": 512, "nope_head": 128, "rope_head": 64, "value_head": 128}]
    )
    """Multi-head latent attention; plain heads when left out."""
