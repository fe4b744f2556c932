"""Writes the files of one real node: containerd's, the network plugins' and kubelet's."""

import json

from .control_plane import DNS
from .image import IMAGE

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

CONTAINERD = f"""\
version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  # without CAP_SYS_RESOURCE nobody may lower a sandbox's OOM score, and every sandbox would die at its start
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/opt/node/cni"
"""


def pod_subnet(index: int) -> str:
    return f"10.244.{index}.0/24"


def node_address(index: int) -> str:
    return f"10.240.0.{10 + index}"


def network_plugins(index: int) -> str:
    """A bridge for the pods of node `index`; the node routes between it and the wire."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": pod_subnet(index)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipam": addresses}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})


def kubelet(cgroup: str) -> str:
    """kubelet's configuration; its pods' control groups are below `cgroup`, or it would remove those of another node."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup,
            "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
        }
    )
