"""Turns a script's options of sbatch into fields of a job."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from headway.jobspec.notation import write_parts
from headway.jobspec.spec.scheduling import SlurmRequest
from headway.sbatch.notes import NoteKind, Notes
from headway.sbatch.options import Option

_OWN_OUTPUT = (
    "headway's batch script writes `%x-%j.out` to the folder of the submission, and keeps the output of each rank in the run"
)
_REPLACED = {
    "output": _OWN_OUTPUT,
    "error": _OWN_OUTPUT,
    "open-mode": "the log is appended to",
    "requeue": "headway's jobs are requeued",
    "exclusive": "a job that uses all GPUs of its nodes has them alone",
    "mem": "a job asks for all memory of its nodes, or the share of its GPUs",
    "mem-per-cpu": "a job asks for all memory of its nodes, or the share of its GPUs",
    "mem-per-gpu": "a job asks for all memory of its nodes, or the share of its GPUs",
    "cpus-per-task": "a job asks for the processors of its nodes, or the share of its GPUs",
    "cpus-per-gpu": "a job asks for the processors of its nodes, or the share of its GPUs",
    "ntasks": "headway starts one task on each node, which starts the ranks",
    "ntasks-per-node": "headway starts one task on each node, which starts the ranks",
    "ntasks-per-gpu": "headway starts one task on each node, which starts the ranks",
    "ntasks-per-socket": "headway starts one task on each node, which starts the ranks",
    "gpu-bind": "headway binds each rank to the processors of its GPU",
    "kill-on-bad-exit": "headway restarts all ranks when one fails",
    "no-kill": "headway continues without a lost node when the job has spares (`resilience.spares`)",
    "wait-all-nodes": "ranks wait for all nodes (`resilience.timeouts.join`)",
    "verbose": "it only prints",
    "quiet": "it only prints",
    "parsable": "it only prints",
    "segment": "headway asks for the segments that the layout needs, where the cluster has `topology: block`",
}
_UNREAD = {
    "chdir": "submit the job from that folder, or set `login.folder` in the cluster's `scheduler.options`",
    "export": "ranks inherit the variables of the submission; set others in `environment`",
    "export-file": "ranks inherit the variables of the submission; set others in `environment`",
    "no-requeue": "headway requeues a job after a failure; `resilience.restart.budget: 0` ends it at the first one",
    "image": "an image of shifter; headway starts containers by pyxis or Apptainer (`code.image`)",
    "module": "modules of shifter",
    "volume": "mounts of shifter; headway has `mounts`",
    "hold": "submit the job, then `scontrol hold` it",
    "wait": "`headway logs RUN -f` waits for a run's end",
    "clusters": "another cluster is another Cluster document: `headway submit JOB --cluster FILE`",
    "wrap": "a command line in place of a script",
    "nodefile": "name the nodes by features (`constraint`) or exclude others (`exclude`)",
    "array": "the tasks of the array do not differ in anything that the script shows; `sweep` makes runs with other values",
}
_WORDS = ("partition", "account", "qos", "reservation", "constraint", "exclude", "dependency")
_GEOMETRY = ("nodes", "gpus", "gpus-per-node", "gpus-per-task", "gres", "ntasks", "ntasks-per-node", "gpus-per-socket")
# sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds.
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_LONGEST_GRACE_S = 3600
_GPU = re.compile(r"(?:gres[:/])?gpus?(?::[A-Za-z][\w.-]*)?(?::(\d+))?(?:\(.*\))?$")


class Asked(Struct):
    """The request of a script to Slurm. `gpus` are those of a node, `tasks` its tasks there; None where the script does not set it."""

    name: str | None = None
    nodes: int | None = None
    most_nodes: int | None = None
    gpus: int | None = None
    tasks: int | None = None
    cpus: int | None = None
    array: Option | None = None
    container: dict[str, Option] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of `scheduler.slurm`."""
    job: dict[str, Any] = field(default_factory=dict)
    """Other fields of the job."""

    @property
    def slurm(self) -> dict[str, str]:
        """Return the variables that Slurm sets by these options (sbatch(1), OUTPUT ENVIRONMENT VARIABLES)."""
        # A range of nodes leaves their number open.
        nodes = (self.nodes or 1) if self.most_nodes is None else None
        tasks = None if nodes is None else nodes * (self.tasks or 1)
        found: dict[str, str | int | None] = {
            "SLURM_NNODES": nodes,
            "SLURM_JOB_NUM_NODES": nodes,
            "SLURM_NTASKS": tasks,
            "SLURM_NPROCS": tasks,
            "SLURM_NTASKS_PER_NODE": self.tasks,
            "SLURM_GPUS_PER_NODE": self.gpus,
            "SLURM_GPUS_ON_NODE": self.gpus,
            "SLURM_GPUS": None if self.gpus is None or nodes is None else nodes * self.gpus,
            "SLURM_CPUS_PER_TASK": self.cpus,
            "SLURM_JOB_NAME": self.name,
            "SLURM_JOB_PARTITION": self.fields.get("partition"),
            "SLURM_JOB_ACCOUNT": self.fields.get("account"),
        }
        return {name: str(value) for name, value in found.items() if value is not None}


