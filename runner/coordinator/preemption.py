"""Handles a request to stop: saves if a save is possible, and ends before the grace period does."""

from dataclasses import replace

from headway.runner.contract import Exit, journal, orders
from headway.runner.coordinator import ending, failures
from headway.runner.coordinator.state import GRACE_SHARE, LAST_SHARE, Phase, State


def check_preempted(state: State) -> None:
    if state.preempted_at_s is None or state.phase is Phase.ENDED:
        return
    spent_s = state.now_s - state.preempted_at_s
    if spent_s > LAST_SHARE * state.config.grace_s:
        ending.end_attempt(state, *state.asked)
    elif spent_s > GRACE_SHARE * state.config.grace_s and state.phase is Phase.RUNNING:
        # A rank cannot save; what is committed stays committed.
        failures.stop_workers(state)


def check_limit(state: State) -> None:
    """Stop the run at its limit of time or GPU-hours, as if the scheduler had asked it to; no attempt follows."""
    if (
        state.limit_at_s is not None
        and state.now_s >= state.limit_at_s
        and not state.preempting
        and state.phase is not Phase.ENDED
    ):
        state.asked = Exit.STOP, f"the run has reached its limit: {state.limit}"
        preempt(state, 0.0)


def preempt(state: State, age_s: float) -> None:
    """Stop the run. `age_s`: how long ago the agent was signalled, if it could not report that at once."""
    if state.preempting:
        return
    state.preempting = True
    state.preempted_at_s = state.now_s - age_s
    state.note(journal.Preempted())
    state.excuse(state.asked[1])
    if state.pending_end is not None:
        state.pending_end = replace(state.pending_end, exit_code=state.asked[0], why=state.asked[1])
    elif state.phase is Phase.RUNNING and state.generation.alive:
        save_or_stop(state)
    elif state.phase is not Phase.STOPPING:
        ending.end_attempt(state, *state.asked)


def save_or_stop(state: State) -> None:
    """Ask the builtin trainer to save at the end of its step and exit; stop a script, and ranks that have nothing to save yet."""
    has_begun = state.adopting or len(state.generation.loaded) == state.generation.world_size
    if state.is_script or not has_begun:
        failures.stop_workers(state)
    else:
        state.tell_all(orders.Save())
