"""Reads the options of a launcher: how many nodes and ranks there are, its limits, and what it would set for the script."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from headway.jobspec.notation import write_parts
from headway.sbatch.launch import Launch
from headway.sbatch.notes import NoteKind, Notes
from headway.sbatch.options import Command, Option
from headway.sbatch.slurm_options import Asked, asked_by
from headway.sbatch.text import Source, Text, text

_MEETS = "the ranks find each other: headway chooses the address and the port"
_LOGS = "headway keeps the output of each rank in the run's directory: `headway logs RUN --rank R`"
# torchrun's options (torch/distributed/run.py) that a job needs no counterpart of.
_TORCHRUN = {
    **dict.fromkeys(
        ("node-rank", "master-addr", "master-port", "rdzv-endpoint", "rdzv-backend", "rdzv-id", "standalone", "local-addr"),
        _MEETS,
    ),
    **dict.fromkeys(("log-dir", "redirects", "tee", "local-ranks-filter", "duplicate-stdout-filters"), _LOGS),
    "monitor-interval": "headway does not poll",
    "start-method": "headway's ranks are processes of their own",
    "numa-binding": "headway binds each rank to the processors of its GPU",
    "use-env": "ranks have LOCAL_RANK in their environment",
}
_ACCELERATE = {
    **dict.fromkeys(
        (
            "num-machines",
            "num-processes",
            "machine-rank",
            "main-process-ip",
            "main-process-port",
            "rdzv-backend",
            "rdzv-conf",
            "same-network",
        ),
        _MEETS,
    ),
    "multi-gpu": "headway starts a rank for each GPU",
    "max-restarts": "headway restarts the ranks itself (`resilience.restart`)",
    "monitor-interval": "headway does not poll",
    "num-cpu-threads-per-process": "headway divides the cores of a node over its ranks",
    "debug": "it only prints",
}
_DEEPSPEED = dict.fromkeys(
    (
        "hostfile",
        "num-nodes",
        "num-gpus",
        "master-addr",
        "master-port",
        "launcher",
        "no-ssh",
        "no-ssh-check",
        "node-rank",
        "include",
    ),
    _MEETS,
)
# What `accelerate launch` puts into the environment of the script (accelerate/utils/launch.py, prepare_multi_gpu_env).
ACCELERATE_VARIABLES = {
    "mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "fsdp-sharding-strategy": "FSDP_SHARDING_STRATEGY",
    "fsdp-reshard-after-forward": "FSDP_RESHARD_AFTER_FORWARD",
    "fsdp-version": "FSDP_VERSION",
    "fsdp-offload-params": "FSDP_OFFLOAD_PARAMS",
    "fsdp-min-num-params": "FSDP_MIN_NUM_PARAMS",
    "fsdp-auto-wrap-policy": "FSDP_AUTO_WRAP_POLICY",
    "fsdp-transformer-layer-cls-to-wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "fsdp-backward-prefetch": "FSDP_BACKWARD_PREFETCH",
    "fsdp-state-dict-type": "FSDP_STATE_DICT_TYPE",
    "fsdp-forward-prefetch": "FSDP_FORWARD_PREFETCH",
    "fsdp-use-orig-params": "FSDP_USE_ORIG_PARAMS",
    "fsdp-cpu-ram-efficient-loading": "FSDP_CPU_RAM_EFFICIENT_LOADING",
    "fsdp-sync-module-states": "FSDP_SYNC_MODULE_STATES",
    "fsdp-activation-checkpointing": "FSDP_ACTIVATION_CHECKPOINTING",
    "deepspeed-config-file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "zero-stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
}
_ACCELERATE_SWITCHES = {"use-fsdp": "ACCELERATE_USE_FSDP", "use-deepspeed": "ACCELERATE_USE_DEEPSPEED"}
_SRUN = {
    **dict.fromkeys(
        ("ntasks", "ntasks-per-node", "nodes", "relative", "nodelist", "distribution"), "headway starts a runner on each node"
    ),
    **dict.fromkeys(("output", "error", "label", "unbuffered", "open-mode"), _LOGS),
    **dict.fromkeys(
        ("cpu-bind", "gpu-bind", "mem-bind", "cpus-per-task", "cpus-per-gpu"),
        "headway binds each rank to the processors of its GPU",
    ),
    "kill-on-bad-exit": "headway restarts all ranks when one fails",
    "wait": "headway restarts all ranks when one fails",
    "mpi": "headway starts the ranks without MPI",
    "export": "ranks inherit the variables of the batch script",
    "jobid": "srun runs in the job of the batch script",
    "job-name": "a step's name",
    "exclusive": "headway's ranks have the whole job",
    "overlap": "headway's ranks have the whole job",
    "exact": "headway's ranks have the whole job",
    "gpus": "a job's GPUs are those of `gpus`",
    "gpus-per-node": "a job's GPUs are those of `gpus`",
    "gpus-per-task": "a job's GPUs are those of `gpus`",
    "gres": "a job's GPUs are those of `gpus`",
    "mem": "a job asks for all memory of its nodes, or the share of its GPUs",
    "time": "`limits.attempt.time` ends the job",
    "verbose": "it only prints",
    "quiet": "it only prints",
    "threads-per-core": "`threads_per_core` of the cluster's node group",
    "hint": "`threads_per_core` of the cluster's node group",
    "signal": "headway asks the ranks to save by SIGTERM",
}
_UNREAD_SRUN = {
    "het-group": "parts of a heterogeneous job are not read: the job has one group of nodes",
    "multi-prog": "several programs are several jobs",
    "chdir": "ranks start in the folder of the submission",
    "pty": "a job has no terminal",
}


class LauncherOptions(Struct):
    """The launcher's options: nodes and ranks of a node where they set them, and fields of the job."""

    nodes: int | None = None
    least_nodes: int | None = None
    ranks: int | None = None
    resilience: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Text] = field(default_factory=dict)
    srun: list[str] = field(default_factory=list)


