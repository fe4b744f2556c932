"""Checks what a job asks of its scheduler against what the cluster allows, and merges both."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import CLUSTER, JOB, Problem, Severity
from headway.jobspec.spec.scheduling import ALL, ANY
from headway.jobspec.suggest import listed
from headway.jobspec.units import format_bytes

_SCHEDULER = "scheduler"
# A rank's process, without a model, data or data loaders.
_LEAST_BYTES = 1 << 30


def request_of(plan: JobPlan) -> Mapping[str, Any]:
    """Return what the job asks of its cluster's kind of scheduler: the fields that it sets."""
    asked = (plan.spec[_SCHEDULER] or {}).get(plan.scheduler) or {}
    return {name: value for name, value in asked.items() if value not in (None, [], {})}


def place_of(plan: JobPlan, *path: str | int) -> Path:
    """Return the path of a field of the request in the job."""
    return (_SCHEDULER, plan.scheduler, *path)


def check_memory_of_node(asked: float | None, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check that a node of the job's group has the memory, in bytes, that the cluster's options ask for on each node."""
    # The memory of the plan's group is a share of the node where the job uses some of its GPUs.
    held = cluster.group(plan.group).host_memory_bytes if plan.has_whole_nodes else None
    if asked is not None and held is not None and asked > held:
        yield _more_than(asked, plan.group, held)
    elif asked is not None and plan.gpus_per_slot and asked < _LEAST_BYTES * plan.procs_per_slot:
        ranks = f"{plan.procs_per_slot} rank{'' if plan.procs_per_slot == 1 else 's'}"
        message = f"jobs ask for {format_bytes(int(asked))} on each node, for {ranks}: importing torch and CUDA alone takes more"
        meant = asked * 1024
        hint = "set most of the node's memory" if held is None or meant > held else f"did you mean `{format_bytes(int(meant))}`?"
        yield Problem("HW429", CLUSTER, ("scheduler", "options", "memory"), message, hint, Severity.WARNING)


def check_memory_of_groups(asked: float | None, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check that the nodes of some group have the memory, in bytes, that the cluster's options ask for on each node."""
    held = [(group.host_memory_bytes, group.name) for group in cluster.groups]
    most, group = max(((number, name) for number, name in held if number is not None), default=(0, ""))
    if asked is not None and all(number is not None for number, _ in held) and asked > most:
        yield _more_than(asked, group, most)


def _more_than(asked: float, group: str, held: int) -> Problem:
    message = f"jobs ask for {format_bytes(int(asked))} on each node, but a node of `{group}` has {format_bytes(held)}"
    hint = "set less than that: the system and the scheduler's own processes need some of it"
    return Problem("HW232", CLUSTER, ("scheduler", "options", "memory"), message, hint)


def check_request(plan: JobPlan, allow: BaseModel | None) -> Iterator[Problem]:
    """Report fields of another kind of scheduler, and fields and values that the cluster's owner has not opened to jobs."""
    asked = plan.spec[_SCHEDULER] or {}
    for kind, fields in asked.items():
        # A job for several clusters may have fields for each of their kinds.
        if kind != plan.scheduler and fields and len(plan.spec["cluster"]) == 1:
            message = f"the scheduler of `{plan.cluster}` is `{plan.scheduler}`: fields of `{kind}` have no effect there"
            hint = f"leave `{kind}` out"
            if plan.scheduler in asked:
                hint += f", or write what the job needs under `{_SCHEDULER}.{plan.scheduler}`"
            yield Problem("HW431", JOB, (_SCHEDULER, kind), message, hint, at_key=True)
    if allow is None:
        return
    for name, value in request_of(plan).items():
        opened = getattr(allow, name)
        # The cluster's own check refuses these words for every value.
        if opened is True or (opened and (ANY in opened or opened in ALL)):
            continue
        if not opened:
            message = f"`{plan.cluster}` does not let jobs set `{name}` (`allow` of its scheduler)"
            yield Problem("HW432", JOB, place_of(plan, name), message, "leave it out: the cluster's value counts", at_key=True)
            continue
        for path, asked_for in _values(name, value):
            if asked_for not in opened:
                message = f"`{plan.cluster}` does not let jobs set `{name}` to `{asked_for}`"
                hint = f"use {listed(opened)}, or leave it out"
                yield Problem("HW432", JOB, place_of(plan, name, *path), message, hint, at_key=isinstance(value, Mapping))


def _values(name: str, value: Any) -> Iterator[tuple[Path, str]]:
    """Yield each value, or name, that the request has in the field, and its place below."""
    if isinstance(value, Mapping):
        yield from (((key,), key) for key in value)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            named = item["key"] if isinstance(item, Mapping) else option_name(item)
            yield (index,), named
    elif name == "partition":
        yield from (((), each) for each in str(value).split(","))
    else:
        yield (), str(value)


def option_name(option: str) -> str:
    """Return the name of an option of a command, without its dashes and its value; another text unchanged."""
    return option.removeprefix("--").partition("=")[0] if option.startswith("--") else option


def own_option(option: str, own: Collection[str]) -> str | None:
    """Return which of headway's own options this one would replace: getopt_long(3) accepts unambiguous prefixes."""
    name = option_name(option)
    return next((each for each in own if each.startswith(name)), None)
