"""Checks what every operating system states in its row of the table: its bounds, the models that it runs on, and the site's base."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from pydantic import BaseModel

from headway.jobspec.catalog.switches import switches as models
from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, FabricPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Misfit, Problem, Severity
from headway.jobspec.resolve.environment import IB_RETRIES_S
from headway.jobspec.suggest import joined_or
from headway.templates.kind import SwitchKind
from headway.templates.switches.options import RoutingOptions, SiteOptions

# Less than the scheduling delay of a busy switch's CPU; FRR's and EOS's default of hold times, which suits no fabric.
_FASTEST_BFD_MS = 50
_SLOW_HOLD_S = 180

# A cage that is split into eight takes the neighbouring cage's lanes (docs.nvidia.com, Cumulus Linux, Switch Port Attributes), and none
# of the catalogue's models by Arista has ports of one lane.
_MOST_PARTS = 4


def check_fabric(
    name: str, kinds: Mapping[str, SwitchKind], options: BaseModel, fabric: FabricPlan, cluster: ClusterPlan
) -> Iterator[Problem]:
    """Check the fabric, whatever its switches are, against the operating system `name` of all `kinds`."""
    kind = kinds[name]
    at: Path = ("fabrics", cluster.fabrics.index(fabric))
    if kind.balancing is not None and fabric.balancing not in kind.balancing:
        message = f"{kind.title} files spread traffic by {joined_or([f'`{each}`' for each in kind.balancing])}, not `{fabric.balancing}`"
        hint = "leave `balancing` out; leave `switches` out if headway does not configure them"
        yield Problem("HW513", CLUSTER, (*at, "balancing"), message, hint)
    yield from _check_timers(name, options, fabric, cluster)
    if kind.vendor is not None:
        yield from _check_model((*at, "switches"), kind, kinds, fabric, cluster, is_meant=bool(options.model_fields_set))
        if isinstance(options, SiteOptions) and options.base is None:
            os = (*at, "switches", "os", fabric.os.index(name), "kind")
            message = f"{kind.file} has headway's settings only: a switch that takes it as a whole loses its management address and users"
            hint = f"set `base` to the site's own file, as it is in {kind.running}"
            yield Problem("HW513", CLUSTER, os, message, hint, Severity.WARNING)


def _check_timers(name: str, options: BaseModel, fabric: FabricPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Warn about timers that take healthy links down, or that outlast what NCCL waits for."""
    if not isinstance(options, RoutingOptions):
        return
    at: Path = ("fabrics", cluster.fabrics.index(fabric), "switches", "os", fabric.os.index(name), "options")
    detection_ms = None if options.bfd_ms is None else options.bfd_ms * options.bfd_multiplier
    if detection_ms is not None and detection_ms < _FASTEST_BFD_MS:
        message = f"BFD takes a link down after {detection_ms} ms: one delayed packet of a switch's busy CPU does so"
        yield Problem("HW533", CLUSTER, (*at, "bfd_ms"), message, "use 300", Severity.WARNING)
    found_s, key = (options.hold_s, "hold_s") if detection_ms is None else (detection_ms / 1000, "bfd_ms")
    if found_s >= IB_RETRIES_S:
        message = (
            f"a link that fails silently is found after {found_s:g} s, and NCCL sends a lost packet again for {IB_RETRIES_S:.0f} s: jobs "
            "end although another path is there"
        )
        hint = "use `bfd_ms: 300`"
        if detection_ms is None:
            hint = "set `hold_s: 9`, or `bfd_ms: 300` with `hold_s: 9`"
        yield Problem("HW533", CLUSTER, (*at, key), message, hint, Severity.WARNING)
    elif detection_ms is not None and options.hold_s >= _SLOW_HOLD_S:
        message = f"BFD finds a dead link, but routes through a switch whose BGP hangs stay for {options.hold_s} s"
        yield Problem("HW533", CLUSTER, (*at, "hold_s"), message, "use 9", Severity.WARNING)


