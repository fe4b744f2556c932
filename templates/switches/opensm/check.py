"""Reports what opensm cannot do with a plan, and which of its settings the plan decides."""

import re
from collections.abc import Iterator

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.templates.switches.opensm.options import OpensmOptions
from headway.templates.switches.opensm.render import roots_of, routing_of

# opensm's logs, console and election; then all settings of opensm.conf. The lines of the other files are none of these.
_OF_SITE = re.compile(r"(log_|console|dump_|daemon|sm_priority|max_wire_smps|max_smps|babbling|syslog|perfmgr|event_)\w*")
_OF_PLAN = re.compile(r"routing_engine|root_guid_file|node_name_map_name|partition_config_file|(qos|sharp|ar)\w*")
_SETTING = re.compile(r"[a-z]\w*")


def judge(key: str) -> Severity | None:
    """Return how much a setting matters that is not as the plan has it, by its name: None where the site decides it."""
    if _OF_SITE.fullmatch(key):
        return None
    return Severity.ERROR if _OF_PLAN.fullmatch(key) or not _SETTING.fullmatch(key) else Severity.WARNING


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
    # Without any, as on a new cluster, opensm finds the roots itself, which is no mistake.
    if 0 < len(unknown) < len(roots) and routing_of(options, fabric)[-1] != "minhop":
        first = unknown[0]
        message = (
            f"{len(unknown)} of the {len(roots)} roots of the tree have no GUID, from `{first}` on: opensm finds the roots itself"
        )
        hint = f"add them to an inventory, for example `switches: [{{name: {first}, guid: '0xb83fd20300000001'}}]`"
        yield Problem("HW513", CLUSTER, (*at, "switches", "os", kind, "kind"), message, hint, Severity.WARNING)
