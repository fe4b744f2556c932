"""Turns a summary into the sentences that the terminal block and the page share."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from headway.report import units
from headway.report.summary import NOT_STARTED, RUNNING, SCRIPT, FailureSummary, RunSummary
from headway.report.throughput import PlannedStep, Throughput
from headway.runner.contract import VERDICTS, Exit
from headway.runner.contract.journal import ReplicaLost

_MAY_GO_ON = (Exit.RETRY_HERE, Exit.RETRY_ELSEWHERE, Exit.PREEMPTED, Exit.SUPERSEDED)


def verdict(summary: RunSummary) -> str:
    """`completed (exit code 0)`, or why there is none yet."""
    if summary.exit_code is not None:
        known = {int(code): words for code, words in VERDICTS.items()}
        return f"{known.get(summary.exit_code, summary.verdict)} (exit code {summary.exit_code})"
    if summary.verdict == RUNNING:
        return "no verdict yet: still running, or its runner is gone"
    return "not started: no generation has claimed the run" if summary.verdict == NOT_STARTED else summary.verdict


def tone(summary: RunSummary) -> Literal["good", "warn", "bad"]:
    """Return good if the run completed, warn while it may continue, bad if a person must act."""
    if summary.exit_code is None or summary.exit_code in _MAY_GO_ON:
        return "warn"
    return "good" if summary.exit_code == Exit.COMPLETED else "bad"


def steps(summary: RunSummary) -> str:
    if summary.planned_steps is None:
        return "no step recorded" if not summary.steps else units.count(summary.steps, "step")
    if summary.trainer == SCRIPT and not summary.steps:  # only the script counts them
        return f"{units.count(summary.planned_steps, 'step')} planned"
    return f"{summary.steps:,} of {units.count(summary.planned_steps, 'step')}"


def gang(summary: RunSummary) -> str:
    """`2 ranks (1 slot x 2)`."""
    return f"{units.count(summary.world_size, 'rank')} ({units.count(summary.slots, 'slot')} x {summary.procs_per_slot})"


def culprit(failure: FailureSummary) -> str:
    """`killed by SIGKILL, rank 1`."""
    return failure.cause if failure.rank is None else f"{failure.cause}, rank {failure.rank}"


def place(failure: FailureSummary) -> str:
    """Return `rank 1 on n2`; empty if unknown."""
    if failure.rank is None:
        return f"on {failure.host}" if failure.host else ""
    return f"rank {failure.rank}" + (f" on {failure.host}" if failure.host else "")


def reached(failure: FailureSummary) -> str:
    """Return the progress: `at step 90`; for a script, `after 35 steps since its start`; empty without either."""
    if failure.at_step is not None:
        return f"at step {failure.at_step:,}"
    return "" if failure.own_steps is None else f"after {units.count(failure.own_steps, 'step')} since its start"


def cost(failure: FailureSummary) -> str:
    """Return the cost of one failure: `back to step 80, 10 steps lost, recovered in 11.4 s`."""
    if failure.resumed_in is None:
        return "not resumed"
    if failure.resumed_from_step is None and failure.recovered_s is None:
        return f"restarted as generation {failure.resumed_in}"
    memory = " in memory" if failure.resumed_from_memory else ""
    back = "" if failure.resumed_from_step is None else f"back to step {failure.resumed_from_step:,}{memory}"
    lost = "" if failure.lost_steps is None else f"{units.count(failure.lost_steps, 'step')} lost"
    again = "no step recorded since" if failure.recovered_s is None else f"recovered in {units.seconds(failure.recovered_s)}"
    return ", ".join(part for part in (back, lost, again) if part)


def speed(found: Throughput) -> str:
    """`1.23 s a step (median), 9,410 tokens/s, 412 TFLOP/s a rank (436 with attention's full square), MFU 41.7 % of the peak in bf16
    (44.1 %)`, on CPUs with `exposed communication 3.1 %`."""
    parts = [f"{units.seconds(found.step_s)} a step (median)", f"{units.compact(found.tokens_s)} tokens/s"]
    if (rate_text := rate(found)) is not None:
        parts.append(rate_text)
    if found.mfu_causal is not None:
        parts.append(f"MFU {units.share(found.mfu_causal)} of the peak in bf16 ({units.share(found.mfu_full)})")
    if found.exposed is not None:
        parts.append(f"exposed communication {units.share(found.exposed)}")
    return ", ".join(parts)


def rate(found: Throughput) -> str | None:
    """`412 TFLOP/s a rank (436 with attention's full square)`; None for an unknown model."""
    if found.tflops_causal is None or found.tflops_full is None:
        return None
    return f"{found.tflops_causal:.3g} TFLOP/s a rank ({found.tflops_full:.3g} with attention's full square)"


def memory(found: Throughput) -> str:
    """`60.1 GB in tensors on the GPU, 4.2 GB resident, at most, of rank 0`."""
    device = "" if found.device_bytes is None else f"{units.size(found.device_bytes)} in tensors on the GPU, "
    return f"{device}{units.size(found.memory_bytes)} resident, at most, of rank 0"


def planned(step: PlannedStep) -> str:
    """`planned: 1.10 s a step (0.95 s to 1.30 s), 58.2 GB in tensors on a GPU`."""
    return f"{planned_time(step)}, {units.size(step.memory_bytes)} in tensors on a GPU"


def planned_time(step: PlannedStep) -> str:
    low, high = units.seconds(step.low), units.seconds(step.high)
    return f"planned: {units.seconds(step.seconds)} a step, 9 of 10 such runs {low} to {high}"


def goodput_base(summary: RunSummary) -> str:
    """Return the total of the shares: `29.0 s`, or `9.8 s recorded so far` while the newest generation has no ledger line."""
    wall = units.seconds(summary.wall_s)
    return wall if summary.exit_code is not None else f"{wall} recorded so far"


def bottom_line(summary: RunSummary) -> str:
    """The run in one sentence, after how it ended if it did not complete: `lost 41.0 s in 3 failures: 2 crash 12.0 s, 1 hang 29.0 s
    (killed by SIGKILL, rank 1; ETTR 0.987, with queue 0.950)`."""
    ended = "" if summary.exit_code in (None, Exit.COMPLETED) else f"{verdict(summary)}; "
    if not summary.failures:
        told = _replicas(summary) or ("no failure" if ended else "nothing lost: no failure")
        return f"{ended}{told}{_in_brackets(ettr(summary))}"
    what = f"{_lost(summary)} in {units.count(len(summary.failures), 'failure')}: {_costs(summary)}"
    return f"{ended}{what}{_in_brackets(_causes(summary.failures), ettr(summary))}"


def _replicas(summary: RunSummary) -> str:
    """`no restart: 2 replica groups lost, training waited 0.31 s`; empty if none was."""
    lost = sum(event.kind == ReplicaLost.KIND for event in summary.events)
    if not lost:
        return ""
    return f"no restart: {units.count(lost, 'replica group')} lost, training waited {units.seconds(waited_s(summary))}"


def waited_s(summary: RunSummary) -> float:
    """Return how long training has waited for other members of its replica groups."""
    return sum(event.waited_s for event in summary.events)


def ettr(summary: RunSummary) -> str:
    """`ETTR 0.987, with queue 0.950`; empty without a ledger."""
    if summary.ettr is None or summary.goodput is None:
        return ""
    queue = f", with queue {summary.goodput:.3f}" if summary.buckets.get("queue") else ""
    return f"ETTR {summary.ettr:.3f}{queue}"


def _costs(summary: RunSummary) -> str:
    return ", ".join(f"{cost.count:,} {cost.kind} {units.seconds(cost.seconds)}" for cost in summary.costs)


def _in_brackets(*parts: str) -> str:
    told = "; ".join(part for part in parts if part)
    return f" ({told})" if told else ""


def _lost(summary: RunSummary) -> str:
    if summary.lost_s is None:
        return "lost an unknown time"
    # What a script did again is known only where its steps and its saves were seen.
    unknown = any(failure.resumed_in and failure.lost_steps is None for failure in summary.failures)
    partial = unknown and not summary.buckets.get("lost_recompute")
    return f"lost {'at least ' if partial else ''}{units.seconds(summary.lost_s)}"


def _causes(failures: Sequence[FailureSummary], shown: int = 3) -> str:
    """Each culprit, or where there are many, the most frequent causes and how often each."""
    culprits = list(dict.fromkeys(culprit(failure) for failure in failures))
    if len(culprits) <= shown:
        return "; ".join(_shortened(text) for text in culprits)
    causes = Counter(failure.cause for failure in failures).most_common()
    more = [units.count(len(causes) - shown, "other cause")] if len(causes) > shown else []
    return "; ".join([*(f"{_shortened(cause)}: {units.count(times, 'time')}" for cause, times in causes[:shown]), *more])


def _shortened(text: str, longest: int = 80) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."
