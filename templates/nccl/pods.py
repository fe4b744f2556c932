"""Finds what a pod needs for RDMA and does not have: adapters' interfaces, devices, and memory that it may lock."""

from collections.abc import Iterator, Mapping

from headway.templates.nccl.manifest import Pod, PodContainer
from headway.templates.reading import Fault, Setting

# Names in a pod's resources that are no network device.
_NO_DEVICE = ("cpu", "memory", "ephemeral-storage", "hugepages-", "nvidia.com/gpu", "amd.com/gpu")
ATTACHED_NETWORKS = ("k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network", "networking.gke.io/interfaces")
"""Annotations by which a CNI plugin attaches networks to a pod."""


def pod_faults(pods: tuple[Pod, ...]) -> Iterator[Fault]:
    """Yield the faults of pods whose variables use RDMA adapters. A webhook may add what is missing, so all are doubtful."""
    for pod in pods:
        users = [each for each in pod.containers if _uses_rdma(each.variables)]
        if users and not pod.has_host_network and not pod.annotations.intersection(ATTACHED_NETWORKS) and not _is_cloud(users):
            message = (
                "the pod has neither the host's network nor another one, and RoCE's addresses are of interfaces; NCCL finds no GID in "
                "the pod, and connections fail"
            )
            hint = "set `hostNetwork: true`, or attach the adapters' networks (k8s.v1.cni.cncf.io/networks)"
            yield Fault("HW868", _place(users[0]), message, hint, doubtful=True)
        if users and pod.has_host_network and pod.dns_policy in {"", "ClusterFirst"}:
            message = (
                "the pod has the host's network and asks the host's name servers (`dnsPolicy`), which do not know the names of other pods; "
                "ranks do not find the first one, and the job hangs when it starts"
            )
            yield Fault("HW868", _place(users[0]), message, "set `dnsPolicy: ClusterFirstWithHostNet`", doubtful=True)
        for each in users:
            if not each.is_privileged and "IPC_LOCK" not in each.capabilities and not _is_cloud([each]):
                message = (
                    f"the container {each.name} uses RDMA and may not lock memory (IPC_LOCK); adapters cannot register its buffers, and "
                    "NCCL ends"
                )
                yield Fault("HW868", _place(each), message, "add the capability IPC_LOCK", doubtful=True)
            if not each.is_privileged and not pod.host_paths.intersection({"/dev", "/dev/infiniband"}) and not _devices(each):
                message = (
                    f"the container {each.name} uses RDMA and asks for no device of it; /dev/infiniband is missing there, and NCCL uses "
                    "TCP or ends"
                )
                yield Fault("HW868", _place(each), message, "add the resource of the device plugin to its limits", doubtful=True)


def _uses_rdma(variables: Mapping[str, Setting]) -> bool:
    network = variables.get("NCCL_NET")
    return "NCCL_IB_HCA" in variables or (network is not None and network.value.upper() == "IB")


def _is_cloud(users: list[PodContainer]) -> bool:
    """EFA has devices of its own, and no GID of an interface."""
    return any("efa" in resource for each in users for resource in each.resources)


def _devices(container: PodContainer) -> list[str]:
    return [each for each in container.resources if not each.startswith(_NO_DEVICE)]


def _place(container: PodContainer) -> str:
    return next((name for name in ("NCCL_IB_HCA", "NCCL_NET") if name in container.variables), "")
