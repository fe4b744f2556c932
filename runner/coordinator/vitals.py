"""Tracks heartbeats of a generation as a whole: whether any rank makes progress, which is evidence for or against a node's loss."""

from collections.abc import Mapping

from headway.runner.contract import RunConfig
from headway.runner.health.watch import RankBeat

# Where all ranks take part in each step, so that they stand still together when one is gone. Elsewhere (a restore, a long evaluation) a
# rank may be silent for as long as it likes.
_TRAINING = frozenset({"data", "compute", "collective", "script"})
# Multiple of the longest recent pause from which silence is unusual.
_USUAL = 2.5
# Taken for the longest pause where nothing was seen yet.
ADOPTED_S = 2.0
_HALF_FORGOTTEN_S = (
    # After so long a pause counts for half: by time, since thousands of ranks give thousands of signs a second.
    30.0
)


def beat_interval_s(nodes: int) -> float:
    """Seconds between two beats of an agent: 2,500 a second in all, and twice a second from each at most.

    12,500 nodes then beat every 5 s, and keep one core of the coordinator a sixth busy (benchmarks/control_plane).
    """
    return max(0.5, nodes / 2500)


class Vitals:
    """Of the generation that runs. Times are seconds of the coordinator's clock."""

    def __init__(self, config: RunConfig, now_s: float) -> None:
        self.beat_s = beat_interval_s(config.slots + config.spares)
        self.begin(now_s)

    def begin(self, now_s: float, base_step: int = 0, *, adopted: bool = False) -> None:
        """Begin a generation from `base_step`; the usual pauses of an `adopted` one are not known yet."""
        self.step = self._base_step = base_step
        self._moved_at = now_s  # the newest heartbeat of any rank
        # The longest pause between two heartbeats; older ones decay.
        self._pause_s = ADOPTED_S if adopted else 0.0
        # When a rank was last seen in a section that is none of _TRAINING.
        self._elsewhere_at = now_s

    def beat(self, ranks: Mapping[int, RankBeat], now_s: float) -> None:
        for step, section, _, age_s, _ in ranks.values():
            if age_s is None:
                continue
            if (moved_at := now_s - age_s) > self._moved_at:
                pause_s = moved_at - self._moved_at
                self._pause_s = max(pause_s, self._pause_s * 0.5 ** (pause_s / _HALF_FORGOTTEN_S))
                self._moved_at = moved_at
            self.step = max(self.step, step)
            if section not in _TRAINING:
                self._elsewhere_at = now_s

    def slept(self, seconds: float) -> None:
        """Shift all times by `seconds` in which the coordinator received nothing."""
        self._moved_at += seconds
        self._elsewhere_at += seconds

    @property
    def is_training(self) -> bool:
        """A step was completed, and no rank was last seen in a section in which it may be quiet."""
        return self.is_further and self._elsewhere_at < self._moved_at

    @property
    def is_further(self) -> bool:
        """A step was completed."""
        return self.step > self._base_step

    @property
    def usual_quiet_s(self) -> float:
        return _USUAL * self._pause_s

    def quiet_s(self, now_s: float) -> float:
        """Return how long no rank anywhere has sent a heartbeat."""
        return now_s - self._moved_at

    def moved_since(self, then_s: float) -> bool:
        return self._moved_at > then_s
