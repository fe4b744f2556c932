"""Reports what Arista EOS cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, FabricPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem
from headway.templates.ports import named
from headway.templates.switches.eos.blocks import front_ports
from headway.templates.switches.eos.options import EosOptions
from headway.templates.switches.eos.render import SPEEDS, port_name
from headway.templates.switches.limits import check_kept_ports

# EOS User Manual, Quality of Service: traffic class and transmit queue 7 belong to the control plane.
_CONTROL = 7


def check(options: EosOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check the classes against EOS's queues, the ports against its speeds, and the kept ports."""
    fabric = cluster.fabric(switch.fabric)
    at: Path = ("fabrics", cluster.fabrics.index(fabric))
    yield from _check_classes((*at, "classes"), fabric)
    wrong = next((port for port in switch.ports if (port.gbps, port.lanes) not in SPEEDS), None)
    if wrong is not None:
        key = "uplink_speed" if wrong.role == "fabric" else "speed"
        message = f"EOS has no port of {wrong.gbps}Gb/s over {wrong.lanes} lanes"
        yield Problem("HW526", CLUSTER, (*at, "switches", key), message, "use another speed, or leave `lanes` out")
    path: Path = (*at, "switches", "os", fabric.os.index("eos"), "options", "keep_ports")
    planned = {port.name for port in named(switch, cluster, port_name).ports}
    yield from check_kept_ports(path, options.keep_ports, switch, planned, {*front_ports(options.base_of(switch.name) or ())})


def _check_classes(path: Path, fabric: FabricPlan) -> Iterator[Problem]:
    classes = fabric.qos.classes if fabric.qos else ()
    shared = [each.queue for each in classes if each.bandwidth_percent is not None]
    for index, each in enumerate(classes):
        for key, number in (("priority", each.priority), ("queue", each.queue)):
            if number == _CONTROL:
                what = "traffic class" if key == "priority" else "queue"
                message = f"EOS keeps {what} {_CONTROL} for its control plane, and `{each.name}` has it"
                yield Problem("HW513", CLUSTER, (*path, index, key), message, "use 1 to 6")
                break
        # Of a class in the control plane's queue, which is to leave it, no other class depends.
        highest = max((queue for queue in shared if queue != _CONTROL), default=0)
        if each.bandwidth_percent is None and each.queue < highest:
            message = f"queue {each.queue} of `{each.name}` goes first, but in EOS no queue below a shared one does"
            yield Problem("HW513", CLUSTER, (*path, index, "queue"), message, f"use a queue above {highest}")
