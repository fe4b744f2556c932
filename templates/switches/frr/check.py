"""Reports what FRR cannot do with a plan, and which of its settings the plan decides."""

import re
from collections.abc import Iterator

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.templates.switches.frr.options import FrrOptions

# Logs, terminals and daemons' own settings; lines of a neighbor that do not change what it exchanges.
_OF_SITE = (
    r"(log|line vty|password|enable|service|frr version|agentx|debug|banner|no log|no banner|ip ssh|vrf mgmt)\b.*"
    r"|interface (mgmt|(eth|eno|ens|enp|em)\d)[\w.]*( vrf \S+)?(\|.*)?"
    r"|.*\|(description|soft-reconfiguration inbound|bgp log-neighbor-changes)"
)
_OF_PLAN = r"(hostname|frr defaults|interface|router|bfd|ip forwarding|ipv6 forwarding|zebra|fpm)\b.*"
# Of a file of sysctl.
_KERNEL = r"net\.ipv[46]\..*"
_OTHER_KERNEL = r"[a-z]\w*(\.[\w-]+)+"


def judge(key: str) -> Severity | None:
    """Return how much a setting matters that is not as the plan has it, by its path: None where the site decides it."""
    if re.fullmatch(_OF_SITE, key) or (re.fullmatch(_OTHER_KERNEL, key) and not re.fullmatch(_KERNEL, key)):
        return None
    return Severity.ERROR if re.fullmatch(_OF_PLAN, key) or re.fullmatch(_KERNEL, key) else Severity.WARNING


def check(options: FrrOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check the plan: FRR has no queues."""
    fabric = cluster.fabric(switch.fabric)
    at: Path = ("fabrics", cluster.fabrics.index(fabric), "switches")
    if fabric.qos is not None and fabric.os == ("frr",):
        message = "FRR sets no queue, PFC or ECN, so nothing on these switches implements the traffic classes"
        hint = (
            "add the system that configures the queues, for example `{kind: sonic}`, or `ignore` this where a tool of yours does"
        )
        yield Problem("HW513", CLUSTER, (*at, "os", 0, "kind"), message, hint, Severity.WARNING)
