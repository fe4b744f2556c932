"""What a job's step costs, as `headway plan` prints it: memory, time, and what takes most of both."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headway.jobspec.estimate.estimate import Estimate
from headway.jobspec.plan import JobPlan

if TYPE_CHECKING:
    from rich.console import Console

_GIB = 1 << 30
_BAR = 24
_LEAST_SHARE = 0.005
_ITEMS_SHOWN = 6


def print_estimate(console: "Console", estimate: Estimate, plan: JobPlan, hourly_cost: float | None, calibrated: bool) -> None:
    """The estimate below a heading."""
    training = estimate.training
    corrected = ", corrected by what was measured" if calibrated else ""
    console.print(f"\n[bold]estimate[/] of a step, by the profile `{training.framework}`{corrected}")
    for name, value in _facts(estimate, plan, hourly_cost):
        console.print(f"  {name:14}{value}", markup=False, soft_wrap=True)
    console.print("\n  where the time goes")
    _print_bars(console, estimate.step.parts, estimate.step.seconds, _seconds)
    console.print(f"\n  GPU memory of pipeline rank {estimate.memory.stage}, {estimate.memory.instant}")
    ledger = {item.name: item.bytes for item in estimate.memory.ledger}
    _print_bars(console, ledger, estimate.memory.allocated, _gib, _ITEMS_SHOWN)


def estimate_json(estimate: Estimate) -> Mapping[str, Any]:
    """The estimate as JSON: seconds, bytes, tokens a second; both ways of counting operations."""
    memory, step, training = estimate.memory, estimate.step, estimate.training
    return {
        "framework": training.framework,
        "step_s": step.seconds,
        "step_low_s": step.low,
        "step_high_s": step.high,
        "tokens_s": estimate.tokens_s,
        "tokens_s_gpu": estimate.tokens_s_gpu,
        "tflops_causal": estimate.tflops_causal,
        "tflops_full": estimate.tflops_full,
        "mfu_causal": estimate.mfu_causal,
        "mfu_full": estimate.mfu_full,
        "bubble": step.bubble,
        "parts_s": dict(step.parts),
        "bytes_per_rank": dict(step.bytes_per_rank),
        "checkpoint_bytes": estimate.checkpoint_bytes,
        "memory": {
            "verdict": memory.verdict,
            **{name: value for name, value in dataclasses.asdict(memory).items() if name != "ledger"},
            "ledger": {item.name: item.bytes for item in memory.ledger},
        },
    }


def _facts(estimate: Estimate, plan: JobPlan, hourly_cost: float | None) -> Iterator[tuple[str, str]]:
    memory, step = estimate.memory, estimate.step
    yield "step", f"{_seconds(step.seconds)}; 9 of 10 such runs take {_seconds(step.low)} to {_seconds(step.high)}"
    yield "tokens", f"{estimate.tokens_s:,.0f} a second, {estimate.tokens_s_gpu:,.0f} a GPU"
    yield "TFLOP/s a GPU", f"{estimate.tflops_causal:.0f}, MFU {estimate.mfu_causal:.1%}, with attention's causal half"
    yield "", f"{estimate.tflops_full:.0f}, MFU {estimate.mfu_full:.1%}, with its full square; both of the peak in bf16"
    held = f"{_gib(memory.allocated)} in tensors, {_gib(memory.reserved + memory.outside)} of {_gib(memory.capacity)} in all"
    yield "GPU memory", f"{memory.verdict}: {held}"
    yield from (("", hint) for hint in estimate.hints)
    yield "largest costs", "; ".join(f"{name} {share:.0%}" for name, share in estimate.costs)
    if estimate.training.degrees.pp > 1:
        yield "bubble", f"{step.bubble:.1%} of the time, ranks wait for the pipeline"
    sent = ", ".join(f"{name} {format_size(size)}" for name, size in step.bytes_per_rank.items() if size)
    if sent:
        yield "a rank sends", f"{sent} a step"
    if plan.run.steps is not None:
        yield "the run", _run(estimate, plan.run.steps, hourly_cost, plan.slots)
    yield "a checkpoint", format_size(estimate.checkpoint_bytes)


def _run(estimate: Estimate, steps: int, hourly_cost: float | None, nodes: int) -> str:
    budget = estimate.budget(steps * estimate.training.tokens)
    days = f"{budget.days:.1f} days" if budget.days >= 1 else f"{budget.days * 24:.1f} hours"
    cost = "" if hourly_cost is None else f", {hourly_cost * nodes * budget.days * 24:,.0f} in the cluster's currency"
    tokens = f"{steps:,} steps, {_tokens(budget.tokens)}"
    return f"{tokens}: {days}, {budget.gpu_hours:,.0f} GPU-hours{cost}, where nothing fails"


def _print_bars(
    console: "Console", amounts: Mapping[str, float], whole: float, written: Callable[[float], str], most: int | None = None
) -> None:
    """Largest first, each as long as its share; those below half a per cent, and those beyond `most`, as one."""
    rows = _largest(amounts, whole, most)
    width = max(len(name) for name, _ in rows)
    for name, amount in rows:
        share = amount / whole
        bar = "█" * round(share * _BAR)
        console.print(f"    {name:{width}}  {share:6.1%}  {written(amount):>10}  {bar}", markup=False, soft_wrap=True)


def _largest(amounts: Mapping[str, float], whole: float, most: int | None) -> list[tuple[str, float]]:
    ordered = sorted(amounts.items(), key=lambda item: -item[1])
    shown = [(name, amount) for name, amount in ordered if amount >= _LEAST_SHARE * whole][:most]
    rest = sum(amount for _, amount in ordered) - sum(amount for _, amount in shown)
    return [*shown, ("all else", rest)] if rest > _LEAST_SHARE * whole else shown


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _tokens(count: int) -> str:
    return f"{count / 1e12:.3g} trillion tokens" if count >= 1e12 else f"{count / 1e9:.3g} billion tokens"


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


def format_size(size: float) -> str:
    """A size in decimal units, to three digits."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"
