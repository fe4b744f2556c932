"""Reports arguments of a script that cannot be filled, and values of the job that no argument passes to it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel

from headway.jobspec.change import is_for_history
from headway.jobspec.check.environment import is_for_a_shell
from headway.jobspec.document import Path
from headway.jobspec.flow import flow
from headway.jobspec.form_repair import plain
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, MAX_PROBLEMS, Problem, Severity, not_passed
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.layout import Layout
from headway.jobspec.spec.resilience import Checkpoint, Timeouts
from headway.jobspec.spec.training import Optimizer
from headway.jobspec.suggest import Hint
from headway.runner.contract import STORED_TIERS
from headway.templates.trainers.script.arguments import (
    LATE,
    NAMES,
    Value,
    mistakes,
    names_in,
    names_meant,
    section_of,
    values,
    written,
)
from headway.templates.trainers.script.options import ScriptOptions

_ARGV = ("trainer", "options", "argv")
# Fields that the plan implements itself, or `headway.checkpoint` in a script that uses it, and sizes: a script that
# gets the model reads all of them its own way.
_NOT_ASKED = ("name", "runs", *LATE, "nodes", "world_size", "checkpoint", "model")
# Sections whose values a job may omit.
_SECTIONS: Mapping[str, type[BaseModel]] = {
    "": TrainingJob,
    "layout.": Layout,
    "optimizer.": Optimizer,
    "checkpoint.": Checkpoint,
    "resilience.timeouts.": Timeouts,
}
# One shard is no sharding, and `sequence`, which no batch can omit, is 1 where samples are no sequences.
_DEFAULTS = {
    f"{section}{name}": field.default for section, model in _SECTIONS.items() for name, field in model.model_fields.items()
} | {"layout.dp_shard": 1, "batch.sequence": 1}
_TWO_BRACES = re.compile(r"\{\{\s*([a-z_.]+)\s*\}\}")
# The number of a job, by which people keep the output of runs apart.
_RUN_ID = re.compile(r"\$\{?(?:SLURM_JOB_ID|SLURM_JOBID|SLURM_JOB_NAME|JOB_ID|JOB_NAME|RUN_ID|PBS_JOBID|LSB_JOBID)\}?")
# The home directory as the value of an option.
_HOME = re.compile(r"--?[\w.-]+=~/")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_OF_A_SHELL = frozenset({">", ">>", "<", "2>&1", "&>", "|", "||", "&&", "&", ";", "2>"})
_BETWEEN_COMMANDS = frozenset({"|", "||", "&&", "&", ";"})
# Values that change with the number of nodes.
_FIXED = frozenset({"nodes", "world_size", "layout.dp_shard", "batch.accumulation"})
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "fish"})
_OPTIONS_HINT = "in the trainer's options: `trainer: {kind: script, options: {python: false, argv: [...]}}`"
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "headway", "srun", "mpirun", "mpiexec"})


def check(options: ScriptOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check that every argument finds its values, and that every value that only a trainer can implement is in an argument."""
    known = values(plan)
    # A model without sizes has a problem of its own.
    invalid = {"model"} if plan.model is None and plan.spec["model"] is not None else set()
    wrong = 0
    for index, argument in enumerate(options.argv):
        if wrong > MAX_PROBLEMS:
            return
        unfilled = list(mistakes(argument, known, invalid if _persists(plan) else {*invalid, "checkpoint"}))
        for message, mend in unfilled:
            wrong += 1
            meant = without_dollar(mend)
            yield Problem("HW312", JOB, (*_ARGV, index), message, meant.text, fix=meant.fix)
        if argument in _OF_A_SHELL and not _is_shell(options):
            message = f"the script gets `{argument}` as an argument: no shell reads the list"
            hint = "remove it and what belongs to it; each rank's output is in the run's `attempts/<k>/logs`"
            if argument in _BETWEEN_COMMANDS:
                hint = (
                    "write what prepares a node in `setup`; for a line of a shell, write "
                    "`trainer: {kind: script, options: {python: false, argv: [bash, -c, '...']}}`"
                )
            yield Problem("HW703", JOB, (*_ARGV, index), message, hint, Severity.WARNING)
        if plan.run.min_slots is not None and (fixed := _FIXED & set(names_in(argument))):
            message = f"`{{{min(fixed)}}}` is the value of the most nodes, and the run may have fewer"
            hint = "leave it out, and have the script compute it from WORLD_SIZE"
            yield Problem("HW312", JOB, (*_ARGV, index), message, hint)
        if _is_shell(options):
            yield from _check_typed((*_ARGV, index), argument)
        elif not unfilled:
            yield from check_text((*_ARGV, index), argument)
        if (doubled := _doubled(argument, known)) is not None and not _is_shell(options):
            text = argument.replace("{{", "{").replace("}}", "}")
            message = f"the script gets the text `{text}`: two braces are a brace, and no name of a value"
            yield Problem("HW703", JOB, (*_ARGV, index), message, f"write `{doubled}`", Severity.WARNING, fix=flow(doubled))
    yield from _check_first(options)
    yield from check_history(plan)
    yield from check_corruption(plan)
    yield from check_replica_recovery(plan)
    untold = list(_untold(options, plan, known))
    if untold:
        yield _not_handed_over(untold, known)


