"""Decides when each tier is written: by steps, or by rank 0's clock."""

from collections.abc import Sequence

from headway.runner.contract import Tier


class TierSchedule:
    """Decides which tiers are due after a step. Ranks that share a schedule must agree on `late` first: their clocks differ."""

    def __init__(self, tiers: Sequence[Tier], now_s: float) -> None:
        self._tiers = tuple(tiers)
        self._timed = tuple(tier for tier in tiers if tier.every_s is not None)
        self._written = dict.fromkeys((tier.kind for tier in self._timed), now_s)

    def late(self, now_s: float) -> tuple[bool, ...]:
        """Return for each tier by the clock whether its time has come."""
        return tuple(tier.every_s is not None and now_s - self._written[tier.kind] >= tier.every_s for tier in self._timed)

    def due(self, step: int, late: Sequence[bool], now_s: float) -> set[str]:
        """Return the tiers to be written after `step`, when all ranks agree on `late`. Their clocks restart now."""
        found = {tier.kind for tier in self._tiers if tier.every_steps is not None and step % tier.every_steps == 0}
        for tier, is_late in zip(self._timed, late, strict=True):
            if is_late:
                found.add(tier.kind)
                self._written[tier.kind] = now_s
        return found
