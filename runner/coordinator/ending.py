"""Ends an attempt with its verdict, and records failures."""

from collections.abc import Iterable

from headway.runner.contract import CauseKind, Exit, journal, orders
from headway.runner.coordinator.causes import Cause
from headway.runner.coordinator.events import Finish
from headway.runner.coordinator.state import Phase, State


def give_up(state: State, why: str, node: int | None, suspects: Iterable[int]) -> None:
    """End the attempt: nodes are missing, and none has come in their place."""
    if state.failure is None:
        fingerprint = str(CauseKind.NODE_LOST)
        note_failure(state, Cause(CauseKind.NODE_LOST, fingerprint, why, None, node, state.roster.host(node), state.best_step))
    assert state.failure is not None  # noqa: S101  noted just now, if not before
    # What began it is the first cause; a node may have been given up for something else since.
    lost = {node: reason for node, reason in state.gave_up.items() if reason not in state.failure.text}
    reasons = [f"{state.roster.host(node) or f'node {node}'}: {reason}" for node, reason in lost.items()]
    end_attempt(state, Exit.RETRY_ELSEWHERE, "; ".join([state.failure.text, *reasons]), state.failure, tuple(sorted(suspects)))


def note_failure(state: State, cause: Cause) -> None:
    state.failure = cause
    place = cause.rank, cause.node, cause.host, cause.step, cause.sample
    state.note(journal.Failure(cause.text, str(cause.kind), cause.fingerprint, *place))


# As many as the batch script of Slurm accepts without a verdict (templates/schedulers/slurm/job.sbatch.j2: `hold_fruitless`).
FRUITLESS_ATTEMPTS = 5


def end_attempt(state: State, exit_code: Exit, cause: str, failure: Cause | None = None, suspects: tuple[int, ...] = ()) -> None:
    state.enter(Phase.ENDED)
    named = tuple(sorted({*suspects, *state.roster.barred, *state.undying})) if exit_code is not Exit.COMPLETED else suspects
    if exit_code is Exit.RETRY_ELSEWHERE and _is_last(state, named):
        exit_code, cause = Exit.STOP, f"{FRUITLESS_ATTEMPTS} attempts in a row ended without progress; the last: {cause}"
    state.verdict, state.cause = exit_code, cause
    state.note(journal.End(exit_code.name.lower(), int(exit_code), cause))
    state.actions.append(Finish(exit_code, cause, failure, named, state.best_step, state.committed_step))
    state.tell_all(orders.Stop(exit_code=int(exit_code)))


def _is_last(state: State, suspects: Iterable[int]) -> bool:
    """Return whether no further attempt may follow: so many in a row had no progress, and the next one would exclude no other host."""
    if state.is_excused or state.fruitless + 1 < FRUITLESS_ATTEMPTS:
        return False
    # Of a node that has not joined, None: its pod may still wait for a place.
    return {state.roster.host(node) for node in suspects} <= state.excluded


def end_without_claim(state: State, exit_code: Exit, why: str) -> None:
    """End an attempt that cannot claim; if the claim was to undo unsound checkpoints, with the cause and suspects of these."""
    pending = state.pending_end
    end_attempt(state, exit_code, why, pending.cause if pending else None, pending.suspects if pending else ())
