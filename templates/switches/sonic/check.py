"""Reports what SONiC cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, FabricPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.templates.switches.sonic.options import SonicOptions
from headway.templates.switches.sonic.render import MAX_PATHS

# sonic-types.yang, hostname.
_HOSTNAME_LENGTH = 63

# The lengths in a platform's pg_profile_lookup.ini, as a rule; for another one buffermgrd makes no lossless buffer.
_PROFILED_METRES = (5, 40, 300)


def check(options: SonicOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check bounds of SONiC's models, and lengths that the buffers of the traditional model do not support."""
    fabric = cluster.fabric(switch.fabric)
    at: Path = ("fabrics", cluster.fabrics.index(fabric))
    if len(switch.name) > _HOSTNAME_LENGTH:
        message = f"SONiC accepts host names of at most {_HOSTNAME_LENGTH} characters, but `{switch.name}` has {len(switch.name)}"
        yield Problem("HW513", CLUSTER, (*at, "name"), message, "give the fabric a shorter name")
    if switch.role == "leaf" and len(switch.uplinks) > MAX_PATHS:
        message = f"SONiC spreads traffic over at most {MAX_PATHS} paths, but a leaf has {len(switch.uplinks)} uplinks"
        yield Problem("HW513", CLUSTER, (*at, "switches", "spines"), message, "use fewer spines or uplinks")
    yield from _check_watchdog((*at, "classes"), fabric)
    yield from _check_lanes((*at, "switches", "os", fabric.os.index("sonic")), options, switch)
    if options.buffer_model == "traditional" and _is_lossless(fabric):
        yield from _check_metres((*at, "switches"), switch)


def _check_watchdog(path: Path, fabric: FabricPlan) -> Iterator[Problem]:
    """Check the watchdog. SONiC's PFC watchdog looks at the queue of the priority's number (sonic-swss, pfcwdorch.cpp),
    whatever the maps are."""
    for index, each in enumerate(fabric.qos.classes if fabric.qos else ()):
        if each.lossless and each.queue != each.priority:
            message = f"SONiC's PFC watchdog would watch queue {each.priority}, but `{each.name}` is paused in queue {each.queue}"
            yield Problem("HW513", CLUSTER, (*path, index, "queue"), message, f"leave `queue` out, or set it to {each.priority}")


def _is_lossless(fabric: FabricPlan) -> bool:
    return fabric.qos is not None and bool(fabric.qos.lossless_priorities)


def _check_lanes(path: Path, options: SonicOptions, switch: SwitchPlan) -> Iterator[Problem]:
    """Check that given lanes exist for every port, and that each port has the fabric's number of them."""
    for port in switch.ports if options.lanes else ():
        if port.index >= len(options.lanes):
            message = f"lanes of {len(options.lanes)} ports are given, but {port.name} is port {port.index + 1}"
        elif (found := options.lanes[port.index].count(",") + 1) != port.lanes:
            message = f"`{options.lanes[port.index]}` are {found} lanes for {port.name}, but the fabric's ports have {port.lanes}"
        else:
            continue
        yield Problem("HW513", CLUSTER, (*path, "options", "lanes"), message, "copy the column from the HwSKU's port_config.ini")
        return


def _check_metres(path: Path, switch: SwitchPlan) -> Iterator[Problem]:
    for key, role in (("node_cable", "node"), ("spine_cable", "fabric")):
        for metres in sorted({port.metres for port in switch.ports if port.role == role} - set(_PROFILED_METRES)):
            message = f"platforms usually define the headroom for cables of 5, 40 and 300 metres, not for {metres}"
            hint = "set the next longer one, or add the length to the platform's pg_profile_lookup.ini"
            yield Problem("HW513", CLUSTER, (*path, key), message, hint, Severity.WARNING)
