"""Turns the program of a script and its arguments into those of a job: values of the plan in braces, and secrets left out."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct, field

from headway.jobspec.credentials import find_credentials
from headway.sbatch.expand import HERE
from headway.sbatch.notes import NoteKind, Notes
from headway.sbatch.text import Reference, Source, Text

# What Slurm's variables are in an argument. The number of a job is the same in all its attempts, as a run's name is.
_VALUES = {
    "SLURM_JOB_ID": "{run}",
    "SLURM_JOBID": "{run}",
    "SLURM_ARRAY_JOB_ID": "{run}",
    "SLURM_NNODES": "{nodes}",
    "SLURM_JOB_NUM_NODES": "{nodes}",
}
_OF_ALL_RANKS = ("SLURM_NTASKS", "SLURM_NPROCS")
_EACH = "each rank has another value: the script has to read RANK, LOCAL_RANK or WORLD_SIZE, which headway sets"
# Arguments whose value a job has in a field of its own, by their last part in lower case with `_`: Megatron's, torchtitan's and
# TrainingArguments'.
_FIELDS = {
    "tensor_model_parallel_size": "layout.tp",
    "tensor_parallel_degree": "layout.tp",
    "pipeline_model_parallel_size": "layout.pp",
    "pipeline_parallel_degree": "layout.pp",
    "context_parallel_size": "layout.cp",
    "context_parallel_degree": "layout.cp",
    "expert_model_parallel_size": "layout.ep",
    "expert_parallel_degree": "layout.ep",
    "seed": "seed",
}
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")


class Arguments(Struct):
    """The arguments of a job, and the fields whose values they take from it."""

    items: list[str] = field(default_factory=list)
    fields: dict[str, int] = field(default_factory=dict)


def arguments_of(
    words: Sequence[Text], line: int, ranks: int | None, targets: Collection[str], notes: Notes, file: str = ""
) -> Arguments:
    """Return the words as a job has them. `ranks` are all ranks of the job; `targets` are places in a container with the folder of the
    submission there."""
    found = Arguments()
    pending: str | None = None
    for word in _without_secrets(words, line, notes, file):
        flag, value = (None, None)
        if pending is None and word.starts("-"):
            flag, value = word.partition("=")
        if pending is not None:
            found.items.append(_as_field(found, pending, word) or _argument(word, line, ranks, targets, notes, file))
            pending = None
        elif flag is not None and value is not None and _FLAG.fullmatch(flag.shown):
            own = _as_field(found, flag.shown, value)
            found.items.append(f"{flag.shown}={own}" if own else _argument(word, line, ranks, targets, notes, file))
        else:
            found.items.append(_argument(word, line, ranks, targets, notes, file))
            pending = word.literal if word.literal is not None and _field_of(word.literal) else None
    return found


def _field_of(flag: str) -> str | None:
    if not _FLAG.fullmatch(flag):
        return None
    return _FIELDS.get(flag.lstrip("-").rpartition(".")[2].replace("-", "_"))


def _as_field(found: Arguments, flag: str, value: Text) -> str | None:
    """Return the name in braces for the value of a flag that a field of the job has; None for another flag or value."""
    name, known = _field_of(flag), value.literal
    if name is None or known is None or not re.fullmatch(r"[0-9]{1,9}", known) or (name != "seed" and int(known) < 1):
        return None
    if found.fields.setdefault(name, int(known)) != int(known):
        return None
    return f"{{{name}}}"


def _argument(word: Text, line: int, ranks: int | None, targets: Collection[str], notes: Notes, file: str) -> str:
    written = "".join(
        part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else _value(part, word, line, ranks, notes, file)
        for part in word.parts
    )
    flag, equals, value = written.rpartition("=")
    for target in targets:
        if value == target or value.startswith(f"{target}/"):
            return f"{flag}{equals}{value[len(target) + 1 :] or '.'}"
    return re.sub(r"^\./(?=.)", "", written) if word.references and word.references[0].name in HERE else written


def _value(part: Reference, word: Text, line: int, ranks: int | None, notes: Notes, file: str) -> str:
    """Return what replaces a reference in an argument."""
    if part.name in HERE:
        return "."
    if part.name in _VALUES:
        return _VALUES[part.name]
    if (part.name in _OF_ALL_RANKS or not part.name) and part.value is not None and part.value == str(ranks):
        return "{world_size}"
    if part.value is not None:
        return part.value.replace("{", "{{").replace("}", "}}")
    if part.source is Source.ENVIRONMENT:
        why = f"the script does not set `{part.name}`: `--set {part.name}=VALUE` gives its value, since arguments are not read by a shell"
    elif part.source is Source.SLURM:
        why = (
            _EACH
            if "PROCID" in part.name or "LOCALID" in part.name or "NODEID" in part.name
            else "Slurm's variable has no counterpart"
        )
    elif part.source is Source.RENDEZVOUS:
        why = "headway chooses where the ranks meet: the script has to read MASTER_ADDR and MASTER_PORT"
    else:
        is_argument = part.name in ("@", "*") or part.name.isdigit()
        why = "what sbatch is given behind the script" if is_argument else "the value is known only when the script runs"
    notes.add(NoteKind.UNREAD, line, word.shown, why, file)
    return Text((part,)).shown.replace("{", "{{").replace("}", "}}")


def _without_secrets(words: Sequence[Text], line: int, notes: Notes, file: str) -> list[Text]:
    """Return the arguments without those that are secrets: a job must not have them."""
    shown: list[Any] = [word.shown for word in words]
    found = {path[0] for path in find_credentials(shown)}
    kept: list[Text] = []
    for index, word in enumerate(words):
        if index not in found:
            kept.append(word)
            continue
        flag = kept.pop().shown if kept and kept[-1].starts("-") and not word.starts("-") else word.shown.partition("=")[0]
        notes.secrets.append(word.shown.rpartition("=")[2])
        why = "a secret is not in a job: have the script read it from a variable, and name that under `secrets`"
        notes.add(NoteKind.UNREAD, line, flag, why, file)
    return kept
