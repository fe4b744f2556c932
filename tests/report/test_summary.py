"""Summaries of runs whose every second and step is known."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.report.directory import RunError
from headway.report.summary import NOT_STARTED, RUNNING, summarize

from . import run_directory as build
from .run_directory import HASHES, SAVE_S, STEP_S, TOKENS, RunDirectory


def test_clean_run_is_summarized_from_its_records(runs: Path) -> None:
    build.clean_run(runs / "run")
    found = summarize(runs / "run")
    assert (found.run, found.job, found.verdict, found.exit_code) == ("run", "quickstart", "completed", 0)
    assert (found.attempts, found.generations, found.steps, found.planned_steps) == (1, 1, 40, 40)
    assert [point.step for point in found.curve] == list(range(1, 41))
    assert (found.first_loss, found.last_loss) == (found.curve[0].loss, found.curve[-1].loss)
    assert found.buckets == {"productive": 40 * STEP_S, "save_block": 4 * SAVE_S, "rendezvous": 1.5}
    assert found.wall_s == 22.5
    assert found.goodput == 20.0 / 22.5
    assert found.tokens_per_s == TOKENS / STEP_S
    assert (found.failures, found.refused, found.lost_s) == ((), (), 0.0)
    assert [(commit.step, commit.stands, commit.resumed) for commit in found.commits] == [
        (n, True, False) for n in (10, 20, 30, 40)
    ]
    assert found.hashes == HASHES


def test_failure_costs_the_steps_since_its_base_and_the_recovery_time(runs: Path) -> None:
    build.one_failure(runs / "run")
    found = summarize(runs / "run")
    (failure,) = found.failures
    assert (failure.cause, failure.rank, failure.host, failure.generation) == ("killed by SIGKILL", 1, "localhost", 1)
    assert (failure.at_step, failure.resumed_in, failure.resumed_from_step, failure.lost_steps) == (27, 2, 20, 7)
    # Restart 1.25 + rendezvous 0.75 + restore 0.5, and the first step itself.
    assert failure.recovered_s == 2.5 + STEP_S
    # Seven lost steps, 0.5 to notice, 2.5 to recover; the rendezvous of the first start is not a loss.
    assert found.lost_s == 7 * STEP_S + 0.5 + 2.5
    assert found.steps == 40


def test_steps_after_the_resumed_checkpoint_are_discarded(runs: Path) -> None:
    build.one_failure(runs / "run")
    found = summarize(runs / "run")
    taken_back = [(point.generation, point.step) for point in found.curve if not point.stands]
    assert taken_back == [(1, step) for step in range(21, 28)]
    assert [point.step for point in found.curve if point.stands] == list(range(1, 41))
    assert [commit.step for commit in found.commits if commit.resumed] == [20]


def test_run_resumes_from_an_older_checkpoint_after_a_rejected_one(runs: Path) -> None:
    build.two_failures_and_a_refusal(runs / "run")
    found = summarize(runs / "run")
    first, second = found.failures
    assert (first.at_step, first.resumed_from_step, first.lost_steps) == (27, 20, 7)
    assert (second.at_step, second.resumed_in, second.resumed_from_step, second.lost_steps) == (35, 4, 20, 15)
    (refused,) = found.refused
    assert (refused.step, refused.generation, refused.noticed_in) == (30, 2, 3)
    assert refused.path == "step-000000030.g000002/data-0-0.bin"
    states = {(commit.step, commit.generation): (commit.stands, commit.resumed, commit.refused) for commit in found.commits}
    assert states[30, 2] == (False, False, True)
    assert states[20, 1] == (True, True, False)
    assert states[30, 4] == (True, False, False)
    assert found.hosts == ("n1", "n3")


def test_start_that_rejected_a_checkpoint_is_charged_to_the_failure(runs: Path) -> None:
    build.two_failures_and_a_refusal(runs / "run")
    found = summarize(runs / "run")
    assert found.lost_s == pytest.approx((7 + 15) * STEP_S + 2 * 0.5 + 2.5 + 2.0 + 0.75)


def test_failure_before_the_state_is_loaded_loses_no_steps(runs: Path) -> None:
    run = RunDirectory(runs / "run")
    run.begin()
    run.train(27)
    run.fail(back_to=20)
    run.begin(base=(20, 1), load=False)
    run.fail("no heartbeat for 30 s", rank=None, back_to=20)
    run.begin(base=(10, 1))
    run.train(40)
    run.finish()
    assert [failure.lost_steps for failure in summarize(runs / "run").failures] == [17, 0]


def test_running_run_has_no_verdict_and_counts_its_records(runs: Path) -> None:
    build.still_running(runs / "run")
    found = summarize(runs / "run")
    assert (found.verdict, found.exit_code, found.cause) == (RUNNING, None, "")
    assert (found.steps, found.generations, len(found.spans)) == (23, 2, 1)
    assert found.failures[0].lost_steps == 5
    assert found.hashes is None


def test_a_failure_that_ends_the_run_is_not_resumed(runs: Path) -> None:
    run = RunDirectory(runs / "run")
    run.begin()
    run.train(15)
    run.fail(back_to=10)
    (failure,) = summarize(runs / "run").failures
    assert (failure.resumed_in, failure.resumed_from_step, failure.lost_steps, failure.recovered_s) == (None, None, None, None)


def test_run_without_a_claim_is_not_started(runs: Path) -> None:
    RunDirectory(runs / "run")
    found = summarize(runs / "run")
    assert (found.verdict, found.generations, found.attempts, found.goodput, found.curve) == (NOT_STARTED, 0, 0, None, ())


def test_run_without_metrics_is_summarized_from_its_journal(runs: Path) -> None:
    build.never_trained(runs / "run")
    found = summarize(runs / "run")
    assert (found.exit_code, found.steps, found.first_loss, found.tokens_per_s) == (83, 0, None, None)
    assert [failure.resumed_in for failure in found.failures] == [2, 3, None]
    assert [failure.lost_steps for failure in found.failures] == [None, None, None]
    assert found.lost_s == 3 * 0.5 + 2 * 1.5


def test_attempt_without_a_verdict_is_running_despite_earlier_verdicts(runs: Path) -> None:
    run = RunDirectory(runs / "run")
    run.begin()
    run.train(10)
    run.close()
    run.end("preempted", 82, "SIGTERM")
    assert summarize(runs / "run").exit_code == 82
    run.attempt = 1
    run.clock += 3600
    run.begin(base=(10, 1))
    found = summarize(runs / "run")
    assert (found.verdict, found.exit_code, found.attempts) == (RUNNING, None, 2)


def test_time_between_attempts_outside_the_ledger_is_reported(runs: Path) -> None:
    run = RunDirectory(runs / "run", planned=20)
    run.begin()
    run.train(10)
    run.close()
    run.end("preempted", 82, "SIGTERM")
    run.attempt = 1
    run.skip(100.0)
    run.begin(base=(10, 1))
    run.train(20)
    run.finish()
    found = summarize(runs / "run")
    assert found.not_recorded_s == pytest.approx(100.0)
    assert found.wall_s == pytest.approx(sum(found.buckets.values()) + 100.0)
    assert found.lost_s == 0.0


def test_wait_between_attempts_counts_as_lost_after_a_failure(runs: Path) -> None:
    run = RunDirectory(runs / "run", planned=20)
    run.begin()
    run.train(12)
    run.fail(back_to=10)
    run.end("retry_elsewhere", 81, "no restart left")
    run.wait(30.0)
    run.begin(base=(10, 1), rendezvous=1.0)
    run.train(20)
    run.finish()
    found = summarize(runs / "run")
    assert (found.attempts, found.generations, found.buckets["queue"]) == (2, 2, 30.0)
    assert [span.generation for span in found.spans] == [1, 0, 2]
    assert found.lost_s == 2 * STEP_S + 0.5 + 30.0 + 1.0
    assert found.not_recorded_s == pytest.approx(0.0)


def test_wait_between_attempts_is_not_lost_after_a_preemption(runs: Path) -> None:
    run = RunDirectory(runs / "run", planned=20)
    run.begin()
    run.train(3)
    run.fail(back_to=0)
    run.begin()
    run.train(10)
    run.close()
    run.end("preempted", 82, "asked to stop")
    run.wait(30.0)
    run.begin(base=(10, 2), rendezvous=1.0)
    run.train(20)
    run.finish()
    assert summarize(runs / "run").lost_s == 3 * STEP_S + 0.5 + 1.5


def test_attempt_without_a_claim_has_an_end_but_no_generation(runs: Path) -> None:
    run = RunDirectory(runs / "run")
    (runs / "run" / "attempts" / "0").mkdir(parents=True)
    run.journal("end", verdict="retry_elsewhere", exit_code=81, cause="1 of 2 nodes joined; silent: [1]")
    found = summarize(runs / "run")
    assert (found.generations, found.attempts, found.curve) == (0, 1, ())
    assert (found.exit_code, found.cause) == (81, "1 of 2 nodes joined; silent: [1]")


def test_verdict_file_overrides_the_journal(runs: Path) -> None:
    run = build.clean_run(runs / "run")
    run.clock += 1
    run.journal("end", verdict="retry here", exit_code=80, cause="told otherwise")
    assert summarize(runs / "run").exit_code == 0
    (runs / "run" / "attempts" / "0" / "verdict.json").unlink()
    found = summarize(runs / "run")
    assert (found.verdict, found.exit_code, found.cause) == ("retry here", 80, "told otherwise")


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stays_on_the_curve(runs: Path, loss: float) -> None:
    run = RunDirectory(runs / "run")
    run.begin()
    run.train(5)
    run.step = 6
    run.append("metrics.jsonl", [run.metrics_line(loss)])
    found = summarize(runs / "run")
    assert found.last_loss is not None
    assert not math.isfinite(found.last_loss)
    assert len(found.curve) == 6


@pytest.mark.parametrize("story", [build.clean_run, build.one_failure, build.two_failures_and_a_refusal, build.never_trained])
def test_buckets_of_a_finished_run_sum_to_its_wall_time(runs: Path, story: Callable[[Path], RunDirectory]) -> None:
    story(runs / "run")
    found = summarize(runs / "run")
    assert sum(found.buckets.values()) == pytest.approx(found.wall_s)
    assert found.not_recorded_s == pytest.approx(0.0)
    assert sum(span.end - span.start for span in found.spans) == pytest.approx(found.wall_s)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(reached=st.lists(st.integers(1, 25), min_size=0, max_size=5))
def test_every_step_counts_once_and_lost_steps_are_the_discarded_ones(
    tmp_path_factory: pytest.TempPathFactory, reached: list[int]
) -> None:
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "run", planned=None)
    base: tuple[int, int] | None = None
    for steps in [*reached, 12]:
        run.begin(base=base)
        run.train(run.step + steps, every=10)
        newest = run.step // 10 * 10
        base = (newest, run.generation) if newest > (base[0] if base else 0) else base
        if run.generation <= len(reached):
            run.fail(back_to=base[0] if base else 0)
    run.finish()
    found = summarize(run.path)
    assert sorted(point.step for point in found.curve if point.stands) == list(range(1, found.steps + 1))
    assert sum(failure.lost_steps or 0 for failure in found.failures) == sum(not point.stands for point in found.curve)
    assert len(found.failures) == len(reached)


def test_costs_by_cause_sum_to_the_cost_of_failures(runs: Path) -> None:
    build.hang_and_lost_node(runs / "run")
    found = summarize(runs / "run")
    # Hang: 3.0 of silence, 0.5 until all ranks ended, two steps again, 0.5 to start; node lost: 0.5, four steps again, 1.7 to start.
    assert [(cost.kind, cost.count) for cost in found.costs] == [("hang", 1), ("node lost", 1)]
    assert [cost.seconds for cost in found.costs] == pytest.approx([3.0 + 0.5 + 2 * STEP_S + 0.5, 0.5 + 4 * STEP_S + 1.7])
    assert found.lost_s == pytest.approx(9.2)
    assert [failure.kind for failure in found.failures] == ["hang", "node lost"]


def test_failure_without_a_kind_is_a_crash(runs: Path) -> None:
    build.two_failures_and_a_refusal(runs / "run")
    assert [(cost.kind, cost.count) for cost in summarize(runs / "run").costs] == [("crash", 2)]


def test_seconds_of_spares_are_not_part_of_the_wall_time(runs: Path) -> None:
    build.hang_and_lost_node(runs / "run")
    found = summarize(runs / "run")
    assert sum(found.buckets.values()) == pytest.approx(found.wall_s)
    with_spare = [span for span in found.spans if span.spares]
    assert found.spare_idle_s == pytest.approx(sum(span.end - span.start for span in with_spare))
    assert found.node_s == pytest.approx(2 * found.wall_s + found.spare_idle_s)


def test_ettr_excludes_the_time_in_the_queue(runs: Path) -> None:
    build.hang_and_lost_node(runs / "run")
    found = summarize(runs / "run")
    assert found.goodput == pytest.approx(found.buckets["productive"] / found.wall_s)
    assert found.ettr == pytest.approx(found.buckets["productive"] / (found.wall_s - 3.0))


def test_events_are_described_in_their_generations(runs: Path) -> None:
    build.hang_and_lost_node(runs / "run")
    assert [(event.generation, event.kind, event.text) for event in summarize(runs / "run").events] == [
        (1, "hang", "rank 1 hung in compute for 3.0 s: its process is stopped (state T)"),
        (2, "straggler", "rank 3 on n2 takes 1.50 times as long per step as the others (0.75 s)"),
        (2, "lost", "n2 (node 1) was lost: its connection ended"),
        (2, "rebound", "slot 1 runs on n3 (node 2), in place of node 1"),
        (3, "unseen", "not observable from outside: no torch optimizer has stepped"),
    ]


def test_corruption_is_reported_with_its_hosts_and_cost(runs: Path) -> None:
    build.wrong_numbers(runs / "run")
    found = summarize(runs / "run")
    assert [(event.generation, event.kind, event.text) for event in found.events] == [
        (1, "transient", "step 5: rank 1 computed what no other rank did (on n2); recomputed correctly"),
        (1, "spike", "step 8: gradient norm 90, 12.0 times the usual 7.5; the same on all ranks that computed it, and applied"),
        (1, "corruption", "rank 1 computes what no other rank does, again and again (on n2)"),
    ]
    assert [failure.kind for failure in found.failures] == ["corruption"]


def test_journal_line_with_a_missing_field_is_reported(runs: Path) -> None:
    run = build.one_failure(runs / "run")
    run.journal("hang", section="compute")
    with pytest.raises(RunError, match=r"000002.jsonl:\d+: Hang: field 'ranks' is missing"):
        summarize(runs / "run")
