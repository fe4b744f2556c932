"""Makes a trainer of a framework's table: options, checks, and the command and files that the runner starts it with.

run.json describes it as a script: the runner needs to know nothing of frameworks.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import resources
from typing import Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace
from pydantic import Field

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem, Severity, not_passed
from headway.jobspec.spec.job import Argument
from headway.jobspec.spec.resilience import Checkpoint
from headway.jobspec.spec.section import Section
from headway.jobspec.suggest import nearest
from headway.templates.kind import DataKind, Files, JobKind, Limited
from headway.templates.trainers.script.arguments import (
    fill,
    is_late,
    is_left_out,
    mistakes,
    names_meant,
    section_of,
    values,
    written,
)
from headway.templates.trainers.script.check import (
    check_corruption,
    check_history,
    check_replica_recovery,
    check_script,
    check_text,
    defaults,
    without_dollar,
)
from headway.templates.trainers.table import FIELDS, Config, Elsewhere, Known, Lacks, Table, flat, path_of

# Below that, a name is more likely one of the user's script than a misspelt one of the framework.
_MISSPELT = 0.8
# The fewest letters that count as an abbreviation.
_SHORTEST = 2
_ARGUMENTS = ("trainer", "options", "arguments")
# Values of a model that no argument of a script names.
_OF_MODEL = tuple(name.removeprefix("model.") for name in FIELDS if name.startswith("model."))


class Late(str):
    """Text with names in braces that the runner fills in when it opens the run."""


# What a training script does if nothing is passed to it, where that is not the field's default.
_BY_ITSELF: Mapping[str, Any] = {"optimizer.schedule": "constant"}
# The run's own folder for a framework's checkpoints, and the folder of the attempt's files.
CHECKPOINTS = Late("{run_directory}/checkpoints")
CONFIG = "{config}"


class FrameworkOptions(Section):
    """The options that the trainers of all frameworks have."""

    arguments: dict[str, Any] = Field(default_factory=dict, examples=[{"logging_steps": 10}])
    """Further keys of the framework's configuration, by its own names, dotted or nested; `{layout.tp}` and the like stand for values of
    the plan (docs/script.md). A key that a field of the job sets is an error."""


class ScriptedOptions(FrameworkOptions):
    """A framework that runs a training script of the user's."""

    script: Argument = Field(examples=["train.py"])
    """The training script; a relative path starts where the job is submitted."""
    module: bool = Field(False, examples=[True])
    """Whether `script` is a module, as after `python -m`."""


class Command(Struct, frozen=True):
    """The command of a rank: the words after Python, and files of nested values by name, which are in the folder `{config}`."""

    argv: list[str]
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def no_doubts(options: Any, plan: JobPlan, cluster: ClusterPlan, known: Known) -> Iterator[Problem]:
    """Return no problems: the table has all of them."""
    return iter(())


def no_keys(options: Any, plan: JobPlan) -> Config:
    """Return no keys besides those of the table."""
    return {}


def same_key(key: str) -> str:
    """Return the key: the framework has one spelling of each."""
    return key


