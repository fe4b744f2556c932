"""Fills in how the builtin trainer computes (the spec's values, else its defaults), and names the files that it starts from."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

from headway.jobspec.document import Path
from headway.jobspec.plan import JobPlan
from headway.runner.contract import INDEX_NAME, Execution
from headway.templates.trainers.builtin.options import BuiltinOptions

# Field of the spec -> field of `Execution` that the trainer reads.
EXECUTED: Mapping[tuple[str, ...], str] = types.MappingProxyType(
    {
        ("layout", "sharding"): "sharding",
        ("layout", "sequence_parallel"): "sequence_parallel",
        ("layout", "schedule"): "schedule",
        ("layout", "virtual_stages"): "virtual_stages",
        ("precision", "parameters"): "parameters",
        ("precision", "compute"): "compute",
        ("precision", "reduce"): "reduce",
        ("recompute",): "recompute",
        ("compile",): "compile",
        ("overlap", "parameters"): "prefetch",
    }
)


def settings(options: BuiltinOptions, plan: JobPlan) -> Mapping[str, Any]:
    """Return the fields of `Execution` as the options of the trainer in run.json."""
    return dataclasses.asdict(execution_of(plan))


def files(options: BuiltinOptions, plan: JobPlan) -> Mapping[Path, str]:
    """Return the patterns of the data's files, or the indexes of its corpora, by their path in the spec."""
    data = plan.spec["data"]
    if data is None:
        return {}
    base: Path = ("data", "options")
    if data["kind"] == "tokens":
        corpora = enumerate(data["options"]["corpora"])
        return {(*base, "corpora", number, "path"): f"{corpus['path']}/{INDEX_NAME}" for number, corpus in corpora}
    return {(*base, "paths", index): pattern for index, pattern in enumerate(data["options"].get("paths", ()))}


def execution_of(plan: JobPlan) -> Execution:
    """Return how a step is computed."""
    written = {name: found for path, name in EXECUTED.items() if (found := value(plan.spec, path)) is not None}
    # A pipeline computes each block many times, and keeps its parameters and gradients in between.
    defaults = {
        "sharding": "parameters" if plan.mesh.pp == 1 else "optimizer",
        "schedule": default_schedule(plan),
    }
    return Execution(**(defaults | written))


def default_schedule(plan: JobPlan) -> str:
    """Return the pipeline schedule of a job that names none."""
    return "1F1B" if plan.spec["layout"]["virtual_stages"] == 1 else "Interleaved1F1B"


def value(spec: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the spec's value; None if there is none."""
    found: Any = spec
    for key in path:
        found = None if found is None else found[key]
    return found
