"""Fills arguments such as `--tp={layout.tp}` with the plan's values, by their names in the spec."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, get_args

from headway.jobspec import aliases
from headway.jobspec.flow import flow
from headway.jobspec.plan import JobPlan
from headway.jobspec.resolve.placement import USER
from headway.jobspec.spec.fields import field_of, literals_of
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.suggest import Hint, listed, nearest

Value = str | int | float | bool

# Every name that an argument may have in braces.
NAMES = (
    "name",
    "runs",
    "run",
    "run_directory",
    "nodes",
    "world_size",
    "seed",
    "steps",
    "model.preset",
    "model.vocab_size",
    "model.layers",
    "model.hidden",
    "model.heads",
    "model.kv_heads",
    "model.head_dim",
    "model.ffn_hidden",
    "model.rope_theta",
    "model.max_positions",
    "model.norm_eps",
    "model.dropout",
    "layout.pp",
    "layout.dp_replicate",
    "layout.dp_shard",
    "layout.cp",
    "layout.tp",
    "layout.sharding",
    "layout.ep",
    "layout.sequence_parallel",
    "layout.schedule",
    "layout.virtual_stages",
    "layout.layers_per_stage",
    "batch.global",
    "batch.micro",
    "batch.accumulation",
    "batch.sequence",
    "precision.parameters",
    "precision.compute",
    "precision.reduce",
    "recompute",
    "compile",
    "overlap.parameters",
    "overlap.gradients",
    "overlap.tensor",
    "overlap.pipeline",
    "overlap.experts",
    "optimizer.lr",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "optimizer.warmup_steps",
    "optimizer.schedule",
    "optimizer.decay_steps",
    "optimizer.min_lr_ratio",
    "checkpoint.shared.steps",
    "checkpoint.shared.seconds",
    "checkpoint.keep",
    "resilience.timeouts.collective",
)

# Names whose value the catalogue or a config.json may set instead of the job.
_SIZES = tuple(name for name in NAMES if name.startswith("model.") and name != "model.preset")

# One interval, in steps or in seconds.
_OTHER_UNIT = {
    "checkpoint.shared.steps": "checkpoint.shared.seconds",
    "checkpoint.shared.seconds": "checkpoint.shared.steps",
}

# Names whose value is known when the run is opened (runner/rundir.py).
LATE = ("run", "run_directory")

# `{{` and `}}`, a condition, a name in braces, or a single brace.
_BRACES = re.compile(r"(?P<double>\{\{|\}\})|\{\?(?P<condition>[^{}]*)\}|\{(?P<name>[^{}]*)\}|(?P<alone>[{}])")
# Values for which a condition without `=` does not hold.
_UNSET = (None, False, 0, "", "none")


def values(plan: JobPlan) -> dict[str, Value | None]:
    """Return the value of every name: the plan's, else the spec's; None without either."""
    run, layout, mesh = plan.run, plan.spec["layout"], plan.mesh
    shared = next((tier for tier in run.checkpoint.tiers if tier.kind == "shared"), None)
    stages = mesh.pp * (layout["virtual_stages"] or 1)
    replicas = mesh.dp_replicate * mesh.dp_shard
    decided: dict[str, Value | None] = {
        **{name: f"{{{name}}}" for name in LATE},
        # Known on the cluster only.
        "runs": None if USER in plan.runs else plan.runs,
        "world_size": plan.world_size,
        "batch.global": run.batch.global_sequences if run.batch else None,
        "batch.accumulation": run.batch.global_sequences // (run.batch.micro_sequences * replicas) if run.batch else None,
        "layout.layers_per_stage": plan.model.layers // stages if plan.model else None,
        "checkpoint.shared.steps": shared.every_steps if shared else None,
        "checkpoint.shared.seconds": math.ceil(shared.every_s) if shared and shared.every_s else None,
        # Values of a layout that the job omits, so that an argument is valid for any degrees that `auto` chooses.
        "layout.schedule": layout["schedule"] or ("Interleaved1F1B" if (layout["virtual_stages"] or 1) > 1 else "1F1B"),
        "layout.sequence_parallel": plan.mesh.tp > 1 if layout["sequence_parallel"] is None else layout["sequence_parallel"],
        **{f"layout.{axis}": degree for axis, degree in zip(plan.mesh.axes, plan.mesh.shape, strict=True)},
        **{name: getattr(plan.model, name.removeprefix("model.")) for name in _SIZES if plan.model},
    }
    return {name: decided[name] if name in decided else written(plan.spec, name) for name in NAMES}


def written(spec: Mapping[str, Any], name: str) -> Any:
    """Return the spec's value under the name; None if there is none."""
    *sections, field = name.split(".")
    for section in sections:
        spec = spec[section] or {}
    return spec.get(field)


