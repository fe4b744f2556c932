"""Computes the time of an optimizer step, part by part: block passes, pipeline, and the exchanges after it."""

import math
from collections.abc import Mapping
from functools import cached_property, lru_cache

from msgspec import Struct

from headway.planner.speed.collectives import Groups, Links, groups_of
from headway.planner.speed.compute import dense_block
from headway.planner.speed.cost import ACTIVATION, NOTHING, Cost, PartCost
from headway.planner.speed.data_parallel import NO_EXCHANGE, Exchange, dense_exchange, expert_exchange
from headway.planner.speed.experts.block import expert_block
from headway.planner.speed.experts.host import late, prefetched
from headway.planner.speed.flops import model_flops
from headway.planner.speed.output import embedding, output_layer
from headway.planner.speed.pipeline import makespan, ranks_of_stages
from headway.planner.speed.rates import Rates, one_microbatch, rates_of
from headway.planner.speed.speed import Profile, Speed, constants
from headway.planner.speed.stages import Stage, held_parameters, stages_of
from headway.planner.speed.traffic import sent
from headway.planner.training import Training


class EstimatedStep(Struct, frozen=True):
    """Seconds of an optimizer step. `parts` are the seconds of the busiest rank that nothing hides, by name, and add up to `seconds`.

    `bubble` is the share of the ranks' time in which the pipeline leaves them idle. `bytes_per_rank` are what one rank sends in a step, by
    mesh dimension. `flops_causal` and `flops_full` are the model's operations of a step on all GPUs in both ways of counting. 90 % of
    measured steps of unseen sources are between `low` and `high`; `extrapolated` names what no measured step has, as text.
    """

    seconds: float
    parts: Mapping[str, float]
    bubble: float
    bytes_per_rank: Mapping[str, float]
    flops_causal: float
    flops_full: float
    low: float
    high: float
    extrapolated: tuple[str, ...] = ()


class StageCost(Struct, frozen=True):
    """One microbatch through a stage. `again` is recomputed before the backward; `ends` are the embedding and the output layer, `gathers`
    what the gathering of parameters and the reduction of gradients for each microbatch leave exposed, both forward and backward."""

    forward: Cost
    input_gradient: Cost
    weight_gradient: Cost
    again: Cost
    ends: tuple[float, float]
    gathers: tuple[float, float]

    @property
    def forward_seconds(self) -> float:
        """The seconds of the forward pass."""
        return self.forward.seconds + self.ends[0] + self.gathers[0]

    @property
    def input_seconds(self) -> float:
        """The seconds of the input gradient, with what is recomputed for it."""
        return self.again.seconds + self.input_gradient.seconds + self.ends[1] + self.gathers[1]

    @property
    def backward_seconds(self) -> float:
        """The seconds of both gradients."""
        return self.input_seconds + self.weight_gradient.seconds

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_seconds + self.backward_seconds


def step_time(training: Training, speed: Speed | None = None) -> EstimatedStep:
    """Return how long an optimizer step takes. Raises ScheduleError where the pipeline's schedule does not take the layout."""
    return _Step(training, constants() if speed is None else speed).time()


