"""Prints the estimate of a job's step for `headway plan`: memory, time, and the largest contributions to both."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from headway.cli.terminal import bar, print_line
from headway.jobspec.plan import GroupPlan, JobPlan
from headway.planner.estimate import Estimate
from headway.planner.memory.captures import host_load
from headway.planner.memory.host import host_bytes_per_node
from headway.planner.memory.ledger import GIB, MemoryUse
from headway.report import units

if TYPE_CHECKING:
    from rich.console import Console

_LEAST_SHARE = 0.005
_ITEMS_SHOWN = 6


def print_estimate(console: "Console", estimate: Estimate, plan: JobPlan, group: GroupPlan, calibrated: bool) -> None:
    """The estimate below a heading."""
    training = estimate.training
    corrected = ", corrected by measurements" if calibrated else ""
    console.print(f"\n[bold]estimate[/] of a step, by the profile `{training.framework}`{corrected}")
    for name, value in _facts(estimate, plan, group):
        print_line(console, f"  {name:14}{value}", hang=16)
    console.print("\n  where the time goes")
    _print_bars(console, estimate.step.parts, estimate.step.seconds, step_seconds)
    _print_ledger(console, estimate.memory)


def print_memory(console: "Console", memory: MemoryUse, framework: str, lacks: str) -> None:
    """The memory of a step whose time is unknown for the reason `lacks`, below a heading."""
    console.print(f"\n[bold]estimate[/] of a step's memory, by the profile `{framework}`")
    print_line(console, f"  {'GPU memory':14}{_held(memory)}", hang=16)
    print_line(console, f"  {'step':14}unknown: {lacks}", hang=16)
    _print_ledger(console, memory)


def _print_ledger(console: "Console", memory: MemoryUse) -> None:
    console.print(f"\n  GPU memory of pipeline rank {memory.stage}, {memory.instant}")
    ledger = {item.name: item.bytes for item in memory.ledger}
    _print_bars(console, ledger, memory.allocated, _gib, _ITEMS_SHOWN)


def _held(memory: MemoryUse) -> str:
    needed = max(memory.needed, memory.reserved + memory.outside)
    return f"{memory.verdict}: {_gib(memory.allocated)} in tensors, {_gib(needed)} of {_gib(memory.capacity)} in all"


def estimate_json(estimate: Estimate) -> Mapping[str, Any]:
    """The estimate as JSON: seconds, bytes, tokens a second; both ways of counting operations."""
    memory, step, training = estimate.memory, estimate.step, estimate.training
    return {
        "framework": training.framework,
        "step_s": step.seconds,
        "step_low_s": step.low,
        "step_high_s": step.high,
        "extrapolated": list(step.extrapolated),
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
        "memory": memory_json(memory),
    }


def memory_json(memory: MemoryUse) -> Mapping[str, Any]:
    """The memory of a step as JSON, in bytes."""
    return {
        "verdict": memory.verdict,
        **{name: value for name, value in asdict(memory).items() if name != "ledger"},
        "ledger": {item.name: item.bytes for item in memory.ledger},
    }


def layout_words(estimate: Estimate) -> str:
    """The layout in a line: `tp 8, cp 2, pp 16 x 8, dp 64`."""
    degrees = estimate.training.degrees
    stages = f"{degrees.pp} x {degrees.chunks}" if degrees.chunks > 1 else str(degrees.pp)
    axes = {"tp": degrees.tp, "cp": degrees.cp, "pp": stages, "dp": degrees.dp, "ep": degrees.ep}
    return ", ".join(f"{name} {size}" for name, size in axes.items() if name == "dp" or size not in (1, "1"))


def _facts(estimate: Estimate, plan: JobPlan, group: GroupPlan) -> Iterator[tuple[str, str]]:
    memory, step, training = estimate.memory, estimate.step, estimate.training
    batch = f"{training.accumulation} x {units.count(training.micro, 'sequence')} a rank"
    yield "layout", f"{layout_words(estimate)}; {batch}, recompute {training.recompute}"
    yield "GPU memory", _held(memory)
    yield from (("", hint) for hint in estimate.hints)
    yield "host memory", _host_memory(estimate, plan, group)
    yield "step", f"{step_seconds(step.seconds)}; 9 of 10 such runs take {step_seconds(step.low)} to {step_seconds(step.high)}"
    yield from (("", f"extrapolated: {reason}") for reason in step.extrapolated)
    yield "tokens", f"{_number(estimate.tokens_s)} a second, {_number(estimate.tokens_s_gpu)} a GPU"
    yield "TFLOP/s a GPU", f"{_number(estimate.tflops_causal)}, MFU {estimate.mfu_causal:.1%}, with attention's causal half"
    yield "", f"{_number(estimate.tflops_full)}, MFU {estimate.mfu_full:.1%}, with its full square; both of the peak in bf16"
    yield "largest costs", "; ".join(f"{name} {share:.0%}" for name, share in estimate.costs)
    if estimate.training.degrees.pp > 1:
        yield "bubble", f"{step.bubble:.1%} of the time, ranks wait for the pipeline"
    sent = ", ".join(f"{name} {units.size(size)}" for name, size in step.bytes_per_rank.items() if size)
    if sent:
        yield "a rank sends", f"{sent} a step"
    if plan.run.steps is not None:
        yield "the run", _run(estimate, plan.run.steps, group.hourly_cost, plan)
    yield "a checkpoint", units.size(estimate.checkpoint_bytes)


def _host_memory(estimate: Estimate, plan: JobPlan, group: GroupPlan) -> str:
    """Return the host memory of the ranks of one node, with copies of checkpoints on their way to a tier."""
    needed = host_bytes_per_node(estimate.training, host_load(plan), plan.procs_per_slot)
    if group.host_memory_bytes is None:
        return f"{_gib(needed)} a node; the cluster file does not set `host_memory`"
    verdict = "fits" if needed <= group.host_memory_bytes else "does not fit"
    return f"{verdict}: {_gib(needed)} of {_gib(group.host_memory_bytes)} a node"


def _run(estimate: Estimate, steps: int, hourly_cost: float | None, plan: JobPlan) -> str:
    """Spares are held, and cost, from the start."""
    budget = estimate.budget(steps * estimate.training.tokens)
    cost = "" if hourly_cost is None else f", {_number(hourly_cost * plan.nodes * budget.days * 24)} in the cluster's currency"
    length = f"{units.count(steps, 'step')}, {_tokens(budget.tokens)}: {units.seconds(budget.days * 86400)}"
    return f"{length}, {_number(budget.gpu_hours * plan.nodes / plan.slots)} GPU-hours{cost}, where nothing fails"


def _print_bars(
    console: "Console", amounts: Mapping[str, float], whole: float, written: Callable[[float], str], most: int | None = None
) -> None:
    """Largest first, each as long as its share; those below half a per cent, and those beyond `most`, as one."""
    rows = _largest(amounts, whole, most)
    width = max(len(name) for name, _ in rows)
    for name, amount in rows:
        share = amount / whole
        line = f"    {name:{width}}  {share:6.1%}  {written(amount):>10}  {bar(share, console)}"
        console.print(line.rstrip(), markup=False, soft_wrap=True)


def _largest(amounts: Mapping[str, float], whole: float, most: int | None) -> list[tuple[str, float]]:
    ordered = sorted(amounts.items(), key=lambda item: -item[1])
    shown = [(name, amount) for name, amount in ordered if amount >= _LEAST_SHARE * whole][:most]
    rest = sum(amount for _, amount in ordered) - sum(amount for _, amount in shown)
    return [*shown, ("all else", rest)] if rest > _LEAST_SHARE * whole else shown


def step_seconds(seconds: float) -> str:
    """The time of a step or of a part of it in three digits, or more where it is long: `35.7 ms`, `13.0 s`, `1,234 s`."""
    amount, unit = (seconds * 1e3, "ms") if seconds < 0.9995 else (seconds, "s")
    return f"{amount:,.0f} {unit}" if amount >= 999.5 else f"{amount:#.3g}".rstrip(".") + f" {unit}"


def _number(amount: float) -> str:
    """In whole, with two digits where it is small."""
    return f"{amount:,.0f}" if amount >= 9.95 else f"{amount:.2g}"


def _tokens(count: int) -> str:
    for name, scale in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if count >= scale:
            amount = count / scale
            return f"{amount:,.0f} {name} tokens" if amount >= 999.5 else f"{amount:.3g} {name} tokens"
    return units.count(count, "token")


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