def check_switch(kind: SwitchKind, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check one switch."""
    at: Path = ("fabrics", cluster.fabrics.index(cluster.fabric(switch.fabric)))
    length, paths = kind.host_name_length, kind.most_paths
    if length is not None and len(switch.name) > length:
        message = f"{kind.title} accepts host names of at most {length} characters, but `{switch.name}` has {len(switch.name)}"
        yield Problem("HW513", CLUSTER, (*at, "name"), message, "give the fabric a shorter name")
    if paths is not None and switch.role == "leaf" and len(switch.uplinks) > paths:
        message = f"{kind.title} spreads traffic over at most {paths} paths, but a leaf has {len(switch.uplinks)} uplinks"
        yield Problem("HW513", CLUSTER, (*at, "switches", "spines"), message, "use fewer spines or uplinks")


def _check_model(
    path: Path,
    kind: SwitchKind,
    kinds: Mapping[str, SwitchKind],
    fabric: FabricPlan,
    cluster: ClusterPlan,
    *,
    is_meant: bool,
) -> Iterator[Problem]:
    """Check that the system runs on the model, whose cages its port names follow; `is_meant`: the system has options, which another one
    would not accept, so that the model is more likely to be wrong."""
    fitting = [row.name for row in models().values() if row.vendor == kind.vendor and row.transport == "ethernet"]
    # Those with ports for the fabric's cables first.
    ports = (port for switch in cluster.switches if switch.fabric == fabric.name for port in switch.ports)
    fastest = max((port.gbps for port in ports), default=0)
    fast = [name for name in fitting if models()[name].gbps >= fastest]
    hint = f"use {joined_or([f'`{name}`' for name in fast or fitting])}"
    if fabric.switch_model is None:
        message = f"the names of ports under {kind.title} follow from the switches' model, and none is set"
        yield Problem("HW513", CLUSTER, path, message, f"set `model`: {hint}", at_key=True)
        return
    model = models().get(fabric.switch_model)
    if model is None or model.name not in fitting:
        maker = "that the catalogue does not have" if model is None else f"of {model.vendor}"
        message = f"headway renders {kind.title} for models of {kind.vendor}, and the `{fabric.switch_model}` is one {maker}"
        systems = [name for name, each in kinds.items() if model is not None and each.vendor == model.vendor]
        at: Path = (*path, "model")
        if model is not None and systems:
            own = next(name for name, each in kinds.items() if each is kind)
            at = (*path, "os", fabric.os.index(own), "kind")
            other = f"`{systems[0]}`, which runs on switches of {model.vendor}"
            hint = f"{hint}; or write {other}, with its own options" if is_meant else f"write {other}; or {hint}"
        misfit = Misfit.OTHER_VENDOR if systems else None
        yield Problem("HW513", CLUSTER, at, message, hint, fix=systems[0] if systems and not is_meant else None, misfit=misfit)
        return
    lanes = {port.lanes for switch in cluster.switches if switch.fabric == fabric.name for port in switch.ports}
    few = min((each for each in lanes if model.lanes // each > _MOST_PARTS), default=None)
    if few is not None:
        message = (
            f"ports of {few} lanes split a cage of the {model.name} into {model.lanes // few}, which takes its neighbour's lanes"
        )
        yield Problem("HW513", CLUSTER, (*path, "lanes"), message, f"use {model.lanes // _MOST_PARTS} lanes or more")


def check_kept_ports(
    path: Path, keep: Sequence[str], switch: SwitchPlan, planned: Collection[str], there: Collection[str]
) -> Iterator[Problem]:
    """Check that the ports that stay as the base has them are outside of the plan, and in the base."""
    for index, name in enumerate(keep):
        if name in planned:
            message = f"`{name}` of `{switch.name}` has a planned cable, so it cannot stay as the base has it"
            yield Problem("HW513", CLUSTER, (*path, index), message, "keep ports outside the fabric only")
        elif name not in there:
            message = f"`{name}` is to stay as the base of `{switch.name}` has it, which has no such port"
            yield Problem("HW513", CLUSTER, (*path, index), message, "leave it out, or correct the base")