def is_late(argument: str) -> bool:
    """Return whether the argument holds a name whose value is known only when the run is opened."""
    return any(name in LATE for name in names_in(argument))


def is_left_out(argument: str, known: Mapping[str, Value | None]) -> bool:
    """Return whether a condition of the argument, `{?name}` or `{?name=value}`, does not hold."""
    return not all(_holds(found["condition"], known) for found in _BRACES.finditer(argument) if found["condition"] is not None)


def _holds(condition: str, known: Mapping[str, Value | None]) -> bool:
    name, is_compared, wanted = condition.partition("=")
    value = known.get(name)
    return value is not None and _text(value) == wanted if is_compared else value not in _UNSET


def fill(argument: str, known: Mapping[str, Value | None]) -> str:
    """Return the argument with the values in place of their names, and nothing in the place of conditions.

    In one that is late, braces of the text stay doubled, and names in single braces are left to the runner (`is_late`). Raises
    KeyError for an unknown name; `mistakes` finds it before.
    """
    late = is_late(argument)

    def replaced(found: re.Match[str]) -> str:
        if found["double"]:
            return found["double"] if late else found["double"][0]
        if found["condition"] is not None:
            return ""
        text = _text(known[found["name"]])
        # Another value's own braces are text.
        return text.replace("{", "{{").replace("}", "}}") if late and found["name"] not in LATE else text

    return _BRACES.sub(replaced, argument)


def names_in(argument: str) -> list[str]:
    """Return the names in braces, known or not, with those of conditions."""
    found = (
        each["name"] if each["condition"] is None else each["condition"].partition("=")[0] for each in _BRACES.finditer(argument)
    )
    return [name for name in found if name is not None]


def names_meant(argument: str, known: Mapping[str, Value | None]) -> set[str]:
    """Return the known names in braces, and those that unknown ones are meant to be."""
    # One whose brace is not closed is a problem itself.
    opened = re.findall(r"\{([a-z_.]+)$", argument)
    return {name if name in known else _meant(name) or name for name in (*names_in(argument), *opened)}


def section_of(name: str) -> str:
    """Return the job's section of the value, or the field."""
    return name.partition(".")[0]


def mistakes(argument: str, known: Mapping[str, Value | None], invalid: Collection[str] = ()) -> Iterator[tuple[str, Hint]]:
    """Yield what is wrong with the argument, and a hint; other problems say why names of `invalid` sections have no value."""
    left_out = is_left_out(argument, known)
    for found in _BRACES.finditer(argument):
        condition, name, alone = found["condition"], found["name"], found["alone"]
        if condition is not None and (meant := condition.partition("=")[0]) not in known:
            mend = _hint(argument, meant, known)
            if (near := _meant(meant)) is not None:
                mend = Hint(f"did you mean `{{?{condition.replace(meant, near, 1)}}}`?", mend.fix)
            yield f"`{{?{condition}}}` is no condition: `{meant}` is not a value of the plan", mend
        elif condition is not None and (never := _never(argument, condition)) is not None:
            yield never
        if alone is not None:
            closed = re.search(r"\{([a-z_.]+)$", argument)
            hint = (
                f"close it: `{{{closed[1]}}}`" if closed and closed[1] in known else f"write `{alone}{alone}` for a literal brace"
            )
            yield f"a `{alone}` without the other brace", Hint(hint)
        elif name is not None and name not in known:
            yield f"`{{{name}}}` is not a value of the plan", _hint(argument, name, known)
        elif name is not None and not left_out and known[name] is None and section_of(name) not in invalid:
            other = _OTHER_UNIT.get(name)
            if other is not None and known[other] is not None:
                fix = flow(argument.replace(f"{{{name}}}", f"{{{other}}}"))
                yield f"`{{{name}}}` has no value: the job sets `{other}`", Hint(f"write `{{{other}}}`", fix)
                continue
            hint = f"set it in the job's `{section_of(name)}`, or leave the argument out"
            yield f"`{{{name}}}` has no value: the job does not set it", Hint(hint)


def _never(argument: str, condition: str) -> tuple[str, Hint] | None:
    """Return what is wrong with a condition whose value its field never has."""
    name, is_compared, wanted = condition.partition("=")
    info = field_of(TrainingJob, tuple(name.split(".")))
    if info is None or not is_compared:
        return None
    allowed = ["true", "false"] if bool in (info.annotation, *get_args(info.annotation)) else literals_of(info)
    if not allowed or wanted in allowed:
        return None
    from headway.jobspec.unknown import alias_or_nearest  # noqa: PLC0415 (most conditions name a value)

    hint = alias_or_nearest(wanted, allowed, "values")
    fix = hint.fix and flow(argument.replace(f"{{?{condition}}}", f"{{?{name}={hint.fix}}}"))
    text = hint.text if hint.fix is None else f"write `{{?{name}={hint.fix}}}`"
    return f"`{{?{condition}}}` never holds: `{name}` is one of {listed(allowed)}", Hint(text, fix)


