"""Reports what FRR cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.render import MAX_PATHS


def check(options: FrrOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check the plan: FRR limits equal paths, and has no queues."""
    fabric = cluster.fabric(switch.fabric)
    at: Path = ("fabrics", cluster.fabrics.index(fabric), "switches")
    if switch.role == "leaf" and len(switch.uplinks) > MAX_PATHS:
        message = f"FRR spreads traffic over at most {MAX_PATHS} paths, but a leaf has {len(switch.uplinks)} uplinks"
        yield Problem("HW513", CLUSTER, (*at, "spines"), message, "use fewer spines or uplinks")
    if fabric.qos is not None and fabric.os == ("frr",):
        message = "FRR sets no queue, PFC or ECN, so nothing on these switches implements the traffic classes"
        hint = "add the system that configures the queues, for example `{kind: sonic}`"
        yield Problem("HW513", CLUSTER, (*at, "os", 0, "kind"), message, hint, Severity.WARNING)
