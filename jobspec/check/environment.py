"""Checks a job's environment variables against those that the plan, the runner and the scheduler set."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache

from msgspec import Struct

from headway.jobspec.catalog.nccl_values import BOUNDS, CHOICES, SUBSYSTEMS, WORDS, number_of, unknown_choice
from headway.jobspec.catalog.table import rows
from headway.jobspec.catalog.torch_values import unknown_to_torch
from headway.jobspec.check.names import check_unique
from headway.jobspec.credentials import is_of_secret
from headway.jobspec.flow import flow
from headway.jobspec.form_repair import plain
from headway.jobspec.plan import EnvVar, JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.suggest import nearest

# The variables that the agent sets for every rank (runner/agent/main.py), as torchrun does (docs.pytorch.org
# elastic/run, "Environment Variables"), and those that schedulers set for every process (Slurm: sbatch(1); Kubernetes:
# an indexed Job's completion index).
_PER_RANK = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JOB_COMPLETION_INDEX",
)
_WEBHOOK = ("resilience", "notify", "webhook_env")
_PREFIXES = ("TORCHELASTIC_", "HEADWAY_", "SLURM_")

# CUDA: docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html; in containers:
# docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html; ROCm: rocm.docs.amd.com, gpu-isolation.
_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")

# By these the batch script finds `python3`, which finds its library by them; and bash ends a script that sets one of
# its own (bash(1): readonly).
_INTERPRETER = ("PATH", "PYTHONHOME")
_OF_BASH = ("UID", "EUID", "PPID", "BASHOPTS", "BASH_VERSINFO", "SHELLOPTS")

# Variables that disable what the cluster file decides, and their values that do not. NVIDIA/nccl src/transport/net_ib: the adapters are
# not used; the GID index is not looked for.
_RIVALS: Mapping[str, tuple[str, frozenset[str]]] = {
    "NCCL_IB_DISABLE": ("NCCL_IB_HCA", frozenset({"0"})),
    "NCCL_IB_GID_INDEX": ("NCCL_IB_ROCE_VERSION_NUM", frozenset({"-1"})),
}


@cache
def _numbers() -> frozenset[str]:
    """Return NCCL's variables that are numbers."""
    return frozenset(f"NCCL_{name}" for name in rows("variables")["integer"])


@cache
def _nccl() -> frozenset[str]:
    """Return all variables that NCCL, its plugins and torch's process group read."""
    table = rows("variables")
    named = [f"NCCL_{name}" for name in (*table["string"], *table["removed"], *table["others"])]
    return _numbers() | {name for name in named if not name.endswith("_")} | {f"TORCH_NCCL_{name}" for name in table["torch"]}


@cache
def _others() -> tuple[str, ...]:
    """Return the beginnings of variables that others read."""
    return tuple(f"NCCL_{name}" for name in rows("variables")["others"])


# Variables that nothing reads, and that much advice names.
_ELSEWHERE: Mapping[str, str] = {
    "NCCL_TIMEOUT": "leave it out, and set `resilience.timeouts.collective`, and `timeout` of `init_process_group` in a script"
}
_OF_NCCL = ("NCCL", "NCLL", "NCC_", "TORCH_NCCL")
_BYTES = {"k": 2**10, "m": 2**20, "g": 2**30}
_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
# The network of Google's plugin (docs.cloud.google.com, GPUDirect-TCPXO: `NCCL_NET=FasTrak`).
_GOOGLES_NETWORK = "FasTrak"


class _TurnsOff(Struct, frozen=True):
    """Values of a variable that turn something off, what no longer works, and whether that matters to a plan."""

    values: frozenset[str]
    loses: str
    matters: Callable[[JobPlan], bool]


def _has_gpus(plan: JobPlan) -> bool:
    return any(variable.name == "NCCL_DEBUG" for variable in plan.env)


def _has_neighbours(plan: JobPlan) -> bool:
    return _has_gpus(plan) and plan.run.procs_per_slot > 1


def _has_rdma(plan: JobPlan) -> bool:
    return any(variable.name == "NCCL_IB_HCA" for variable in plan.env)


