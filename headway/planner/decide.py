"""Decides a job's `auto` values: the fastest layout that fits, and the checkpoint interval that loses the least time."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from headway.jobspec.auto import Decision, Decisions, with_values
from headway.jobspec.check.layout import sizes_of
from headway.jobspec.check.multiples import divisors
from headway.jobspec.document import Path, dotted
from headway.jobspec.parse import Parsed, parse_job
from headway.jobspec.plan import ClusterPlan, GroupPlan, JobPlan
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.resolve.batch import global_sequences
from headway.jobspec.resolve.domains import Domains
from headway.jobspec.resolve.job import resolve_job
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.layout import Layout
from headway.jobspec.suggest import listed
from headway.planner.estimate import Estimate, estimate
from headway.planner.from_plan import EstimateError, counted_nodes, training_of
from headway.planner.goodput.interval import best_interval, expected_goodput, with_interval
from headway.planner.goodput.of_plan import run_of
from headway.planner.goodput.run import SimulatedRun
from headway.planner.goodput.spares import best_spares
from headway.planner.goodput.tiers import KINDS
from headway.planner.memory.ledger import GIB
from headway.planner.search.frameworks import abilities, setting_of
from headway.planner.search.search import Allowed, Request, SearchResult, request_like, search
from headway.planner.training import Training

# Fields with a single supported value for the trainer, and that value; empty if the field has to be omitted.
Limits = Mapping[tuple[str, ...], tuple[Any, ...]]

_MICRO = ("batch", "micro")
_RECOMPUTE = ("recompute",)
_SHARDING = ("layout", "sharding")
_SPARES = ("resilience", "spares")

# The default of a part of a layout (resolve/mesh.py, from_plan.py); None: it follows from the others.
_UNSAID: Mapping[str, tuple[Any, ...] | None] = {
    "dp_shard": None,
    "sharding": None,
    "schedule": ("1F1B", "Interleaved1F1B"),
    "sequence_parallel": (True,),
}
_DEGREE_UNSAID = (1,)
# The reason of a value that the trainer does not leave open (templates/kind.py, `Limited`).
_ONLY_VALUE = "the only value that the trainer takes"
# Rounds over the tiers, whose intervals hardly depend on each other.
_ROUNDS = 3
# Where a job does not fit on its nodes, up to 64 times as many are tried.
_DOUBLINGS = 6


def decide(job: Parsed[TrainingJob], cluster: ClusterPlan, limits: Limits) -> tuple[Decisions, list[Problem]]:
    """Return a value for each `auto` of a job that is right otherwise and fits the cluster, or why there is none
    (HW212).

    The same job, cluster and limits come to the same values.
    """
    searched = tuple(path for path in job.undecided if path[0] == "layout" or path in (_MICRO, _RECOMPUTE))
    others = tuple(path for path in job.undecided if path not in searched)
    decisions: Decisions = {}
    try:
        if searched:
            decisions = _decide_layout(*_planned(job, decisions, cluster), cluster, searched, limits)
        if others:
            decisions = {**decisions, **_decide_run(*_planned(job, decisions, cluster), cluster, others)}
    except EstimateError as error:
        return {}, [_undecidable([path for path in job.undecided if path not in decisions], error)]
    return {path: decisions[path] for path in job.undecided}, []


def _undecidable(paths: Sequence[Path], error: EstimateError) -> Problem:
    """Return why the first open value cannot be decided, at the field to change: each part waits for the previous one."""
    message = f"{listed(map(dotted, paths))} cannot be decided: {error}"
    if error.path is not None:
        return Problem("HW212", JOB, error.path, message, error.hint)
    return Problem("HW212", JOB, paths[0], message, f"{error.hint}; or write the value itself")


def request_of(spec: TrainingJob, plan: JobPlan, cluster: ClusterPlan, limits: Limits, top: int) -> Request:
    """Return the search for any layout, microbatch and recomputing, ignoring the job's own. Raises EstimateError."""
    request = _request(spec, plan, cluster, (("layout",), _MICRO, _RECOMPUTE), limits)
    return replace(request, sharding=abilities(request.framework).sharding, top=top)


def on_any_nodes(request: Request, limits: Limits) -> Request:
    """Return the same search where the nodes are not the job's own: their NVLink domains hold any number of them."""
    return replace(request, allowed=replace(request.allowed, tp=_choices(("layout", "tp"), _DEGREE_UNSAID, limits)))


