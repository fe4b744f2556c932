"""Enumerates all legal layouts of a request: degrees first, then everything that varies without moving a rank.

The rules are those of `headway check`; this file asks them for every choice once, and keeps what they say against it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd
from typing import NamedTuple, TypeVar, get_args

from msgspec import Struct

from headway.jobspec.check.layout import check_layout, check_mesh
from headway.jobspec.check.multiples import divisors
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.domains import Domains
from headway.jobspec.spec.batch import Batch
from headway.jobspec.spec.layout import Layout, Schedule, Sharding
from headway.jobspec.units import Amount
from headway.planner.search.frameworks import Abilities, abilities, objection, sharding_of
from headway.planner.search.request import Request
from headway.planner.training import Degrees, Recompute
from headway.runner.contract import Mesh

# Ranks that DeepEP's kernels are compiled for at most (deepseek-ai/DeepEP: csrc/kernels/launch.cuh, SWITCH_RDMA_RANKS: 20 times 8).
_DEEPEP_RANKS = 160
_MOST_CHUNKS = 256
_LEANER: Mapping[Schedule, Schedule] = {"GPipe": "1F1B", "LoopedBFS": "Interleaved1F1B"}
_WRONG_STAGES = "HW319"

T = TypeVar("T")


class Variant(NamedTuple):
    """The differences between layouts of the same degrees."""

    micro: int
    accumulation: int
    schedule: Schedule
    chunks: int
    sequence_parallel: bool
    recompute: Recompute


class Refusal(Struct, frozen=True):
    """Choices that a rule excludes: its message about the first, and their number. None of them becomes a layout."""

    rule: str
    reason: str
    choices: int


class Layouts:
    """The legal layouts of a request, and the excluded ones, once they have been enumerated."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._allowed = request.allowed
        self._abilities: Abilities = abilities(request.framework)
        network = request.network
        self._domains = Domains(network.scale_up_domain, network.gpus_per_node, -(-request.gpus // network.gpus_per_node))
        self._refused: dict[tuple[str, tuple[object, ...]], str] = {}
        self._micros: dict[int, tuple[int, ...]] = {}
        self._orders: dict[tuple[int, int], tuple[tuple[Schedule, int], ...]] = {}
        self._stages: dict[int, tuple[tuple[Schedule, int], ...]] = {}
        self._even: dict[tuple[int, int], bool] = {}
        self._splits: dict[tuple[int, int, int], tuple[bool, ...]] = {}
        self._recomputes: tuple[Recompute, ...] = self._allowed.recompute or get_args(Recompute)

    def degrees(self) -> Iterator[Degrees]:
        """Yield every way to lay out the ranks that has at least one variant; `tp` varies slowest."""
        if self._refuse("sequence", (), _first(check_layout(Layout(), self._request.model, _batch(1, self._request.sequence)))):
            return
        for tp in self._tensor():
            for cp in self._context(tp):
                for pp in self._pipeline(tp * cp):
                    yield from self._data(tp, cp, pp)

    def variants(self, degrees: Degrees) -> Iterator[Variant]:
        """Yield every variant of a layout of the ranks."""
        for micro, accumulation in self.passes(degrees):
            for schedule, chunks in self.orders(degrees.pp, accumulation):
                for split in self.splits(degrees):
                    for recompute in self._recomputes:
                        yield Variant(micro, accumulation, schedule, chunks, split, recompute)

    def count(self, degrees: Degrees) -> int:
        """Return how many variants there are."""
        orders = sum(len(self.orders(degrees.pp, accumulation)) for _, accumulation in self.passes(degrees))
        return orders * len(self.splits(degrees)) * len(self._recomputes)

    @property
    def recomputes(self) -> tuple[Recompute, ...]:
        """The recomputations that are allowed."""
        return self._recomputes

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The choices that the rules have excluded so far, in order."""
        found: dict[str, list[str]] = {}
        for (rule, _), reason in self._refused.items():
            found.setdefault(rule, []).append(reason)
        return tuple(Refusal(rule, reasons[0], len(reasons)) for rule, reasons in found.items())

    def passes(self, degrees: Degrees) -> Iterator[tuple[int, int]]:
        """Yield sequences of a microbatch, and microbatches of a step."""
        share = self._request.sequences // degrees.dp
        micros = (micro for micro in self._microbatches(share) if not self._halves(degrees.cp, micro))
        return ((micro, share // micro) for micro in micros)

    def _halves(self, cp: int, micro: int) -> bool:
        """Return whether as many tokens come to each rank with fewer sequences over fewer ranks, which exchange less."""
        common = gcd(cp, micro)
        if common == 1 or not _is_in(cp // common, self._allowed.cp) or not _is_in(micro // common, self._allowed.micro):
            return False
        reason = (
            f"cp {cp} with micro {micro} exchanges more than cp {cp // common} with micro "
            f"{micro // common}, for the same tokens per rank"
        )
        return self._refuse("dominated", (cp, micro), reason)

    def orders(self, pp: int, accumulation: int) -> tuple[tuple[Schedule, int], ...]:
        """Pipeline schedules with their stages a rank that take so many microbatches."""
        if (pp, accumulation) not in self._orders:
            taken = [each for each in self._stages_of(pp) if pp == 1 or self._takes(pp, accumulation, *each)]
            self._orders[pp, accumulation] = tuple(each for each in taken if not self._holds_more(taken, *each))
        return self._orders[pp, accumulation]

    def _holds_more(self, taken: Sequence[tuple[Schedule, int]], schedule: Schedule, chunks: int) -> bool:
        """Return whether another schedule waits no longer and holds fewer microbatches (arXiv 2104.04473, section 2.2)."""
        leaner = _LEANER.get(schedule)
        if leaner is None or (leaner, chunks) not in taken:
            return False
        return self._refuse("leaner", (schedule, chunks), f"{schedule} waits as long as {leaner} and holds every microbatch")

    def splits(self, degrees: Degrees) -> tuple[bool, ...]:
        """Return whether the sequence may, or must, be split over `tp` between the matrices."""
        return self._splits_of(degrees.tp, degrees.cp, degrees.ep)

    def _tensor(self) -> Iterator[int]:
        for tp in self._degrees_of("tp", self._request.gpus):
            if self._domains.are_crossed_by(tp):
                reason = f"tp {tp} leaves the NVLink domain of {self._domains.gpus} GPUs"
                self._refuse("domain", ("tp", tp), reason)
            else:
                yield tp

    def _context(self, tp: int) -> Iterator[int]:
        for cp in self._degrees_of("cp", self._request.gpus // tp):
            if self._splits_of(tp, cp, 1):
                yield cp

    def _pipeline(self, inner: int) -> Iterator[int]:
        for pp in self._degrees_of("pp", self._request.gpus // inner):
            if self._stages_of(pp):
                yield pp

    def _data(self, tp: int, cp: int, pp: int) -> Iterator[Degrees]:
        """Yield every way to share out the ranks that are left; `ep` varies fastest."""
        dp = self._request.gpus // (tp * cp * pp)
        if self._request.sequences % dp:
            verb = "sequence does" if self._request.sequences == 1 else "sequences do"
            reason = f"{self._request.sequences} {verb} not divide over {dp} data-parallel ranks"
            self._refuse("batch", (dp,), reason)
            return
        for replicas in self._degrees_of("dp_replicate", dp):
            shards = dp // replicas
            if self._allowed.dp_shard is not None and shards not in self._allowed.dp_shard:
                continue
            for ep in self._experts(tp, cp, shards):
                for sharding in self._shardings(pp):
                    degrees = Degrees(
                        pp=pp,
                        dp_replicate=replicas,
                        dp_shard=shards,
                        cp=cp,
                        tp=tp,
                        ep=ep,
                        expert_tp=tp if ep == 1 and self._request.model.experts is not None else 1,
                        sharding=sharding,
                    )
                    if self.count(degrees):
                        yield degrees

    def _shardings(self, pp: int) -> Iterable[Sharding]:
        """Return what the data-parallel ranks may split, each once."""
        wanted = self._allowed.sharding or (self._request.sharding,)
        return dict.fromkeys(sharding_of(self._request.framework, each, pp) for each in wanted)

    def _experts(self, tp: int, cp: int, shards: int) -> Iterator[int]:
        model = self._request.model
        values = self._allowed.ep or ((1,) if model.experts is None else divisors(model.experts.count))
        for ep in self._within("ep", values):
            if self._deep_ep(ep) or not self._spreads(tp, ep):
                continue
            mesh = Mesh(1, 1, shards, cp, tp)
            if not self._refuse("fold", (mesh, ep), _first(check_mesh(Layout(ep=ep), mesh, model, None))):
                yield ep

    def _spreads(self, tp: int, ep: int) -> bool:
        """Return whether the model's matrices and experts divide over the ranks."""
        if (tp, ep) not in self._even:
            problem = _first(check_layout(Layout(tp=tp, ep=ep), self._request.model, None))
            self._even[tp, ep] = not self._refuse("tp", (tp, ep), problem)
        return self._even[tp, ep]

    def _deep_ep(self, ep: int) -> bool:
        if self._request.kernels.dispatcher != "deepep" or ep <= _DEEPEP_RANKS:
            return False
        return self._refuse("deepep", (ep,), f"ep {ep}: DeepEP stops at {_DEEPEP_RANKS} ranks")

    def _degrees_of(self, axis: str, ranks: int) -> Iterator[int]:
        """Yield values of a degree of the mesh that divide the ranks."""
        allowed: tuple[int, ...] | None = getattr(self._allowed, axis)
        if axis == "dp_replicate" and self._request.sharding == "none" and self._allowed.sharding is None:
            # Every rank holds a copy, under any name.
            allowed = allowed or (1,)
        for degree in self._within(axis, divisors(ranks) if allowed is None else allowed):
            if ranks % degree == 0:
                yield degree
            else:
                self._refuse("ranks", (axis, degree, ranks), f"{axis} {degree} does not divide {ranks} ranks")

    def _within(self, axis: str, values: Iterable[int]) -> Iterator[int]:
        """Yield the values, of which those above 1 need a framework that has the axis and splits the model so."""
        framework = self._request.framework
        for degree in values:
            if degree > 1 and axis not in self._abilities.axes:
                self._refuse(f"axis {axis}", (degree,), f"{axis} {degree}: {framework} has no {axis}")
            elif not self._refuse(f"split {axis}", (degree,), objection(framework, self._request.model, axis, degree)):
                yield degree

    def _microbatches(self, share: int) -> tuple[int, ...]:
        """Return sequences of a microbatch, of `share` sequences that a rank reads a step."""
        if share not in self._micros:
            allowed = self._allowed.micro
            self._micros[share] = tuple(
                micro for micro in (divisors(share) if allowed is None else allowed) if self._fills(micro, share)
            )
        return self._micros[share]

    def _fills(self, micro: int, share: int) -> bool:
        reason = f"micro {micro} does not divide the {share} sequences that a rank reads per step" if share % micro else None
        return not self._refuse("micro", (micro, share), reason)

    def _splits_of(self, tp: int, cp: int, ep: int) -> tuple[bool, ...]:
        if (tp, cp, ep) not in self._splits:
            able = self._abilities
            values = (False,) if tp == 1 else able.sequence_parallel
            if tp > 1 and able.expert_sequence_parallel and self._request.model.experts is not None:
                values = (True,)
            allowed = self._allowed.sequence_parallel
            chosen = [value for value in values if allowed is None or tp == 1 or value in allowed]
            self._splits[tp, cp, ep] = tuple(value for value in chosen if self._divides(tp, cp, value))
        return self._splits[tp, cp, ep]

    def _divides(self, tp: int, cp: int, split: bool) -> bool:
        layout = Layout(tp=tp, cp=cp, sequence_parallel=split)
        problem = _first(check_layout(layout, None, _batch(1, self._request.sequence)))
        return not self._refuse("sequence", (tp, cp, split), problem)

    def _stages_of(self, pp: int) -> tuple[tuple[Schedule, int], ...]:
        """Schedules with the stages a rank that they can have."""
        if pp == 1:
            return (("1F1B", 1),)
        if pp not in self._stages:
            schedules = [each for each in self._abilities.schedules if _is_in(each, self._allowed.schedule)]
            self._stages[pp] = tuple(
                (schedule, chunks) for schedule in schedules for chunks in self._chunks(pp) if self._stacks(pp, chunks, schedule)
            )
        return self._stages[pp]

    def _chunks(self, pp: int) -> Iterable[int]:
        """Stages a rank: at most as many as there are blocks, and an embedding and an output layer, to put on them."""
        most = min(_MOST_CHUNKS, (self._request.model.layers + 2) // pp)
        return self._allowed.chunks or range(1, max(1, most) + 1)

    def _stacks(self, pp: int, chunks: int, schedule: Schedule) -> bool:
        """Return whether the layers can be put on the stages, and the schedule has so many a rank."""
        layout = Layout(pp=pp, virtual_stages=chunks, schedule=schedule)
        problem = _first(check_layout(layout, self._request.model, None))
        if problem is not None and problem.code == _WRONG_STAGES and self._allowed.chunks is None:
            return False
        key = (pp, chunks)
        return not (self._refuse("stages", key, problem) or self._refuse("split", key, self._uneven(pp, chunks)))

    def _uneven(self, pp: int, chunks: int) -> str | None:
        """Return the objection to stages that do not hold equally many layers."""
        layers, stages, split = self._request.model.layers, pp * chunks, self._abilities.split
        if layers % stages == 0 or (split != "even" and any((layers + ends) % stages == 0 for ends in (1, 2))):
            return None
        if split != "any":
            ends = "" if split == "even" else ", with embedding and output layer counted or not"
            return f"{layers} layers do not divide over {pp} x {chunks} stages{ends}, which {self._request.framework} requires"
        if chunks > 1 and self._allowed.chunks is None:
            return f"{layers} layers over {pp} x {chunks} stages: each round of an interleaved schedule waits for the largest"
        return None

    def _takes(self, pp: int, accumulation: int, schedule: Schedule, chunks: int) -> bool:
        """Return whether the schedule can be run with so many microbatches."""
        layout = Layout(pp=pp, virtual_stages=chunks, schedule=schedule)
        problem = _first(check_mesh(layout, Mesh(pp, 1, 1, 1, 1), None, _batch(accumulation, self._request.sequence)))
        key = (pp, accumulation, schedule, chunks)
        if self._refuse("microbatches", key, problem):
            return False
        short = self._abilities.rounds and chunks > 1 and accumulation < pp
        reason = f"{self._request.framework} interleaves {pp} microbatches or more on {pp} pipeline ranks, not {accumulation}"
        return not self._refuse("rounds", key, reason if short else None)

    def _refuse(self, rule: str, choice: tuple[object, ...], found: Problem | str | None) -> bool:
        """Return whether something was found; it is kept, once for each choice. A problem of `headway check` is a rule
        by its code."""
        if found is None:
            return False
        rule, reason = (rule, found) if isinstance(found, str) else (found.code, found.message.replace("`", ""))
        self._refused.setdefault((rule, choice), reason)
        return True


def _first(problems: Iterator[Problem]) -> Problem | None:
    """Return the first error; the reader of the layout handles warnings."""
    return next((problem for problem in problems if problem.is_error), None)


def _is_in(value: T, allowed: tuple[T, ...] | None) -> bool:
    return allowed is None or value in allowed


def _batch(sequences: int, sequence: int) -> Batch:
    return Batch.model_construct(global_batch=Amount(sequences=sequences), micro_sequences=1, sequence_length=sequence)
