"""Provides real nodes for a control plane: kubelet, containerd and runc, each node a machine that can be switched off.

    with RealNodes(plane, runs) as nodes:       # fixture `real_nodes`, one per module: n1 and n2, Ready
        nodes.names                             # ["n1", "n2"]; the label kubernetes.io/hostname has the name
        nodes.runs                              # a folder of this machine that pods of all nodes may write, at this very path
        nodes.mounts                            # mounts that make a pod look like this machine, and to run this process's Python
        IMAGE                                   # (image.py) the image of such a pod; imagePullPolicy Never or IfNotPresent
        nodes.power_off("n2")                   # its processes end at once, its peers receive nothing; NotReady 8 s later
        nodes.power_on("n2")                    # returns when it is Ready again
        nodes.hosts["n1"].run("ps", "-ef")      # a command on a node; .tail("kubelet"), .tail("containerd")

A folder /X of this machine that is a mount is /host/X on every node, and pods mount it by hostPath at /X.
A pod has the addresses 10.244.N.*, names by CoreDNS, and reaches the API server at 10.96.0.1; other Services' addresses
are unreachable (no kube-proxy), so a Service is headless.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.real.sid import sid_tree
from tests.real.slurm.machine import leashed
from tests.real.slurm.scratch import Scratch

from .cgroups import Cgroups
from .configuration import CONTAINERD, CONTAINERD_SOCKET, kubelet, network_plugins, node_address, pod_subnet
from .control_plane import DNS, GATEWAY, WIRE, ControlPlane
from .host import IDLE, Host
from .image import write_image
from .programs import busybox, node_programs

REPOSITORY = Path(__file__).parents[3]
START_S = 60.0
READY_PORT = 8181

COREFILE = """\
cluster.local:53 {{
    bind {dns}
    errors
    ready 127.0.0.1:{ready_port}
    kubernetes cluster.local {{
        kubeconfig {kubeconfig}
    }}
}}
"""

# pivot_root, because containerd does not find its mounts in a mere chroot; and a folder outside the overlay for containerd, because
# overlayfs takes no overlay as the upper layer of another
NODE = """
set -e
hostname "$0"
idle=$1 tree=$2 kubelet=$3
shift 3
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$PWD/upper,workdir=$PWD/work" root
mkdir -p root/{old,opt/node,var/lib/containerd,var/lib/kubelet}
touch root/opt/kubelet
mount --bind "$kubelet" root/opt/kubelet
mount --bind node root/opt/node
mount --bind containerd root/var/lib/containerd
mount --bind kubelet root/var/lib/kubelet
mount --rbind /dev root/dev
mount -t tmpfs tmpfs root/dev/shm
mount -t sysfs sysfs root/sys
mount --rbind /sys/fs/cgroup root/sys/fs/cgroup
mount -t proc proc root/proc
mount -t tmpfs tmpfs root/run
while [ $# -gt 0 ]; do
    mkdir -p "root/host$1"
    mount --bind "$1" "root/host$1"
    mount -o "remount,bind,$2" "root/host$1"
    shift 2
done
cd root
pivot_root . old
umount -l old
cd /
exec bash -c "$idle" "$0"
"""


@dataclass(frozen=True)
class Mount:
    """A folder of this machine for pods, at the same path as here."""

    path: Path
    read_only: bool = True

    @property
    def host_path(self) -> Path:
        """Its path on every node."""
        return Path("/host") / self.path.relative_to("/")

    def volume(self, name: str) -> dict[str, Any]:
        return {"name": name, "hostPath": {"path": str(self.host_path), "type": "Directory"}}

    def volume_mount(self, name: str) -> dict[str, Any]:
        return {"name": name, "mountPath": str(self.path), "readOnly": self.read_only}


def this_machine() -> list[Mount]:
    """This machine's programs, this process's Python with its packages, and this checkout."""
    wanted = [Path("/usr"), Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPOSITORY]
    outer = [path for path in dict.fromkeys(wanted) if not any(other in path.parents for other in wanted)]
    return [Mount(path) for path in outer]


class RealNodes:
    """`with RealNodes(plane, runs) as nodes:` gives Ready nodes n1, n2, ...; afterwards no process, mount or file remains."""

    def __init__(self, plane: ControlPlane, runs: Path, count: int = 2) -> None:
        self.plane = plane
        self.runs = runs
        self.mounts = [*this_machine(), Mount(runs, read_only=False)]
        self.names = [f"n{index}" for index in range(1, count + 1)]
        self.hosts: dict[str, Host] = {}
        self._cgroups: dict[str, Cgroups] = {}
        self._started = ExitStack()
        self._scratch: Scratch | None = None

    # --- start and stop -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._scratch = Scratch("headway-nodes-")
            stack.callback(self._scratch.remove)
            self._start_dns()
            write_image(self.root / "image.tar", busybox())
            for name in self.names:
                self._cgroups[name] = Cgroups(self._cgroup(name))
                stack.callback(self._cgroups[name].remove)
                self._write_files(name)
                self.hosts[name] = self._host(name)
                stack.callback(self.hosts[name].kill)
            stack.callback(self.plane.kubectl, "delete", "node", *self.names, "--ignore-not-found")
            self._boot(self.names)
            self._started = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._started.close()

    @property
    def root(self) -> Path:
        """The folder of everything the nodes write; raises RuntimeError before the start."""
        if self._scratch is None:
            raise RuntimeError("the nodes are not started; enter them with `with`")
        return self._scratch.path

    def _start_dns(self) -> None:
        if self.plane.host.runs("coredns"):
            return
        corefile = self.plane.root / "conf/Corefile"
        corefile.write_text(COREFILE.format(dns=DNS, ready_port=READY_PORT, kubeconfig=self.plane.inner_kubeconfig))
        self.plane.host.start("coredns", [str(node_programs()["coredns"]), "-conf", str(corefile)])
        self.plane.host.wait_http("coredns", READY_PORT, "/ready", START_S)

    def _cgroup(self, name: str) -> str:
        return f"{self.root.name}-{name}"

    def _index(self, name: str) -> int:
        return self.names.index(name) + 1

    def _write_files(self, name: str) -> None:
        folder = self.root / name
        for part in ("upper", "work", "root", "containerd", "kubelet", "node/cni", "log"):
            (folder / part).mkdir(parents=True)
        (folder / "node/containerd.toml").write_text(CONTAINERD)
        (folder / "node/cni/pods.conflist").write_text(network_plugins(self._index(name)))
        (folder / "node/kubelet.json").write_text(kubelet(f"/{self._cgroup(name)}"))
        (folder / "node/kubeconfig").write_text(self.plane.inner_kubeconfig.read_text())
        (folder / "node/image.tar").hardlink_to(self.root / "image.tar")

    def _host(self, name: str) -> Host:
        folder = self.root / name
        mounts = [word for mount in self.mounts for word in (str(mount.path), "ro" if mount.read_only else "rw")]
        arguments = [IDLE, str(sid_tree()), str(node_programs()["kubelet"]), *mounts]
        return Host(name, f"cd {folder}\n{NODE}", arguments, folder / "log")

    def _boot(self, names: Sequence[str]) -> None:
        """Return when all of them are Ready; they start in parallel."""
        booted_at = int(time.time())
        for name in names:
            self.hosts[name].boot()
            self._plug(name)
            self.hosts[name].start("containerd", ["containerd", "--config=/opt/node/containerd.toml"])
        for name in names:
            self._start_kubelet(name)
        for name in names:
            self._wait_ready(name, booted_at)

    def _start_kubelet(self, name: str) -> None:
        host = self.hosts[name]
        ctr = ("ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io")
        host.wait_daemon("containerd", lambda: host.run(*ctr, "version", check=False).returncode == 0, START_S)
        host.run(*ctr, "images", "import", "/opt/node/image.tar")
        flags = {"config": "/opt/node/kubelet.json", "kubeconfig": "/opt/node/kubeconfig"}
        flags |= {"node-ip": node_address(self._index(name)), "cert-dir": "/var/lib/kubelet/pki"}
        host.start("kubelet", ["/opt/kubelet", *(f"--{flag}={value}" for flag, value in flags.items())])

    def _wait_ready(self, name: str, booted_at: int) -> None:
        """Wait until the node reports that it is Ready; reports from before it was switched off do not count."""
        self.plane.wait(f"node `{name}` Ready", lambda: self._ready_since(name), lambda at: at > booted_at, START_S)

    def _ready_since(self, name: str) -> float:
        """When it became Ready, in whole seconds since 1970; 0 if it is not."""
        for node in self.plane.objects("nodes", f"--field-selector=metadata.name={name}"):
            for condition in node["status"].get("conditions", []):
                if (condition["type"], condition["status"]) == ("Ready", "True"):
                    return datetime.fromisoformat(condition["lastHeartbeatTime"]).timestamp()
        return 0.0

    def _plug(self, name: str) -> None:
        """A cable from the node to the wire, and its routes."""
        host, index = self.hosts[name], self._index(name)
        self._wire(f"link add name {name} type veth peer name eth0 netns {host.pid}")
        self._wire(f"link set {name} master {WIRE} up")
        self._wire(f"route replace {pod_subnet(index)} via {node_address(index)}")
        ways = [f"route add {pod_subnet(n)} via {node_address(n)}" for n in range(1, len(self.names) + 1) if n != index]
        address = [f"address add {node_address(index)}/24 dev eth0", "link set eth0 up", f"route add default via {GATEWAY}"]
        for command in (*address, *ways):
            host.run("ip", *command.split())

    def _wire(self, command: str) -> None:
        subprocess.run(leashed([*self.plane.host.network(), "ip", *command.split()]), check=True, capture_output=True)

    # --- power --------------------------------------------------------------------------------------------------------

    def power_off(self, name: str) -> None:
        """Power loss: every process of the node has ended on return, without notifying its peers."""
        # the cable first, or the kernel would close the dead processes' connections audibly
        self._wire(f"link delete {name}")
        self.hosts[name].kill()
        # a kubelet that finds a dead pod's groups takes 12 s longer to be ready
        self._cgroups[name].clear()

    def power_on(self, name: str) -> None:
        """Return when the node is Ready again; files that its pods wrote to their disks still exist."""
        self._boot([name])