def options_of(launch: Launch, asked: Asked, notes: Notes) -> LauncherOptions:
    """Read the options of the launcher and of srun."""
    found = LauncherOptions()
    if launch.srun is not None:
        _read_srun(found, launch.srun, notes)
    reader = _READERS.get(launch.launcher)
    if reader is not None and launch.options is not None:
        reader(found, launch.options, asked, notes)
    elif launch.launcher == "srun" and launch.srun is not None:
        of_srun = asked_by([each for each in launch.srun.options if each.name in ("nodes", "ntasks", "ntasks-per-node")], Notes())
        found.ranks = of_srun.tasks or asked.tasks
    return found


def _read_srun(found: LauncherOptions, srun: Command, notes: Notes) -> None:
    for option in srun.options:
        if option.name.startswith(("container", "no-container")):
            continue
        if option.name in _SRUN:
            notes.add(NoteKind.REPLACED, option.line, option.written, _SRUN[option.name])
        elif option.name in _UNREAD_SRUN:
            notes.add(NoteKind.UNREAD, option.line, option.written, _UNREAD_SRUN[option.name])
        elif option.value.known is not None and re.fullmatch(r"[a-z][a-z0-9-]+", option.name):
            known = option.value.known
            found.srun.append(f"--{option.name}={known}" if known else f"--{option.name}")
        else:
            notes.add(NoteKind.UNREAD, option.line, option.written, "an option of srun whose value is known only in the job")


def _note(option: Option, kind: NoteKind, why: str, notes: Notes) -> None:
    notes.add(kind, option.line, option.written, why)


def _read_torchrun(found: LauncherOptions, options: Command, asked: Asked, notes: Notes) -> None:
    for option in options.options:
        known = option.value.known
        if option.name == "nnodes":
            _read_nnodes(found, option, notes)
        elif option.name == "nproc-per-node":
            found.ranks = _number(option, asked, notes)
        elif option.name == "max-restarts":
            if known is not None and known.isdigit() and int(known):
                found.resilience["restart"] = {"budget": int(known)}
            else:
                _note(option, NoteKind.REPLACED, "headway restarts the ranks after a failure (`resilience.restart`)", notes)
        elif option.name == "rdzv-conf":
            _read_rdzv_conf(found, option, notes)
        elif option.name in ("module", "m", "no-python"):
            continue
        elif option.name in _TORCHRUN:
            _note(option, NoteKind.REPLACED, _TORCHRUN[option.name], notes)
        else:
            _note(option, NoteKind.UNREAD, "an option of torchrun that a job does not have", notes)