class _Step:
    """One training's step, worked out."""

    def __init__(self, training: Training, speed: Speed) -> None:
        self.training = training
        self.speed = speed
        self.micro = one_microbatch(training)
        self.rates: Rates = rates_of(self.micro, speed)
        self.profile: Profile = self.rates.profile
        self.links: Links = self.rates.links
        self.groups: Groups = groups_of(training.degrees, training.network)
        self.stages = stages_of(training, self.profile)
        self._costs: dict[Stage, StageCost] = {}

    def time(self) -> EstimatedStep:
        """Return the step's seconds and parts, of the rank that computes longest."""
        end, busy = self._pipeline
        rank = max(range(len(busy)), key=busy.__getitem__)
        held = [stage for stage, holder in zip(self.stages, self._ranks, strict=True) if holder == rank]
        parts = self._parts(held) | self._waits(end - busy[rank])
        exchange = self._exchange_of(held)
        parts["dp communication"] += self._exchanged(held, exchange)
        parts["optimizer"] = self._optimizer(held)
        experts = sum(stage.experts for stage in held)
        parts["launch"] += self.profile.step
        seconds = sum(parts.values())
        causal, full = model_flops(self.training)
        interval = self.speed.intervals.of(self.training)
        blocks = (sum(stage.dense + stage.experts for stage in held), experts)
        return EstimatedStep(
            seconds=seconds,
            parts={name: value for name, value in parts.items() if value > 0},
            bubble=1 - sum(busy) / (len(busy) * end),
            bytes_per_rank=sent(self.training, self.groups, blocks, exchange, self.profile.each_microbatch),
            flops_causal=causal,
            flops_full=full,
            low=seconds * math.exp(interval.low),
            high=seconds * math.exp(interval.high),
            extrapolated=interval.reasons,
        )

    @property
    def _ranks(self) -> tuple[int, ...]:
        degrees = self.training.degrees
        return ranks_of_stages(degrees.schedule, degrees.pp, degrees.chunks)

    @cached_property
    def _pipeline(self) -> tuple[float, tuple[float, ...]]:
        """Seconds of the whole pipeline, and how long each rank computes."""
        degrees, count = self.training.degrees, self.training.accumulation
        costs = [self._cost(stage) for stage in self.stages]
        if degrees.pp == 1:
            seconds = count * sum(cost.seconds for cost in costs)
            return seconds, (seconds,)
        times = (
            tuple(cost.forward_seconds for cost in costs),
            tuple(cost.input_seconds for cost in costs),
            tuple(cost.weight_gradient.seconds for cost in costs),
        )
        return makespan(degrees.schedule, degrees.pp, degrees.chunks, count, times, self._transfer)

    @property
    def _transfer(self) -> float:
        """Seconds that a receiver waits for a microbatch's activations, as far as they are not sent while it computes. Each tensor-parallel
        rank sends its share (arXiv 2104.04473, section 4.1)."""
        size = ACTIVATION * self.training.tokens_per_rank * self.training.model.hidden
        return (1 - self._hidden("pipeline")) * self.links.send(self.groups.pp, size / self.training.degrees.tp)

    def _waits(self, idle: float) -> dict[str, float]:
        """Return what a rank waits in the pipeline: for transfers, and for other ranks."""
        degrees = self.training.degrees
        transfers = min(idle, 2 * self._transfer * degrees.chunks * self.training.accumulation)
        return {"pp communication": transfers, "bubble": idle - transfers}

    def _cost(self, stage: Stage) -> StageCost:
        found = self._costs.get(stage)
        if found is None:
            found = self._costs[stage] = self._stage_cost(stage)
        return found

    def _stage_cost(self, stage: Stage) -> StageCost:
        blocks = _blocks(self.micro, stage, self.speed)
        share = 0.0 if self.training.recompute == "none" else self.training.recomputed_share
        return StageCost(
            blocks.forward,
            blocks.input_gradient,
            blocks.weight_gradient,
            blocks.again.times(share),
            self._ends(stage),
            self._gathers(stage, blocks, share),
        )

    def _ends(self, stage: Stage) -> tuple[float, float]:
        """Return the embedding on the first stage, the output layer and the loss on the last."""
        first = embedding(self.micro, self.rates) if stage.first else (0.0, 0.0)
        last = output_layer(self.micro, self.rates) if stage.last else (0.0, 0.0)
        return first[0] + last[0], first[1] + last[1]

    def _gathers(self, stage: Stage, blocks: PartCost, share: float) -> tuple[float, float]:
        """FSDP gathers a block's parameters while the block before computes, forward and again backward, and reduces the gradients of the
        one behind (arXiv 2304.11277, section 4.3)."""
        if self.training.degrees.sharding != "parameters":
            return 0.0, 0.0
        exchange = self._exchange(stage)
        reduced = self.profile.each_microbatch or self.training.accumulation == 1
        reduce, size = (exchange.reduce, exchange.reduced_bytes) if reduced else (0.0, 0.0)
        backward = blocks.input_gradient.kernels + blocks.weight_gradient.kernels + share * blocks.again.kernels
        beside = max(1, stage.dense + stage.experts)
        hidden = self._hidden("parameters")
        ahead = hidden * prefetched(self.training, stage.experts / beside)
        first, last = exchange.gather / beside, reduce / beside
        return (
            self._exposed(exchange.gather - first, exchange.gathered_bytes, blocks.forward.kernels, ahead) + first,
            self._exposed(exchange.gather + reduce - last, exchange.gathered_bytes + size, backward, hidden) + last,
        )

    def _hidden(self, kind: str) -> float:
        """Return the share of computation (of transfers, for `pipeline`) in parallel with which communication of this kind is hidden."""
        chosen: bool | None = getattr(self.training.overlaps, kind)
        usual: float = getattr(self.profile, kind)
        return usual if chosen is None else float(chosen) * max(usual, 0.9)

    def _exposed(self, seconds: float, size: float, computation: float, share: float) -> float:
        """Return the exposed seconds of a communication of `size` bytes: those that do not fit into `share` of the
        computation, and the slowdown of that: NCCL's kernels take multiprocessors and memory bandwidth as long as they
        move bytes."""
        if not seconds:
            return 0.0
        hidden = min(seconds, share * computation)
        return seconds - hidden + self.speed.interference * size / self.links.up_bytes_s * hidden / seconds

    def _exchange(self, stage: Stage) -> Exchange:
        """Return the exchange of all parameters that the rank holds of the stage, once."""
        dense, experts = held_parameters(self.training, stage)
        exchange = dense_exchange(self.training, dense, self.profile, self.links, self.groups)
        if experts:
            routed = expert_exchange(self.training, experts, self.profile, self.links, self.groups)
            exchange = exchange.plus(late(routed, self.training, self.speed.experts))
        return exchange

    def _exchange_of(self, stages: list[Stage]) -> Exchange:
        found = NO_EXCHANGE
        for stage in stages:
            found = found.plus(self._exchange(stage))
        return found

    def _exchanged(self, stages: list[Stage], exchange: Exchange) -> float:
        """Return what is exchanged once a step, as far as no computation hides it."""
        if self.training.degrees.sharding == "parameters":
            once = not self.profile.each_microbatch and self.training.accumulation > 1
            return self._reduced(stages, exchange) if once else 0.0
        forward = sum(self._cost(stage).forward_seconds for stage in stages)
        gathered = self._exposed(exchange.gather, exchange.gathered_bytes, forward, self._hidden("parameters"))
        return self._reduced(stages, exchange) + gathered

    def _reduced(self, stages: list[Stage], exchange: Exchange) -> float:
        """Return the cost of gradients that are exchanged once, in parallel with the backward of the last microbatch."""
        backward = sum(self._cost(stage).backward_seconds for stage in stages)
        return self._exposed(exchange.reduce, exchange.reduced_bytes, backward, self._hidden("gradients"))

    def _optimizer(self, stages: list[Stage]) -> float:
        """Return the seconds for its state and the gradients, read and written once, where they are not split over data-parallel ranks."""
        held = [held_parameters(self.training, stage) for stage in stages]
        dense, experts = sum(parameters for parameters, _ in held), sum(parameters for _, parameters in held)
        if self.training.degrees.sharding != "none":
            dense /= self.groups.shard.size
            experts /= self.groups.expert_dp.size
        return self.rates.stream((dense + experts) * self.profile.optimizer)

    def _parts(self, stages: list[Stage]) -> dict[str, float]:
        """Return the parts of all microbatches on the rank that holds the stages."""
        count = self.training.accumulation
        costs = [self._cost(stage) for stage in stages]
        total = NOTHING
        for cost in costs:
            total = total.plus(cost.forward).plus(cost.input_gradient).plus(cost.weight_gradient)
        return {
            "matmul": count * total.matmul,
            "attention": count * total.attention,
            "norm and activation": count * total.memory,
            "loss": count * sum(sum(cost.ends) for cost in costs),
            "recompute": count * sum(cost.again.seconds for cost in costs),
            "tp communication": count * total.tensor,
            "cp communication": count * total.context,
            "ep communication": count * total.experts,
            "dp communication": count * sum(sum(cost.gathers) for cost in costs),
            "launch": count * total.launch,
        }


@lru_cache(maxsize=4096)
def _blocks(micro: Training, stage: Stage, speed: Speed) -> PartCost:
    """Return all blocks of a stage."""
    found = PartCost(NOTHING, NOTHING, NOTHING)
    if stage.dense:
        found = found.plus(dense_block(micro, speed).times(stage.dense))
    if stage.experts:
        found = found.plus(expert_block(micro, speed).times(stage.experts))
    return found