def _text(value: Value | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Names of the directory of a run, and of the interval of its checkpoints, in other programs.
_DIRECTORY = re.compile(
    r"(?:out(?:put)?|save|ckpt|checkpoints?|log(?:ging)?|run|work|results?|exp(?:eriment)?|job|base|root|dump|tensorboard)?"
    r"_?(?:dir(?:ectory)?|folder|path)|output|cwd|home"
)
_INTERVAL = re.compile(
    r"(?:checkpoint|ckpt|save)[._]?(?:tiers[._])?(?:interval|every|freq(?:uency)?|steps|period|every_steps|interval_steps)"
)
# Names of a run, of which a job may have several.
_OF_A_RUN = ("run_id", "run_name", "wandb_run_name")
# Of torchrun (docs.pytorch.org/docs/stable/elastic/run.html), which every rank has.
_OF_A_RANK = {
    "rank": "RANK",
    "localrank": "LOCAL_RANK",
    "noderank": "GROUP_RANK",
    "masteraddr": "MASTER_ADDR",
    "masterport": "MASTER_PORT",
    "localworldsize": "LOCAL_WORLD_SIZE",
}


def _hint(argument: str, name: str, known: Mapping[str, Value | None]) -> Hint:
    if name == "model.config":
        return Hint(
            "write the path itself, relative to where the job is submitted, or pass the sizes, for example `{model.layers}`"
        )
    if name.strip() in known:
        return Hint(f"write `{{{name.strip()}}}`", flow(argument.replace(f"{{{name}}}", f"{{{name.strip()}}}")))
    if not re.fullmatch(r"[\w.]+", name):
        return Hint("write `{{` and `}}` for literal braces")
    near = _meant(name)
    if near in _OTHER_UNIT and known[near] is None and known[_OTHER_UNIT[near]] is not None:
        # The interval is in the other unit.
        near = _OTHER_UNIT[near]
    if near is not None:
        return Hint(
            f"did you mean `{{{near}}}`?", flow(argument.replace(f"{{{name}", f"{{{near}").replace(f"{{?{name}", f"{{?{near}"))
        )
    if (told := aliases.plain_note("TrainingJob", name.rpartition(".")[2])) is not None:
        field = re.fullmatch(r"write `(\w+): \{(\w+): (\w+)\}`", told)
        if field is not None and (meant := f"{field[1]}.{field[2]}") in known:
            # The field of the job is an argument's condition, with its value, or its value.
            asks = f"{{?{name}" in argument
            given, wanted = (f"{{?{name}}}", f"{{?{meant}={field[3]}}}") if asks else (f"{{{name}}}", f"{{{meant}}}")
            return Hint(f"write `{wanted}`", flow(argument.replace(given, wanted)))
        return Hint(told)
    if (variable := _OF_A_RANK.get(re.sub(r"[^a-z]", "", name.lower()))) is not None:
        return Hint(f"leave it out: each rank has it in its environment, as `{variable}`")
    fields = [each for each in known if each.startswith(f"{name.rpartition('.')[0]}.")]
    return Hint(f"known names: {listed(fields)}" if fields else "docs/script.md lists all names")


@cache
def _meant(name: str) -> str | None:
    """Return the name that a wrong one is meant to be: another program's, or a misspelt one."""
    section, _, field = name.rpartition(".")
    tier = ".".join(next(iter(aliases.values(part, ("shared",))), part) for part in name.split("."))
    called = [".".join(place) for place in aliases.places("TrainingJob", field) if place[0] == section or not section]
    ends = [each for each in NAMES if each.endswith(f".{name}")]
    fields = {each.removeprefix(f"{section}."): each for each in NAMES if section and each.startswith(f"{section}.")}
    begin = next((fields[each] for each in fields if field.startswith(each)), None)
    near = begin or (fields.get(str(nearest(field, fields))) if fields else nearest(name, NAMES))
    if name in _OF_A_RUN:
        return "run"
    found = next((each for each in (tier, *ends, *called) if each in NAMES), None)
    if found is None and _INTERVAL.fullmatch(name):
        return "checkpoint.shared.steps"
    if found is None and _DIRECTORY.fullmatch(field) and section in ("", "checkpoint", "run", "output"):
        return "run_directory"
    return found or near
