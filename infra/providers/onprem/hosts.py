"""Turns a cluster's rendered files into the wanted state of each of its hosts."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from headway.infra.host import MANIFEST, UNIT_FOLDER, HostFile, HostState
from headway.infra.providers.onprem.options import OnpremOptions
from headway.infra.reach import Reach, from_folder
from headway.jobspec.plan import ClusterPlan, NodePlan
from headway.templates.kind import Files

_SCRIPT, _TEXT, _PRIVATE = 0o755, 0o644, 0o600
# Netplan warns of files that others can read, since some hold passwords.
_PRIVATE_FOLDER = PurePosixPath("/etc/netplan")


def host_states(options: OnpremOptions, plan: ClusterPlan, files: Files, folder: Path) -> list[HostState]:
    """Return each node with files below `<cluster>/hosts/<node>/`, where a file's path is its path on the host.

    A file that starts with `#!` is executable, and root alone may read one of netplan; a systemd unit with an [Install] section is
    enabled. Raises ValueError for a node without address in the plan, for two at one address, and for an invalid path.
    """
    to_all = reach(options, folder)
    found = {node.name: dict(_below(PurePosixPath(plan.name, "hosts", node.name), files)) for node in plan.nodes}
    reaches = [_reach_of(node, to_all) for node in plan.nodes if found[node.name]]
    _check_apart(reaches)
    return [HostState(plan.name, each, found[each.name], tuple(_units(found[each.name]))) for each in reaches]


def reach(options: OnpremOptions, folder: Path) -> Reach:
    """Return how every host is reached, without a name and an address; paths count from `folder`, that of the cluster's
    document."""
    return Reach(
        name="",
        address="",
        user=options.user,
        identity=from_folder(folder, options.identity),
        known_hosts=from_folder(folder, options.known_hosts),
    )


def _reach_of(node: NodePlan, to_all: Reach) -> Reach:
    if node.host is None:
        said = f"neither `hosts` of the group `{node.group}` nor an inventory has its address"
        raise ValueError(f"there are files for `{node.name}`, and {said}")
    return replace(to_all, name=node.name, address=node.host, port=node.port)


def _below(folder: PurePosixPath, files: Files) -> Iterator[tuple[str, HostFile]]:
    for path, text in sorted(files.items()):
        if path.is_relative_to(folder):
            on_host = f"/{path.relative_to(folder)}"
            if on_host == MANIFEST or any(ord(char) < 32 for char in on_host):
                raise ValueError(f"`{path}`: a file must not be installed at {on_host!r}")
            yield on_host, HostFile(text, _mode(PurePosixPath(on_host), text))


def _mode(path: PurePosixPath, text: str) -> int:
    if path.parent == _PRIVATE_FOLDER:
        return _PRIVATE
    return _SCRIPT if text.startswith("#!") else _TEXT


def _check_apart(reaches: list[Reach]) -> None:
    seen: dict[tuple[str, int], str] = {}
    for each in reaches:
        other = seen.setdefault((each.address, each.port), each.name)
        if other != each.name:
            raise ValueError(f"`{other}` and `{each.name}` are both at {each.address}:{each.port}")


def _units(files: Mapping[str, HostFile]) -> Iterator[str]:
    for path, file in files.items():
        if PurePosixPath(path).parent == UNIT_FOLDER and "[Install]" in file.text.splitlines():
            yield PurePosixPath(path).name
