"""Compares replicas while a script runs: silent corruption shows as copies that are no longer bit-identical.

Each rank sends a checksum of what it shares with others, after a step, to all ranks, over a group of this module's own.
If all are equal, that is reported and nothing else happens; otherwise the differing ranks are named and the script ends
by CorruptionError.

Correct replicas stay equal, as they step with the same gradients. State that was never equal on any two ranks is
therefore not a replica (a script may step each rank alone), and is ignored.
"""

import atexit
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from headway.runner.boot import replicas, saved
from headway.runner.boot.after_import import after_import
from headway.runner.boot.heartbeat import current, in_section
from headway.runner.boot.limitations import note_limitation, suppress_errors
from headway.runner.boot.records import registry_of
from headway.runner.boot.replica_report import ReplicaHolding, ReplicaReport, describe, holdings, listed, state_name, suspected
from headway.runner.boot.saved import SavedState, SavedVerdict, Unit
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.contract import Every
from headway.runner.corruption import CorruptionError, say_compared, say_corrupted
from headway.runner.worker import Worker

# Ranks that step together compare together. At most half of the timeout of collectives: another rank may wait for this
# one in a collective meanwhile.
PATIENCE_S = 60.0
# Factor of the steps between comparisons, until the time of a step is known.
_GROWTH = 2
# The caller of a step's hooks (torch.optim.optimizer).
_STEP = ("wrapper", torch.optim.Optimizer.profile_hook_step.__code__.co_filename)


def prepare(worker: Worker, every: Every, collective_s: float) -> "Comparison":
    """Return the function to call after each optimizer's step.

    Create it before the script creates modules. `collective_s` is the run's timeout of collectives.
    """
    after_import("torch.nn.parallel.distributed", replicas.see_ddp)
    return Comparison(worker, every, min(PATIENCE_S, collective_s / 2))


