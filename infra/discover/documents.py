"""Writes what Slurm knows of a cluster as documents. A value that it cannot know is a comment with the line to fill in."""

import itertools
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from headway.infra.discover.slurm import FoundNode, SlurmDescription
from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.flow import flow
from headway.jobspec.notation import counted
from headway.jobspec.spec.section import API_VERSION
from headway.templates.schedulers.slurm.node_names import compressed

_ARCH = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_UNKNOWN_GPU = "unknown"
_MOST_SHOWN = 8


class _Group(Struct, frozen=True):
    """Nodes of one kind, in the order of their names."""

    name: str
    nodes: tuple[FoundNode, ...]


def cluster_document(
    found: SlurmDescription, login: str | None = None, jump: str | None = None, setup: Sequence[str] = ()
) -> str:
    """Return a Cluster document; `login` is the node over which Slurm was reached, `jump` the hosts on the way, `setup` its lines."""
    groups = _groups(found)
    return "\n".join(
        [
            f"# Written by `headway discover slurm` from slurmctld {found.version} of the cluster `{found.name}`.",
            "# Slurm does not know what is in comments: fill it in where it matters to you.",
            f"apiVersion: {API_VERSION}",
            "kind: Cluster",
            f"name: {_name(found.name)}",
            "",
            *_scheduler(found, groups, login, jump, setup),
            "",
            "node_groups:",
            *itertools.chain.from_iterable(_group(group, found) for group in groups),
            *_fabrics(groups),
            "",
            "storage:",
            "  # A directory that all nodes see, for the runs. Slurm does not know one: write its path.",
            "  - {name: runs, kind: posix, path: runs, shared: true}",
            "",
        ]
    )


def inventory_document(found: SlurmDescription) -> str:
    """Return an Inventory document: the address of each node, by its name in the plan."""
    lines = [
        f"# Written by `headway discover slurm`: the addresses that slurmctld has for the nodes of `{found.name}`.",
        "# Slurm does not know the adapters' cables (`nics`) and serial numbers.",
        f"apiVersion: {API_VERSION}",
        "kind: Inventory",
        f"name: {_name(found.name)}-nodes",
        f"cluster: {_name(found.name)}",
        "nodes:",
    ]
    for group in _groups(found):
        for number, node in enumerate(group.nodes, 1):
            lines.append(f"  - {{name: {group.name}-{number}, host: {flow(node.address)}}}  # {node.name}")
    return "\n".join([*lines, ""])


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-") or "slurm"


def _groups(found: SlurmDescription) -> list[_Group]:
    """Return the groups: nodes of one kind each, those of the default partition first, as jobs without `group` run on the first."""
    by_kind: dict[tuple[object, ...], list[FoundNode]] = {}
    for node in found.nodes:
        by_kind.setdefault(node.kind, []).append(node)

    def order(nodes: list[FoundNode]) -> tuple[bool, bool]:
        return not any(found.default_partition in node.partitions for node in nodes), not nodes[0].gpus

    groups: list[_Group] = []
    taken: set[str] = set()
    for nodes in sorted(by_kind.values(), key=order):
        stem = _name(re.sub(r"[-_]*\d.*$", "", nodes[0].name) or "node")
        name = next(name for name in itertools.chain([stem], _names(stem)) if name not in taken)
        taken.add(name)
        groups.append(_Group(name, tuple(nodes)))
    return groups


def _names(stem: str) -> Iterator[str]:
    """Yield further names of groups without an end: `gpu-b`, `gpu-c`; a number behind it would look like a node's."""
    for length in itertools.count(1):
        yield from (f"{stem}-{''.join(each)}" for each in itertools.product("bcdefghijklmnopqrstuvwxyz", repeat=length))