def _planned(job: Parsed[TrainingJob], decisions: Decisions, cluster: ClusterPlan) -> tuple[TrainingJob, JobPlan]:
    """Return the spec with the decided values and stand-ins for the rest, and its plan; an open layout has all ranks in
    one axis there."""
    decided, _ = parse_job(with_values(job.document, {path: decision.value for path, decision in decisions.items()}))
    spec, is_open = decided.spec, any(path[0] == "layout" for path in decided.undecided)
    placed = spec.model_copy(update={"layout": Layout(sharding=spec.layout.sharding)}) if is_open else spec
    return spec, resolve_job(placed, cluster, sizes_of(decided), None)


def _decide_layout(spec: TrainingJob, plan: JobPlan, cluster: ClusterPlan, paths: tuple[Path, ...], limits: Limits) -> Decisions:
    """Decide the open values of the layout, the microbatch and recomputing. Raises EstimateError."""
    request = _request(spec, plan, cluster, paths, limits)
    found = search(replace(request, tight=False))
    found = found if found.best is not None else search(request)
    if found.best is None:
        raise _in_the_way(found, spec, request, paths) or _nothing_left(found, plan, cluster, request, paths, limits)
    reasons = iter((_reason_of_layout(found, found.best), *["found by the same search"] * len(paths)))
    return {
        path: Decision(_value(path, found.best.training, limits), _ONLY_VALUE if path in limits else next(reasons))
        for path in paths
    }


def _in_the_way(found: SearchResult, spec: TrainingJob, request: Request, paths: tuple[Path, ...]) -> EstimateError | None:
    """Return the one written value without which there are layouts, and a value for it; None if no single one is in the way."""
    if any(rejection.layouts for rejection in found.rejections):
        return None
    for path, open_request in _with_one_open(spec, request, paths):
        other = search(replace(open_request, top=1)).best
        if other is not None:
            written, named = _written(spec, path)
            why = next((f": {each.reason}" for each in found.rejections if named in each.reason), "")
            reason = f"no layout of its {request.gpus:,} GPUs has {written}{why}"
            return EstimateError(reason, f"write {_in_words(path, other.training)} for example", path)
    return None


def _with_one_open(spec: TrainingJob, request: Request, paths: tuple[Path, ...]) -> Iterator[tuple[tuple[str, ...], Request]]:
    """Yield the request with each of the values that the job has written left open, and the value's path."""
    for field in Layout.model_fields:
        path, part = ("layout", field), _part(field)
        if ("layout",) not in paths and path not in paths and getattr(spec.layout, field) not in (None, *_DEGREE_UNSAID):
            yield path, replace(request, allowed=replace(request.allowed, **{part: None}))
    micro = (request.allowed.micro or (1,))[0]
    whole = max(1, round(request.sequences / (request.gpus * micro))) * request.gpus * micro
    if whole != request.sequences:
        yield ("batch", "global"), replace(request, sequences=whole)
    if _MICRO not in paths and request.allowed.micro is not None:
        yield ("batch", "micro"), replace(request, allowed=replace(request.allowed, micro=None))


def _written(spec: TrainingJob, path: tuple[str, ...]) -> tuple[str, str]:
    """Return the field with its value in the job, and as the reasons of the search name it."""
    if path == ("batch", "global") and spec.batch is not None:
        sequences = f"{global_sequences(spec.batch)} sequences"
        return f"a global batch of {sequences}", sequences
    value = spec.batch.micro_sequences if path == _MICRO and spec.batch is not None else getattr(spec.layout, path[1])
    return f"`{dotted(path)}: {value}`", f"{_part(path[-1])} {value}"


def _in_words(path: tuple[str, ...], other: Training) -> str:
    """Return the field with its value in another layout."""
    if path == ("batch", "global"):
        return f"`global: {other.sequences} sequences`"
    value = other.micro if path == _MICRO else getattr(other.degrees, _part(path[1]))
    return f"`{path[-1]}: {value}`"


def _nothing_left(
    found: SearchResult, plan: JobPlan, cluster: ClusterPlan, request: Request, paths: tuple[Path, ...], limits: Limits
) -> EstimateError:
    """Return why no layout can be used: for want of memory, or by the rules that no layout keeps."""
    gpus = plan.world_size
    without_room = [rejection.reason for rejection in found.rejections if rejection.layouts]
    # Of the memory, the reason is what recomputing everything would need; of the rules, the first.
    reason = without_room[-1] if without_room else found.rejections[0].reason
    more = [f"`{dotted(path)}: auto`" for path in (("layout",), _MICRO, _RECOMPUTE) if path not in paths and path not in limits]
    hint = f"write {' and '.join(more)}" if more else "change the batch or the number of nodes"
    if without_room:
        nodes = _nodes_needed(plan, cluster.group(plan.group), request, limits)
        roomier = "use GPUs with more memory" if nodes is None else f"use {nodes}, or GPUs with more memory"
        # Another layout is not sure to be enough.
        hint = ", or ".join([roomier, *([hint] if more else [])])
    whose = f"its {gpus:,} GPUs" if gpus > 1 else "its one GPU"
    return EstimateError(f"no layout of {whose} can be used: {reason}", hint)


