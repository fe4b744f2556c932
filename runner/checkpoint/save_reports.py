"""Collects what becomes of saves: the keeper's reports, the saves that have not ended, and the results for the trainer."""

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from headway.runner.checkpoint.chain import SupersededError
from headway.runner.checkpoint.keeper.protocol import Done, Event, Failed, Sealed
from headway.runner.contract import CheckpointId


@dataclass(frozen=True)
class SaveOutcome:
    """The result of the save of `step` to `tier`, `seconds` after it began.

    `bytes` is the data of all ranks there, in `files` files with parts and manifest; `error` is why the save does not
    count.
    """

    step: int
    tier: str
    seconds: float
    bytes: int = 0
    files: int = 0
    error: str | None = None


class SaveReports:
    """Shared by the trainer's thread, the keeper's and one for each tier; all of them wait on `changed`.

    `keeper_gone` is why the keeper is unavailable; `superseded` that a newer generation has claimed the run.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.keeper_gone: str | None = None
        self.superseded: SupersededError | None = None
        self._reports: dict[tuple[int, str], Sealed | Done | Failed] = {}
        # Tiers of saves that have not ended.
        self._open = 0
        # Ended saves after which superseded files may still be deleted.
        self._cleaning = 0
        self._outcomes: deque[SaveOutcome] = deque()
        self._retired: deque[CheckpointId] = deque()

    # --- during a save ------------------------------------------------------------------------------------------------

    def begin(self, tiers: int) -> None:
        """Count a save in so many tiers as open."""
        with self.changed:
            self._open += tiers

    def report(self, event: Event) -> None:
        """Record the keeper's report on a save in one tier; for a freed buffer, only wake the threads that wait for one."""
        with self.changed:
            match event:
                case Sealed(step):
                    self._reports[step, "memory"] = event
                case Done(step, tier) | Failed(step, tier):
                    self._reports[step, tier] = event
            self.changed.notify_all()

    def fail(self, step: int, tiers: Collection[str], reason: str) -> None:
        """Record that the save failed in these tiers, unless the keeper has reported on it."""
        with self.changed:
            for tier in tiers:
                self._reports.setdefault((step, tier), Failed(step, tier, reason))
            self.changed.notify_all()

    def wait_for(self, step: int, tier: str) -> Sealed | Done | Failed:
        """Wait for the report on a save in a tier, and return it; Failed once the keeper is gone."""
        with self.changed:
            self.changed.wait_for(lambda: (step, tier) in self._reports or self.keeper_gone is not None)
            return self._reports.pop((step, tier), None) or Failed(step, tier, self.keeper_gone or "")

    # --- after it -----------------------------------------------------------------------------------------------------

    def end(self, outcome: SaveOutcome, superseded: SupersededError | None) -> None:
        """Record that a save has ended in one tier; superseded files may still be deleted."""
        with self.changed:
            self.superseded = self.superseded or superseded
            self._outcomes.append(outcome)
            self._open -= 1
            self._cleaning += 1
            self.changed.notify_all()

    def cleaned(self, retired: Collection[CheckpointId]) -> None:
        """Record that the files which a save has superseded are deleted."""
        with self.changed:
            self._retired.extend(retired)
            self._cleaning -= 1
            self.changed.notify_all()

    def wait(self, *, cleaned: bool) -> None:
        """Wait until every save so far has ended in every tier and, with `cleaned`, superseded files are deleted."""
        with self.changed:
            self.changed.wait_for(lambda: self._open == 0 and not (cleaned and self._cleaning))

    def take_outcomes(self) -> list[SaveOutcome]:
        """Return the results since the last call."""
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]

    def take_retired(self) -> list[CheckpointId]:
        """Return the checkpoints retired since the last call."""
        return [self._retired.popleft() for _ in range(len(self._retired))]
