"""Reads an sbatch script into a TrainingJob: its options, its statements, and the command that is the training."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from headway.jobspec.flow import flow
from headway.jobspec.notation import counted
from headway.jobspec.spec.section import API_VERSION
from headway.sbatch.arguments import Arguments, arguments_of
from headway.sbatch.arrays import MOST_POINTS, indices, swept, swept_by_turns
from headway.sbatch.containers import Container, container_of, take_settings
from headway.sbatch.edits import Edit, one_word_change
from headway.sbatch.environment import Environment, sort_variable
from headway.sbatch.expand import Variables
from headway.sbatch.launch import LOGIN, Launch
from headway.sbatch.launchers import LauncherOptions, options_of
from headway.sbatch.notes import Note, NoteKind, Notes
from headway.sbatch.options import Option, directives
from headway.sbatch.slurm_options import Asked, asked_by
from headway.sbatch.syntax import Script, parse
from headway.sbatch.text import join
from headway.sbatch.walk import FIRST_TURN, Found, Loop, Walker

_DIRECTIVE = "#SBATCH"
# Between the components of a heterogeneous job, and its name before Slurm 20.02.
_COMPONENT = frozenset({"hetjob", "packjob"})
_MODULES = (
    "`module` changes the host, and this job runs in a container: put it into `scheduler.options.setup` of the cluster if the host "
    "needs it"
)
_ON_HOST = "it runs on the host, and this job runs in a container: put it into `setup` if the container has it"
_ANOTHER = "another program than the training: a job has one; `scheduler.slurm.dependency` lets a job wait for another"
_BESIDE = "not a training: `setup` has lines that run on each node before the ranks"
_TURNS = "each turn of the loop is a run of the sweep with a job of its own, which does not wait for the turn before"
_SRUN_RANKS = (
    "the script has to read RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun: srun starts one runner on each "
    "node, and SLURM_PROCID is no longer a rank"
)


class Reading(Struct, frozen=True):
    """A script that was read. `job` is None where no training was found; `unpinned` is an image that needs a digest."""

    job: Mapping[str, Any] | None
    notes: tuple[Note, ...]
    edit: Edit | None
    unpinned: str | None = None


class _Once(Struct):
    """One walk through the script, and the job that follows from it."""

    job: dict[str, Any]
    notes: Notes
    container: Container = field(default_factory=Container)
    loops: Sequence[Loop] = ()


def read_script(
    source: str,
    cluster: str,
    variables: Mapping[str, str] | None = None,
    find_file: Callable[[str], str | None] = lambda name: None,
    name: str = "job",
) -> Reading:
    """Read a script for a cluster of this name. `variables` are values of those that it does not set, `find_file` returns the text of a
    script that it runs, and `name` is the job's where the script has none.

    Raises ImportError without the extra `sbatch`.
    """
    notes = Notes()
    asked = asked_by(_options(source, notes), notes)
    given, script = dict(variables or {}), parse(source)
    if re.match(r"#!.*sh\s+(-\w*l|--login)", source):
        notes.add(NoteKind.CHECK, 1, source.splitlines()[0], LOGIN)
    edit = one_word_change(script)
    read = partial(_read_once, script, asked, given, find_file, cluster, name)
    once = read(notes)
    if once is None:
        return Reading(None, notes.sorted(), edit)
    if asked.array is not None:
        _sweep(once, asked.array, read)
        for loop in once.loops:
            once.notes.add(NoteKind.UNREAD, loop.line, loop.source, FIRST_TURN)
    elif once.loops:
        _sweep_of_loops(once, read)
    return Reading(once.job, once.notes.sorted(), edit, once.container.unpinned)


def _options(source: str, notes: Notes) -> list[Option]:
    """Return the options of the lines `#SBATCH`; sbatch reads none behind the first command."""
    found: list[Option] = []
    has_begun = is_of_other = False
    for number, line in enumerate(source.splitlines(), 1):
        if not line.startswith(_DIRECTIVE):
            has_begun = has_begun or (line.strip() != "" and not line.lstrip().startswith("#"))
            continue
        if has_begun:
            notes.add(NoteKind.OMITTED, number, line, "sbatch reads no options behind the first command")
            continue
        options = directives(line.removeprefix(_DIRECTIVE), number)
        if options is None:
            notes.add(NoteKind.UNREAD, number, line, "a quote is not closed")
            continue
        is_of_other = is_of_other or any(option.written in _COMPONENT for option in options)
        for option in options:
            if is_of_other:
                notes.add(NoteKind.UNREAD, number, option.written, "a heterogeneous job: only its first component is read")
            elif option.name:
                found.append(option)
            else:
                notes.add(NoteKind.UNREAD, number, option.written, "not an option")
    return found


def _read_once(
    script: Script,
    asked: Asked,
    given: Mapping[str, str],
    find_file: Callable[[str], str | None],
    cluster: str,
    name: str,
    notes: Notes,
    index: int | None = None,
    turns: Sequence[int] = (),
) -> _Once | None:
    slurm = asked.slurm
    task = indices(asked.array)[0] if index is None and asked.array is not None and indices(asked.array) else index
    values = dict(given) if task is None else {**given, "SLURM_ARRAY_TASK_ID": str(task)}
    variables, found = Variables(values, slurm), Found(turns)
    Walker(script, variables, notes, found, find_file).walk()
    launch = _training(found, notes)
    if launch is None:
        return None
    for variable, (default, written) in variables.defaults.items():
        why = f"the script takes `{variable}` from the submission if it is set: the job has {default or 'nothing'}"
        notes.add(NoteKind.CHECK, 0, written, why)
    once = _assemble(launch, found, asked, notes, cluster, name)
    once.loops = found.loops
    return once


def _training(found: Found, notes: Notes) -> Launch | None:
    """Return the command that is most likely the training, and note the others."""
    best = max(found.launches, key=lambda launch: launch.weight, default=None)
    if best is None or not best.weight:
        best = None
    for launch in found.launches:
        if launch is not best:
            is_other = launch.is_python and launch.program
            notes.add(NoteKind.UNREAD, launch.line, _command(launch), _ANOTHER if is_other else _BESIDE)
    return best


def _command(launch: Launch) -> str:
    start = f"{launch.launcher} ... " if launch.launcher else ""
    return f"{start}{join(launch.program).shown}"


def _assemble(launch: Launch, found: Found, asked: Asked, notes: Notes, cluster: str, name: str) -> _Once:
    for kind, source, why in launch.notes:
        notes.add(kind, launch.line, source, why)
    told = options_of(launch, asked, notes)
    container = container_of(launch, asked.container, notes)
    take_settings(container, found.exports, notes)
    job: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "name": _name(asked, name, notes),
        "cluster": cluster,
    }
    nodes, ranks = _geometry(job, launch, told, asked, notes)
    if container.image is not None:
        job["code"] = {"image": container.image}
    slurm = {**asked.fields, **({"srun": told.srun} if told.srun else {})}
    if container.further:
        slurm["apptainer"] = container.further
    if slurm:
        job["scheduler"] = {"slurm": slurm}
    total = None if ranks is None else nodes * ranks
    arguments = arguments_of(launch.program, launch.line, total, container.targets, notes)
    _put_program(job, launch, arguments)
    _put_fields(job, arguments, total)
    _put_resilience(job, told, asked)
    _put_environment(job, launch, found, told, container, notes)
    if container.mounts:
        job["mounts"] = container.mounts
    for target in container.targets:
        if target in flow([job.get("setup", []), job.get("environment", {})]):
            why = f"variables name `{target}`, and the folder of the submission is mounted at its own path: write $PWD in `setup`"
            notes.add(NoteKind.CHECK, launch.line, target, why)
    return _Once(job, notes, container)


def _name(asked: Asked, name: str, notes: Notes) -> str:
    given = asked.name or name
    plain = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:63].strip("-") or "job"
    if plain != given and asked.name is not None:
        notes.add(
            NoteKind.CHECK,
            0,
            f"--job-name={given}",
            f"the job is called `{plain}`: a name has lower-case letters, digits and hyphens",
        )
    return plain


def _geometry(job: dict[str, Any], launch: Launch, told: LauncherOptions, asked: Asked, notes: Notes) -> tuple[int, int | None]:
    """Put the nodes and GPUs into the job; return the nodes, and the ranks of one where they are known."""
    most = asked.most_nodes or asked.nodes or told.nodes or 1
    least = asked.nodes if asked.most_nodes else told.least_nodes
    job["nodes"] = {"min": least, "max": most} if least is not None and least < most else most
    if asked.nodes is not None and told.nodes is not None and told.nodes != most:
        why = f"the launcher starts ranks on {told.nodes} nodes, and the script asks Slurm for {most}: the job uses all of them"
        notes.add(NoteKind.CHECK, launch.line, launch.launcher, why)
    ranks = told.ranks
    if asked.gpus is not None:
        job["gpus"] = asked.gpus
        if ranks is not None and ranks != asked.gpus:
            starts = f"{counted(ranks, 'rank')} on a node with {counted(asked.gpus, 'GPU')}"
            why = f"the script starts {starts}; headway starts a rank for each GPU"
            notes.add(NoteKind.CHECK, launch.line, launch.launcher or "python", why)
        ranks = asked.gpus
    elif ranks is not None and ranks > 1:
        why = f"{ranks} ranks of a node: headway starts a rank for each GPU of the node group, or as many as its `procs`"
        notes.add(NoteKind.CHECK, launch.line, launch.launcher, why)
    return most, ranks


def _put_program(job: dict[str, Any], launch: Launch, arguments: Arguments) -> None:
    if not launch.is_module and launch.is_python:
        job["run"] = arguments.items
        return
    options: dict[str, Any] = {"argv": arguments.items}
    if launch.is_module:
        options["module"] = True
    if not launch.is_python:
        options["python"] = False
    job["trainer"] = {"kind": "script", "options": options}


def _put_fields(job: dict[str, Any], arguments: Arguments, ranks: int | None) -> None:
    """Put the values that arguments take from the job; degrees only where they fit the number of ranks."""
    degrees = {path.partition(".")[2]: value for path, value in arguments.fields.items() if path.startswith("layout.")}
    split = math.prod(degrees.get(axis, 1) for axis in ("tp", "pp", "cp"))
    if ranks is None or ranks % split or (ranks // degrees.get("pp", 1)) % degrees.get("ep", 1):
        for axis in list(degrees):
            _spell_out(job, f"layout.{axis}", degrees.pop(axis))
    if degrees:
        job["layout"] = degrees
    if "seed" in arguments.fields:
        job["seed"] = arguments.fields["seed"]


def _spell_out(job: dict[str, Any], name: str, value: int) -> None:
    items = job["run"] if "run" in job else job["trainer"]["options"]["argv"]
    items[:] = [item.replace(f"{{{name}}}", str(value)) for item in items]


def _put_resilience(job: dict[str, Any], told: LauncherOptions, asked: Asked) -> None:
    resilience = {**told.resilience, **asked.job.get("resilience", {})}
    if resilience:
        job["resilience"] = resilience
    if "limits" in asked.job:
        job["limits"] = asked.job["limits"]


def _put_environment(
    job: dict[str, Any], launch: Launch, found: Found, told: LauncherOptions, container: Container, notes: Notes
) -> None:
    sorted_ = Environment()
    for name, (value, line) in found.exports.items():
        exported = (
            name.removeprefix("APPTAINERENV_").removeprefix("SINGULARITYENV_") if container.runtime == "apptainer" else name
        )
        if name in launch.used and " " in value.shown.strip():
            notes.add(NoteKind.OMITTED, line, f"export {name}", "it is a part of the command that was read")
            continue
        sort_variable(sorted_, exported, value, line, notes)
    for name, value in {**told.environment, **container.environment, **launch.environment}.items():
        sort_variable(sorted_, name, value, launch.line, notes)
    setup = _setup_lines(found, container, notes) + sorted_.setup
    if sorted_.values:
        job["environment"] = sorted_.values
    if sorted_.secrets:
        job["secrets"] = list(dict.fromkeys(sorted_.secrets))
    if setup:
        # In the order of the script: a later line may need what an earlier one sets.
        job["setup"] = list(dict.fromkeys(line for line, _ in sorted(setup, key=lambda each: each[1])))
    if launch.launcher == "srun" and launch.is_python:
        notes.add(NoteKind.CHECK, launch.line, _command(launch), _SRUN_RANKS)


def _setup_lines(found: Found, container: Container, notes: Notes) -> list[tuple[str, int]]:
    kept: list[tuple[str, int]] = []
    for line, number, is_inside in found.setup:
        is_module = line.startswith(("module ", "ml "))
        if container.runtime and not is_inside:
            notes.add(NoteKind.UNREAD, number, line, _MODULES if is_module else _ON_HOST)
            continue
        if is_module:
            why = "`setup` runs in sh on each node: where that has no `module`, put `. /etc/profile.d/modules.sh` (or lmod.sh) before it"
            notes.add(NoteKind.CHECK, number, line, why)
        kept.append((line, number))
    return kept


def _sweep(once: _Once, option: Option, read: Callable[..., _Once | None]) -> None:
    """Add the sweep that makes a run of each task of the array."""
    numbers = indices(option)
    jobs: list[Mapping[str, Any]] = []
    for number in numbers:
        other = read(Notes(), index=number)
        jobs.append(once.job if other is None else other.job)
    swept(once.job, jobs, option, once.notes)


def _sweep_of_loops(once: _Once, read: Callable[..., _Once | None]) -> None:
    """Add the sweep that makes a run of each turn of the loops around the training."""
    first = dict(once.job)
    is_swept = False
    if math.prod(loop.turns for loop in once.loops) <= MOST_POINTS:
        jobs: list[Mapping[str, Any]] = []
        for turns in itertools.product(*(range(loop.turns) for loop in once.loops)):
            other = read(Notes(), turns=turns)
            jobs.append(first if other is None else other.job)
        is_swept = swept_by_turns(once.job, jobs)
    for loop in once.loops:
        if is_swept:
            once.notes.add(NoteKind.CHECK, loop.line, loop.source, _TURNS)
        else:
            once.notes.add(NoteKind.UNREAD, loop.line, loop.source, FIRST_TURN)
