"""The model that a job trains: a decoder of the Llama family."""

from pydantic import Field

from headway.jobspec.spec.section import Section
from headway.runner import contract


class Model(Section):
    """Sizes of the decoder."""

    vocab_size: int = Field(ge=1, examples=[256])
    """Tokens in the vocabulary."""
    layers: int = Field(ge=1, examples=[32])
    """Decoder blocks."""
    hidden: int = Field(ge=1, examples=[4096])
    """Width of the residual stream."""
    heads: int = Field(ge=1, examples=[32])
    """Query heads of one block."""
    kv_heads: int = Field(ge=1, examples=[8])
    """Key and value heads of one block."""
    ffn_hidden: int = Field(ge=1, examples=[14336])
    """Inner width of the gated MLP."""
    rope_theta: float = Field(contract.Model.rope_theta, gt=0, examples=[500000.0])
    """Base of the rotary positions."""
    norm_eps: float = Field(contract.Model.norm_eps, gt=0, examples=[1e-5])
    """Term that keeps the RMS norms away from division by zero."""
    dropout: float = Field(contract.Model.dropout, ge=0, lt=1, examples=[0.1])
    """Share of activations set to zero in training."""
    tie_embeddings: bool = Field(contract.Model.tie_embeddings, examples=[True])
    """Whether the output layer shares the embedding's weights."""
