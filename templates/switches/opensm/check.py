"""Reports what opensm cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.templates.switches.opensm.options import OpensmOptions
from headway.templates.switches.opensm.render import roots_of, routing_of


def check(options: OpensmOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check the fabric, once: with its first switch."""
    fabric = cluster.fabric(switch.fabric)
    if switch.role != "leaf" or switch.index:
        return
    at: Path = ("fabrics", cluster.fabrics.index(fabric))
    kind = fabric.os.index("opensm")
    if fabric.balancing == "adaptive" and options.routing == "minhop":
        message = "`minhop` has no adaptive form, and `balancing` is `adaptive`"
        path = (*at, "switches", "os", kind, "options", "routing")
        yield Problem("HW513", CLUSTER, path, message, "use `updn` or `ftree`, or leave `routing` out")
    roots = roots_of(fabric, cluster)
    unknown = [root.name for root in roots if root.guid is None]
    if unknown and routing_of(options, fabric)[-1] != "minhop":
        first = unknown[0]
        message = (
            f"{len(unknown)} of the {len(roots)} roots of the tree have no GUID, from `{first}` on: opensm finds the roots itself"
        )
        hint = f"add them to an inventory, for example `switches: [{{name: {first}, guid: '0xb83fd20300000001'}}]`"
        yield Problem("HW513", CLUSTER, (*at, "switches", "os", kind, "kind"), message, hint, Severity.WARNING)
