"""Tests the decisions after failures: the budget, repetition at one step, insufficient memory, suspects and lost nodes."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.runner.contract import CauseKind, Exit, Restart
from headway.runner.coordinator.causes import Cause
from headway.runner.coordinator.policy import Policy, RestartDecision

KILLED = Cause(CauseKind.CRASH, "crash: killed by SIGKILL", "killed by SIGKILL", 1, 0, "n0", 10, outside=True)
BAD_BATCH = Cause(CauseKind.USER_ERROR, "user error: ValueError", "exit code 1: empty sample", 1, 0, "n0", 25, sample=400)
FAULT = Cause(CauseKind.CRASH, "crash: killed by SIGSEGV", "killed by SIGSEGV", 1, 0, "n0", 25)
STARVED = Cause(CauseKind.OUT_OF_MEMORY, "out of memory: OutOfMemoryError", "exit code 1: CUDA out of memory", 2, 1, "n1", 7)
GONE = Cause(CauseKind.NODE_LOST, "node lost", "node n1 was lost", None, 1, "n1", 30, outside=True)


def on(cause: Cause, node: int, step: int | None = None) -> Cause:
    return replace(cause, node=node, host=f"n{node}", step=cause.step if step is None else step)


def policy(script: bool = False, batch_samples: int | None = 16, **restart: int) -> Policy:
    return Policy(Restart(**restart), script=script, batch_samples=batch_samples)


def failing(judge: Policy, *causes: Cause, new_steps: int = 0, spare_nodes: int = 0) -> list[Exit | None]:
    found = []
    for cause in causes:
        judge.progressed(new_steps)
        found.append(judge.failed(cause, spare_nodes=spare_nodes).verdict)
    return found


# --- the budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "verdict"), [(False, Exit.RETRY_ELSEWHERE), (True, Exit.STOP)])
def test_the_budget_limits_restarts(script: bool, verdict: Exit) -> None:
    judge = policy(script, budget=2, refill_steps=1000)
    steps = [on(KILLED, 0, step) for step in (10, 20, 30)]
    assert failing(judge, *steps, new_steps=10) == [None, None, verdict]
    assert (judge.restarts, judge.budget) == (2, 0)


def test_new_steps_restore_restarts_up_to_the_budget() -> None:
    judge = policy(budget=1, refill_steps=100, no_progress=9)
    assert failing(judge, KILLED, new_steps=1000) == [None]
    judge.progressed(60)
    assert judge.budget == 0
    judge.progressed(60)
    assert judge.budget == 1
    judge.progressed(500)
    assert judge.budget == 1


def test_failures_in_a_row_without_a_new_step_stop_the_run() -> None:
    judge = policy(budget=99, no_progress=2)
    assert failing(judge, KILLED, new_steps=5) == [None]
    assert failing(judge, KILLED) == [None]
    decision = judge.failed(KILLED, spare_nodes=0)
    assert decision == RestartDecision(Exit.STOP, "2 failures in a row without a new step; the last: killed by SIGKILL")


def test_restarts_used_by_an_earlier_coordinator_count() -> None:
    judge = Policy(Restart(budget=3), script=False, restarts=5)
    assert (judge.restarts, judge.budget) == (5, 0)
    assert judge.failed(KILLED, spare_nodes=0).why == "no restart left in the budget of 3; killed by SIGKILL"


def test_a_final_cause_stops_at_once() -> None:
    assert policy().failed(replace(BAD_BATCH, final=True), spare_nodes=5) == RestartDecision(Exit.STOP, BAD_BATCH.text)


# --- repeated failures ------------------------------------------------------------------------------------------------


def test_a_bad_batch_on_two_nodes_stops_the_run_and_names_its_skip_entry() -> None:
    judge = policy(budget=9, no_progress=9)
    assert failing(judge, BAD_BATCH) == [None]
    decision = judge.failed(on(BAD_BATCH, 3), spare_nodes=0)
    assert decision.verdict is Exit.STOP
    assert decision.why == (
        "the same failure 2 times on 2 nodes (n0, n3) at step 25: exit code 1: empty sample; the "
        "batch (from sample 400) or the code is at fault;"
        " to skip the batch, add to `history`: {from_step: 25, skip_samples: 16}"
    )


def test_a_bad_batch_on_the_only_node_stops_the_run_the_third_time() -> None:
    judge = policy(budget=9, no_progress=9)
    assert failing(judge, BAD_BATCH, BAD_BATCH, BAD_BATCH) == [None, None, Exit.STOP]


def test_a_spare_shows_whether_the_node_or_the_batch_is_at_fault() -> None:
    judge = policy(budget=9, no_progress=9)
    assert failing(judge, FAULT, spare_nodes=1) == [None]
    second = judge.failed(FAULT, spare_nodes=1)
    assert second == RestartDecision(
        None, "n0 has failed twice at step 25: a spare will show whether the node or the batch is at fault", (0,)
    )
    assert judge.budget == 8
    assert judge.failed(on(FAULT, 2), spare_nodes=0).verdict is Exit.STOP


def test_external_kills_at_one_step_are_coincidence() -> None:
    judge = policy(budget=9, no_progress=9)
    assert failing(judge, *[on(KILLED, node) for node in (0, 1, 0, 1)]) == [None] * 4


def test_failures_at_other_steps_or_of_other_origins_are_not_repetitions() -> None:
    judge = policy(budget=9, no_progress=9)
    other = replace(BAD_BATCH, fingerprint="user error: KeyError")
    assert failing(judge, BAD_BATCH, on(BAD_BATCH, 1, 26), other, on(FAULT, 2)) == [None] * 4


def test_an_error_before_the_first_step_is_retried_once() -> None:
    judge = policy(script=True, budget=9, no_progress=9)
    wrong = on(BAD_BATCH, 0, 0)
    assert failing(judge, wrong) == [None]
    decision = judge.failed(wrong, spare_nodes=0)
    assert decision.verdict is Exit.STOP
    assert decision.why == (
        "the same failure 2 times before the first step: exit code 1: empty sample;"
        " it would happen again: fix the script or its data"
    )


def test_a_scripts_step_number_may_repeat_despite_progress() -> None:
    judge = policy(script=True, budget=9, no_progress=9)
    assert failing(judge, on(STARVED, 0), on(STARVED, 1), on(STARVED, 2), new_steps=7) == [None, None, Exit.STOP]


def test_running_out_of_memory_after_a_fresh_start_is_not_retried() -> None:
    judge = policy(budget=9)
    assert failing(judge, STARVED, new_steps=7) == [None]
    decision = judge.failed(STARVED, spare_nodes=4)
    assert decision.verdict is Exit.STOP
    assert decision.why.startswith(
        "the same failure 2 times at step 7: exit code 1: CUDA out of memory; a fresh process had all of the memory"
    )


def test_running_out_of_memory_at_another_step_is_retried() -> None:
    assert failing(policy(budget=9), STARVED, on(STARVED, 1, 90), new_steps=9) == [None, None]


def test_a_repeated_nonfinite_value_stops_the_run() -> None:
    nan = Cause(CauseKind.NAN, "nan: NonFiniteError", "exit code 1: the loss is nan", 0, 0, "n0", 12, sample=192)
    judge = policy(budget=9)
    assert failing(judge, nan, new_steps=12) == [None]
    assert "{from_step: 12, skip_samples: 16}" in judge.failed(nan, spare_nodes=0).why


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_lost_node_costs_a_restart_only_without_a_spare() -> None:
    judge = policy(budget=1, no_progress=1)
    assert failing(judge, GONE, on(GONE, 2), on(GONE, 3), spare_nodes=1) == [None] * 3
    assert (judge.budget, judge.restarts) == (1, 3)
    assert failing(policy(budget=1), GONE, GONE, new_steps=1) == [None, Exit.RETRY_ELSEWHERE]


def test_a_node_failing_at_different_steps_is_a_suspect_if_a_spare_exists() -> None:
    judge = policy(budget=9)
    assert failing(judge, on(FAULT, 1, 10), on(KILLED, 2, 12), new_steps=10, spare_nodes=1) == [None, None]
    decision = judge.failed(on(KILLED, 1, 30), spare_nodes=1)
    assert decision == RestartDecision(None, "n1 has failed at different steps: a spare takes its place", (1,))
    assert judge.budget == 9 - 2
    assert judge.failed(on(KILLED, 1, 50), spare_nodes=0).exclude == ()


def test_a_device_that_needs_a_reset_excludes_its_node_or_ends_the_attempt() -> None:
    dead = Cause(CauseKind.HARDWARE, "hardware: Xid 79", "Xid 79 ...", 1, 0, "n0", 10, outside=True)
    replaced = policy().failed(dead, spare_nodes=1)
    assert (replaced.verdict, replaced.exclude) == (None, (0,))
    assert replaced.why == "n0 has a device that must be reset: a spare takes its place"
    assert policy().failed(dead, spare_nodes=0) == RestartDecision(Exit.RETRY_ELSEWHERE, "Xid 79 ...")


def test_user_errors_make_no_node_a_suspect() -> None:
    judge = policy(budget=9)
    assert failing(judge, on(BAD_BATCH, 0, 10), spare_nodes=1) == [None]
    assert judge.failed(on(BAD_BATCH, 0, 20), spare_nodes=1).exclude == ()


# --- torchrun's --max-restarts ----------------------------------------------------------------------------------------

AS_TORCHRUN = {"refill_steps": sys.maxsize}


@given(
    st.lists(st.sampled_from([KILLED, BAD_BATCH, FAULT, STARVED, replace(STARVED, step=0)]), min_size=6, max_size=6),
    st.integers(0, 5),
)
def test_max_restarts_counts_every_failure_and_judges_none(causes: list[Cause], budget: int) -> None:
    judge = policy(script=True, budget=budget, no_progress=budget + 1, **AS_TORCHRUN)
    found = failing(judge, *causes, new_steps=100, spare_nodes=1)
    assert found == [None] * budget + [Exit.STOP] * (6 - budget)
    assert judge.restarts == budget


def test_a_change_of_nodes_is_not_charged_to_torchruns_max_restarts() -> None:
    judge = policy(script=True, budget=0, no_progress=1, **AS_TORCHRUN)
    assert failing(judge, GONE, GONE, GONE) == [None] * 3
    assert failing(judge, KILLED) == [Exit.STOP]


causes = st.builds(
    Cause,
    st.sampled_from(list(CauseKind)),
    st.sampled_from(["a", "b"]),
    st.just("text"),
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 3),
    st.none() | st.just("n0"),
    st.integers(0, 3),
    outside=st.booleans(),
)


@pytest.mark.slow
@given(st.lists(st.tuples(causes, st.integers(0, 300), st.integers(0, 2)), max_size=40), st.integers(0, 4), st.booleans())
def test_the_budget_is_never_exceeded_and_no_node_excluded_without_a_spare(
    failures: list[tuple[Cause, int, int]], budget: int, script: bool
) -> None:
    judge = policy(script, budget=budget, refill_steps=100)
    free, new = 0, 0
    for cause, steps, spares in failures:
        judge.progressed(steps)
        new += steps
        before = judge.budget
        decision = judge.failed(cause, spare_nodes=spares)
        free += decision.verdict is None and judge.budget == before
        assert 0 <= judge.budget <= budget
        assert spares or not decision.exclude
        assert decision.verdict is None or not decision.exclude
        if decision.verdict is None and judge.budget == before:
            assert spares, "only what a spare mends is free"
    assert judge.restarts - free <= budget + new // 100
