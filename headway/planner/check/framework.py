"""Checks a job's layout against what the framework of its script runs."""

from collections.abc import Iterator

from headway.jobspec.plan import JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.suggest import joined_or, listed
from headway.planner.from_plan import framework_of, states_framework
from headway.planner.search.frameworks import Abilities, abilities

_AXES = ("pp", "dp_replicate", "cp", "tp", "ep")
_HINT = "or name another `framework` in `trainer.options` if that one runs the steps"


def check_framework(plan: JobPlan) -> Iterator[Problem]:
    """Warn where the stated framework does not run the layout; no error, since a script may have extended it."""
    kind = plan.spec["trainer"]["kind"]
    if kind == "builtin" or not states_framework(plan):
        return
    framework = framework_of(plan)
    for field, reason, mend in _refusals(plan, framework, abilities(framework)):
        yield Problem("HW326", JOB, ("layout", field), reason, f"{mend}, {_HINT}" if kind == "script" else mend, Severity.WARNING)


def _refusals(plan: JobPlan, framework: str, able: Abilities) -> Iterator[tuple[str, str, str]]:
    """Yield fields of the layout, why the framework does not run them, as the search excludes them, and the remedy."""
    layout, mesh = plan.spec["layout"], plan.mesh
    missing = [axis for axis in _AXES if (layout["ep"] if axis == "ep" else getattr(mesh, axis)) > 1 and axis not in able.axes]
    for axis in missing:
        yield axis, f"{framework} has no `{axis}`", f"set `{axis}: 1`"
    sharding = layout["sharding"]
    if sharding not in (None, "none", *(able.shardings or (sharding,))):
        others = joined_or([f"`{each}`" for each in able.shardings])
        yield "sharding", f"{framework} does not split {sharding}", f"set `sharding` to {others}"
    if "pp" in missing or mesh.pp == 1:
        return
    schedule, chunks = layout["schedule"], layout["virtual_stages"]
    if schedule is not None and schedule not in able.schedules:
        yield "schedule", f"{framework} has no schedule `{schedule}`", f"use {listed(able.schedules)}"
    batch = plan.run.batch
    if able.rounds and chunks > 1 and batch is not None:
        count = batch.global_sequences // (batch.micro_sequences * mesh.dp_replicate * mesh.dp_shard)
        if count < mesh.pp:
            reason = f"{framework} interleaves {mesh.pp} microbatches or more on {mesh.pp} pipeline ranks, not {count}"
            yield "virtual_stages", reason, "set `virtual_stages: 1` or a larger global batch"
        elif left := count % mesh.pp:
            of_all = batch.global_sequences // count
            below, above = (count - left) * of_all, (count - left + mesh.pp) * of_all
            reason = f"{framework} interleaves whole rounds of {mesh.pp} microbatches, and {count} leave {left}"
            yield "virtual_stages", reason, f"set `global` to {below} or {above} sequences, or `virtual_stages: 1`"
    if plan.model is not None and not able.laid_out and not _splits(plan.model.layers, mesh.pp * chunks, able):
        ends = "" if able.split == "even" else ", with embedding and output layer counted or not"
        reason = f"{plan.model.layers} layers do not divide over {mesh.pp} x {chunks} stages{ends}, which {framework} requires"
        yield "pp", reason, "choose a `pp` that divides them"


def _splits(layers: int, stages: int, able: Abilities) -> bool:
    """Return whether the framework can put the layers on the stages."""
    if able.split == "any" or layers % stages == 0:
        return True
    return able.split == "ends" and any((layers + ends) % stages == 0 for ends in (1, 2))
