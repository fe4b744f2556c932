"""Searches for the fastest layouts: counts every legal one, and scores exactly those that can be fast enough."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from math import inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headway.planner.estimate import Estimate
from headway.planner.memory.ledger import GIB
from headway.planner.search.bounds import Bound, Bounds
from headway.planner.search.layouts import Layouts, Variant
from headway.planner.search.memory import SAVING, Memory, headroom
from headway.planner.search.request import Allowed, Request, request_like
from headway.planner.speed.step import step_time
from headway.planner.training import Degrees

__all__ = (
    "ALIKE",
    "Allowed",
    "Counts",
    "Rejection",
    "Request",
    "SearchResult",
    "headroom",
    "in_order",
    "pareto",
    "request_like",
    "search",
    "simplicity",
)

ALIKE = 1.005
"""Layouts whose times differ by less than this factor are ranked by simplicity."""
_MARGIN = ALIKE**3
"""A ranked layout is at most this factor slower than the last: it is alike to the last, and either may stand for a faster one of its
family that is alike to it."""

SHARDINGS = ("none", "optimizer", "gradients", "parameters")
# The simplest first: what most frameworks have, and what needs the fewest microbatches in flight.
_SCHEDULES = ("1F1B", "Interleaved1F1B", "GPipe", "LoopedBFS")


class Counts(Struct, frozen=True):
    """Layouts that the rules allow, and of these: without room in memory, too slow by their bound alone, scored exactly."""

    legal: int
    unfit: int
    slow: int
    scored: int


class Rejection(Struct, frozen=True):
    """Why so many layouts are not scored; `choices` are values of a degree, or of several, that no layout was made of."""

    reason: str
    layouts: int = 0
    choices: int = 0


class SearchResult(Struct, frozen=True):
    """The fastest layout of each combination of tp, cp, pp and ep, fastest first; of those within 0.5 % of each other the simplest.

    `pareto` are those of the ranked that no other of them beats in both speed and free memory.
    """

    request: Request
    ranked: tuple[Estimate, ...]
    pareto: tuple[Estimate, ...]
    counts: Counts
    rejections: tuple[Rejection, ...]

    @property
    def best(self) -> Estimate | None:
        """The first; None where nothing fits."""
        return self.ranked[0] if self.ranked else None


class _Open(NamedTuple):
    """An entry of the queue, by its lower bound in seconds: a variant of a layout of ranks, or all of its variants.

    `computing` is the bound without the bubble; it is `refined` once the dearer bound is known.
    """

    seconds: float
    number: int
    computing: float
    degrees: Degrees
    variant: Variant | None = None
    refined: bool = False


def search(request: Request) -> SearchResult:
    """Return the `top` fastest layouts that fit, exactly: none that is left out is faster than the last of them.

    Best first over lower bounds (branch and bound: Land and Doig, Econometrica 28(3), 1960).
    """
    return _Search(request).run()


def simplicity(found: Estimate) -> tuple[int, ...]:
    """Smaller is simpler: a plain schedule, few ranks that share a sequence, little recomputation, one level of data parallelism."""
    training, degrees = found.training, found.training.degrees
    schedule = _SCHEDULES.index(degrees.schedule) if degrees.schedule in _SCHEDULES else len(_SCHEDULES)
    return (
        schedule,
        degrees.tp * degrees.cp * degrees.pp,
        degrees.pp,
        degrees.cp,
        degrees.ep,
        degrees.chunks,
        degrees.dp_replicate,
        SHARDINGS.index(degrees.sharding),
        SAVING[training.recompute],
        training.micro,
        degrees.sequence_parallel,
    )


def in_order(scored: Iterable[Estimate]) -> Iterator[Estimate]:
    """Fastest first. The fastest that is left and all within 0.5 % of it are alike, and come the simplest first."""
    left = sorted(scored, key=lambda found: (found.step.seconds, simplicity(found)))
    start = 0
    for index, found in enumerate((*left, None)):
        if found is None or found.step.seconds > left[start].step.seconds * ALIKE:
            yield from sorted(left[start:index], key=simplicity)
            start = index


def pareto(scored: Iterable[Estimate]) -> Iterator[Estimate]:
    """Yield those that no other beats in both tokens a second and free memory, the fastest first."""
    most = -inf
    for found in sorted(scored, key=lambda found: (found.step.seconds, -headroom(found.memory), simplicity(found))):
        if headroom(found.memory) > most:
            most = headroom(found.memory)
            yield found


# Degrees by which the ranked differ: the rest is how best to fill them.
_Family = tuple[int, int, int, int]


def _family(degrees: Degrees) -> _Family:
    return degrees.tp, degrees.cp, degrees.pp, degrees.ep


class _Search:
    """One search: what is open, what was scored, what was left out."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._layouts = Layouts(request)
        self._bounds = Bounds(request, self._layouts)
        self._memory = Memory(request)
        self._open: list[_Open] = []
        self._beaten: list[_Open] = []
        self._scored: list[Estimate] = []
        self._fastest: dict[_Family, float] = {}
        self._limit = inf
        self._numbers = 0

    def run(self) -> SearchResult:
        """Looks at what can be fastest until nothing that is open can be among the ranked."""
        legal = 0
        for degrees in self._layouts.degrees():
            legal += self._layouts.count(degrees)
            self._push(self._bounds.of_all(degrees), degrees)
        while self._open and self._open[0].seconds <= self._limit:
            self._look(heapq.heappop(self._open))
        return self._result(legal)

    def _look(self, found: _Open) -> None:
        if found.seconds > self._fastest.get(_family(found.degrees), inf) * ALIKE:
            self._beaten.append(found)
        elif found.variant is None:
            for variant in self._layouts.variants(found.degrees):
                self._push(self._bounds.of(found.degrees, variant), found.degrees, variant)
        elif found.refined or found.degrees.sharding != "parameters":
            self._score(found.degrees, found.variant)
        else:
            self._push(self._bounds.refined(found.degrees, found.variant), found.degrees, found.variant, refined=True)

    def _push(self, bound: Bound, degrees: Degrees, variant: Variant | None = None, refined: bool = False) -> None:
        self._numbers += 1
        heapq.heappush(self._open, _Open(bound.with_bubble, self._numbers, bound.computing, degrees, variant, refined))

    def _score(self, degrees: Degrees, variant: Variant) -> None:
        whole = replace(degrees, schedule=variant.schedule, chunks=variant.chunks, sequence_parallel=variant.sequence_parallel)
        training = self._request.training(whole, variant.micro, variant.accumulation, variant.recompute)
        memory = self._memory.use(training)
        if memory is None:
            return
        found = Estimate(training, memory, step_time(training))
        self._scored.append(found)
        self._note(_family(degrees), found.step.seconds)

    def _note(self, family: _Family, seconds: float) -> None:
        """Keep the family's fastest, and the seconds beyond which nothing can be ranked any more."""
        if seconds >= self._fastest.get(family, inf):
            return
        self._fastest[family] = seconds
        if len(self._fastest) >= self._request.top:
            self._limit = heapq.nsmallest(self._request.top, self._fastest.values())[-1] * _MARGIN

    def _result(self, legal: int) -> SearchResult:
        ranked = tuple(in_order(self._best_of_families()))[: self._request.top]
        slow = sum(self._number_of(each) for each in (*self._open, *self._beaten))
        unfit = sum(self._memory.left_out.values())
        return SearchResult(
            request=self._request,
            ranked=ranked,
            pareto=tuple(pareto(ranked)),
            counts=Counts(legal, unfit, slow, len(self._scored)),
            rejections=(*self._ruled_out(), *self._without_room(), *self._too_slow(len(ranked))),
        )

    def _number_of(self, found: _Open) -> int:
        return 1 if found.variant is not None else self._layouts.count(found.degrees)

    def _best_of_families(self) -> Iterator[Estimate]:
        families: dict[_Family, list[Estimate]] = {}
        for found in self._scored:
            families.setdefault(_family(found.training.degrees), []).append(found)
        return (next(in_order(alike)) for alike in families.values())

    def _ruled_out(self) -> Iterator[Rejection]:
        for refusal in self._layouts.refusals:
            yield Rejection(refusal.reason, choices=refusal.choices)

    def _without_room(self) -> Iterator[Rejection]:
        for recompute in sorted(self._memory.left_out, key=SAVING.__getitem__):
            least = self._memory.least[recompute]
            room = f"{least.needed / GIB:.2f} GiB or more of {least.capacity / GIB:.2f} GiB"
            verdict = "does not fit" if self._request.tight else "does not fit, or is tight"
            yield Rejection(f"{verdict} with recompute {recompute}: {room}", layouts=self._memory.left_out[recompute])

    def _too_slow(self, ranked: int) -> Iterator[Rejection]:
        beaten = sum(map(self._number_of, self._beaten))
        if beaten:
            yield Rejection("at best as fast as another with the same tp, cp, pp and ep", layouts=beaten)
        slow: Counter[bool] = Counter()
        for each in self._open:
            slow[each.computing > self._limit] += self._number_of(each)
        if slow[True]:
            reason = f"computation and the waits of each microbatch alone take longer than the {ranked} fastest"
            yield Rejection(reason, layouts=slow[True])
        if slow[False]:
            yield Rejection(f"the bubble alone makes it slower than the {ranked} fastest", layouts=slow[False])
