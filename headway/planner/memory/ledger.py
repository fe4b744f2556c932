"""Computes the GPU memory of a training step: named tensors at named instants, and the peak over instants and pipeline ranks.

A peak is never a sum of peaks: what one instant holds, another may have let go.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from headway.planner.memory.block import BlockBytes, block_bytes
from headway.planner.memory.profiles import constants, fits_up_to, profile
from headway.planner.memory.rank import RankShare, rank_shares
from headway.planner.training import Training, Verdict

GIB = 1 << 30

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

_LOSS = "at the loss"
_FORWARD = "after the last forward pass in flight"
_FIRST = "in the first block's backward pass"
_LAST = "in the last block's backward pass"
_STEP = "in the optimizer's step"

# An Item that is not shown yet.
_Bytes = tuple[str, float]


class Item(NamedTuple):
    """Bytes of one GPU, or of one node's memory, under a name."""

    name: str
    bytes: float


class MemoryUse(Struct, frozen=True):
    """The worst rank at its worst instant, in bytes: `allocated` to tensors, `reserved` by torch's allocator, `outside` of it (CUDA's
    context, collectives), of a `capacity` that a job can use.

    `needed` is what the GPU must have: when memory is short the allocator gives back what it only keeps. `kept` is what it would take with
    all that the allocator keeps where there is room; up to `sure`, a share of the capacity, that fits for sure. `stage` counts pipeline
    ranks from 0. `ledger` sums to `allocated`.
    """

    allocated: float
    reserved: float
    outside: float
    needed: float
    kept: float
    capacity: float
    sure: float
    stage: int
    instant: str
    ledger: tuple[Item, ...]

    @property
    def verdict(self) -> Verdict:
        """`tight` where the prediction is not sure: nearer to the capacity than published runs were predicted."""
        if self.kept <= self.sure * self.capacity:
            return "fits"
        return "tight" if self.needed <= constants().fails * self.capacity else "does not fit"


def peak(training: Training) -> MemoryUse:
    """Return the memory of the worst rank. Raises ScheduleError where the schedule does not take the layout."""
    step = _Step(training)
    shares = rank_shares(training.model, training.degrees, training.accumulation, step.habits.spread)
    ranks = [_Rank(step, share) for share in shares]
    instants = [(_total(items), rank, name, items) for rank in ranks for name, items in rank.instants()]
    allocated, worst, instant, items = max(instants, key=_size)
    slack, outside, capacity = 1 + step.habits.fragmented, _outside(training), training.gpu.memory_bytes
    kept = slack * max(size + rank.cached(name) for size, rank, name, _ in instants)
    return MemoryUse(
        allocated=allocated,
        reserved=max(allocated, min(kept, capacity - outside)),
        outside=outside,
        needed=slack * allocated + outside,
        kept=kept + outside,
        capacity=capacity,
        sure=fits_up_to(None if training.supposed else training.framework),
        stage=worst.share.index,
        instant=instant,
        ledger=tuple(Item(*item) for item in items if item[1]),
    )


def checkpoint_bytes(training: Training) -> int:
    """Bytes of one checkpoint of the whole run: parameters, their copy in full precision where there is one, the optimizer's state."""
    habits = profile(training.framework)
    return int(training.model.parameters * (parameter_bytes(training) + habits.master + moments_bytes(training)))


def parameter_bytes(training: Training) -> int:
    """Return bytes of one parameter of the copy that is trained."""
    written = training.formats.parameters
    if written is not None:
        return _BYTES[written]
    return profile(training.framework).parameter or _compute_bytes(training)


def moments_bytes(training: Training) -> int:
    """Return bytes of the optimizer's two moments of one parameter."""
    written = training.formats.moments
    return profile(training.framework).moments if written is None else 2 * _BYTES[written]


def _compute_bytes(training: Training) -> int:
    """Return the bytes of one parameter as matrices are multiplied; those of 8 bits are made from 16."""
    return _BYTES.get(training.formats.compute, 2)


def _outside(training: Training) -> float:
    """CUDA's context, and each dimension of the mesh that communicates."""
    degrees, known = training.degrees, constants()
    groups = sum(size > 1 for size in (degrees.pp, degrees.dp, degrees.cp, degrees.tp, degrees.ep))
    return known.context + known.communicator * groups


def _total(items: Iterable[_Bytes]) -> float:
    return sum([size for _, size in items])


def _size(instant: tuple[float, "_Rank", str, list[_Bytes]]) -> float:
    return instant[0]


