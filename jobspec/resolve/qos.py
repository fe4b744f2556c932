"""Resolves traffic classes into the numbers that each device needs; all artifacts are rendered from this one object."""

from collections.abc import Sequence

from msgspec.structs import replace

from headway.jobspec.plan import ClassPlan, EcnPlan, QosPlan
from headway.jobspec.spec.fabric import TrafficClass

RDMA = ("collectives", "storage")
"""The loads of classes of RDMA packets."""

# The share of RoCE under NVIDIA's `nv set qos roce` (docs.nvidia.com, Cumulus Linux, RDMA over Converged Ethernet).
_SHARE = 50
# The share of checkpoint copies, for which nothing waits: enough to finish before the next, and little compared with a
# step's collectives.
_SHARE_OF_CHECKPOINTS = 10


def resolve_qos(classes: tuple[TrafficClass, ...], role: str = "scale-out") -> QosPlan:
    """Return the classes with their priorities, queues and buffers decided; other traffic gets the remaining share of a link.

    RDMA on a fabric of another role than `scale-out` is that of storage, since NCCL uses no other.
    """
    plans = tuple(_class(each) for each in classes)
    if role != "scale-out":
        plans = tuple(replace(each, carries="storage") if each.carries == "collectives" else each for each in plans)
    return QosPlan(plans, 100 - sum(each.bandwidth_percent or 0 for each in plans))


def congestion_of(classes: Sequence[TrafficClass]) -> str | None:
    """Return how the senders of RDMA (collectives, or storage) learn that a queue is full, according to the classes; None if nothing
    notifies them."""
    rdma = next((each for each in classes if each.carries in RDMA), None)
    if rdma is None:
        return None
    if rdma.lossless:
        return "pfc-ecn" if rdma.ecn else "pfc"
    return "ecn-lossy" if rdma.ecn else None


def priority_of(traffic: TrafficClass) -> int:
    """Return its priority, else the upper three bits of the DSCP: mlx5's own mapping (`mlnx_qos`, default dscp2prio)."""
    return traffic.dscp >> 3 if traffic.priority is None else traffic.priority


def queue_of(traffic: TrafficClass) -> int:
    """Return its queue, else the number of its priority."""
    return priority_of(traffic) if traffic.queue is None else traffic.queue


def share_of(traffic: TrafficClass) -> int | None:
    """Return its share of a full link in percent. Notifications are few and go first; collectives would leave nothing
    to the rest."""
    if traffic.bandwidth_percent is None and traffic.carries != "cnp":
        return _SHARE_OF_CHECKPOINTS if traffic.carries == "checkpoints" else _SHARE
    return traffic.bandwidth_percent


def _class(traffic: TrafficClass) -> ClassPlan:
    """Return a class. A lossless class has a separate ingress buffer; all that may be dropped shares buffer 0."""
    priority = priority_of(traffic)
    return ClassPlan(
        name=traffic.name,
        carries=traffic.carries,
        dscp=traffic.dscp,
        priority=priority,
        traffic_class=priority,
        queue=queue_of(traffic),
        priority_group=priority if traffic.lossless else 0,
        lossless=traffic.lossless,
        ecn=EcnPlan(traffic.ecn.min, traffic.ecn.max, traffic.ecn.percent) if traffic.ecn else None,
        bandwidth_percent=share_of(traffic),
    )