_ASYNC_OFF = _TurnsOff(
    frozenset({"0", "2"}),
    "a rank whose collective has failed waits for ever instead of ending, so that only its silence shows",
    _has_gpus,
)
_OFF = {
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, ErrorHandlingMode: 0 does nothing, 2 aborts and keeps the process.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _ASYNC_OFF,
    "NCCL_ASYNC_ERROR_HANDLING": _ASYNC_OFF,
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: the error handling is off where this is on.
    "TORCH_NCCL_BLOCKING_WAIT": _TurnsOff(
        frozenset({"1"}), "the CPU waits for each collective, and the asynchronous handling of errors is off", _has_gpus
    ),
    "TORCH_FR_BUFFER_SIZE": _TurnsOff(frozenset({"0"}), "a hang is found, but the rank that fell behind is not named", _has_gpus),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": _TurnsOff(
        frozenset({"0"}), "a hang is found, but the rank that fell behind is not named", _has_gpus
    ),
    # docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    "NCCL_P2P_DISABLE": _TurnsOff(
        frozenset({"1"}), "the GPUs of a node exchange data through host memory, not over NVLink", _has_neighbours
    ),
    "NCCL_P2P_LEVEL": _TurnsOff(
        frozenset({"LOC", "0"}), "the GPUs of a node exchange data through host memory, not over NVLink", _has_neighbours
    ),
    "NCCL_NET_GDR_LEVEL": _TurnsOff(
        frozenset({"LOC", "0"}), "adapters read and write host memory, not that of GPUs (GPUDirect RDMA is off)", _has_rdma
    ),
    "NCCL_NET": _TurnsOff(
        frozenset({"Socket", "socket"}), "nodes exchange data over TCP, not over the adapters of the scale-out fabric", _has_rdma
    ),
    # docs.nvidia.com/cuda/cuda-programming-guide, environment variables
    "CUDA_LAUNCH_BLOCKING": _TurnsOff(frozenset({"1"}), "each kernel waits for the one before, and nothing overlaps", _has_gpus),
}


# A reference to a variable, or a home directory, as a shell would expand it.
_EXPANDED = re.compile(r"~(?:/|$)|.*?(?:\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*|\([^)]+\))|`[^`]+`)", re.DOTALL)


def is_for_a_shell(text: str) -> bool:
    """Return whether a shell would expand the text; headway passes it on as it is."""
    return _EXPANDED.match(text) is not None


def check_values(values: Mapping[str, str], secrets: Collection[str] = ()) -> Iterator[Problem]:
    """Report values that only a shell would expand; those of `secrets` have another problem, by which they are removed."""
    for name, value in values.items():
        if name in secrets:
            continue
        if (meant := plain(value)) is not None:
            message = f"the typographic quotes or dashes of `{value}` are a part of the value of `{name}`"
            hint = f"write `{flow(meant)}`"
            yield Problem("HW703", JOB, ("environment", name), message, hint, Severity.WARNING, fix=flow(meant))
        elif is_for_a_shell(value):
            message = f"`{name}` is set to the text `{value}`: `~` and `$` are not expanded"
            hint = "write the value out; outside of Kubernetes, ranks also inherit the variables of the submission"
            yield Problem("HW703", JOB, ("environment", name), message, hint, Severity.WARNING)


def check_names(names: Iterable[str]) -> Iterator[Problem]:
    """Report variables that the runner or the scheduler sets."""
    for name in names:
        found = _reserved(name, names[name] if isinstance(names, Mapping) else None)
        if found is not None:
            yield Problem("HW418", JOB, ("environment", name), *found, at_key=True)


def check_secret_names(job: TrainingJob) -> Iterator[Problem]:
    """Check the variables that are secrets: each once, without a value in the spec, and not those of the runner."""
    yield from check_unique(JOB, ("secrets",), "name", [secret.name for secret in job.secrets], job.secrets)
    for index, secret in enumerate(job.secrets):
        path = ("secrets", index)
        if secret.name in job.environment:
            if not is_of_secret(secret.name):
                message = f"`{secret.name}` is a secret here, and `environment` has its value"
                hint = f"leave `{secret.name}` out of `secrets`; or, if it is one, remove it from `environment` and revoke it"
                yield Problem("HW215", JOB, path, message, hint)
                continue
            message = f"`{secret.name}` is a secret, and `environment` has its value"
            hint = "remove it there" if len(job.environment) > 1 else "remove it there, with the line of `environment`"
            yield Problem("HW215", JOB, ("environment", secret.name), message, hint, at_key=True)
        elif (found := _reserved(secret.name)) is not None:
            yield Problem("HW418", JOB, path, *found)


def check_webhook(job: TrainingJob) -> Iterator[Problem]:
    """Check the variable that holds a webhook's address: it has no other use, and the spec has no value for it."""
    if job.resilience.notify is None:
        return
    name = job.resilience.notify.webhook_env
    if name in job.environment:
        message = (
            f"`{name}` holds the address of a webhook (`resilience.notify`), which is a secret, and the spec contains its value"
        )
        hint = "remove it, and set the variable where the job is submitted, or in the Secret that the rendered manifest names"
        yield Problem("HW215", JOB, ("environment", name), message, hint, at_key=True)
    elif _reserved(name) is not None:
        message = f"`{name}` is a variable of the runner, the scheduler or the system, and cannot hold a webhook's address"
        yield Problem("HW418", JOB, _WEBHOOK, message, "use a separate variable, for example `RUN_WEBHOOK`")