def without_dollar(mend: Hint) -> Hint:
    """Return the mend of an argument, which names the value without the `$` of a shell."""
    return Hint(mend.text.replace("${", "{"), mend.fix and mend.fix.replace("${", "{"))


def check_text(at: Path, text: str) -> Iterator[Problem]:
    """Warn about an argument that only a shell would expand, or with typographic quotes; its names have values."""
    yield from _check_typed(at, text)
    if "${" in text and names_in(text):
        filled = text.replace("${", "{")
        message = f"the `$` of `{text}` is a part of the argument: the value of a name needs no `$`"
        yield Problem("HW703", JOB, at, message, f"write `{filled}`", Severity.WARNING, fix=flow(filled))
    elif is_for_a_shell(text) or _HOME.match(text):
        message = f"the script gets the text `{text}`: `~` and `$` are not expanded"
        hint = "write the value out, or read the variable in the script"
        if (named := _RUN_ID.sub("{run}", text)) != text:
            hint = f"write `{flow(named)}`, with the name of the run"
        yield Problem("HW703", JOB, at, message, hint, Severity.WARNING)


def _check_typed(at: Path, text: str) -> Iterator[Problem]:
    if (meant := plain(text)) is not None:
        message = f"the typographic quotes or dashes of `{text}` are a part of the argument"
        yield Problem("HW703", JOB, at, message, f"write `{flow(meant)}`", Severity.WARNING, fix=flow(meant))


def _doubled(argument: str, known: Mapping[str, Value | None]) -> str | None:
    """Return the argument with single braces around a known name that has two, as in Jinja: `{{layout.tp}}`."""
    meant = _TWO_BRACES.sub(lambda found: f"{{{found[1]}}}" if found[1] in known else found[0], argument)
    return meant if meant != argument else None


def _persists(plan: JobPlan) -> bool:
    """Return whether some checkpoint outlives the job; if not, that is the problem."""
    tiers = plan.run.checkpoint.tiers
    return not tiers or any(tier.kind in STORED_TIERS for tier in tiers)


def check_script(first: str, at: Path) -> Iterator[Problem]:
    """Check that what a framework starts is a script, and no command with one."""
    words = first.split()
    command = PurePosixPath(words[0]).name if words else ""
    script = next((each for each in words if each.endswith(".py")), None)
    if command in _LAUNCHERS or _PYTHON.fullmatch(command):
        hint = f"write `{script}`" if script is not None else "name the script"
        message = f"`{first}` in place of the script: headway starts the ranks itself"
        yield Problem("HW210", JOB, at, message, hint, fix=script)
    elif len(words) > 1 and words[0].endswith(".py"):
        message = f"`{first}` is one argument, and no script has this name"
        yield Problem("HW210", JOB, at, message, f"write `{words[0]}`, and its arguments in `arguments` or `argv`")


def _check_first(options: ScriptOptions) -> Iterator[Problem]:
    """Check that the first item is the script, or with `module` a module."""
    first, at = options.argv[0], (*_ARGV, 0)
    command = PurePosixPath(first).name
    words = first.split()
    if len(words) > 1 and words[0].endswith(".py"):
        hint = f"write each argument as an item of its own: `{flow(words)}`"
        yield Problem("HW210", JOB, at, f"`{first}` is one argument, and no script has this name", hint)
    elif len(words) > 1 and (_PYTHON.fullmatch(PurePosixPath(words[0]).name) or PurePosixPath(words[0]).name in _LAUNCHERS):
        message = f"`{first}` is one argument, and no script has this name"
        hint = "write each argument as an item of its own, and begin with the script: `[train.py, --steps=100]`"
        yield Problem("HW210", JOB, at, message, hint)
    elif not options.python:
        if options.module:
            message = "`module: true` with `python: false`: no Python is started that could find a module"
            yield Problem("HW210", JOB, at, message, "remove one of the two")
        elif command in _LAUNCHERS:
            yield _launcher(first)
    elif command in _SHELLS or first.endswith(".sh"):
        message = f"`{first}` is no Python script, and Python would run it"
        yield Problem("HW210", JOB, at, message, f"set `python: false` {_OPTIONS_HINT}")
    elif first.startswith("-") and first != "-m":
        yield Problem("HW210", JOB, at, f"the option `{first}` in place of the script", "put the script first: `[train.py, ...]`")
    elif first == "-m":
        rest = [*options.argv[1:2], "..."]
        hint = f"write `trainer: {{kind: script, options: {{module: true, argv: [{', '.join(rest)}]}}}}`: the module first, without `-m`"
        yield Problem("HW210", JOB, at, "`-m` in place of the script", hint)
    elif _PYTHON.fullmatch(command):
        yield Problem("HW210", JOB, at, f"`{first}` in place of the script", "remove it: every rank runs the script by Python")
    elif command in _LAUNCHERS:
        yield _launcher(first)
    elif options.module and first.endswith(".py"):
        message = f"`module: true` with the file `{first}`"
        yield Problem("HW210", JOB, at, message, f"remove `module: true`, or name the module: `{module_of(first)}`")