def _read_nnodes(found: LauncherOptions, option: Option, notes: Notes) -> None:
    known = option.value.known
    numbers = re.fullmatch(r"(\d+)(?::(\d+))?", known or "")
    if numbers is not None:
        found.nodes = int(numbers[2] or numbers[1])
        found.least_nodes = int(numbers[1]) if numbers[2] and numbers[1] != numbers[2] else None
    elif not option.value.is_of(Source.SLURM) and not option.value.is_of(Source.RENDEZVOUS):
        _note(
            option,
            NoteKind.UNREAD,
            "the number of nodes is known only when the script runs: the job has that of `--nodes`",
            notes,
        )


def _number(option: Option, asked: Asked, notes: Notes) -> int | None:
    known = option.value.known
    if known is not None and known.isdigit():
        return int(known)
    if known in ("gpu", "auto") or option.value.is_of(Source.SLURM):
        return asked.gpus
    _note(option, NoteKind.UNREAD, "the number of ranks of a node is known only when the script runs", notes)
    return None


def _read_rdzv_conf(found: LauncherOptions, option: Option, notes: Notes) -> None:
    for pair in (option.value.known or option.value.shown).split(","):
        key, _, value = pair.partition("=")
        if key in ("join_timeout", "timeout") and value.isdigit() and 0 < int(value) <= 86400:
            found.resilience.setdefault("timeouts", {})["join"] = write_parts(int(value))
        elif key == "last_call_timeout" and value.isdigit() and 0 < int(value) <= 86400:
            found.resilience.setdefault("timeouts", {})["last_call"] = write_parts(int(value))
        else:
            notes.add(NoteKind.REPLACED, option.line, f"--rdzv-conf {pair}", _MEETS)


def _read_accelerate(found: LauncherOptions, options: Command, asked: Asked, notes: Notes) -> None:
    numbers = {option.name: option.value.known for option in options.options}
    processes, machines = numbers.get("num-processes"), numbers.get("num-machines") or str(asked.nodes or 1)
    if processes is not None and processes.isdigit() and machines.isdigit() and int(machines):
        found.ranks = int(processes) // int(machines)
        found.nodes = int(machines)
    for option in options.options:
        if option.name in ACCELERATE_VARIABLES:
            found.environment[ACCELERATE_VARIABLES[option.name]] = option.value
        elif option.name in _ACCELERATE_SWITCHES:
            found.environment[_ACCELERATE_SWITCHES[option.name]] = text("true")
        elif option.name in ("dynamo-backend",):
            found.environment["ACCELERATE_DYNAMO_BACKEND"] = text((option.value.known or "no").upper())
        elif option.name in ("module", "m", "no-python"):
            continue
        elif option.name in _ACCELERATE:
            _note(option, NoteKind.REPLACED, _ACCELERATE[option.name], notes)
        elif option.name == "config-file":
            why = "accelerate makes variables (ACCELERATE_..., FSDP_...) of this file: set them in `environment`"
            _note(option, NoteKind.UNREAD, why, notes)
        else:
            _note(option, NoteKind.UNREAD, "an option of accelerate that a job does not have", notes)


def _read_deepspeed(found: LauncherOptions, options: Command, asked: Asked, notes: Notes) -> None:
    names = {option.name for option in options.options}
    for option in options.options:
        known = option.value.known
        if option.name == "num-gpus" and known is not None and known.isdigit():
            found.ranks = int(known)
        elif option.name == "num-nodes" and known is not None and known.isdigit():
            found.nodes = int(known)
        elif option.name in ("module", "no-python", "no-local-rank"):
            continue
        elif option.name in _DEEPSPEED:
            _note(option, NoteKind.REPLACED, _DEEPSPEED[option.name], notes)
        else:
            _note(option, NoteKind.UNREAD, "an option of deepspeed that a job does not have", notes)
    if "no-local-rank" not in names:
        why = (
            "the launcher gives each rank an argument `--local_rank`, and headway does not: the script has to take LOCAL_RANK from its "
            "environment, as DeepSpeed itself does"
        )
        notes.add(NoteKind.CHECK, options.options[0].line if options.options else 0, "deepspeed", why)


_READERS: Mapping[str, Callable[[LauncherOptions, Command, Asked, Notes], None]] = {
    "torchrun": _read_torchrun,
    "accelerate": _read_accelerate,
    "deepspeed": _read_deepspeed,
}
