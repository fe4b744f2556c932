"""Tests that a save due during the absence of a replica group, or interrupted by its loss, is written once all groups are back."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headway.runner.checkpoint.save_reports import SaveOutcome
from headway.runner.contract import Checkpoint, Members, Tier
from headway.runner.train.replica_trainer import ReplicaGradients, ReplicaTrainer, SharedConsumed
from headway.runner.train.replicas import ReplicaState

BOTH, ALONE = (0, 1), (0,)
TIERS = (Tier("memory", 1), Tier("shared", 10))


class Link:
    """The other group, at the same step as this one, and the coordinator's list of training groups."""

    order_s, replica, inner, size, count, everyone = 1.0, 0, 0, 1, 2, object()

    def __init__(self) -> None:
        self.members = Members(0, BOTH)
        self.due_there = 0

    @property
    def is_full(self) -> bool:
        return self.members.replicas == BOTH

    @property
    def is_first(self) -> bool:
        return True

    def follow(self, _: float) -> None:
        self.members = Members(self.members.epoch + 1, ALONE if self.is_full else BOTH)

    def exchange(self, data: bytes) -> list[bytes]:
        own = ReplicaState.unpack(data)
        others = [ReplicaState(own.level, due=self.due_there).pack()] * (len(self.members.replicas) - 1)
        return [data, *others]

    def agree(self, ok: bool) -> bool:
        return ok


class Saves:
    """A saver whose outcomes the test decides."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, set[str]]] = []
        self.ended: list[SaveOutcome] = []
        self.forsaken = False

    def prepare(self, _: Any) -> None:
        return

    def save(self, step: int, _: Any, tiers: set[str]) -> None:
        assert not self.forsaken
        self.begun.append((step, tiers))

    def forsake(self) -> None:
        self.forsaken = True

    def outcomes(self) -> list[SaveOutcome]:
        ended, self.ended = self.ended, []
        return ended

    def retired(self) -> list[Any]:
        return []


class Loop(ReplicaTrainer):
    """The loop of one rank between its steps, which change only their number."""

    def __init__(self) -> None:
        self.replicas: Any = Link()
        self.saver: Any = Saves()
        self.savers = [self.saver]
        self.said: list[Mapping[str, Any]] = []
        self.worker: Any = SimpleNamespace(rank=0, say=lambda what, **facts: self.said.append({"what": what, **facts}))
        self.state: Any = SimpleNamespace(step=0, consumed=SharedConsumed())
        self.job: Any = SimpleNamespace(config=SimpleNamespace(checkpoint=Checkpoint(TIERS)))
        self.gradients = object.__new__(ReplicaGradients)
        self.gradients.summed, self.gradients.before = False, 0
        self.state_is_missing, self._has_saver, self._saves = False, True, True
        self._stop, self._postponed, self._unsaved, self._applied = False, set[str](), {}, None
        self._clock = self._blocked_s = 0.0

    def _open_saver(self) -> None:
        self.saver = Saves()
        self.savers.append(self.saver)

    def _to_save(self) -> Any:
        return None

    def step(self, *due: str) -> None:
        """Take a step after which these tiers are due, as `run` does."""
        self.state.step += 1
        self._postponed |= set(due)
        if self.replicas.is_full:
            self._save_or_regroup()
        self._report()

    def change(self) -> None:
        """A group is lost, or the lost one returns."""
        self._regroup()

    def ends(self, step: int, tier: str, error: str | None = None) -> None:
        self.saver.ended.append(SaveOutcome(step, tier, 0.1, error=error))

    @property
    def begun(self) -> list[tuple[int, set[str]]]:
        return [save for saver in self.savers for save in saver.begun]


def test_a_save_due_while_a_group_is_missing_is_written_after_it_returns() -> None:
    loop = Loop()
    loop.change()
    loop.step("shared")
    loop.step()
    loop.change()
    loop.step()
    assert loop.begun == []
    loop.step()
    assert loop.begun == [(4, {"shared"})]
    loop.step()
    assert len(loop.begun) == 1


def test_a_save_that_only_the_other_group_has_due_is_written_too() -> None:
    loop = Loop()
    loop.change()
    loop.replicas.due_there = 0b10
    loop.change()
    loop.step()
    loop.step()
    assert loop.begun == [(2, {"shared"})]


def test_a_save_interrupted_by_the_loss_of_a_group_is_due_again() -> None:
    loop = Loop()
    loop.step("shared", "memory")
    assert loop.begun == [(1, {"shared", "memory"})]
    loop.ends(1, "memory")
    loop.change()
    assert loop.savers[0].forsaken
    loop.step()
    loop.change()
    loop.step()
    loop.step()
    assert loop.begun[1:] == [(4, {"shared"})]


@pytest.mark.parametrize(("error", "again"), [(None, []), ("rank 1 could not save it", [(4, {"shared"})])])
def test_only_a_save_that_did_not_succeed_is_due_again(error: str | None, again: list[tuple[int, set[str]]]) -> None:
    loop = Loop()
    loop.step("shared")
    # It ends before the loss is known, which is when a failed save becomes apparent.
    loop.ends(1, "shared", error)
    loop.step()
    loop.change()
    loop.change()
    loop.step()
    loop.step()
    assert loop.begun[1:] == again


def test_the_end_of_an_older_save_does_not_complete_a_newer_one() -> None:
    loop = Loop()
    loop.step("shared")
    loop.step("shared")
    loop.ends(1, "shared")
    loop.change()
    loop.change()
    loop.step()
    loop.step()
    assert loop.begun[2:] == [(4, {"shared"})]