def asked_by(options: Sequence[Option], notes: Notes) -> Asked:
    """Read the options, the later of two of one name counting, and note what is not in the job."""
    found = Asked()
    last = {option.name: option for option in options}
    _read_geometry(found, last, notes)
    for option in options:
        if last[option.name] is not option:
            notes.add(NoteKind.OMITTED, option.line, option.written, "a later option of this name counts")
        elif option.name not in _GEOMETRY:
            _read_one(found, option, notes)
    for name in ("ntasks", "ntasks-per-node"):
        if name in last:
            notes.add(NoteKind.REPLACED, last[name].line, last[name].written, _REPLACED[name])
    return found


def _read_one(found: Asked, option: Option, notes: Notes) -> None:
    value = option.value.known or ""
    reader = _READERS.get(option.name)
    if reader is not None:
        reader(found, option, value, notes)
    elif option.name in _WORDS:
        _keep_word(found, option, value, notes)
    elif option.name.startswith("container") or option.name.startswith("no-container"):
        found.container[option.name] = option
    elif option.name in _REPLACED:
        notes.add(NoteKind.REPLACED, option.line, option.written, _REPLACED[option.name])
    elif option.name in _UNREAD:
        notes.add(NoteKind.UNREAD, option.line, option.written, _UNREAD[option.name])
    elif re.fullmatch(r"[a-z][a-z0-9-]+", option.name) and not re.search(r"[\x00-\x1f\x7f]", value):
        found.fields.setdefault("sbatch", []).append(f"--{option.name}={value}" if value else f"--{option.name}")
    else:
        notes.add(NoteKind.UNREAD, option.line, option.written, "not an option of sbatch that headway recognizes")


def _keep_word(found: Asked, option: Option, value: str, notes: Notes) -> None:
    """Keep a value of Slurm, if it has the form that a job may have."""
    if option.name == "dependency" and "$" in value:
        notes.add(NoteKind.UNREAD, option.line, option.written, "Slurm does not expand variables in `#SBATCH` lines")
        return
    try:
        SlurmRequest.model_validate_json(f'{{"{option.name}": {_json(value)}}}')
    except ValueError:
        notes.add(NoteKind.UNREAD, option.line, option.written, f"not a value that `scheduler.slurm.{option.name}` accepts")
        return
    found.fields[option.name] = value


