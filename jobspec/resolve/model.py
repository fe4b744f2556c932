"""Resolves a model's spec into its sizes, and counts its parameters part by part."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from headway.jobspec.catalog.huggingface import read_config
from headway.jobspec.catalog.models import preset
from headway.jobspec.spec.model import Experts, Model
from headway.runner import contract

ROPE_THETA = 10_000.0
NORM_EPS = 1e-5


class ExpertSizes(Struct, frozen=True):
    """Experts in place of the MLP: block `first_dense` + `every` - 1 (from 0) has them, and each `every`-th one after it."""

    count: int
    top_k: int
    ffn_hidden: int
    shared: int
    shared_ffn_hidden: int
    first_dense: int
    every: int


class LatentAttentionSizes(Struct, frozen=True):
    """Multi-head latent attention (arXiv 2405.04434, section 2.1). Queries are not compressed where `q_rank` is None."""

    q_rank: int | None
    kv_rank: int
    nope_head: int
    rope_head: int
    value_head: int


class ModelSizes(Struct, frozen=True):
    """A decoder. Counts of parameters are of trained numbers: weights, biases, and what the norms scale and shift by.

    `ffn_hidden` is the width of the plain MLP, 0 where every block has experts. `head_dim` is the width of a query and key head; with
    latent attention a value head has a width of its own. `max_positions` is None unless positions are learned.
    """

    vocab_size: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    mlp: str
    norm: str
    positions: str
    rope_theta: float
    max_positions: int | None
    norm_eps: float
    dropout: float
    tie_embeddings: bool
    qkv_bias: bool
    linear_bias: bool
    qk_norm: bool
    experts: ExpertSizes | None
    latent_attention: LatentAttentionSizes | None

    def has_experts(self, layer: int) -> bool:
        """Return whether the block, counted from 0, has experts."""
        experts = self.experts
        return experts is not None and layer >= experts.first_dense and (layer - experts.first_dense + 1) % experts.every == 0

    @property
    def expert_layers(self) -> int:
        """Blocks that have experts."""
        return 0 if self.experts is None else _expert_layers(self.layers, self.experts)

    @property
    def parameters(self) -> int:
        """All parameters: embedding, blocks, the last norm, output layer."""
        dense = self.layers - self.expert_layers
        return (
            self.embedding_parameters
            + self.layers * (self.attention_parameters + 2 * self.norm_parameters)
            + dense * self.mlp_parameters
            + self.expert_layers * self.moe_parameters
            + self.norm_parameters
            + self.output_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that a token goes through: all but the routed experts that are not chosen for it. The embedding counts whole."""
        if self.experts is None:
            return self.parameters
        return self.parameters - self.expert_layers * (self.experts.count - self.experts.top_k) * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Vectors of the tokens, and of the positions where they are learned."""
        return (self.vocab_size + (self.max_positions or 0)) * self.hidden

    @property
    def output_parameters(self) -> int:
        """The output layer's own, none where it shares the embedding's."""
        return 0 if self.tie_embeddings else self.vocab_size * self.hidden

    @property
    def norm_parameters(self) -> int:
        """Return the parameters of one norm over the residual stream: a scale, and for LayerNorm a shift."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    @property
    def attention_parameters(self) -> int:
        """Return the parameters of one block's attention: the projections of queries, keys, values and of the output;
        the norms of queries and keys."""
        if self.latent_attention is not None:
            return self._latent_attention_parameters(self.latent_attention)
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        qkv = _linear(self.hidden, queries + 2 * keys, self.qkv_bias)
        norms = 2 * self.head_dim if self.qk_norm else 0
        return qkv + norms + _linear(queries, self.hidden, self.linear_bias)

    @property
    def mlp_parameters(self) -> int:
        """Return the parameters of one block with a plain MLP."""
        return self._mlp(self.ffn_hidden)

    @property
    def expert_parameters(self) -> int:
        """Return the parameters of one routed expert; 0 in a dense model."""
        return 0 if self.experts is None else self._mlp(self.experts.ffn_hidden)

    @property
    def moe_parameters(self) -> int:
        """Return the parameters of one block with experts: the router, all routed experts, the shared ones."""
        experts = self.experts
        if experts is None:
            return 0
        shared = experts.shared * self._mlp(experts.shared_ffn_hidden)
        return self.hidden * experts.count + experts.count * self.expert_parameters + shared

    def _mlp(self, width: int) -> int:
        """Return two matrices into the width when gated (arXiv 2002.05202), one when plain, and one back."""
        into = 2 if self.mlp == "gated" else 1
        return into * _linear(self.hidden, width, self.linear_bias) + _linear(width, self.hidden, self.linear_bias)

    def _latent_attention_parameters(self, latent: LatentAttentionSizes) -> int:
        """Down- and up-projections with a norm between them (arXiv 2405.04434, equations 9 to 19)."""
        queries = self.heads * (latent.nope_head + latent.rope_head)
        if latent.q_rank is None:
            q = self.hidden * queries
        else:
            q = self.hidden * latent.q_rank + latent.q_rank + latent.q_rank * queries
        down = self.hidden * (latent.kv_rank + latent.rope_head) + latent.kv_rank
        up = latent.kv_rank * self.heads * (latent.nope_head + latent.value_head)
        return q + down + up + self.heads * latent.value_head * self.hidden