def module_of(file: str) -> str:
    """Return the module in the file: `torchtitan/train.py` is `torchtitan.train`."""
    return ".".join(part for part in PurePosixPath(file).with_suffix("").parts if part not in ("/", ".", ".."))


def _is_shell(options: ScriptOptions) -> bool:
    """Return whether the arguments go to a shell, which expands them."""
    return not options.python and PurePosixPath(options.argv[0]).name in _SHELLS


def defaults() -> Mapping[str, Any]:
    """Return the values that fields have when a job leaves them out."""
    return _DEFAULTS


def _launcher(first: str) -> Problem:
    message = f"`{first}` in place of the script: headway starts the ranks itself"
    return Problem("HW210", JOB, (*_ARGV, 0), message, f"remove `{first}` and its options, and put the script first")


def check_history(plan: JobPlan) -> Iterator[Problem]:
    """Check `history`. A script gets its values once, when it starts, and reads its samples itself; a claim implements
    a rollback."""
    for index, entry in enumerate(plan.spec["history"]):
        for name in filter(is_for_history, entry["set"]):
            message = f"a script gets its values when it starts: `{name}` cannot change at a step of the run"
            hint = f"leave `{name}` out here, and change it in the script, by its own step count; or start a new run"
            yield Problem("HW306", JOB, ("history", index, "set", name), message, hint, at_key=True)
        if entry["skip_samples"]:
            message = "a script reads its samples itself, so none can be skipped"
            path = ("history", index, "skip_samples")
            yield Problem("HW306", JOB, path, message, "skip them in the script and remove this line", at_key=True)


def check_replica_recovery(plan: JobPlan) -> Iterator[Problem]:
    """Check `replica_recovery`: it changes what a step computes, which a script does itself."""
    if plan.spec["resilience"]["replica_recovery"]:
        message = "a script's replica groups cannot take over a lost one's share of the batch from outside"
        hint = "leave `replica_recovery` out, or use the trainer `builtin`"
        yield Problem("HW306", JOB, ("resilience", "replica_recovery"), message, hint, at_key=True)


def check_corruption(plan: JobPlan) -> Iterator[Problem]:
    """Check `corruption`. A script's state can be compared after a step; its steps cannot be recomputed."""
    checks = plan.spec["resilience"]["corruption"] or {}
    for name in ("replay", "grad_norm_factor"):
        if checks.get(name) is not None:
            message = f"a script's step cannot be recomputed from outside, which `{name}` requires"
            hint = "use `compare`, which compares replicas, or check it in the script"
            yield Problem("HW306", JOB, ("resilience", "corruption", name), message, hint, at_key=True)


def _untold(options: ScriptOptions, plan: JobPlan, known: Mapping[str, Value | None]) -> Iterator[str]:
    """Yield values that differ from their defaults and that no argument contains: the model as a whole, all others by name."""
    used = {name for argument in options.argv for name in names_meant(_doubled(argument, known) or argument, known)}
    if plan.model is not None and not _is_model_told(options, used, plan.spec["model"]["config"]):
        yield "model"
    for name in NAMES:
        if name == "layout.ep" and plan.model is not None and plan.model.experts is None:
            # It has no effect, which another problem reports.
            continue
        if section_of(name) not in _NOT_ASKED and name not in used and _is_said(plan, name, known[name]):
            yield name


def _is_model_told(options: ScriptOptions, used: set[str], config: str | None) -> bool:
    """Return whether an argument contains a value of the model, or the path of its config.json, which it may name from
    another folder."""
    has_config = config is not None and any(PurePosixPath(config).name in argument for argument in options.argv)
    return has_config or any(section_of(name) == "model" for name in used)


def _is_said(plan: JobPlan, name: str, value: Value | None) -> bool:
    said = value if name == "checkpoint.shared.steps" else written(plan.spec, name)
    default = _DEFAULTS.get(name)
    if name == "layout.sequence_parallel":
        default = plan.mesh.tp > 1
    return said is not None and said != default


def _not_handed_over(names: list[str], known: Mapping[str, Value | None]) -> Problem:
    example = names[0] if names[0] in known else next(name for name in ("model.preset", "model.layers") if known[name])
    hint = f"pass it, for example as `{{{example}}}`, or leave out what the script does not read"
    return Problem("HW313", JOB, _ARGV, not_passed(names), hint, Severity.WARNING, fields=tuple(names))
