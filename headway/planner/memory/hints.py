"""Suggests changes to a job that does not fit; each was tried on the ledger first."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from headway.planner.memory.ledger import GIB, MemoryUse, peak
from headway.planner.schedules.orders import ScheduleError
from headway.planner.search.frameworks import abilities
from headway.planner.training import Recompute, Training

_SHOWN = 3
# Of the capacity: smaller savings are not proposed.
_WORTH = 0.01


@dataclass(frozen=True)
class _Change:
    words: str
    training: Training
    key: str


def _anything(_: Training) -> bool:
    return True


def hints(training: Training, use: MemoryUse, can_run: Callable[[Training], bool] = _anything) -> tuple[str, ...]:
    """Return up to three changes that need less than `use`, the cheapest first of those that fit; none where it fits
    already.

    Where no change is enough by itself, two together are tried, and the changes that free most are returned if these
    are not either. All keep the GPUs and the batch of a step. Only what the framework can run is proposed, and of that
    what `can_run` accepts.
    """
    if use.verdict == "fits":
        return ()
    found = [trial for change in _changes(training) if (trial := _tried(change, use, can_run)) is not None]
    if not any(trial.fits for trial in found):
        found += [trial for change in _pairs(training) if (trial := _tried(change, use, can_run)) is not None]
    # Of one setting the first value that fits: a later one costs more time.
    first = {trial.change.key: trial for trial in reversed(found) if trial.fits}
    fitting = [trial for trial in found if trial is first.get(trial.change.key)]
    told = fitting or sorted(found, key=lambda trial: trial.use.needed)
    return tuple(_words(trial, use) for trial in told[:_SHOWN])


@dataclass(frozen=True)
class Larger:
    """The fewest nodes with which a step fits, of those that are the job's times a power of two, and the changes for them."""

    nodes: int
    words: str