class UnknownPresetError(Exception):
    """The catalogue has no such preset."""


class MissingSizeError(Exception):
    """A model has no value for some sizes; the text is their names."""


def described(model: Model, folder: Path) -> Model:
    """Return the description by the preset, or by the config.json at its path from `folder`, overridden by the model's
    own fields.

    Raises UnknownPresetError and ConfigError.
    """
    base = _base(model, folder)
    own = {name: value for name, value in model if value is not None}
    return base.model_copy(update=own)


def _base(model: Model, folder: Path) -> Model:
    if model.config is not None:
        return read_config(folder, model.config)
    if model.preset is None:
        return model
    try:
        return preset(model.preset).model
    except KeyError:
        raise UnknownPresetError(model.preset) from None


def missing_sizes(model: Model) -> list[str]:
    """Return the missing sizes of a described model that have no default."""
    return [name for name in _needed(model) if getattr(model, name) is None]


def _needed(model: Model) -> Iterator[str]:
    yield from ("vocab_size", "layers", "hidden", "heads")
    if has_dense_layers(model):
        yield "ffn_hidden"
    if model.positions == "learned":
        yield "max_positions"


def has_dense_layers(model: Model) -> bool:
    """Return whether a block of the described model has a plain MLP."""
    return model.experts is None or model.experts.first_dense > 0 or model.experts.every > 1


def expert_layers(model: Model) -> int:
    """Return blocks of the described model that have experts."""
    return 0 if model.experts is None or model.layers is None else _expert_layers(model.layers, model.experts)


def resolve_model(model: Model, folder: Path) -> ModelSizes:
    """Return the sizes of a model that passed its checks. Raises UnknownPresetError, ConfigError and MissingSizeError."""
    whole = described(model, folder)
    vocab_size, layers, hidden, heads = whole.vocab_size, whole.layers, whole.hidden, whole.heads
    if vocab_size is None or layers is None or hidden is None or heads is None or missing_sizes(whole):
        raise MissingSizeError(", ".join(missing_sizes(whole)))
    latent = _latent(whole)
    return ModelSizes(
        vocab_size=vocab_size,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else whole.kv_heads or heads,
        head_dim=latent.nope_head + latent.rope_head if latent else whole.head_dim or hidden // heads,
        ffn_hidden=(whole.ffn_hidden or 0) if has_dense_layers(whole) else 0,
        mlp=whole.mlp or "gated",
        norm=whole.norm or "rms",
        positions=whole.positions or "rotary",
        rope_theta=whole.rope_theta or ROPE_THETA,
        max_positions=whole.max_positions if whole.positions == "learned" else None,
        norm_eps=whole.norm_eps or NORM_EPS,
        dropout=whole.dropout or 0.0,
        tie_embeddings=bool(whole.tie_embeddings),
        qkv_bias=bool(whole.qkv_bias),
        linear_bias=bool(whole.linear_bias),
        qk_norm=bool(whole.qk_norm),
        experts=_experts(whole),
        latent_attention=latent,
    )


def as_decoder(sizes: ModelSizes) -> contract.Model | str:
    """Return the model as the builtin trainer's decoder, or the features that this decoder does not support."""
    other = [feature for feature, there in _beyond_llama(sizes).items() if there]
    if other:
        return ", ".join(other)
    return contract.Model(
        vocab_size=sizes.vocab_size,
        layers=sizes.layers,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        ffn_hidden=sizes.ffn_hidden,
        rope_theta=sizes.rope_theta,
        norm_eps=sizes.norm_eps,
        dropout=sizes.dropout,
        tie_embeddings=sizes.tie_embeddings,
    )


def _beyond_llama(sizes: ModelSizes) -> dict[str, bool]:
    return {
        "experts": sizes.experts is not None,
        "latent attention": sizes.latent_attention is not None,
        "a plain MLP": sizes.mlp == "plain",
        "LayerNorm": sizes.norm == "layer",
        f"{sizes.positions} positions": sizes.positions == "learned",
        "no positions": sizes.positions == "none",
        "biases": sizes.qkv_bias or sizes.linear_bias,
        "a norm of queries and keys": sizes.qk_norm,
        "heads that do not make up `hidden`": sizes.heads * sizes.head_dim != sizes.hidden and sizes.latent_attention is None,
    }


def _linear(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _expert_layers(layers: int, experts: ExpertSizes | Experts) -> int:
    return max(0, layers - experts.first_dense) // experts.every


def _experts(model: Model) -> ExpertSizes | None:
    experts = model.experts
    if experts is None:
        return None
    return ExpertSizes(
        count=experts.count,
        top_k=experts.top_k,
        ffn_hidden=experts.ffn_hidden,
        shared=experts.shared,
        shared_ffn_hidden=experts.shared_ffn_hidden or experts.ffn_hidden,
        first_dense=experts.first_dense,
        every=experts.every,
    )


def _latent(model: Model) -> LatentAttentionSizes | None:
    return None if model.latent_attention is None else LatentAttentionSizes(**model.latent_attention.model_dump())
