"""Sorts the variables that a script exports: into the job's `environment`, its `setup`, its `secrets`, or those that headway sets."""

import re

from msgspec import Struct, field

from headway.jobspec.check.environment import check_names
from headway.jobspec.credentials import find_credentials
from headway.sbatch.expand import HERE
from headway.sbatch.notes import NoteKind, Notes
from headway.sbatch.text import Source, Text, as_shell, text

# The plan sets these by the cluster's document, and a job cannot (jobspec/resolve/environment.py: `decided_by`).
DECIDED = {
    "NCCL_SOCKET_IFNAME": "`interface` of the management fabric",
    "GLOO_SOCKET_IFNAME": "`interface` of the management fabric",
    "NCCL_NET": "`transport` of the scale-out fabric",
    "FI_PROVIDER": "`transport` of the scale-out fabric",
    "NCCL_IB_HCA": "`nics` of the node group",
    "NCCL_IB_TC": "`dscp` of the fabric's class",
    "NCCL_IB_ROCE_VERSION_NUM": "`classes` of the fabric",
    "NCCL_IB_ADDR_FAMILY": "`switches.addresses` of the fabric",
    "NCCL_IB_ADDR_RANGE": "`switches.addresses` of the fabric",
    "NCCL_IB_ADAPTIVE_ROUTING": "`balancing` of the fabric",
    "NCCL_CROSS_NIC": "`shape` of the fabric",
    "NCCL_MNNVL_ENABLE": "`imex` of the node group",
    "NCCL_IB_DISABLE": "`transport` of the scale-out fabric",
    "NCCL_IB_GID_INDEX": "`classes` of the fabric",
    "NCCL_IB_SL": "`service_level` of the fabric",
    "NCCL_COLLNET_ENABLE": "`sharp` of the fabric",
}
_NAME = re.compile(r"[A-Za-z_]\w*")
# A value that no issuer's form matches and no word of a switch: whether the name alone makes a value a secret.
_ANY_SECRET = "Zk3Vq8Tn5Rb7Wm2Y"
# Their values follow from the job itself.
_OF_THE_PLAN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Environment(Struct):
    """The variables of a job, as a job has them."""

    values: dict[str, str] = field(default_factory=dict)
    setup: list[tuple[str, int]] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)


def sort_variable(found: Environment, name: str, value: Text, line: int, notes: Notes, file: str = "") -> None:
    """Put a variable of the script where a job has it, or note why it is nowhere."""
    shown = f"{name}={value.shown}"
    if not _NAME.fullmatch(name):
        notes.add(NoteKind.UNREAD, line, shown, "not a name of a variable", file)
    elif is_secret(name, value):
        notes.secrets.append(value.shown)
        found.secrets.append(name)
        why = f"a secret is not in a job: it comes from the submission, or from ~/.config/headway/secrets/{name}"
        notes.add(NoteKind.CHECK, line, name, why, file)
    elif name != "PATH" and (problem := next(iter(check_names([name])), None)) is not None:
        if not value.is_of(Source.RENDEZVOUS):
            notes.add(NoteKind.REPLACED, line, shown, problem.message, file)
    elif name.startswith(("SRUN_", "SBATCH_", "SALLOC_")):
        notes.add(NoteKind.REPLACED, line, shown, "an option of srun, which headway gives its own", file)
    elif name in DECIDED:
        notes.add(NoteKind.CHECK, line, shown, f"{DECIDED[name]} in the cluster's document decides it: compare", file)
    elif value.is_of(Source.RENDEZVOUS):
        notes.add(
            NoteKind.CHECK, line, shown, "headway sets MASTER_ADDR and MASTER_PORT: the script must not need this variable", file
        )
    elif name in _OF_THE_PLAN and value.is_of(Source.SLURM):
        notes.add(NoteKind.REPLACED, line, shown, "headway divides the cores of a node over its ranks", file)
    elif (known := _constant(value)) is not None and "\n" not in known and name != "PATH":
        found.values[name] = known
    elif "\n" in value.shown:
        notes.add(NoteKind.UNREAD, line, shown, "a variable of a job has one line", file)
    else:
        found.setup.append((f"export {name}={as_shell(_here(value))}", line))


def is_secret(name: str, value: Text) -> bool:
    """Return whether the variable is a secret, by its name or by its value."""
    if value.literal in ("", "0", "1", "true", "false"):
        return False
    return bool(find_credentials({name: _ANY_SECRET}) or (value.literal and find_credentials({name: value.literal})))


def _constant(value: Text) -> str | None:
    """Return the value, if neither a shell nor the job's place has a part in it."""
    known = value.known
    if known is None or any(reference.name in HERE for reference in value.references) or known.startswith("~"):
        return None
    return known


def _here(value: Text) -> Text:
    """Return the value with the folder of the submission as the one where ranks start."""
    parts = [
        part if isinstance(part, str) or part.name not in HERE else type(part)("PWD", "$PWD", part.source, part.value)
        for part in value.parts
    ]
    return text(*parts)
