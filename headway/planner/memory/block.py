"""Lists one block's tensors by name: those kept from the forward for the backward pass, and those made in the backward pass.

Widths follow arXiv 2205.05198, section 4, carried over to gated MLPs, grouped-query and latent attention, and experts.
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache

from msgspec import Struct

from headway.jobspec.resolve.model import ExpertSizes, LatentAttentionSizes, ModelSizes
from headway.planner.framework import Framework
from headway.planner.memory.profiles import MemoryProfile, profile
from headway.planner.training import Kernels, Training

_ELEMENT = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2, "mxfp8": 2, "nvfp4": 2}
_EIGHT_BITS = frozenset({"fp8", "mxfp8", "nvfp4"})

# What the policy by operators keeps: the block's input, attention, and every second of the matrix products, queries first
# (pytorch/torchtitan: torchtitan/distributed/activation_checkpoint.py).
_KEPT_BY_MATMULS = {
    "block input": 1.0,
    "queries": 1.0,
    "keys and values": 0.5,
    "attention output": 1.0,
    "gate": 1.0,
    "MLP input": 1.0,
}


class StoredTensor(Struct, frozen=True):
    """Something kept for the backward pass: `size` bytes for each token that the rank sees. `parts` are the names of selective
    recomputation that drop it."""

    name: str
    size: float
    parts: tuple[str, ...] = ()


class BlockKind(Struct, frozen=True, dict=True):
    """All that decides what one block keeps: with experts or without, on one rank of a layout. `sequence` matters where attention writes
    its scores."""

    model: ModelSizes
    experts: bool
    framework: Framework
    kernels: Kernels
    compute: str
    sequence: int
    tp: int
    sequence_parallel: bool
    expert_tp: int

    @classmethod
    def of(cls, training: Training, *, experts: bool) -> "BlockKind":
        """Return a block of the training's model."""
        degrees = training.degrees
        return cls(
            training.model,
            experts,
            training.framework,
            training.kernels,
            training.formats.compute,
            training.sequence,
            degrees.tp,
            degrees.sequence_parallel,
            degrees.expert_tp,
        )

    @cached_property
    def element(self) -> int:
        """Bytes of a number that is handed from one operation to the next."""
        return _ELEMENT[self.compute]

    @cached_property
    def operand(self) -> float:
        """Bytes of a number that a matrix product keeps of its input."""
        return self.profile.float8 if self.compute in _EIGHT_BITS else self.element

    @cached_property
    def profile(self) -> MemoryProfile:
        """The framework's habits."""
        return profile(self.framework)

    @cached_property
    def attention(self) -> str:
        """The attention kernel."""
        return self.kernels.attention or self.profile.attention

    @cached_property
    def writes_scores(self) -> bool:
        """Whether attention writes a number for each pair of tokens."""
        return self.attention in {"unfused", "fused"}

    @cached_property
    def outer(self) -> int:
        """Ranks that the tensors between the tensor-parallel parts are split over."""
        return self.tp if self.sequence_parallel else 1

    @cached_property
    def gathered(self) -> int:
        """Ranks that the kept inputs of the tensor-parallel parts are split over."""
        return 1 if self.profile.gathered else self.outer


class BlockBytes(Struct, frozen=True):
    """Of one block, for each token that the rank sees: its input; what it keeps, on the mean over the model's blocks; what is computed
    again for its backward pass; and the gradients at the widest of that pass. `writes_scores` as of its kind."""

    input: float
    kept: float
    again: float
    backward: float
    writes_scores: bool


def block_bytes(training: Training, *, experts: bool) -> BlockBytes:
    """Return what a block of the training holds."""
    parts = training.recomputed_parts or ("attention",)
    return _block_bytes(BlockKind.of(training, experts=experts), training.recompute, training.recomputed_share, parts)


@lru_cache(maxsize=4096)
def _block_bytes(kind: BlockKind, recompute: str, share: float, parts: tuple[str, ...]) -> BlockBytes:
    whole, size = sum(tensor.size for tensor in kept(kind)), input_bytes(kind)
    left = {"none": whole, "full": size}.get(recompute)
    if left is None:
        left = sum(_left(tensor, parts) for tensor in kept(kind))
    return BlockBytes(size, share * left + (1 - share) * whole, whole - left, _backward_bytes(kind), kind.writes_scores)


def kept(kind: BlockKind) -> tuple[StoredTensor, ...]:
    """Return the tensors of a block that recomputes nothing."""
    return tuple(tensor for tensor in _tensors(kind) if tensor.size)


def input_bytes(kind: BlockKind) -> float:
    """Return bytes a token of a block's input: all that is kept of a block that is computed again as a whole."""
    return kind.model.hidden * kind.element / kind.outer


def _left(tensor: StoredTensor, parts: tuple[str, ...]) -> float:
    """Return bytes a token of a tensor where the parts are computed again."""
    if "matmuls" in parts:
        return tensor.size * _KEPT_BY_MATMULS.get(tensor.name, 0.0)
    return 0.0 if set(tensor.parts) & set(parts) else tensor.size


def _backward_bytes(kind: BlockKind) -> float:
    """Return the residual stream's gradient, and the MLP's or those of the scores and of their softmax."""
    scores = 2 * kind.element * kind.model.heads * kind.sequence / kind.tp if kind.writes_scores else 0.0
    return input_bytes(kind) + max(_mlp_width(kind) * kind.element, scores)