def larger(training: Training) -> Larger | None:
    """Return with how many nodes the step fits, up to 1024 times the job's; None if with none of these.

    The batch of a step stays the same. Of one number of nodes the changes that cost least time count.
    """
    for factor in (2**power for power in range(1, 11)):
        for change in _grown(training, factor):
            try:
                fits = peak(change.training).verdict == "fits"
            except ScheduleError:
                continue
            if fits:
                gpus = change.training.gpus
                nodes = -(-gpus // training.network.gpus_per_node)
                return Larger(nodes, f"with `nodes: {nodes}` ({gpus} GPUs) and {change.words} it fits")
    return None


def remedies(training: Training, use: MemoryUse) -> tuple[tuple[str, ...], int | None]:
    """Return what makes a step fit, and the nodes for it where only more are enough; without either, what frees most."""
    found = hints(training, use)
    if use.verdict != "does not fit" or any(each.endswith((": fits", ": tight")) for each in found):
        return found, None
    more = larger(training)
    return (found, None) if more is None else ((more.words,), more.nodes)


def _grown(training: Training, factor: int) -> Iterator[_Change]:
    """Yield layouts of so many times the GPUs: more shards, more pipeline stages, and both with everything recomputed."""
    degrees, found = training.degrees, []
    if training.accumulation % factor == 0 and degrees.sharding != "none":
        shards = degrees.dp_shard * factor
        sharded = replace(training, degrees=replace(degrees, dp_shard=shards), accumulation=training.accumulation // factor)
        found.append(_Change(f"`layout.dp_shard: {shards}`", sharded, "dp_shard"))
    stages = degrees.pp * factor
    if "pp" in abilities(training.framework).axes and stages * degrees.chunks <= training.model.layers:
        staged = replace(training, degrees=replace(degrees, pp=stages))
        found.append(_Change(f"`layout.pp: {stages}`", staged, "pp"))
    yield from found
    if training.recompute != "full":
        for change in found:
            changed = replace(change.training, recompute="full", recomputed_share=1.0, recomputed_parts=())
            yield _Change(f"{change.words} and `recompute: full`", changed, "recompute")


@dataclass(frozen=True)
class _Trial:
    change: _Change
    use: MemoryUse

    @property
    def fits(self) -> bool:
        return self.use.verdict == "fits"


def _tried(change: _Change, before: MemoryUse, can_run: Callable[[Training], bool]) -> _Trial | None:
    """Return the changed training; None if it cannot be run, or frees next to nothing."""
    if not can_run(change.training):
        return None
    try:
        after = peak(change.training)
    except ScheduleError:
        return None
    return _Trial(change, after) if before.needed - after.needed >= _WORTH * before.capacity else None


def _words(trial: _Trial, before: MemoryUse) -> str:
    verdict = "still does not fit" if trial.use.verdict == "does not fit" else trial.use.verdict
    frees = "free" if " and " in trial.change.words else "frees"
    return f"{trial.change.words} {frees} {(before.needed - trial.use.needed) / GIB:.0f} GiB: {verdict}"


def _pairs(training: Training) -> Iterator[_Change]:
    """Yield two different changes, one after the other."""
    singles = list(_changes(training))
    for index, first in enumerate(singles):
        later = {change.key for change in singles[index + 1 :]}
        for second in _changes(first.training):
            if second.key in later and second.key != first.key:
                yield _Change(f"{first.words} and {second.words}", second.training, second.key)


def _changes(training: Training) -> Iterator[_Change]:
    """Changes, those that cost least time first."""
    yield from _sequence_parallel(training)
    yield from _micro(training)
    yield from _recompute(training)
    yield from _tensor(training)
    yield from _context(training)
    yield from _pipeline(training)


def _sequence_parallel(training: Training) -> Iterator[_Change]:
    degrees = training.degrees
    if degrees.tp > 1 and not degrees.sequence_parallel and True in abilities(training.framework).sequence_parallel:
        changed = replace(training, degrees=replace(degrees, sequence_parallel=True))
        yield _Change("`layout.sequence_parallel: true`", changed, "sequence_parallel")


def _micro(training: Training) -> Iterator[_Change]:
    if training.micro % 2 == 0:
        less = training.micro // 2
        changed = replace(training, micro=less, accumulation=training.accumulation * 2)
        yield _Change(f"`batch.micro: {less}`", changed, "micro")


_MORE: Mapping[Recompute, tuple[Recompute, ...]] = {"none": ("selective", "full"), "selective": ("full",), "full": ()}


def _recompute(training: Training) -> Iterator[_Change]:
    for recompute in _MORE[training.recompute]:
        parts = abilities(training.framework).selective if recompute == "selective" else ()
        changed = replace(training, recompute=recompute, recomputed_share=1.0, recomputed_parts=parts)
        yield _Change(f"`recompute: {recompute}`", changed, "recompute")


def _tensor(training: Training) -> Iterator[_Change]:
    tp = training.degrees.tp * 2
    sizes = training.model
    if tp <= training.network.gpus_per_node and sizes.heads % tp == 0 and sizes.kv_heads % tp == 0:
        yield from _from_data(training, "tp", tp)


def _context(training: Training) -> Iterator[_Change]:
    cp = training.degrees.cp * 2
    if training.sequence % (2 * cp) == 0:
        yield from _from_data(training, "cp", cp)


def _pipeline(training: Training) -> Iterator[_Change]:
    pp = training.degrees.pp * 2
    if training.model.layers % (pp * training.degrees.chunks) == 0:
        yield from _from_data(training, "pp", pp)


def _from_data(training: Training, axis: str, size: int) -> Iterator[_Change]:
    """Yield the axis twice as large, and half as many ranks with sequences of their own."""
    degrees = training.degrees
    if axis not in abilities(training.framework).axes:
        return
    shrunk = "dp_shard" if degrees.dp_shard % 2 == 0 else "dp_replicate"
    if getattr(degrees, shrunk) % 2:
        return
    changed = replace(degrees, **{axis: size, shrunk: getattr(degrees, shrunk) // 2})
    # The default of a spec.
    if changed.tp > 1 and degrees.tp == 1:
        changed = replace(changed, sequence_parallel=True in abilities(training.framework).sequence_parallel)
    accumulation = training.accumulation * 2
    words = f"`layout.{axis}: {size}` with `{shrunk}: {getattr(changed, shrunk)}`"
    yield _Change(words, replace(training, degrees=changed, accumulation=accumulation), axis)