class Framework(Struct, frozen=True):
    """A framework: its table, its options, and the command for a configuration. `normal` returns the one spelling of a key that
    people write in several ways; `more` are keys that follow from the options and the data."""

    table: Table
    options: type[FrameworkOptions]
    command: Callable[[Any, JobPlan, Config], Command]
    check: Callable[[Any, JobPlan, ClusterPlan, Known], Iterator[Problem]] = no_doubts
    more: Callable[[Any, JobPlan], Config] = no_keys
    normal: Callable[[str], str] = same_key
    data: Mapping[str, DataKind] = field(default_factory=dict)
    needs: tuple[str, ...] = ("batch", "steps")
    # A file of `names`: all keys of the version that the table was written for.
    names: str | None = None
    # Keys of the user that exclude a key that headway sets.
    excludes: Mapping[str, str] = field(default_factory=dict)

    def kind(self) -> JobKind:
        """Return the trainer."""
        return JobKind(
            self.options,
            self._check,
            _render,
            self.data,
            self.needs,
            settings=self.settings,
            only=limits_of(self.table),
            files=_files,
            arguments=self._arguments,
            runs_as="script",
            keeps_all=_keeps_all(self.table),
        )

    def config(self, options: Any, plan: JobPlan) -> dict[str, Any]:
        """Return the whole configuration by dotted keys: those of the job, then those that the user adds."""
        return {**self._set(options, plan), **self._own(options, plan)}

    def settings(self, options: Any, plan: JobPlan) -> Mapping[str, Any]:
        """Return the options of the script in run.json. `late` are the places of what the runner completes when it opens the run."""
        command = self.command(options, plan, self.config(options, plan))
        late = [index for index, word in enumerate(command.argv) if isinstance(word, Late)]
        places = [[name, *place] for name, content in command.files.items() for place in _late(content)]
        return {
            "argv": list(map(str, command.argv)),
            "logs": True,
            **({"late": late} if late else {}),
            **({"files": command.files} if command.files else {}),
            **({"late_values": places} if places else {}),
        }

    def _set(self, options: Any, plan: JobPlan) -> dict[str, Any]:
        """Return the keys that headway sets."""
        return {**self.table.write(known_of(plan)), **self.more(options, plan)}

    def _own(self, options: FrameworkOptions, plan: JobPlan) -> dict[str, Any]:
        """Return the user's keys with the plan's values in place of their names; an argument whose condition does not hold is left out."""
        known = values(plan)
        found = {self.normal(key): _filled(value, known) for key, value in flat(options.arguments).items()}
        return {key: value for key, value in found.items() if value is not _LEFT_OUT}

    def _check(self, options: Any, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
        known = known_of(plan)
        shared = next((index for index, tier in enumerate(plan.run.checkpoint.tiers) if tier.kind == "shared"), 0)
        for problem in self.table.refusals(known):
            # Of the tiers, a framework saves to this one alone.
            is_of_tier = problem.path == ("checkpoint",)
            yield replace(problem, path=("checkpoint", "tiers", shared, "every")) if is_of_tier else problem
        if isinstance(options, ScriptedOptions):
            yield from check_script(options.script, ("trainer", "options", "script"))
        yield from _check_tiers(self.table, plan)
        yield from _check_kept(self.table, plan)
        yield from check_history(plan)
        yield from check_corruption(plan)
        yield from check_replica_recovery(plan)
        yield from self.check(options, plan, cluster, known)
        yield from self._check_arguments(options, plan)
        untold = list(_untold(self.table, options, plan, known))
        quoted = {name for _, key, value in _own_keys(options) if value is None for name in untold if key.endswith(f".{name}")}
        untold = [name for name in untold if name not in quoted]
        if untold:
            example = _example(untold[0], plan)
            hint = f"pass it in `trainer.options.arguments`, for example as `{{{example}}}`"
            if hasattr(options, "argv"):
                # `arguments` are the framework's keys, which the script does not see.
                option = example.removeprefix("model.").removeprefix("optimizer.").replace(".", "-").replace("_", "-")
                hint = f'pass it in `trainer.options.argv`, for example as `"--{option}={{{example}}}"`'
            hint = f"{hint}, or leave it out"
            yield Problem("HW313", JOB, ("trainer",), not_passed(untold), hint, Severity.WARNING, fields=tuple(untold))

    def _check_arguments(self, options: FrameworkOptions, plan: JobPlan) -> Iterator[Problem]:
        """Check the user's keys: none is one that headway sets, or is above or below one, and each text finds its values."""
        known, invalid = values(plan), {"model"} if plan.model is None and plan.spec["model"] is not None else set()
        ours = self._set(options, plan)
        for path, key, value in _own_keys(options):
            if (name := next((each for each in known if value is None and key.endswith(f".{each}")), None)) is not None:
                message = f"`{{{name}}}` without quotes is a mapping in YAML, not the value of `{name}`"
                yield Problem("HW203", JOB, path, message, f'quote it: `{key.removesuffix(f".{name}")}: "{{{name}}}"`')
                continue
            excluded = self.excludes.get(self.normal(key))
            clash = next((each for each in ours if each == excluded or _overlap(self.normal(key), each)), None)
            if clash is not None:
                setter = self.table.field_of(clash)
                whose = f"the job's `{setter}` sets" if setter else "headway sets"
                message = f"{whose} `{clash}` of {self.table.name} to `{ours[clash]}` already"
                # With the only key of a mapping, the mapping is removed.
                top = str(path[-1])
                whole = top if sum(each == path for each, _, _ in _own_keys(options)) == 1 else key
                hint = f"remove `{whole}`" + (f", and change `{setter}`" if setter else "")
                yield Problem("HW327", JOB, path, message, hint, at_key=True)
            elif self.names and (meant := misspelt(self.normal(key), self.names)):
                message = f"`{key}` is not a key of {_names(self.names).title}, and resembles `{meant}`"
                hint = f"write `{meant}`, or `ignore` the warning if your script has this name"
                fix = meant if path[-1] == key else None
                if (setter := self.table.field_of(meant)) is not None and meant in ours:
                    # The right name would be refused next.
                    hint, fix = f"remove it: the job's `{setter}` sets `{meant}`", None
                yield Problem("HW328", JOB, path, message, hint, Severity.WARNING, at_key=True, fix=fix)
            for text in _texts(value):
                yield from _check_text(path, text, known, invalid, is_key=True)
        for index, argument in enumerate(getattr(options, "argv", ())):
            yield from _check_text(("trainer", "options", "argv", index), argument, known, invalid)

    def _arguments(self, options: FrameworkOptions, plan: JobPlan) -> Mapping[Path, str]:
        """Return the user's keys that are texts, and the options of the data, each with its value, by their path in the spec."""
        own = self._own(options, plan)
        found = {path: (key, own.get(self.normal(key))) for path, key, _ in _own_keys(options)}
        texts = {path: f"{key}={value}" for path, (key, value) in found.items() if isinstance(value, str)} | dict(
            _files(options, plan)
        )
        of_data = plan.run.data.options if plan.run.data is not None else {}
        for name, value in of_data.items():
            places = [((), value)] if isinstance(value, str) else [((index,), each) for index, each in enumerate(value or ())]
            texts |= {("data", "options", name, *at): f"data={each}" for at, each in places if isinstance(each, str)}
        return texts


def _check_text(
    path: Path, text: str, known: Mapping[str, Any], invalid: Collection[str], *, is_key: bool = False
) -> Iterator[Problem]:
    """Check an argument of a script, or with `is_key` a key's value, that is not the whole field, so that no fix replaces it."""
    unfilled = list(mistakes(text, known, invalid))
    for message, mend in unfilled:
        meant = without_dollar(mend)
        yield Problem("HW312", JOB, path, message, meant.text, fix=None if is_key else meant.fix)
    # Frameworks may expand `~` themselves (transformers/training_args.py: output_dir).
    if not unfilled and not (is_key and text.startswith("~")):
        yield from (replace(each, fix=None) if is_key else each for each in check_text(path, text))


class _Names(Struct, frozen=True):
    """The keys of a framework, and what they are in words."""

    title: str
    keys: frozenset[str]


@functools.cache
def _names(file: str) -> _Names:
    title, *keys = resources.files("headway.templates.trainers").joinpath(f"names/{file}.txt").read_text("utf-8").splitlines()
    return _Names(title.removeprefix("# "), frozenset(keys))


def misspelt(key: str, file: str) -> str | None:
    """Return the framework's key that `key` resembles; None if it is one itself, or resembles none."""
    known = _names(file).keys
    # Places in lists and below objects have names of their own.
    if key in known or any(part.isdigit() for part in key.split(".")):
        return None
    near = nearest(key, known, _MISSPELT)
    return near if near is not None and near.count(".") == key.count(".") and _is_slip(key, near) else None


def _is_slip(key: str, near: str) -> bool:
    """Return whether each word of the one is a word of the other with a slip, or short for it: `lora_rank` is not `local_rank`."""
    words, others = (re.split(r"[._]", each) for each in (key, near))
    if len(words) != len(others):
        return abs(len(words) - len(others)) == 1
    return all(_are_alike(*sorted(pair, key=len)) for pair in zip(words, others, strict=True))


def _are_alike(short: str, long: str) -> bool:
    """Return whether the words are the same but for a letter, two exchanged ones, or an ending."""
    if short == long or (len(short) > _SHORTEST and long.startswith(short)):
        return True
    at = next((index for index, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    exchanged = short[:at] + short[at + 1 : at + 2] + short[at : at + 1] + short[at + 2 :]
    return long in (exchanged, short) or long[at + 1 :] in (short[at:], short[at + 1 :])


def _own_keys(options: FrameworkOptions) -> Iterator[tuple[Path, str, Any]]:
    """Yield the user's keys: the path in the spec, the dotted key, its value."""
    for name, content in options.arguments.items():
        yield from (((*_ARGUMENTS, name), key, value) for key, value in flat({name: content}).items())


def known_of(plan: JobPlan) -> dict[str, Any]:
    """Return the values of all `FIELDS`: the plan's, else the job's; None without either."""
    layout, known = plan.spec["layout"], dict[str, Any](values(plan))
    model = {} if plan.model is None else to_builtins(plan.model)
    known |= {name: None for name in FIELDS if name.startswith("model.")}
    known |= {f"model.{name}": value for name, value in flat(model).items() if name in _OF_MODEL}
    if plan.mesh.pp == 1 and layout["virtual_stages"] == 1:
        known["layout.schedule"] = layout["schedule"]
    return {**known, "backend": plan.backend, "slots": plan.slots, "procs": plan.procs_per_slot}


def limits_of(table: Table) -> Limited:
    """Return the degrees and choices that a layout of `auto` cannot have."""
    lacking = ((path_of(name), row) for row in table.rows if isinstance(row, Lacks) for name in row.fields)
    return {path: (row.allowed, row.why) for path, row in lacking if path[0] in ("layout", "recompute")}


def _render(options: FrameworkOptions, plan: JobPlan, cluster: ClusterPlan) -> Files:
    """Return no files: run.json holds the configuration, and the runner writes it into the folder of each attempt."""
    return {}


def _files(options: Any, plan: JobPlan) -> Mapping[Path, str]:
    """Return the script, unless it is a module, by its path in the spec."""
    if not isinstance(options, ScriptedOptions) or options.module:
        return {}
    return {("trainer", "options", "script"): options.script}


def started(options: ScriptedOptions, *words: str) -> list[str]:
    """Return the script with its words."""
    return [*(["-m"] if options.module else []), options.script, *words]


def words_of(argv: Iterable[str], plan: JobPlan) -> list[str]:
    """Return further words of a script with the plan's values in place of their names."""
    known = values(plan)
    return [word for word in (_filled(argument, known, typed=False) for argument in argv) if word is not _LEFT_OUT]


_LEFT_OUT = object()


def _filled(value: Any, known: Mapping[str, Any], *, typed: bool = True) -> Any:
    """Return the value with its names filled in, in a list too."""
    if isinstance(value, list):
        return [each for each in (_filled(item, known) for item in value) if each is not _LEFT_OUT]
    if not isinstance(value, str):
        return value
    if is_left_out(value, known):
        return _LEFT_OUT
    whole = value[1:-1]
    # A name alone keeps the type of its value.
    if typed and value == f"{{{whole}}}" and known.get(whole) is not None and not is_late(value):
        return known[whole]
    text = fill(value, known)
    return Late(text) if is_late(value) else text


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of a value, those of its list too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _late(content: Any) -> Iterator[list[Any]]:
    """Yield the places of texts that the runner completes, each by its keys and indices."""
    if isinstance(content, Late):
        yield []
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from ([key, *place] for place in _late(value))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from ([index, *place] for place in _late(value))


def _overlap(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def _untold(table: Table, options: FrameworkOptions, plan: JobPlan, known: Known) -> Iterator[str]:
    """Yield the fields of the job that are left to the script and that no argument contains: a whole section by its name."""
    names = values(plan)
    told = [*_texts(list(flat(options.arguments).values())), *getattr(options, "argv", ())]
    used = {name for text in told for name in names_meant(text, names)}
    for name in table.left:
        if name == "model":
            if plan.model is not None and not any(section_of(each) == "model" for each in used):
                yield name
        elif name not in used and _is_said(name, plan, known):
            yield name


def _is_said(name: str, plan: JobPlan, known: Known) -> bool:
    """Return whether the job specifies something that a script does not do by itself: a schedule that is not constant, for one."""
    value = known[name] if name.startswith("checkpoint.shared.") else written(plan.spec, name)
    return value not in (None, _BY_ITSELF.get(name, defaults().get(name)))


def _example(name: str, plan: JobPlan) -> str:
    if name != "model":
        return name
    return "model.preset" if plan.spec["model"]["preset"] else "model.layers"


def _check_kept(table: Table, plan: JobPlan) -> Iterator[Problem]:
    """Warn of a number of checkpoints to keep where the framework removes none."""
    if not _keeps_all(table):
        return
    checkpoint = plan.spec["checkpoint"] or {"keep": None, "tiers": []}
    stated: dict[Path, Any] = {("checkpoint", "tiers", at, "keep"): tier["keep"] for at, tier in enumerate(checkpoint["tiers"])}
    if checkpoint["keep"] != Checkpoint.model_fields["keep"].default:
        stated["checkpoint", "keep"] = checkpoint["keep"]
    for path, keep in stated.items():
        if keep is not None:
            message = f"{table.name} keeps every checkpoint: `keep: {keep}` has no effect"
            hint = "leave it out, and remove old checkpoints yourself"
            yield Problem("HW210", JOB, path, message, hint, Severity.WARNING, at_key=True)


def _keeps_all(table: Table) -> bool:
    """Return whether the framework removes no checkpoint."""
    return any(isinstance(row, Elsewhere) and "checkpoint.keep" in row.fields for row in table.rows)


def _check_tiers(table: Table, plan: JobPlan) -> Iterator[Problem]:
    """Check that checkpoints go to the runs' storage alone: the framework saves by its own code."""
    for index, tier in enumerate(plan.run.checkpoint.tiers):
        if tier.kind != "shared":
            message = f"{table.name} saves by its own code, to the storage of the runs: not to `{tier.kind}`"
            hint = "use `kind: shared`, or save by `headway.checkpoint` in a script of the trainer `script`"
            if any(other.kind == "shared" for other in plan.run.checkpoint.tiers):
                hint = "leave this tier out: the `shared` one is there"
            yield Problem("HW306", JOB, ("checkpoint", "tiers", index, "kind"), message, hint)
