"""Reads memory.yaml: what frameworks keep in GPU memory."""

import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from headway.planner.identity import ByIdentity
from headway.planner.memory.rank import Spread

_FILE = Path(__file__).with_name("memory.yaml")


class MemoryProfile(ByIdentity, frozen=True):
    """A framework's habits. Sizes are bytes; of activations, bytes in addition to those that every framework keeps.

    State, for each parameter: `parameter` of the copy that is trained (None: as matrices are multiplied), `master` of
    an additional full-precision copy, `moments` of the optimizer's two, `gradient` (None: as the parameter),
    `accumulator` of a second sum of gradients over the microbatches. `buffered`: gradients have buffers that are there
    all the time, not only from a backward pass to the step. `reshards_root`: FSDP frees the embedding and the output
    layer after the forward pass. `whole_experts`: it holds all experts at once. `unreduced`: between the microbatches
    of a step gradients stay whole on every rank, in the format in which they are summed. `step` is what the optimizer's
    step makes for each of its parameters and lets go, `step_whole` for each parameter of the rank. `balanced`: the
    output layer counts as blocks when these are spread over a pipeline. `whole_embedding`: tensor-parallel ranks do not
    split the embedding.

    Activations: `attention` is the kernel unless a job sets another. Of one attention: `qkv` counts further copies of
    queries, keys and values together, `outputs` of its output. `norm` is bytes for each element of a norm that is not
    one kernel, `fused_norm`: whether it is. `scores`, `fused_scores` are bytes for each attention score of unfused
    attention, and of one whose softmax is a kernel. `mlp` counts further tensors of a gated MLP's width where nothing
    is compiled, `sent` copies of tokens on their way to experts. `dropout`: masks are kept. `gathered`: with sequence
    parallelism the inputs of matrices are kept as gathered. `float8` is bytes of a number of the kept inputs of
    matrices that multiply in 8 bits.

    Output: `logits` is bytes for each logit at the loss, `fused_logits` where the loss is one kernel or compiled,
    `kept_logits` while blocks run backward. `split_logits`: tensor-parallel ranks hold a part of the vocabulary each.
    `loss_piece`: the loss takes at most so many logits at a time; 0: all.

    `weight_gradients`: Transformer Engine's stand-ins for gradients that are already in the buffer, one for each shape
    of a matrix. `fragmented` is the share by which the allocator holds more than tensors need. `workspace` is what is
    there all the time and is no tensor of the model.
    """

    parameter: int | None
    master: int
    moments: int
    gradient: int | None
    accumulator: int
    buffered: bool
    unreduced: bool
    reshards_root: bool
    whole_experts: bool
    step: float
    step_whole: float
    balanced: bool
    whole_embedding: bool
    attention: str
    qkv: float
    outputs: float
    fused_norm: bool
    norm: float
    scores: float
    fused_scores: float
    mlp: float
    sent: float
    dropout: bool
    gathered: bool
    float8: float
    logits: float
    fused_logits: float
    kept_logits: float
    split_logits: bool
    loss_piece: int
    weight_gradients: bool
    fragmented: float
    workspace: float

    @property
    def spread(self) -> Spread:
        """How it spreads a model over ranks."""
        return Spread(self.balanced, self.whole_embedding)


class MemoryConstants(ByIdentity, frozen=True):
    """The constants that all frameworks share.

    Outside of torch's allocator, in bytes: CUDA's `context`, and a `communicator` for each dimension of the mesh. `graphs` is the share
    of activations that CUDA graphs add. Up to `fits` of the capacity a job fits for sure (up to `fits_checked` under a framework whose
    predicted peaks were checked), above `fails` of it for sure not.
    """

    context: float
    communicator: float
    graphs: float
    fits: float
    fits_checked: float
    fails: float


@cache
def _file() -> Mapping[str, Any]:
    found: dict[str, Any] = yaml.load(_FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return types.MappingProxyType(found)


@cache
def profile(framework: str) -> MemoryProfile:
    """Return the profile of a framework. Raises KeyError."""
    values = _values(framework)
    return MemoryProfile(**{name: values[name] for name in MemoryProfile.__struct_fields__})


def _values(framework: str) -> dict[str, Any]:
    own: dict[str, Any] = _file()["frameworks"][framework]
    return (_values(own["like"]) if "like" in own else {}) | own


@cache
def constants() -> MemoryConstants:
    """Return the constants of all frameworks."""
    return MemoryConstants(**{name: entry["value"] for name, entry in _file()["constants"].items()})


@cache
def fits_up_to(framework: str | None) -> float:
    """Return the share of the capacity up to which a job of the framework (None: of one that is not known) fits for sure."""
    checked = _file()["constants"]["fits_checked"]["frameworks"]
    return constants().fits_checked if framework in checked else constants().fits
