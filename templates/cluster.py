"""Renders a cluster's plan into the tree of its files, and knows which of them can be read back."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath, PurePosixPath

from pydantic import BaseModel

from headway.jobspec.plan import ClusterPlan, SwitchPlan, to_json
from headway.jobspec.problem import Problem
from headway.templates.hosts.render import SCRIPT, render_host
from headway.templates.kind import Files
from headway.templates.nccl.read import read as read_environment
from headway.templates.nccl.read import read_manifest
from headway.templates.reading import Reading
from headway.templates.switches import SWITCHES

# Options of each operating system of a fabric's switches, by fabric and kind.
SwitchOptions = Mapping[tuple[str, str], BaseModel]

Reader = Callable[[str], Reading]

HOSTS = PurePosixPath("hosts")
_SWITCHES = PurePosixPath("switches")


def render_cluster(cluster: ClusterPlan, options: SwitchOptions) -> Files:
    """Return every file of the cluster, below `<cluster>/`; none if neither switches nor hosts need one."""
    files: Files = {}
    for switch in cluster.switches:
        for path, text in _switch_files(cluster, switch, options):
            files[_SWITCHES / switch.name / path] = text
    for node in cluster.nodes:
        for path, text in render_host(node, cluster).items():
            files[HOSTS / node.name / path.relative_to("/")] = text
    if files:
        files[PurePosixPath("plan.json")] = to_json(cluster)
    return {PurePosixPath(cluster.name) / path: text for path, text in files.items()}


def check_switches(cluster: ClusterPlan, options: SwitchOptions) -> Iterator[Problem]:
    """Yield the problems of the switches' operating systems with the plan."""
    for switch in cluster.switches:
        for kind in cluster.fabric(switch.fabric).os:
            yield from SWITCHES[kind].check(options[switch.fabric, kind], switch, cluster)


def readers_by_kind() -> Mapping[str, Reader]:
    """Return the reader of each kind of file."""
    return {
        "host": _read_host,
        "nccl": read_environment,
        "manifest": read_manifest,
        **{name: kind.read for name, kind in SWITCHES.items()},
        "nvue": _read_nvue,
        "eos": _read_eos,
    }


def reader_of(path: PurePath) -> Reader | None:
    """Return the reader for a file name; None for a name that no kind uses."""
    readers = {SCRIPT.name: _read_host, "nccl.conf": read_environment, **{kind.file: kind.read for kind in SWITCHES.values()}}
    if path.parts[-2:] == ("kubernetes", "job.yaml"):
        return read_manifest
    if path.parts[-2:] == ("local", "run.sh"):
        return read_environment
    return readers.get(path.name, read_environment if path.suffix in {".env", ".sbatch"} else None)


def recognized(text: str) -> Reader | None:
    """Return the reader for a file by its content; None for one of no kind. Of a script with commands for adapters and NCCL's variables,
    the commands count."""
    from headway.templates.foreign.eos import is_eos  # noqa: PLC0415 (a job's check reads no switch's file)
    from headway.templates.foreign.nvue import is_nvue  # noqa: PLC0415

    if re.match(r"\s*\{", text):
        return SWITCHES["sonic"].read if re.search(r'"(DEVICE_METADATA|PORT|PORT_QOS_MAP|BGP_NEIGHBOR)"\s*:', text) else None
    if is_nvue(text):
        return _read_nvue
    if is_eos(text):
        return _read_eos
    if re.search(r"^(frr (version|defaults) |router bgp \d+[\s\S]*^ neighbor )", text, re.MULTILINE):
        return SWITCHES["frr"].read
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


def _read_nvue(text: str) -> Reading:
    from headway.templates.foreign.nvue import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


def _read_eos(text: str) -> Reading:
    from headway.templates.foreign.eos import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


def _switch_files(cluster: ClusterPlan, switch: SwitchPlan, options: SwitchOptions) -> Iterator[tuple[PurePosixPath, str]]:
    for kind in cluster.fabric(switch.fabric).os:
        yield from SWITCHES[kind].render(options[switch.fabric, kind], switch, cluster).items()


def _read_host(text: str) -> Reading:
    from headway.templates.hosts.read import read  # noqa: PLC0415 (a job's check reads no host's file)

    return read(text)
