"""Suggests changes to a job that does not fit; each was tried on the ledger first."""

import itertools
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from headway.planner.memory.ledger import GIB, MemoryUse, peak
from headway.planner.schedules.orders import ScheduleError
from headway.planner.search.frameworks import abilities
from headway.planner.training import Recompute, Training

STILL_TOO_LARGE = "still does not fit"
"""How a hint ends whose change is not enough."""
_SHOWN = 3
# Of the capacity: smaller savings are not proposed.
_WORTH = 0.01


class _Change(Struct, frozen=True):
    words: str
    training: Training
    key: str


def _anything(_: Training) -> bool:
    return True


def hints(training: Training, use: MemoryUse, can_run: Callable[[Training], bool] = _anything) -> tuple[str, ...]:
    """Return up to three changes that need less than `use`, the cheapest first of those that fit; none where it fits
    already.

    Where no change is enough by itself, two together are tried, then the smallest microbatch with everything recomputed and the model
    split over all ranks. The changes that free most are returned if these do not fit either. All keep the GPUs and the batch of a
    step. Only what the framework can run is proposed, and of that what `can_run` accepts.
    """
    if use.verdict == "fits":
        return ()
    found = [trial for change in _changes(training) if (trial := _tried(change, use, can_run)) is not None]
    if not any(trial.fits for trial in found):
        found += [trial for change in _pairs(training) if (trial := _tried(change, use, can_run)) is not None]
    if not any(trial.fits for trial in found):
        found += [trial for change in _all_at_once(training) if (trial := _tried(change, use, can_run)) is not None]
    # Of one setting the first value that fits: a later one costs more time.
    first = {trial.change.key: trial for trial in reversed(found) if trial.fits}
    fitting = [trial for trial in found if trial is first.get(trial.change.key)]
    told = fitting or sorted(found, key=lambda trial: trial.use.needed)
    return tuple(_words(trial, use) for trial in told[:_SHOWN])


def ranks_needed(training: Training) -> tuple[int, str] | None:
    """Return how many times the data-parallel ranks a step fits on, and the changes with which it does; None if it fits on no number
    up to 1024 times as many, or the batch is not large enough for them."""
    batch = training.micro * training.accumulation * training.degrees.dp_shard
    for factor in (2**power for power in range(1, 11)):
        for wider in _wider(training, factor):
            for change in (wider, *_all_at_once(wider.training)):
                per_pass = change.training.micro * change.training.degrees.dp_shard
                changed = replace(change.training, accumulation=batch // per_pass)
                if batch % per_pass == 0 and _fits(changed):
                    return factor, " and ".join(dict.fromkeys([wider.words, change.words]))
    return None


def _wider(training: Training, factor: int) -> Iterator[_Change]:
    """Yield the training on so many times the ranks: more shards, or more stages."""
    degrees = training.degrees
    shards = degrees.dp_shard * factor
    yield _Change(f"`dp_shard: {shards}`", replace(training, degrees=replace(degrees, dp_shard=shards)), "dp_shard")
    pp = degrees.pp * factor
    if "pp" in abilities(training.framework).axes and training.model.layers % (pp * degrees.chunks) == 0:
        yield _Change(f"`pp: {pp}`", replace(training, degrees=replace(degrees, pp=pp)), "pp")


def _fits(training: Training) -> bool:
    try:
        return peak(training).verdict == "fits"
    except ScheduleError:
        return False


class _Trial(Struct, frozen=True):
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
    verdict = STILL_TOO_LARGE if trial.use.verdict == "does not fit" else trial.use.verdict
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
    yield from _shards(training)
    yield from _recompute(training)
    yield from _tensor(training)
    yield from _context(training)
    yield from _pipeline(training)


def _all_at_once(training: Training) -> Iterator[_Change]:
    """Yield the changes that free most, together: of each kind alone first, then more of them."""
    kinds = (_smallest_micro, _everything_recomputed, _split)
    for number in range(1, len(kinds) + 1):
        for chosen in itertools.combinations(kinds, number):
            words, changed = [], training
            for change in chosen:
                found = change(changed)
                if found is not None:
                    words.append(found.words)
                    changed = found.training
            if len(words) == number:
                yield _Change(" and ".join(words), changed, "together")


def _smallest_micro(training: Training) -> _Change | None:
    changed = replace(training, micro=1, accumulation=training.accumulation * training.micro)
    return _Change("`batch.micro: 1`", changed, "micro") if training.micro > 1 else None


def _everything_recomputed(training: Training) -> _Change | None:
    found = [change for change in _recompute(training) if change.training.recompute == "full"]
    return found[0] if found else None


def _split(training: Training) -> _Change | None:
    """Return the training with parameters, gradients and moments split over the ranks of `dp_shard`."""
    degrees, able = training.degrees, abilities(training.framework)
    if degrees.sharding == "parameters" or degrees.dp_shard == 1 or "parameters" not in able.shardings:
        return None
    changed = replace(training, degrees=replace(degrees, sharding="parameters"))
    return _Change("`layout.sharding: parameters`", changed, "sharding")


def _sequence_parallel(training: Training) -> Iterator[_Change]:
    degrees = training.degrees
    if degrees.tp > 1 and not degrees.sequence_parallel and True in abilities(training.framework).sequence_parallel:
        changed = replace(training, degrees=replace(degrees, sequence_parallel=True))
        yield _Change("`layout.sequence_parallel: true`", changed, "sequence_parallel")


def _shards(training: Training) -> Iterator[_Change]:
    """Yield the training with one copy of the model over all ranks of data parallelism, if there were copies on every rank."""
    degrees = training.degrees
    if degrees.dp_replicate > 1 and degrees.dp_shard == 1:
        sharding = "parameters" if degrees.sharding == "none" else degrees.sharding
        changed = replace(degrees, dp_replicate=1, dp_shard=degrees.dp_replicate, sharding=sharding)
        words = f"`layout.dp_shard: {changed.dp_shard}` in place of `dp_replicate`"
        yield _Change(words, replace(training, degrees=changed), "dp_shard")


def _micro(training: Training) -> Iterator[_Change]:
    less, passes = training.micro, training.accumulation
    while less % 2 == 0:
        less, passes = less // 2, passes * 2
        yield _Change(f"`batch.micro: {less}`", replace(training, micro=less, accumulation=passes), "micro")


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
