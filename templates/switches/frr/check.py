"""Reports what FRR cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.templates.switches.frr.options import FrrOptions


def check(options: FrrOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check the plan: FRR has no queues."""
    fabric = cluster.fabric(switch.fabric)
    at: Path = ("fabrics", cluster.fabrics.index(fabric), "switches")
    if fabric.qos is not None and fabric.os == ("frr",):
        message = "FRR sets no queue, PFC or ECN, so nothing on these switches implements the traffic classes"
        hint = "add the system that configures the queues, for example `{kind: sonic}`"
        yield Problem("HW513", CLUSTER, (*at, "os", 0, "kind"), message, hint, Severity.WARNING)