class _Step:
    """Values that all ranks of a training share: bytes of a number, and of a block's tensors."""

    def __init__(self, training: Training) -> None:
        degrees, formats = training.degrees, training.formats
        self.training, self.tokens = training, training.tokens_per_rank
        self.habits = habits = profile(training.framework)
        self.compute, self.parameter, self.moments = _compute_bytes(training), parameter_bytes(training), moments_bytes(training)
        self.gradient = _gradient_bytes(training, self.parameter)
        self.reduce = max(self.gradient, self.parameter) if formats.reduce is None else _BYTES[formats.reduce]
        self.sharded = degrees.sharding == "parameters"
        # A compiled backward pass gives all gradients at once, in addition to their sum (kempner-0001, -0003, -0005);
        # FSDP cuts it at every block.
        self.compiled_whole = bool(training.kernels.compiled) and degrees.sharding == "none" and not habits.buffered
        # Gradients are summed after the last microbatch only.
        self.waits = habits.unreduced and training.accumulation > 1
        self.dense = block_bytes(training, experts=False)
        self.expert = self.dense if training.model.experts is None else block_bytes(training, experts=True)
        logits = self.tokens * training.model.vocab_size / (degrees.tp if habits.split_logits else 1)
        self.logits = min(logits, habits.loss_piece) if habits.loss_piece else logits


def _gradient_bytes(training: Training, parameter: int) -> int:
    """Return the bytes of one number of a gradient that is kept."""
    habits, written = profile(training.framework), training.formats.reduce
    if habits.buffered and written is not None and not habits.accumulator:
        return _BYTES[written]
    return habits.gradient or parameter