def _reserved(name: str, value: str | None = None) -> tuple[str, str] | None:
    """Return why no job may set the variable, and what to do; None where it may."""
    if name in _PER_RANK or name.startswith(_PREFIXES):
        return f"`{name}` is set for each rank when it starts, and one value for all would be wrong", "leave it out"
    if name in _DEVICES:
        hint = "leave it out; `gpus` of the node group sets their number"
        if value is not None and re.fullmatch(r"[0-9]{1,2}(?:,[0-9]{1,2})*", value):
            hint = f"leave it out; a job that takes a part of each node sets `gpus: {value.count(',') + 1}`"
        return f"`{name}` would hide GPUs: each rank selects its GPU by LOCAL_RANK among all that the scheduler allocates", hint
    if name in _INTERPRETER:
        hint = (
            "on Slurm set it in `scheduler.options.setup` of the cluster file; elsewhere set it in "
            "the image or in the shell that submits the job"
        )
        return f"`{name}` decides which `python3` starts the runner, before any rank runs", hint
    if name in _OF_BASH:
        return f"`{name}` is read-only in bash: setting it would end the batch script", "use another name"
    return None


def check_environment(plan: JobPlan, transport: str | None = None) -> Iterator[Problem]:
    """Check the job's variables against those that must agree with the cluster; `transport` is that of its scale-out fabric."""
    planned = {variable.name: variable for variable in plan.env}
    for name, value in plan.spec["environment"].items():
        rival, harmless = _RIVALS.get(name, ("", frozenset[str]()))
        if planned[name].decided_by is not None:
            if not _says_the_same(value, planned[name].value):
                yield _taken(name, planned[name], f"a job cannot change `{name}`, which the plan for `{plan.cluster}` sets")
        elif rival in planned and value not in harmless:
            yield _taken(name, planned[rival], f"`{name}` conflicts with `{rival}`, which the plan for `{plan.cluster}` sets")
        elif name == "NCCL_NET" and transport == "tcpxo" and planned[name].value.lower() != _GOOGLES_NETWORK.lower():
            message = (
                f"with `NCCL_NET: {planned[name].value}`, NCCL does not use the fabric, whose network is `{_GOOGLES_NETWORK}`"
            )
            hint = "leave it out: the provider's script sets what its plugin needs"
            yield Problem("HW436", JOB, ("environment", name), message, hint, Severity.WARNING)
        elif (off := _OFF.get(name)) is not None and planned[name].value in off.values and off.matters(plan):
            message = f"with `{name}: {planned[name].value}`, {off.loses}"
            hint = "leave it out, unless you are looking for a fault"
            yield Problem("HW436", JOB, ("environment", name), message, hint, Severity.WARNING)
    yield from _check_misspelt(plan, transport)
    for index, name in enumerate(plan.secrets):
        if name in planned and name not in plan.spec["environment"]:
            message = f"the plan for `{plan.cluster}` sets `{name}`, which cannot be a secret"
            yield Problem("HW418", JOB, ("secrets", index), message, "leave it out")
    webhook = plan.run.notify.webhook_env if plan.run.notify is not None else None
    if webhook in planned and webhook not in plan.spec["environment"]:
        message = (
            f"the plan for `{plan.cluster}` sets `{webhook}` to `{planned[webhook].value}`, which is not a webhook's address"
        )
        yield Problem("HW418", JOB, _WEBHOOK, message, "use a separate variable, for example `RUN_WEBHOOK`")