def _nodes_needed(plan: JobPlan, group: GroupPlan, request: Request, limits: Limits) -> str | None:
    """Return a number of nodes on which a layout fits, and the recomputing that it needs. The job's own number is doubled until one
    fits; None if none does."""
    anywhere = on_any_nodes(request, limits)
    ways = [("", anywhere.allowed.recompute), *([] if _RECOMPUTE in limits else [(" with `recompute: full`", ("full",))])]
    for words, recompute in ways:
        wider = replace(anywhere, allowed=replace(anywhere.allowed, dp_shard=None, recompute=recompute), top=1)
        for nodes in (plan.slots * 2**power for power in range(1, _DOUBLINGS + 1)):
            if search(replace(wider, gpus=nodes * plan.procs_per_slot)).best is not None:
                return f"{counted_nodes(nodes, group)}{words}"
    return None


def _request(spec: TrainingJob, plan: JobPlan, cluster: ClusterPlan, paths: tuple[Path, ...], limits: Limits) -> Request:
    """Return the search for all open values; the others are the job's, or its defaults."""
    training = training_of(plan, cluster)
    parts: dict[str, Any] = {_part(field): _allowed(field, spec.layout, paths, limits) for field in Layout.model_fields}
    if _SHARDING not in limits and (("layout",) in paths or _SHARDING in paths):
        parts["sharding"] = abilities(training.framework).shardings or None
    allowed = Allowed(
        **{**parts, "tp": parts["tp"] or _tensor_degrees(plan, cluster.group(plan.group))},
        micro=None if _MICRO in paths else (training.micro,),
        recompute=_choices(_RECOMPUTE, ("none",), limits) if _RECOMPUTE in paths else (training.recompute,),
    )
    request = request_like(training, allowed, top=2)
    # All ranks in one axis may be more than there are sequences.
    return request if plan.run.batch is None else replace(request, sequences=plan.run.batch.global_sequences)


def _allowed(field: str, layout: Layout, paths: tuple[Path, ...], limits: Limits) -> tuple[Any, ...] | None:
    """Return the values that a field of the layout may come to; None for any."""
    unsaid = _UNSAID.get(field, _DEGREE_UNSAID)
    if ("layout",) in paths or ("layout", field) in paths:
        return _choices(("layout", field), unsaid, limits)
    said = getattr(layout, field)
    return unsaid if said is None else (said,)


def _tensor_degrees(plan: JobPlan, group: GroupPlan) -> tuple[int, ...]:
    """Return sizes of groups for which NVLink domains hold as many nodes as the job requires (check/domains.py)."""
    domains = Domains(group.nvlink_domain, group.gpus, group.count)
    return tuple(tp for tp in divisors(plan.world_size) if domains.room(domains.unit(tp)) >= plan.slots)


def _choices(path: tuple[str, ...], unsaid: tuple[Any, ...] | None, limits: Limits) -> tuple[Any, ...] | None:
    """Return the values that the trainer supports for an open field; None for any."""
    return (limits[path] or unsaid) if path in limits else None


def _part(field: str) -> str:
    """Return the name that estimates have for a field of the layout."""
    return "chunks" if field == "virtual_stages" else field


def _value(path: Path, best: Training, limits: Limits) -> Any:
    """Return the value at the path in a document with this layout; None for a field to omit."""
    if limits.get(tuple(map(str, path))) == ():
        return None
    if path == _MICRO:
        return best.micro
    if path == _RECOMPUTE:
        return best.recompute
    if path != ("layout",):
        return _degree(str(path[1]), best)
    said = {field: _value(("layout", field), best, limits) for field in Layout.model_fields}
    return {field: value for field, value in said.items() if field == "dp_shard" or not _is_default(field, value)}