def _scheduler(
    found: SlurmDescription, groups: Sequence[_Group], login: str | None, jump: str | None, setup: Sequence[str]
) -> Iterator[str]:
    yield "scheduler:"
    yield "  kind: slurm"
    yield "  options:"
    if found.default_partition is not None:
        others = [name for name in found.partitions if name != found.default_partition]
        shown = f"  # further ones: {_some(others)}" if others else ""
        yield f"    partition: {flow(found.default_partition)}{shown}"
    else:
        yield f"    # partition:  # slurm.conf has no default one: {_some(list(found.partitions))}"
    if found.partitions.get(found.default_partition or "", {}).get("OverSubscribe") == "EXCLUSIVE":
        yield "    exclusive: true"
    if found.kill_wait_s:
        yield f"    kill_wait: {found.kill_wait_s}s"
    if found.has_pyxis:
        yield "    containers: pyxis"
    elif found.has_apptainer:
        yield "    containers: apptainer  # it is on the PATH here, and srun lists no pyxis options: the nodes need it too"
        yield "    # image_cache:  # a directory on a disk of each node, for images of registries"
    else:
        yield "    # containers:  # srun lists no pyxis options, and there is no Apptainer here: jobs run without containers"
    if found.topology == "block":
        yield "    # topology: block  # Slurm has blocks: set it if each is an NVLink domain, and `nvlink_domain` of the nodes"
    yield f"    node_names: {flow({group.name: compressed(node.name for node in group.nodes) for group in groups})}"
    yield "    # bundle:  # made by `headway bundle`, for images and hosts without headway"
    if login is not None:
        given = {"host": login, "jump": jump, "setup": list(setup) or None}
        yield f"    login: {flow({name: value for name, value in given.items() if value is not None})}"
    for line in found.switches[:_MOST_SHOWN]:
        yield f"  # topology/{found.topology}: {line}"
    if len(found.switches) > _MOST_SHOWN:
        yield f"  # topology/{found.topology}: {len(found.switches) - _MOST_SHOWN} further lines of `scontrol show topology`"


def _group(group: _Group, found: SlurmDescription) -> Iterator[str]:
    first, count = group.nodes[0], len(group.nodes)
    partitions = sorted({partition for node in group.nodes for partition in node.partitions})
    features = sorted({feature for node in group.nodes for feature in node.features})
    yield f"  - name: {group.name}  # {_range(group.nodes)}"
    if partitions:
        yield f"    # partitions: {_some(partitions)}"
    if features:
        yield f"    # features: {_some(features)}"
    for node in [node for node in group.nodes if node.is_away][:_MOST_SHOWN]:
        yield f"    # {node.name} is {'+'.join(node.states)}{f': {node.reason}' if node.reason else ''}"
    yield f"    count: {count}"
    if first.arch in _ARCH:
        if _ARCH[first.arch] != "x86_64":
            yield f"    arch: {_ARCH[first.arch]}"
    else:
        yield f"    # arch:  # no node of the group has registered{f' ({first.arch})' if first.arch else ''}"
    yield f"    cpus: {max(1, first.cores)}"
    if first.threads_per_core > 1:
        yield f"    threads_per_core: {first.threads_per_core}"
    if first.memory_mib > 1:
        yield f"    host_memory: {first.memory_mib}MiB"
    else:
        yield "    # host_memory:  # slurm.conf has no RealMemory"
    if first.gpus:
        yield from _gpu(first)


def _gpu(node: FoundNode) -> Iterator[str]:
    yield f"    gpus: {node.gpus}"
    near = [name for name in gpus() if node.gpu_type is not None and _alike(name, node.gpu_type)]
    if node.gpu_type is None:
        yield f"    gpu: {_UNKNOWN_GPU}  # the Gres has no type: write the model as docs/models.md names it"
    elif len(near) == 1:
        yield f"    gpu: {near[0]}  # the Gres has the type `{node.gpu_type}`"
    else:
        which = f"one of {_some(near)}" if near else "write the model as docs/models.md names it"
        yield f"    gpu: {flow(node.gpu_type)}  # the type of the Gres; {which}"
    yield "    # nics: []  # RDMA adapters, as `ibv_devices` prints them"
    yield "    # nvlink_domain:  # GPUs that NVLink connects; those of one node when left out"


def _alike(model: str, gres: str) -> bool:
    """Return whether a type of a Gres may be this model: all its words are in the model's name."""
    words = [word for word in re.split(r"[^a-z0-9]+", gres.lower()) if word not in ("nvidia", "amd", "tesla", "instinct")]
    own = re.split(r"[^a-z0-9]+", model.lower())
    return bool(words) and all(word in own or word.removesuffix("gb").removesuffix("g") in own for word in words)


def _fabrics(groups: Sequence[_Group]) -> Iterator[str]:
    yield ""
    yield "# fabrics:  # Slurm does not know the networks"
    yield "#   - {name: management, role: management, transport: tcp, interface: eth0}  # as `ip link` prints it"
    if any(group.nodes[0].gpus for group in groups):
        yield "#   - {name: rails, role: scale-out, transport: infiniband}  # or roce, efa, tcpxo, tcp"


def _range(nodes: Sequence[FoundNode]) -> str:
    names = [node.name for node in nodes]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if len(names) > 2 else ", ".join(names)


def _some(texts: Sequence[str]) -> str:
    more = f" and {counted(len(texts) - _MOST_SHOWN, 'further one')}" if len(texts) > _MOST_SHOWN else ""
    return f"{', '.join(texts[:_MOST_SHOWN])}{more}"
