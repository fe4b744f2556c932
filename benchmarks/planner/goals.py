"""Lists the planner's goals, each with the measured value."""

from collections.abc import Iterator

from msgspec import Struct

from benchmarks.planner.score import Score

# Sources, by their largest sweep.
_LARGEST = 2


class Goal(Struct, frozen=True):
    """A share that is to lie between `least` and `most`; `met` is None where there was nothing to measure."""

    name: str
    least: float
    most: float
    measured: float | None

    @property
    def met(self) -> bool | None:
        """Whether the measurement is within the bounds."""
        return None if self.measured is None else self.least <= self.measured <= self.most


def goals(score: Score) -> tuple[Goal, ...]:
    """Return all of them."""
    return (*_of_time(score), *_of_memory(score), *_of_choice(score))


def _of_time(score: Score) -> Iterator[Goal]:
    dense, pooled = score.dense, score.dense.pooled
    unseen = score.unseen_sources
    yield Goal("dense step time, unseen sources, mean over sources", 0, 0.12, unseen["mean_over_sources"])
    yield Goal("dense step time, unseen sources, pooled", 0, 0.10, unseen["pooled"])
    yield Goal("step time with experts, unseen sources, mean over sources", 0, 0.18, unseen["experts"]["mean_over_sources"])
    for each in score.coverage:
        yield Goal(f"intervals of 90 % that hold the measured time: {each.name}", 0.87, 0.95, each.held)
    yield Goal("dense step time, mean over sources", 0, 0.10, dense.mean_over_sources)
    yield Goal("dense step time, pooled", 0, 0.08, pooled.mean if pooled else None)
    yield Goal("dense step time, median", 0, 0.06, pooled.median if pooled else None)
    yield Goal("step time with experts, mean over sources", 0, 0.15, score.experts.mean_over_sources)
    yield Goal("transfer from one measured row", 0, 0.05, score.transfer.mean_over_groups if score.transfer else None)


def _of_memory(score: Score) -> Iterator[Goal]:
    known, other = score.peaks.known, score.peaks.other
    yield Goal("peak memory, framework known", 0, 0.05, known.mean if known else None)
    yield Goal("peak memory, framework guessed", 0, 0.10, other.mean if other else None)
    labelled = score.out_of_memory
    for source, said in ((labelled.largest or "largest source", labelled.largest_source), ("other sources", labelled.others)):
        yield Goal(f"verdicts on memory that are right ({source})", 0.95, 1, said.right if said else None)
        yield Goal(f"called fitting of those that ran out of memory ({source})", 0, 0.01, said.missed if said else None)
        yield Goal(f"called tight ({source})", 0, 0.15, said.tight if said else None)


def _of_choice(score: Score) -> Iterator[Goal]:
    for source, found in list(score.layouts_by_source.items())[:_LARGEST]:
        chosen = found.ours
        name = f"{source}, {chosen.sweeps if chosen else 0} sweeps"
        yield Goal(f"lost by the chosen layout, mean ({name})", 0, 0.02, chosen.mean if chosen else None)
        yield Goal(f"lost by the chosen layout, worst ({name})", 0, 0.10, chosen.worst if chosen else None)
