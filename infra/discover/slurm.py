"""Reads nodes, partitions and settings of a Slurm cluster: as JSON where its scontrol prints it, else from its text."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from headway.infra.submit.shell import CommandError, CommandResult, CommandShell

# `gpu:h100:8(S:0-1)`; the type may be missing, and there may be several kinds.
_GPU = re.compile(r"(?:^|,)gpu(?::(?P<type>[A-Za-z][\w.-]*))?:(?P<count>\d+)")
# The values of `OS=` and `Reason=` have blanks.
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*)=(.*?)(?=\s+[A-Z][A-Za-z_]*=|$)")
_AWAY = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "MAINT")
# Nodes that slurm.conf names and that are not there yet.
_NOT_THERE = "FUTURE"


class DiscoverError(Exception):
    """Slurm does not answer, or has no nodes; the message gives the reason."""


class FoundNode(Struct, frozen=True):
    """A node, as slurmctld has it. `cores` are physical, `memory_mib` is what jobs can get."""

    name: str
    address: str
    arch: str
    cores: int
    threads_per_core: int
    memory_mib: int
    gpus: int
    gpu_type: str | None
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    states: tuple[str, ...]
    reason: str = ""

    @property
    def is_away(self) -> bool:
        return any(state.startswith(_AWAY) for state in self.states)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Return what nodes of one group have in common."""
        return (self.arch, self.cores, self.threads_per_core, self.memory_mib, self.gpus, self.gpu_type)


class SlurmDescription(Struct, frozen=True):
    """A cluster, as its Slurm describes it. `topology` is the plugin's name without `topology/`, `switches` its lines."""

    name: str
    version: str
    nodes: tuple[FoundNode, ...]
    default_partition: str | None
    partitions: Mapping[str, Mapping[str, str]]
    kill_wait_s: int | None
    topology: str
    switches: tuple[str, ...]
    has_pyxis: bool
    has_apptainer: bool


def read_slurm(shell: CommandShell) -> SlurmDescription:
    """Ask Slurm for everything. Raises DiscoverError, CommandError."""
    settings = dict(_settings(_answer(shell, "scontrol", "show", "config").output))
    partitions = {
        fields["PartitionName"]: fields
        for fields in _records(_answer(shell, "scontrol", "--oneliner", "show", "partition").output)
    }
    nodes = tuple(_nodes(shell))
    if not nodes:
        raise DiscoverError("slurmctld has no nodes")
    topology = shell.run(["scontrol", "show", "topology"])
    return SlurmDescription(
        name=settings.get("ClusterName", "slurm"),
        version=settings.get("SLURM_VERSION", ""),
        nodes=nodes,
        default_partition=next((name for name, fields in partitions.items() if fields.get("Default") == "YES"), None),
        partitions=partitions,
        kill_wait_s=_seconds(settings.get("KillWait", "")),
        topology=settings.get("TopologyPlugin", "").removeprefix("topology/"),
        switches=tuple(line.strip() for line in topology.output.splitlines() if line.strip()) if topology.code == 0 else (),
        # pyxis adds its options to those of srun (NVIDIA/pyxis).
        has_pyxis="--container-image" in _optional(shell, "srun", "--help"),
        has_apptainer=bool(_optional(shell, "sh", "-c", "command -v apptainer").strip()),
    )


def _answer(shell: CommandShell, *command: str) -> CommandResult:
    done = shell.run(command)
    if done.code:
        raise DiscoverError(f"`{' '.join(command)}`: {done.reason}")
    return done


def _optional(shell: CommandShell, *command: str) -> str:
    try:
        return shell.run(command).output
    except CommandError:
        return ""


def _settings(output: str) -> Iterator[tuple[str, str]]:
    for line in output.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name.strip(), value.strip()


def _seconds(value: str) -> int | None:
    found = re.match(r"(\d+)", value)
    return int(found[1]) if found else None


def _records(output: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each line of `scontrol --oneliner show`."""
    for line in output.splitlines():
        if "=" in line:
            yield {found[1]: found[2].strip() for found in _FIELD.finditer(line)}


def _nodes(shell: CommandShell) -> Iterator[FoundNode]:
    done = shell.run(["scontrol", "show", "node", "--json"])
    try:
        listed = json.loads(done.output)["nodes"] if done.code == 0 else None
        found = None if listed is None else [_of_json(each) for each in listed]
    except (ValueError, KeyError, TypeError):
        found = None
    if found is None:
        # Slurm 22.05 has no --json; a later one may be built without it, or with another version of its format.
        found = [_of_text(each) for each in _records(_answer(shell, "scontrol", "--oneliner", "show", "node").output)]
    for node in sorted(found, key=lambda each: _numbered(each.name)):
        if _NOT_THERE not in node.states:
            yield node


def _numbered(name: str) -> list[tuple[int, str]]:
    """Sort names with their numbers by value: n2 before n10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _of_json(node: Mapping[str, Any]) -> FoundNode:
    gpus, gpu_type = _gpus(node["gres"])
    return FoundNode(
        name=node["name"],
        address=node["address"] or node["name"],
        arch=node["architecture"],
        cores=node["sockets"] * node["cores"],
        threads_per_core=node["threads"],
        memory_mib=node["real_memory"],
        gpus=gpus,
        gpu_type=gpu_type,
        features=_listed(node["features"]),
        partitions=_listed(node["partitions"]),
        states=_listed(node["state"]),
        reason=node["reason"],
    )


def _listed(value: Any) -> tuple[str, ...]:
    """Return a list of JSON, which older formats have as text with commas."""
    return tuple(each for each in value.split(",") if each) if isinstance(value, str) else tuple(map(str, value))


def _of_text(fields: Mapping[str, str]) -> FoundNode:
    gpus, gpu_type = _gpus(fields.get("Gres", ""))
    return FoundNode(
        name=fields["NodeName"],
        address=fields.get("NodeAddr", fields["NodeName"]),
        arch=fields.get("Arch", ""),
        cores=int(fields.get("Sockets", "1")) * int(fields.get("CoresPerSocket", "1")),
        threads_per_core=int(fields.get("ThreadsPerCore", "1")),
        memory_mib=int(fields.get("RealMemory", "0")),
        gpus=gpus,
        gpu_type=gpu_type,
        features=_listed(fields.get("AvailableFeatures", "").replace("(null)", "")),
        partitions=_listed(fields.get("Partitions", "")),
        states=tuple(_states(fields.get("State", ""))),
        reason=re.sub(r"\s*\[.*\]$", "", fields.get("Reason", "")),
    )


def _states(written: str) -> Iterator[str]:
    """Yield the states of `IDLE+DRAIN*`; with a `*` behind them the node does not answer (sinfo(1), NODE STATE CODES)."""
    yield from re.split(r"\+", written.rstrip("*~#!%$@^-"))
    if "*" in written:
        yield "NOT_RESPONDING"


def _gpus(gres: str) -> tuple[int, str | None]:
    found = list(_GPU.finditer(gres))
    types = {each["type"] for each in found if each["type"]}
    return sum(int(each["count"]) for each in found), types.pop() if len(types) == 1 else None
