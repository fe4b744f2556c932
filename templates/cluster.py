"""Renders a cluster's plan into the tree of its files, and knows which of them can be read back."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import PurePath, PurePosixPath
from typing import ClassVar

from pydantic import BaseModel

from headway.jobspec.catalog.switches import switches as models
from headway.jobspec.plan import ClusterPlan, SwitchPlan, to_json
from headway.jobspec.problem import CLUSTER, Problem
from headway.jobspec.suggest import joined_or
from headway.templates.hosts.render import host_files, is_netplan, is_script
from headway.templates.hosts.units import is_unit
from headway.templates.hosts.units import read as read_unit
from headway.templates.kind import Files, LazyFiles, no_switch_files
from headway.templates.nccl.read import read as read_environment
from headway.templates.nccl.read import read_manifest
from headway.templates.reading import Reading
from headway.templates.schedulers import SCHEDULERS
from headway.templates.switches import FILES, SWITCHES
from headway.templates.switches.limits import check_fabric, check_switch
from headway.templates.switches.options import SiteOptions

# Options of each operating system of a fabric's switches, by fabric and kind.
SwitchOptions = Mapping[tuple[str, str], BaseModel]

Reader = Callable[[str], Reading]

HOSTS = PurePosixPath("hosts")
# Files of a fabric as a whole.
FABRICS = PurePosixPath("fabrics")
_SWITCHES = PurePosixPath("switches")


def render_cluster(cluster: ClusterPlan, options: SwitchOptions, scheduler: BaseModel | None = None) -> Files:
    """Return every file of the cluster, below `<cluster>/`; none if neither switches, hosts nor the scheduler with its options need one.
    Files of switches are made when they are read."""
    files = LazyFiles()
    for switch in cluster.switches:
        for kind in cluster.fabric(switch.fabric).os:
            if SWITCHES[kind].render is not no_switch_files:
                made = _SwitchFiles(kind, switch, cluster, options)
                for name in (SWITCHES[kind].file, *SWITCHES[kind].others):
                    files.later(_SWITCHES / switch.name / name, partial(made.text, PurePosixPath(name)))
    for fabric in cluster.fabrics:
        for kind in fabric.os:
            for path, text in SWITCHES[kind].render_fabric(options[fabric.name, kind], fabric, cluster).items():
                files[FABRICS / fabric.name / path] = text
    for node in cluster.nodes:
        for path, make in host_files(node, cluster).items():
            files.later(HOSTS / node.name / path.relative_to("/"), cache(make))
    if scheduler is not None:
        files.update(SCHEDULERS[cluster.scheduler].render_cluster(scheduler, cluster))
    if files:
        files.later(PurePosixPath("plan.json"), cache(partial(to_json, cluster)))
    return files.moved(PurePosixPath(cluster.name))


def check_switches(cluster: ClusterPlan, options: SwitchOptions) -> Iterator[Problem]:
    """Yield the problems of the switches' operating systems with the plan."""
    for index, fabric in enumerate(cluster.fabrics):
        for place, kind in enumerate(fabric.os):
            if fabric.transport not in SWITCHES[kind].transports:
                message = f"`{kind}` is not for switches of {fabric.transport}"
                model = models().get(fabric.switch_model or "")
                fitting = [
                    name
                    for name, each in SWITCHES.items()
                    if fabric.transport in each.transports and (model is None or each.vendor in (None, model.vendor))
                ]
                # FRR's files have no queues, which RDMA needs.
                fitting.sort(key=lambda name: not issubclass(SWITCHES[name].options, SiteOptions))
                path = ("fabrics", index, "switches", "os", place, "kind")
                yield Problem("HW513", CLUSTER, path, message, f"use {joined_or([f'`{name}`' for name in fitting])}")
            else:
                yield from check_fabric(kind, SWITCHES, options[fabric.name, kind], fabric, cluster)
    for switch in cluster.switches:
        fabric = cluster.fabric(switch.fabric)
        for kind in (kind for kind in fabric.os if fabric.transport in SWITCHES[kind].transports):
            yield from check_switch(SWITCHES[kind], switch, cluster)
            yield from SWITCHES[kind].check(options[switch.fabric, kind], switch, cluster)