def _degree(field: str, best: Training) -> Any:
    """Return the field's value; None if it has no effect alone."""
    degrees = best.degrees
    if field == "sharding":
        return setting_of(best.framework, degrees.sharding)
    if (field == "schedule" and degrees.pp == 1) or (field == "sequence_parallel" and degrees.tp == 1):
        return None
    return getattr(degrees, _part(field))


def _is_default(field: str, value: Any) -> bool:
    """Return whether the value is the field's default."""
    return value == Layout.model_fields[field].default or (field == "sequence_parallel" and value is True)


def _reason_of_layout(found: SearchResult, best: Estimate) -> str:
    memory = f"{best.memory.needed / GIB:.0f} GiB of {best.memory.capacity / GIB:.0f}"
    room = f"{memory}, which is tight" if best.memory.verdict == "tight" else memory
    return f"{_significant(best.tokens_s, 3):,} tokens/s, {room}; {_next_best(found, best)}"


def _next_best(found: SearchResult, best: Estimate) -> str:
    if len(found.ranked) == 1:
        return "there is no other"
    slower = 1 - found.ranked[1].tokens_s / best.tokens_s
    return f"the next best is {slower:.1%} slower" if slower >= 0.0005 else "the next best is no faster"


def _decide_run(spec: TrainingJob, plan: JobPlan, cluster: ClusterPlan, paths: tuple[Path, ...]) -> Decisions:
    """Return the intervals of checkpoints and the spares that are open. Raises EstimateError."""
    step = estimate(training_of(plan, cluster))
    longest = spec.limits.attempt.time if spec.steps is None else None
    run = run_of(plan, cluster, step.step.seconds, step.checkpoint_bytes, longest)
    tiers = spec.checkpoint.tiers if spec.checkpoint is not None else ()
    kinds = {path: tiers[path[2]].kind for path in paths if path != _SPARES and isinstance(path[2], int)}
    run = _with_best_intervals(run, set(kinds.values()))
    intervals = {path: _interval(run, kind, spec.steps) for path, kind in kinds.items()}
    return {path: intervals[path] if path in intervals else _spares(run, plan.segment_nodes or 1) for path in paths}


def _with_best_intervals(run: SimulatedRun, kinds: Collection[str]) -> SimulatedRun:
    """Return the run with the best interval of each of these tiers, none longer than that of a tier that outlives it:
    it would be of no use."""
    for kind in kinds:
        run = with_interval(run, kind, run.length_s)
    for _ in range(_ROUNDS):
        longest = run.length_s
        for kind in [kind for kind in reversed(KINDS) if any(tier.kind == kind for tier in run.tiers)]:
            if kind in kinds:
                run = with_interval(run, kind, best_interval(replace(run, work_s=longest), kind))
            longest = min(longest, run.tier(kind).interval_s)
    return run


def _interval(run: SimulatedRun, kind: str, steps: int | None) -> Decision:
    """Return the interval in steps, since the runner counts them; two digits, since the optimum is flat, and none
    shorter, since writing one takes its time."""
    chosen = _two_digits(run.tier(kind).interval_s / run.step_s)
    chosen = chosen if steps is None else min(chosen, steps)
    often = _duration(chosen * run.step_s)
    apart = _duration(1 / sum(run.rates().values()))
    reason = f"{often}, for one failure every {apart} and {_duration(run.tier(kind).block_s)} a checkpoint"
    return Decision(f"{chosen} step{'s' if chosen > 1 else ''}", f"{reason}; expected goodput {_share(expected_goodput(run))}")


def _share(share: float) -> str:
    """Return the share, never rounded up to a whole that it is not."""
    return "> 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


def _spares(run: SimulatedRun, together: int) -> Decision:
    """`together` nodes of one NVLink domain are replaced together."""
    reason = "the smallest number with which the job waits for a node less than 0.5 % of its time"
    if together > 1:
        reason += f", in groups of {together} nodes of one NVLink domain"
    return Decision(math.ceil(best_spares(run) / together) * together, reason)


def _two_digits(number: float) -> int:
    """Return the next whole number from there on that has no more than two digits before its zeros."""
    scale: int = 10 ** max(0, len(str(int(number))) - 2)
    return max(1, math.ceil(number / scale)) * scale


def _significant(number: float, digits: int) -> int:
    """Return the number with so many significant digits, as a whole one."""
    return round(float(f"{number:.{digits}g}"))


def _duration(seconds: float) -> str:
    """Return the duration as text, with two digits: `14 min`."""
    for unit, scale in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * scale:
            return f"{float(f'{seconds / scale:.2g}'):g} {unit}"
    return f"{float(f'{seconds:.2g}'):g} s"