class _Rank:
    """One pipeline rank: what it holds all the time, and what comes to it at each instant."""

    def __init__(self, step: _Step, share: RankShare) -> None:
        degrees = step.training.degrees
        self.step, self.share = step, share
        shard = degrees.dp_shard * degrees.cp
        experts = max(1.0, shard * degrees.tp / (degrees.ep * degrees.expert_tp))
        self.whole = share.parameters
        self.split = (share.dense + share.outer) / shard + share.experts / experts
        self.stated = self.whole if degrees.sharding == "none" else self.split
        self.reduced = self.split if degrees.sharding in {"gradients", "parameters"} else self.whole
        self.unit = (share.dense + share.experts) / max(1, share.blocks)
        self.widest = self._widest()
        self.stream = step.tokens * self.widest.input
        self.microbatch = step.tokens * (share.dense_blocks * step.dense.kept + share.expert_blocks * step.expert.kept)

    def _widest(self) -> BlockBytes:
        """Return its block with the largest backward pass."""
        dense, expert = self.step.dense, self.step.expert
        if not self.share.expert_blocks:
            return dense
        if not self.share.dense_blocks:
            return expert
        return max(dense, expert, key=lambda block: block.again + block.backward)

    def instants(self) -> Iterator[tuple[str, list[_Bytes]]]:
        """Yield the instants that can be the worst."""
        state, backward = self._state(), self._backward()
        held = [*state, *self._gradients(), *self._in_flight()]
        if self.share.last:
            yield _LOSS, [*held, *self._logits(), *self._root()]
        else:
            yield _FORWARD, [*held, *self._units()]
        yield _FIRST, held + backward
        yield _LAST, [*state, *self._all_gradients(), *self._ending(), *backward]
        yield _STEP, [*state, *self._reduced_gradients(), *self._temporaries()]

    def cached(self, instant: str) -> float:
        """Memory that torch's allocator keeps after use and that nothing present at an instant fits into: gradients, what the
        optimizer's step makes, and scores that are computed again."""
        step = self.step
        gradients = 0.0 if instant in {_LAST, _STEP} or self._gradients() else _total(self._reduced_gradients())
        temporaries = 0.0 if instant == _STEP else _total(self._temporaries())
        scores = 0.0 if instant in {_FIRST, _LAST} or not step.dense.writes_scores else _total(self._again())
        return gradients + temporaries + scores

    # --- state --------------------------------------------------------------------------------------------------------

    def _state(self) -> list[_Bytes]:
        step, habits = self.step, self.step.habits
        items = [
            *self._parameters(),
            ("parameters in full precision", habits.master * self.stated),
            ("optimizer's state", step.moments * self.stated),
            ("sum of gradients", habits.accumulator * self.whole),
            ("workspaces", habits.workspace),
        ]
        if habits.buffered:
            items.append(("gradients", step.gradient * self.reduced))
        if habits.weight_gradients:
            items.append(("stand-ins for weight gradients", self._stand_ins()))
        return items

    def _parameters(self) -> list[_Bytes]:
        """FSDP splits what it trains wherever it splits anything; what it does not split again after use stays whole as it computes."""
        step = self.step
        if step.habits.master or step.training.degrees.sharding == "none":
            return [("parameters", step.parameter * (self.split if step.sharded else self.whole))]
        whole = 0.0 if step.sharded else step.compute * self.whole
        return [("parameters", step.parameter * self.split), ("parameters, whole", whole)]

    def _stand_ins(self) -> float:
        """Return the bytes of stand-ins: 2 bytes a number of each matrix of a block."""
        model = self.step.training.model
        numbers = model.attention_parameters + (model.mlp_parameters if self.share.dense_blocks else 0)
        return 2 * numbers / self.step.training.degrees.tp

    # --- gradients ----------------------------------------------------------------------------------------------------

    def _gradients(self) -> list[_Bytes]:
        """Return those that are there while as many microbatches are in flight as ever."""
        step = self.step
        if step.training.accumulation <= self.share.held:
            return []
        if step.compiled_whole:
            return [*self._all_gradients(), ("gradients of the compiled pass", step.gradient * self.reduced)]
        return self._all_gradients()

    def _all_gradients(self) -> list[_Bytes]:
        step = self.step
        if step.sharded and step.waits and not step.habits.buffered:
            return [("gradients, not reduced", step.reduce * self.whole)]
        return self._reduced_gradients()

    def _reduced_gradients(self) -> list[_Bytes]:
        return [] if self.step.habits.buffered else [("gradients", self.step.gradient * self.reduced)]

    def _temporaries(self) -> list[_Bytes]:
        habits = self.step.habits
        return [("optimizer's temporaries", habits.step * self.stated + habits.step_whole * self.whole)]

    # --- units of FSDP ------------------------------------------------------------------------------------------------

    def _root(self) -> list[_Bytes]:
        """Tensors that are whole from their first use to the end of the backward pass: the embedding and the output
        layer, and experts where they are in their unit."""
        step, items = self.step, []
        if step.sharded and not step.habits.reshards_root:
            items.append(("embedding and output layer, whole", step.compute * self.share.outer))
        if step.sharded and step.habits.whole_experts and self.share.experts:
            items.append(("experts, whole", step.compute * self.share.experts))
        return items

    def _units(self) -> list[_Bytes]:
        """Return the block that computes and the one that is fetched ahead."""
        if not self.step.sharded:
            return []
        return [("blocks, whole", 2 * self.step.compute * self.unit), *self._root()]

    def _reduction(self) -> list[_Bytes]:
        """Return a block's gradients as they come, and those of the block before while they are reduced."""
        step = self.step
        if not step.sharded:
            return []
        reduced = 0.0 if step.waits else step.reduce * self.unit
        return [("gradients of a block", step.compute * self.unit), ("gradients being reduced", reduced)]

    # --- activations --------------------------------------------------------------------------------------------------

    def _in_flight(self) -> list[_Bytes]:
        """Return the activations of all microbatches in flight. CUDA graphs keep memory of their own."""
        size = self.share.held * self.microbatch
        items = [("activations", size), *self._transfers()]
        if self.step.training.kernels.graphs:
            items.append(("pools of CUDA graphs", constants().graphs * size))
        return items

    def _ending(self) -> list[_Bytes]:
        """Return the activations of all microbatches in flight but one, of which one block is left."""
        size = (self.share.held - 1) * self.microbatch + self.step.tokens * self.widest.kept
        return [("activations", size), *self._transfers()]

    def _transfers(self) -> list[_Bytes]:
        """Return a stage's input and output on their way."""
        return [] if self.step.training.degrees.pp == 1 else [("pipeline buffers", 2 * self.stream)]

    def _backward(self) -> list[_Bytes]:
        logits = [("logits", self.step.habits.kept_logits * self.step.logits)] if self.share.last else []
        return [*self._again(), *logits, *self._units(), *self._reduction()]

    def _again(self) -> list[_Bytes]:
        """Return what the backward pass of one block makes."""
        tokens = self.step.tokens
        return [("gradients of activations", tokens * self.widest.backward), ("block computed again", tokens * self.widest.again)]

    # --- output layer and loss ----------------------------------------------------------------------------------------

    def _logits(self) -> list[_Bytes]:
        """Return the logits with what the loss makes of them, and the last block's output with its norm's."""
        step, habits, kernels = self.step, self.step.habits, self.step.training.kernels
        fused = bool(kernels.compiled) if kernels.loss is None else kernels.loss
        return [
            ("logits and loss", (habits.fused_logits if fused else habits.logits) * step.logits),
            ("output layer's input", 2 * self.stream),
        ]
