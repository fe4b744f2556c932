"""Reports what Cumulus Linux cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.catalog.switches import switches as models
from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, FabricPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem
from headway.templates.ports import named
from headway.templates.switches.limits import check_kept_ports
from headway.templates.switches.nvue import roce
from headway.templates.switches.nvue.options import NvueOptions
from headway.templates.switches.nvue.render import front_ports, port_name

# docs.nvidia.com cumulus-linux-516, Equal Cost Multipath Load Sharing, Adaptive Routing.
_VENDOR = "NVIDIA"
_ADAPTIVE_ASIC, _ADAPTIVE_GBPS = "Spectrum-4", (200, 400)


def check(options: NvueOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check the classes against the buffers of `qos roce`, adaptive routing against the ASIC, and the kept ports."""
    fabric = cluster.fabric(switch.fabric)
    at: Path = ("fabrics", cluster.fabrics.index(fabric))
    yield from _check_classes((*at, "classes"), fabric)
    if fabric.balancing == "adaptive":
        yield from _check_adaptive((*at, "balancing"), fabric, switch)
    path: Path = (*at, "switches", "os", fabric.os.index("nvue"), "options", "keep_ports")
    planned = {port.name for port in named(switch, cluster, port_name).ports}
    base = options.base_of(switch.name)
    yield from check_kept_ports(path, options.keep_ports, switch, planned, set() if base is None else {*front_ports(base)})


def _check_classes(path: Path, fabric: FabricPlan) -> Iterator[Problem]:
    lossless = [(index, each) for index, each in enumerate(fabric.qos.classes if fabric.qos else ()) if each.lossless]
    for index, _ in lossless[1:]:
        message = "Cumulus Linux keeps one buffer for lossless traffic, and another class before has it"
        yield Problem("HW513", CLUSTER, (*path, index, "lossless"), message, "make it lossy")
    for index, each in lossless[:1]:
        if each.queue != roce.LOSSLESS_QUEUE:
            message = f"Cumulus Linux has the lossless buffer in queue {roce.LOSSLESS_QUEUE}, but `{each.name}` is in queue {each.queue}"
            # The queue is that of the priority, where none is stated.
            at = "queue" if each.queue != each.priority else "priority"
            yield Problem("HW513", CLUSTER, (*path, index, at), message, f"set `{at}: {roce.LOSSLESS_QUEUE}`")


def _check_adaptive(path: Path, fabric: FabricPlan, switch: SwitchPlan) -> Iterator[Problem]:
    model = models().get(fabric.switch_model or "")
    if model is not None and model.vendor != _VENDOR:
        # Cumulus Linux does not run on it, which is the problem.
        return
    if model is not None and model.asic != _ADAPTIVE_ASIC:
        message = f"adaptive routing needs a {_ADAPTIVE_ASIC}, but the {model.name} has a {model.asic}"
        yield Problem("HW513", CLUSTER, path, message, "leave `balancing` out")
    slow = next((port.gbps for port in switch.uplinks if port.gbps not in _ADAPTIVE_GBPS), None)
    if slow is not None:
        message = f"adaptive routing needs links of 200 or 400Gb/s between switches, and these have {slow}Gb/s"
        yield Problem("HW513", CLUSTER, path, message, "set `uplink_speed: 400Gb/s`, or leave `balancing` out")
