"""Finds Kubernetes' programs on this machine, or the reason why they cannot be used."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.real import sid
from tests.real.archives import unpacked

SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "jobset-controller")
NODE = ("kubelet", "coredns")
DEBIAN_PACKAGES = {"ip": "iproute2", "openssl": "openssl"}
HEADER_BYTES = 4096


def control_plane_programs() -> dict[str, Path]:
    """The path of each of CONTROL_PLANE; raises FileNotFoundError naming the missing ones."""
    return _one_release(CONTROL_PLANE, "kube")


def node_programs() -> dict[str, Path]:
    """The path of each of NODE; raises FileNotFoundError naming the missing ones."""
    return _one_release(NODE, "kube-node")


def manifests() -> Path:
    """A folder that holds NAME-crds.yaml and NAME-webhooks.yaml of each controller; raises FileNotFoundError."""
    return unpacked("kube-manifests")


def busybox() -> Path:
    """A static busybox, for an image without libraries; raises FileNotFoundError."""
    found = shutil.which("busybox", path=SEARCH_PATH)
    if found is None or b"/ld-linux" in Path(found).read_bytes()[:HEADER_BYTES]:
        raise FileNotFoundError("no `busybox` without libraries; run `apt-get install busybox-static`")
    return Path(found)


def control_plane_obstacle() -> str | None:
    """Why no control plane can be started here, with a remedy; None if one can."""
    absent = sorted(package for name, package in DEBIAN_PACKAGES.items() if shutil.which(name, path=SEARCH_PATH) is None)
    if absent:
        return f"run `apt-get install {' '.join(absent)}`"
    if os.geteuid() != 0:
        return "namespaces want root; run the tests as root"
    return _complaint(control_plane_programs, manifests)


def node_obstacle() -> str | None:
    """Why no real node can be started here, with a remedy; None if one can."""
    return control_plane_obstacle() or _complaint(node_programs, busybox) or sid.obstacle()


def _complaint(*searches: Callable[[], object]) -> str | None:
    try:
        for search in searches:
            search()
    except FileNotFoundError as error:
        return str(error)
    return None


def _one_release(names: Sequence[str], archive: str) -> dict[str, Path]:
    """All from PATH or all from the archive: a kubectl that happens to be installed is often of another release."""
    found = {name: shutil.which(name, path=SEARCH_PATH) for name in names}
    paths = {name: Path(path) for name, path in found.items() if path is not None}
    if set(paths) == set(names):
        return paths
    try:
        folder = unpacked(archive)
    except FileNotFoundError as error:
        absent = "`, `".join(sorted(set(names) - set(paths)))
        raise FileNotFoundError(f"`{absent}` not found; put their releases on PATH (Kubernetes 1.36, JobSet 0.12)") from error
    return {name: folder / name for name in names}