def _check_misspelt(plan: JobPlan, transport: str | None) -> Iterator[Problem]:
    """Warn of a variable that NCCL or torch would not read, since it is misspelt, and of values and variables without an effect."""
    # What the cluster file decides has a problem of its own.
    decided = {variable.name for variable in plan.env if variable.decided_by is not None}
    for name, value in plan.spec["environment"].items():
        path = ("environment", name)
        if name in _ELSEWHERE:
            message = f"neither NCCL nor torch reads `{name}`, so it has no effect"
            yield Problem("HW436", JOB, path, message, _ELSEWHERE[name], Severity.WARNING, at_key=True)
        elif name.startswith(_OF_NCCL) and name not in _nccl():
            near = nearest(name, _nccl(), 0.85) or (None if name.startswith(_others()) else _shorter(name))
            if near is not None:
                message = f"`{name}` is not a variable that NCCL or torch reads, and resembles `{near}`"
                yield Problem("HW436", JOB, path, message, f"write `{near}`", Severity.WARNING, at_key=True, fix=near)
            elif not name.startswith(_others()):
                message = f"neither NCCL nor torch reads `{name}`, so it has no effect"
                hint = "check the name in NCCL's documentation; accept this with `ignore` if a plugin or your script reads it"
                yield Problem("HW436", JOB, path, message, hint, Severity.WARNING, at_key=True)
        elif name == "NCCL_DEBUG" and value.upper() not in _LEVELS:
            message = f"`{value}` is not a level of `NCCL_DEBUG`, so NCCL prints nothing"
            yield Problem("HW436", JOB, path, message, f"write `INFO`; the levels are {', '.join(_LEVELS)}", Severity.WARNING)
        elif name.startswith("NCCL_") and name in _numbers() and not re.fullmatch(r"-?[0-9]+|0x[0-9a-fA-F]+", value.strip()):
            digits = re.match(r"\s*([0-9]+)\s*(?:([kmg])i?b?\s*)?$|\s*([0-9]+)", value, re.IGNORECASE)
            words = {"yes": "1", "true": "1", "on": "1", "no": "0", "false": "0", "off": "0"}
            meant = words.get(value.strip().lower())
            if digits is not None:
                # NCCL counts bytes.
                scale = _BYTES[digits[2].lower()] if digits[2] else 1
                meant = str(int(digits[1] or digits[3]) * scale)
            hint = f'write `"{meant}"`' if meant else "write a number in quotes"
            yield Problem("HW436", JOB, path, f"`{name}` is a number, found `{value}`", hint, Severity.WARNING)
        elif name not in decided and (found := _unknown(name, value)):
            message, hint, fix = found
            yield Problem("HW436", JOB, path, message, hint, Severity.WARNING, fix=fix)
        elif name == "FI_PROVIDER" and value == "efa" and transport is not None and transport != "efa":
            message = f"`FI_PROVIDER: efa` has no effect: the fabric between the nodes is {transport}"
            yield Problem("HW436", JOB, path, message, "leave it out", Severity.WARNING, at_key=True)


def _unknown(name: str, value: str) -> tuple[str, str, str | None] | None:
    """Return the message, the hint and the fix for a value that NCCL does not take; None for others."""
    if (word := unknown_choice(name, value)) is not None:
        message = f"`{name}` has `{word}`, which NCCL does not know; the first collective ends with an error"
        if (near := nearest(word, CHOICES[name])) is not None:
            meant = flow(value.replace(word, near, 1))
            return message, f"write `{meant}`", meant
        return message, f"use {', '.join(CHOICES[name])}", None
    number = number_of(value.strip())
    if name in BOUNDS and number is not None and not BOUNDS[name][0] <= number <= BOUNDS[name][1]:
        lowest, highest = BOUNDS[name]
        return f"`{name}` is {value}, and {lowest} to {highest} are possible", "use a number within them, or leave it out", None
    if name == "NCCL_DEBUG_SUBSYS":
        parts = [each for each in value.removeprefix("^").split(",") if each and each.upper() not in SUBSYSTEMS]
        if not parts:
            return None
        message = f"`{name}` has `{parts[0]}`, which NCCL does not know and leaves out"
        if (subsystem := nearest(parts[0], SUBSYSTEMS, 0.6)) is not None:
            meant = flow(value.replace(parts[0], subsystem, 1))
            return message, f"write `{meant}`", meant
        return message, f"use {', '.join(sorted(SUBSYSTEMS))}", None
    words, listed_words = WORDS.get(name, (frozenset[str](), ""))
    if words and value and value.upper() not in words:
        return f"`{name}` is `{value}`, which NCCL does not know: it uses its default", f"use {listed_words}", None
    return unknown_to_torch(name, value)


def _shorter(name: str) -> str | None:
    """Return the variable that the name adds words to: `NCCL_DEBUG_LEVEL` is `NCCL_DEBUG`."""
    return max((each for each in _nccl() if name.startswith(f"{each}_")), key=len, default=None)


def _says_the_same(value: str, planned: str) -> bool:
    """Return whether the value names the plan's interface or adapters, in any order, without the `=` for exact names: the plan's is
    used."""
    return value == planned or (
        planned.startswith("=") and set(value.removeprefix("=").split(",")) == set(planned[1:].split(","))
    )


def rival_of(name: str) -> str | None:
    """Return the variable whose choice this one would undo, or compete with; None for others."""
    return _RIVALS[name][0] if name in _RIVALS else None


def _taken(name: str, planned: EnvVar, message: str) -> Problem:
    why = f"to `{planned.value}`: {planned.reason} ({planned.source})"
    hint = f"leave it out: {planned.decided_by} in the cluster file determines it"
    return Problem("HW418", JOB, ("environment", name), f"{message} {why}", hint, at_key=True)