def _mlp_width(kind: BlockKind) -> float:
    """Return numbers a token before the MLP's activation function."""
    model, gates = kind.model, 2 if kind.model.mlp == "gated" else 1
    if kind.experts and model.experts is not None:
        return gates * model.experts.top_k * model.experts.ffn_hidden / kind.outer
    return gates * model.ffn_hidden / kind.tp


def _tensors(kind: BlockKind) -> Iterator[StoredTensor]:
    yield StoredTensor("block input", input_bytes(kind))
    yield from _norm("attention norm", kind)
    if kind.model.latent_attention is None:
        yield from _attention(kind)
    else:
        yield from _latent_attention(kind, kind.model.latent_attention)
    yield StoredTensor("MLP input", input_bytes(kind))
    yield from _norm("MLP norm", kind)
    if kind.experts and kind.model.experts is not None:
        yield from _experts(kind, kind.model.experts)
    else:
        yield from _mlp(kind, kind.model.ffn_hidden / kind.tp, "mlp")
    if kind.profile.dropout or kind.model.dropout:
        yield StoredTensor("dropout masks", 2 * kind.model.hidden / kind.outer)


def _norm(name: str, kind: BlockKind) -> Iterator[StoredTensor]:
    """Yield the tensors that a norm keeps in addition to its input, and its output, the input of a matrix."""
    fused = kind.profile.fused_norm if kind.kernels.norm is None else kind.kernels.norm
    if not fused:
        yield StoredTensor(f"{name} in full precision", kind.profile.norm * kind.model.hidden / kind.outer, ("norm",))
    yield StoredTensor(f"{name} statistics", 4 / kind.outer)
    yield StoredTensor(f"{name} output", kind.operand * kind.model.hidden / kind.gathered, ("norm",))


def _attention(kind: BlockKind) -> Iterator[StoredTensor]:
    model, size = kind.model, kind.element / kind.tp
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield StoredTensor("queries", queries * size)
    yield StoredTensor("keys and values", 2 * keys * size)
    yield StoredTensor("copies of queries, keys and values", kind.profile.qkv * (queries + 2 * keys) * size)
    if model.qk_norm:
        yield StoredTensor("queries and keys before their norm", (queries + keys) * size, ("norm",))
    yield from _core(kind, queries)


def _latent_attention(kind: BlockKind, latent: LatentAttentionSizes) -> Iterator[StoredTensor]:
    """Yield the tensors of arXiv 2405.04434, equations 9 to 19: compressed vectors with their norms on every
    tensor-parallel rank, heads split."""
    compressed = latent.kv_rank + latent.rope_head + (latent.q_rank or 0)
    normed = latent.kv_rank + (latent.q_rank or 0)
    yield StoredTensor("compressed queries, keys and values", (compressed + normed) * kind.element / kind.outer)
    head, size = latent.nope_head + latent.rope_head, kind.model.heads * kind.element / kind.tp
    yield StoredTensor("queries", head * size, ("mla_up_proj",))
    yield StoredTensor("keys and values", (head + latent.value_head) * size, ("mla_up_proj",))
    yield from _core(kind, kind.model.heads * latent.value_head)


def _core(kind: BlockKind, values: int) -> Iterator[StoredTensor]:
    """Yield the scores where they are written, else what the softmax was divided by; and the output, of `values` numbers."""
    heads, habits = kind.model.heads, kind.profile
    if kind.writes_scores:
        written = habits.scores if kind.attention == "unfused" else habits.fused_scores
        yield StoredTensor("attention scores", written * heads * kind.sequence / kind.tp, ("attention",))
    else:
        yield StoredTensor("sums of the softmax", 4 * heads / kind.tp, ("attention",))
        yield StoredTensor("copies of the attention output", habits.outputs * values * kind.element / kind.tp, ("attention",))
    yield StoredTensor("attention output", values * kind.operand / kind.tp)


def _mlp(kind: BlockKind, width: float, part: str) -> Iterator[StoredTensor]:
    yield StoredTensor("up", width * kind.element, (part,))
    if kind.model.mlp == "gated":
        yield StoredTensor("gate", width * kind.element, (part,))
        copies = 0 if kind.kernels.compiled else kind.profile.mlp
        yield StoredTensor("copies in the MLP", copies * width * kind.element, (part, "activation"))
    yield StoredTensor("MLP product", width * kind.operand, (part, "activation"))


def _experts(kind: BlockKind, experts: ExpertSizes) -> Iterator[StoredTensor]:
    """Yield the tensors of experts. A token counts once for each of its experts; a rank gets as many from others as it
    sends, on the mean."""
    hidden, part = kind.model.hidden, ("experts",)
    sent, got = experts.top_k / kind.outer, experts.top_k * kind.expert_tp / kind.outer
    # Logits, probabilities and their gradient, in full precision.
    yield StoredTensor("router", 3 * 4 * experts.count / kind.outer)
    yield StoredTensor("tokens sent to experts", kind.profile.sent * sent * hidden * kind.element, part)
    yield StoredTensor("experts' inputs", got * hidden * kind.operand, part)
    yield from _mlp(kind, got * experts.ffn_hidden / kind.expert_tp, "experts")
    yield StoredTensor("experts' outputs", sent * hidden * kind.element, part)
    if experts.shared:
        yield from _mlp(kind, experts.shared * experts.shared_ffn_hidden / kind.tp, "shared_experts")