def readers_by_kind() -> Mapping[str, Reader]:
    """Return the reader of each kind of file."""
    return {
        "host": _read_host,
        "nccl": read_environment,
        "manifest": read_manifest,
        **{name: kind.read for name, kind in SWITCHES.items()},
    }


def reader_of(path: PurePath) -> Reader | None:
    """Return the reader for a file name; None for a name that no kind uses."""
    if is_script(path.name):
        return _read_host
    if is_unit(path):
        return read_unit
    if is_netplan(path):
        return _read_netplan
    if path.parts[-2:] == ("kubernetes", "job.yaml"):
        return read_manifest
    if path.parts[-2:] == ("local", "run.sh"):
        return read_environment
    if path.name in FILES:
        kind = SWITCHES[FILES[path.name]]
        return kind.readers.get(path.name, kind.read)
    return read_environment if path.name == "nccl.conf" or path.suffix in {".env", ".sbatch"} else None


def recognized(text: str) -> Reader | None:
    """Return the reader for a file by its content; None for one of no kind. Of a script with commands for adapters and NCCL's variables,
    the commands count."""
    from headway.templates.switches.eos.read import is_eos  # noqa: PLC0415 (a job's check reads no switch's file)
    from headway.templates.switches.nvue.read import is_nvue  # noqa: PLC0415

    if re.match(r"\s*\{", text):
        return SWITCHES["sonic"].read if re.search(r'"(DEVICE_METADATA|PORT|PORT_QOS_MAP|BGP_NEIGHBOR)"\s*:', text) else None
    if is_nvue(text):
        return SWITCHES["nvue"].read
    if is_eos(text):
        return SWITCHES["eos"].read
    if re.search(r"^(frr (version|defaults) |router bgp \d+[\s\S]*^ neighbor )", text, re.MULTILINE):
        return SWITCHES["frr"].read
    if _OF_NETPLAN.match(text):
        return _read_netplan
    if _OF_HOST.search(text):
        return _read_host
    if re.search(r"^kind:", text, re.MULTILINE) and "apiVersion" in text:
        return read_manifest if "NCCL_" in text else None
    return read_environment if re.search(r"(^|[\s,\"'])NCCL_[A-Z0-9_]+=\S", text) else None


# Commands at the beginning of a line, and sysctl's names.
_OF_HOST = re.compile(
    r"^\s*(?:sudo +|Exec\w+=\S*)?(?:dcb (?:app|pfc) |mlnx_qos -|cma_roce_(?:tos|mode) -|net\.ipv4\.conf\.\S+\.(?:rp_filter|arp_\w+) *=)",
    re.MULTILINE,
)
# The first key, behind comments.
_OF_NETPLAN = re.compile(r"(?:[ \t]*(?:#.*|---.*)?\n)*network:\s")


class _SwitchFiles:
    """The files of a switch for one operating system, of which the last that were made are kept: a reader takes one after the other."""

    _last: ClassVar[tuple["_SwitchFiles", Files] | None] = None

    def __init__(self, kind: str, switch: SwitchPlan, cluster: ClusterPlan, options: SwitchOptions) -> None:
        self._make = partial(SWITCHES[kind].render, options[switch.fabric, kind], switch, cluster)

    def text(self, path: PurePosixPath) -> str:
        last = _SwitchFiles._last
        if last is None or last[0] is not self:
            last = _SwitchFiles._last = (self, self._make())
        return last[1][path]


def _read_host(text: str) -> Reading:
    from headway.templates.hosts.read import read  # noqa: PLC0415 (a job's check reads no host's file)

    return _read_netplan(text) if _OF_NETPLAN.match(text) else read(text)


def _read_netplan(text: str) -> Reading:
    from headway.templates.hosts.netplan import read  # noqa: PLC0415 (a job's check reads no host's file)

    return read(text)