class ComparisonSchedule:
    """Decides when the next comparison is due.

    It counts this process's own steps, so that ranks agree without communication; the first comparison, after the first
    step, is the reference for the others.
    """

    def __init__(self, every: Every, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._count, self._due, self._gap = 0, 1, 1
        self._from: tuple[int, float] | None = None

    def stepped(self) -> None:
        self._count += 1

    def is_due(self) -> bool:
        return self._count >= self._due

    def step_s(self) -> float:
        """Seconds per step on this rank since the last comparison; 0 before there was one."""
        if self._from is None:
            return 0.0
        count, at_s = self._from
        return (self._clock() - at_s) / max(self._count - count, 1)

    def compared(self, step_s: float) -> None:
        """Set the next comparison, by the first rank's `step_s`."""
        if self._every.steps is not None:
            self._due = (self._count // self._every.steps + 1) * self._every.steps
        else:
            wanted = (self._every.seconds or 0.0) / step_s if step_s > 0 else 1.0
            self._gap = max(1, min(round(wanted), _GROWTH * self._gap if self._from is not None else 1))
            self._due = self._count + self._gap
        self._from = self._count, self._clock()


class Comparison:
    """One rank's part. StepCounter calls it after each optimizer's step; `counted` if that is a step of the run."""

    def __init__(self, worker: Worker, every: Every, patience_s: float = PATIENCE_S) -> None:
        self._worker, self._schedule, self._patience = worker, ComparisonSchedule(every), timedelta(seconds=patience_s)
        # In the order of their first steps.
        self._optimizers: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        # The group, and the default group that it was made with.
        self._ranks, self._default = Ranks(), None
        # Kinds and numbers of holders of what was equal at least once.
        self._alike: set[tuple[str, int]] = set()
        self._alone, self._over = False, False
        # Of the newest comparison that found all equal.
        self._equal_step: int | None = None
        # Later saves may be wrong; None until the next step.
        self._saved_after: float | None = time.time()
        self._found: CorruptionError | None = None

    def __call__(self, optimizer: Any, counted: bool) -> None:
        """Compare if due. Raises CorruptionError, and again at each step of a script that continues. An error of the
        check itself is only logged."""
        if not (self._over or self._found):
            try:
                self._found = self._after(optimizer, counted)
            except Exception as error:
                self._give_up(f"{type(error).__name__}: {error}")
        if self._found is not None:
            raise self._found

    def _after(self, optimizer: Any, counted: bool) -> CorruptionError | None:
        self._alone = self._alone or replicas.stepped_alone(optimizer)
        if counted:
            self._schedule.stepped()
            if self._saved_after is None:
                self._saved_after = time.time()
        if (optimizer in self._optimizers and not self._schedule.is_due()) or is_within_another():
            return None
        self._optimizers[optimizer] = None
        if not self._schedule.is_due():
            return None
        if is_unordered():
            self._give_up("an optimizer steps inside the backward pass or in a CUDA graph")
            return None
        return self._compare()

    def _compare(self) -> CorruptionError | None:
        mine = self._mine()
        try:
            with _waiting():
                group = self._group()
                said = [ReplicaReport.from_json(text) for text in group.gather_any(mine.to_json())]
        except Exception as error:
            # A rank is gone, or makes other steps than this one.
            self._give_up(f"the ranks did not meet: {error}".splitlines()[0])
            return None
        self._schedule.compared(said[0].step_s)
        return self._judge(said, group)

    def _mine(self) -> ReplicaReport:
        signs = current()
        pulse = signs.pulse if signs is not None else self._worker.pulse
        step_s = self._schedule.step_s()
        found = suppress_errors(replicas.sums, self._optimizers, pulse) if dist.is_initialized() else []
        sums = None if found is None else tuple(found)
        return ReplicaReport(self._worker.rank, self._worker.step, step_s, self._alone, sums)

    def _group(self) -> Ranks:
        """Return all ranks over a separate CPU group, as the script may create and destroy process groups."""
        default: Any = dist.group.WORLD if dist.is_initialized() else None
        if default is not self._default:
            self._ranks = Ranks.of_default_group().apart(self._patience)
            self._default = default
        return self._ranks

    def _judge(self, said: Sequence[ReplicaReport], group: Ranks) -> CorruptionError | None:
        failed = [each.rank for each in said if each.sums is None]
        if failed:
            self._give_up(f"{listed(failed)} could not compute checksums")
            return None
        held = holdings(said)
        if any(len(each.ranks) < each.holders for each in held):
            note_limitation("compare: replicas hold different tensors in their optimizers: those are not compared")
        held = [each for each in held if len(each.ranks) > 1]
        if not held:
            note_limitation("compare: no two ranks hold the same parameters, so nothing is compared")
            return None
        self._alike |= {(each.kind, each.holders) for each in held if each.is_alike}
        differing = [each for each in held if not each.is_equal]
        wrong = [] if any(each.alone for each in said) else [each for each in differing if self._were_alike(each)]
        if wrong:
            return self._corrupted(wrong, group)
        for each in differing:
            note_limitation(f"compare: {each.holders} ranks keep separate {state_name(each.kind)}: not compared")
        if not differing:
            self._alone = False
        if len(differing) < len(held):
            self._equal_step, self._saved_after = self._worker.step, None
            if group.rank == 0:
                say_compared(self._worker)
        return None

    def _were_alike(self, each: ReplicaHolding) -> bool:
        return (each.kind, each.holders) in self._alike

    def _corrupted(self, differing: Sequence[ReplicaHolding], group: Ranks) -> CorruptionError:
        found = describe(differing, self._worker.step, self._equal_step)
        suppress_errors(say_corrupted, self._worker, suspected(differing), found, None)
        suppress_errors(self._refuse)
        # Refuse saves made during exit: by a thread, or by code that catches the error.
        atexit.register(suppress_errors, self._refuse)
        # All ranks refuse first: once one of them ends, the launcher ends the others.
        suppress_errors(group.gather, b"\0")
        return CorruptionError(found)

    def _refuse(self) -> None:
        """Refuse what this host has saved since the newest comparison that found all equal. A save before the following
        step holds the compared state."""
        since = self._saved_after
        if since is None:
            return
        equal = "never" if self._equal_step is None else f"last at step {self._equal_step}"
        why = f"replicas were no longer equal at step {self._worker.step}, {equal} before it was saved"

        def judged(units: Sequence[Unit]) -> list[SavedVerdict]:
            return [
                SavedVerdict(SavedState.DAMAGED, why) if unit.at >= since else SavedVerdict(SavedState.UNKNOWN) for unit in units
            ]

        saved.verify_newest(saved.units(registry_of(self._worker), socket.gethostname()), judged)

    def _give_up(self, why: str) -> None:
        self._over = True
        what = f"compare: replicas are not compared after step {self._worker.step}: {why}"
        print(f"headway: {what}", file=sys.stderr, flush=True)
        note_limitation(what)


# --- when to compare --------------------------------------------------------------------------------------------------


def is_within_another() -> bool:
    """Return whether the step is a part of another optimizer's (ZeroRedundancyOptimizer's), which has parameters to
    pass on still."""
    frame, steps = sys._getframe(), 0
    while (caller := frame.f_back) is not None:
        frame = caller
        steps += (frame.f_code.co_name, frame.f_code.co_filename) == _STEP
    return steps > 1


def is_unordered() -> bool:
    """Return whether ranks may step in another order here, or may not wait: within a backward pass, on one of torch's
    threads, in a CUDA graph."""
    in_backward = torch._C._current_graph_task_id() != -1 or isinstance(threading.current_thread(), threading._DummyThread)
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return in_backward or (has_cuda and torch.cuda.is_current_stream_capturing())


@contextmanager
def _waiting() -> Iterator[None]:
    """Mark the thread as waiting for other ranks."""
    signs = current()
    with in_section("collective"):
        if signs is None or not signs.counts():
            yield
            return
        signs.wait_begins()
        try:
            yield
        finally:
            signs.wait_ends()