def _json(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read_name(found: Asked, option: Option, value: str, notes: Notes) -> None:
    found.name = value


def _read_nice(found: Asked, option: Option, value: str, notes: Notes) -> None:
    if value and not re.fullmatch(r"-?\d+", value):
        notes.add(NoteKind.UNREAD, option.line, option.written, "not a number")
        return
    # sbatch(1): without a value, 100.
    found.fields["nice"] = int(value) if value else 100


def _read_cpus(found: Asked, option: Option, value: str, notes: Notes) -> None:
    found.cpus = int(value) if value.isdigit() else None
    notes.add(NoteKind.REPLACED, option.line, option.written, _REPLACED[option.name])


def _read_time(found: Asked, option: Option, value: str, notes: Notes) -> None:
    seconds = slurm_seconds(value)
    if seconds is None or seconds < 60:
        why = (
            "the job has no limit then, but that of its partition"
            if value.lower() in ("infinite", "unlimited", "0")
            else "not a time of Slurm"
        )
        notes.add(NoteKind.UNREAD, option.line, option.written, why)
    else:
        found.job["limits"] = {"attempt": {"time": write_parts(seconds)}}


def _read_signal(found: Asked, option: Option, value: str, notes: Notes) -> None:
    """The signal comes some time before the limit: the time that ranks get to save."""
    seconds = re.search(r"@(\d+)$", value)
    grace = min(int(seconds[1]) if seconds else 60, _LONGEST_GRACE_S)
    if grace:
        found.job["resilience"] = {"grace": write_parts(grace)}
    why = "headway asks the ranks to save by SIGTERM, `resilience.grace` before the limit: another signal needs another handler"
    notes.add(NoteKind.CHECK, option.line, option.written, why)


def _read_array(found: Asked, option: Option, value: str, notes: Notes) -> None:
    found.array = option


_READERS: Mapping[str, Callable[[Asked, Option, str, Notes], None]] = {
    "job-name": _read_name,
    "nice": _read_nice,
    "cpus-per-task": _read_cpus,
    "time": _read_time,
    "signal": _read_signal,
    "array": _read_array,
}


def slurm_seconds(value: str) -> int | None:
    """Return a time limit of Slurm in seconds; None for one that is not a time."""
    found = _TIME.fullmatch(value)
    if found is None:
        return None
    days, numbers = found["days"], [int(each) for each in (found["first"], found["second"], found["third"]) if each is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(numbers) == 3:
        return (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    return numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)


def _read_geometry(found: Asked, last: Mapping[str, Option], notes: Notes) -> None:
    """Read nodes, tasks and GPUs, which options give for a node, for a task or for the whole job."""
    if (option := last.get("nodes")) is not None:
        numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", option.value.known or "")
        if numbers is None:
            notes.add(NoteKind.UNREAD, option.line, option.written, "not a number of nodes")
        else:
            found.nodes = int(numbers[1])
            found.most_nodes = int(numbers[2]) if numbers[2] and int(numbers[2]) > int(numbers[1]) else None
    tasks, found.tasks = _whole(last.get("ntasks")), _whole(last.get("ntasks-per-node"))
    if found.nodes is None and tasks is not None and found.tasks:
        found.nodes = math.ceil(tasks / found.tasks)
    elif found.tasks is None and tasks is not None:
        found.tasks = max(1, tasks // (found.nodes or 1))
    for name in ("gpus-per-node", "gres", "gpus", "gpus-per-task"):
        option = last.get(name)
        if option is None:
            continue
        number = _gpus(found, option, notes)
        if number is None:
            continue
        if name == "gpus-per-task":
            number *= found.tasks or 1
        elif name == "gpus" and found.nodes is not None:
            number = number // found.nodes
        found.gpus = found.gpus or number or None
    if (option := last.get("gpus-per-socket")) is not None:
        notes.add(NoteKind.UNREAD, option.line, option.written, "`gpus` of a job are those of a node")


def _whole(option: Option | None) -> int | None:
    known = option.value.known if option is not None else None
    return int(known) if known is not None and known.isdigit() and int(known) else None


def _gpus(found: Asked, option: Option, notes: Notes) -> int | None:
    number: int | None = None
    for part in (option.value.known or "").split(","):
        if part.isdigit() and option.name != "gres":
            number = int(part)
        elif gpus := _GPU.match(part):
            number = int(gpus[1] or 1)
        elif re.fullmatch(r"[A-Za-z][\w.-]*:\d+", part) and option.name != "gres":
            number = int(part.partition(":")[2])
        elif option.name == "gres" and re.fullmatch(r"[A-Za-z][\w./-]*(:[\w.-]+)*", part):
            found.fields.setdefault("sbatch", []).append(f"--gres={part}")
        elif part:
            notes.add(NoteKind.UNREAD, option.line, option.written, f"`{part}` is not a number of GPUs")
    return number
