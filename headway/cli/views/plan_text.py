"""Prints the plan of a job or a cluster for people."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headway.cli.terminal import print_line
from headway.cli.views.plan_checkpoints import checkpoint_facts
from headway.compile import PlannedJob
from headway.jobspec.notation import counted, write_duration, write_interval
from headway.jobspec.plan import ClusterPlan, FabricPlan, GroupPlan, JobPlan, QosPlan, SwitchPlan
from headway.jobspec.resolve.links import FabricShape
from headway.jobspec.suggest import listed
from headway.jobspec.units import Interval
from headway.planner.fabric import count_tiers, growth_of, losses, written_out
from headway.runner.contract import Corruption

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Each a name and what is planned.
_Facts = Iterator[tuple[str, str]]

_ROWS_SHOWN = 32


def print_head(console: "Console", plan: JobPlan) -> None:
    """The names of job and cluster, and where the job runs."""
    console.print(f"[bold]{plan.name}[/] on [bold]{plan.cluster}[/] ({plan.scheduler}), spec {plan.spec_hash[:8]}")
    console.print(f"runs in {plan.runs}", markup=False)


def print_job(console: "Console", planned: PlannedJob, *, ranks: bool) -> None:
    """The job's plan: its mesh, facts, the ranks on request, environment and files."""
    plan = planned.plan
    nodes = "1 node" if plan.slots == 1 else f"{plan.slots} nodes"
    spares = f", {counted(plan.spares, 'spare')}" if plan.spares else ""
    mesh = _table("axis", *plan.mesh.axes)
    mesh.add_row("degree", *map(str, plan.mesh.shape))
    _section(console, f"{plan.world_size} ranks: {nodes} x {plan.procs_per_slot}{spares}, {plan.backend}", mesh)
    _print_facts(console, _facts(planned))
    if ranks:
        _section(console, "ranks", _ranks(plan))
    _print_environment(console, plan)
    console.print("\n[bold]files[/] (`headway render`)")
    for path in sorted(planned.files()):
        console.print(f"  {path}", soft_wrap=True)


def print_cluster(console: "Console", plan: ClusterPlan, shapes: Mapping[str, FabricShape]) -> None:
    """The cluster's plan: its nodes, facts, and each fabric with its classes of traffic and switches; `shapes` are those of fabrics
    with switches, by name."""
    console.print(f"[bold]{plan.name}[/] ({plan.scheduler}), {plan.hash[:8]}")
    _section(console, "nodes", _groups(plan))
    _print_facts(console, _cluster_facts(plan))
    for fabric in plan.fabrics:
        interface = f" on {fabric.interface}" if fabric.interface else ""
        console.print(f"\n[bold]{fabric.name}[/]: {fabric.role}, {fabric.transport}{interface}")
        if fabric.qos is not None:
            console.print(_classes(fabric.qos), "")
        switches = [switch for switch in plan.switches if switch.fabric == fabric.name]
        if switches:
            _print_fabric(console, plan, fabric, shapes[fabric.name])
            console.print(_switches(plan, switches))


def _groups(plan: ClusterPlan) -> "Table":
    table = _table("group", "nodes", "held back", "cpus", "ranks", "GPUs", "NVLink domain", "adapters")
    for group in plan.groups:
        gpus = f"{group.gpus} x {group.gpu}" if group.gpus else "-"
        domain = f"{group.nvlink_domain} GPUs" if group.gpus else "-"
        counts = map(str, (group.count, group.held_back or "-", group.cpus, group.procs))
        table.add_row(group.name, *counts, gpus, domain, _adapters(group))
    return table


def _adapters(group: GroupPlan) -> str:
    """Return the adapters between the nodes, then those on other fabrics with the fabric's name."""
    others = [f"{each.fabric}: {', '.join(each.nics)}" for each in group.other_nics or ()]
    return "; ".join(filter(None, [", ".join(group.nics), *others])) or "-"


def _cluster_facts(plan: ClusterPlan) -> _Facts:
    """Places for files, software."""
    for place in plan.storage:
        groups = f", nodes of {listed(place.groups)}" if place.groups else ""
        where = f"{place.path}{', shared' if place.shared else ''}" if place.url is None else place.url
        yield f"storage {place.name}", f"{where} ({place.kind}{groups})"
    if plan.versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in plan.versions.items())


def _facts(planned: PlannedJob) -> _Facts:
    """Yield model, batch and limits of the training, as far as the job states them."""
    plan = planned.plan
    if argv := plan.run.trainer.options.get("argv"):
        yield "command", shlex.join(argv)
    if plan.model is not None:
        active = f", {plan.model.active_parameters:,} of them active for a token" if plan.model.experts is not None else ""
        yield "model", f"{plan.model.parameters:,} parameters{active}"
    yield from _beside_the_mesh(plan.spec["layout"])
    yield from checkpoint_facts(plan, planned.cluster)
    if plan.run.corruption is not None:
        yield "against silent corruption", "; ".join(_checks(plan.run.corruption))
    if plan.time_limit is not None:
        yield "longest attempt", write_duration(plan.spec["limits"]["attempt"]["time"])
    for whose, limits in (("an attempt", plan.spec["limits"]["attempt"]), ("the run", plan.spec["limits"]["run"])):
        if (hours := limits["gpu_hours"]) is not None:
            yield f"GPU-hours of {whose}", f"{hours:,g} at most"
    if (longest := plan.spec["limits"]["run"]["time"]) is not None:
        yield "longest run", write_duration(longest)


def _beside_the_mesh(layout: Mapping[str, Any]) -> _Facts:
    """Yield settings of the layout that are no axis of the mesh."""
    if layout["ep"] > 1:
        yield "expert parallelism", f"{layout['ep']} ranks, folded over dp_shard x cp x tp"
    if layout["schedule"] is not None:
        yield "pipeline schedule", layout["schedule"]
    if layout["virtual_stages"] > 1:
        yield "stages a rank", str(layout["virtual_stages"])


def _checks(corruption: Corruption) -> Iterator[str]:
    """Yield the checks of the run and, if it follows from the spec, their share of the steps' time."""
    if (replay := corruption.replay) is not None:
        share = "" if replay.steps is None else f" ({100 / replay.steps:.2g} % of the time)"
        yield f"a step recomputed on other ranks every {write_interval(Interval(replay.steps, replay.seconds))}{share}"
    if corruption.grad_norm_factor is not None:
        yield f"and every step with a gradient norm above {corruption.grad_norm_factor:g} times the usual"
    if (compare := corruption.compare) is not None:
        yield f"replicas compared every {write_interval(Interval(compare.steps, compare.seconds))}"


def _print_facts(console: "Console", facts: _Facts) -> None:
    for name, value in facts:
        print_line(console, f"{name}: {value}", hang=4)


def _classes(qos: QosPlan) -> "Table":
    table = _table("class", "carries", "DSCP", "priority", "TC", "queue", "PG", "PFC", "marked from", "of a full link")
    for each in qos.classes:
        numbers = (each.dscp, each.priority, each.traffic_class, each.queue, each.priority_group)
        marking = f"{each.ecn.min_bytes} to {each.ecn.max_bytes} bytes, {each.ecn.percent} %" if each.ecn else "-"
        share = "first of all" if each.bandwidth_percent is None else f"{each.bandwidth_percent} %"
        table.add_row(each.name, each.carries, *map(str, numbers), "yes" if each.lossless else "-", marking, share)
    table.add_row("all else", "-", "-", "0", "0", "0", "0", "-", "-", f"{qos.rest_percent} %")
    return table


def _print_fabric(console: "Console", plan: ClusterPlan, fabric: FabricPlan, shape: FabricShape) -> None:
    """The fabric as a whole: tiers with their cables, oversubscription, what a loss leaves, and growth."""
    sizes = shape.sizes
    console.print(_tiers(plan, fabric, shape), "")
    _print_facts(console, _fabric_facts(fabric, shape))
    table = _table("loss of", "hits", "bandwidth left")
    for loss in losses(plan, shape):
        table.add_row(loss.lost, loss.affects, f"{loss.left:.1%}")
    console.print(table, "")
    growth = growth_of(shape)
    more = (
        f"; with more {'leaves' if sizes.tiers == 2 else 'leaves and pods'}, {growth.most}"
        if growth.most > growth.present
        else ""
    )
    coming = _nodes_to_come(plan, fabric)
    ready = f", and ports set up for {coming} that are to come" if coming else ""
    most = f"its leaves have room for {counted(growth.present, 'node')}{ready}{more}"
    _print_facts(console, iter([("growth", most)]))


def _nodes_to_come(plan: ClusterPlan, fabric: FabricPlan) -> int:
    """Return the nodes to come that the leaves have ports for."""
    ports = (port for switch in plan.switches if switch.fabric == fabric.name for port in switch.ports)
    return len({port.peer for port in ports if port.role == "node"} - plan.devices)


def _fabric_facts(fabric: FabricPlan, shape: FabricShape) -> _Facts:
    sizes = shape.sizes
    rails = "one rail a leaf" if sizes.leaf_rails == 1 else f"{sizes.leaf_rails} rails a leaf"
    yield "unit", f"{counted(sizes.unit, 'node')} on {sizes.width} {'leaf' if sizes.width == 1 else 'leaves'}, {rails}"
    if sizes.tiers > 1:
        yield (
            "links",
            f"{sizes.uplinks} between a leaf and a spine"
            + (f", {sizes.core_uplinks} between a spine and a core" if sizes.tiers > 2 else ""),
        )
        above = f", pods {fabric.spine_oversubscription:.4g} : 1" if sizes.tiers > 2 else ""
        yield "oversubscription by speed", f"fullest leaf {fabric.leaf_oversubscription:.4g} : 1{above}"
    if sizes.planes > 1:
        yield "planes", str(sizes.planes)
    if sizes.tiers > 2:
        pod_nodes = sizes.pod_units * sizes.unit
        of_units = f"{sizes.pods} of {pod_nodes} nodes, {sizes.pod_units * sizes.width} leaves and {sizes.pod_spines} spines"
        of_rails = f"{sizes.pods}, one for each rail, of {sizes.pod_units} leaves and {sizes.pod_spines} spines"
        yield "pods", of_rails if sizes.has_rail_pods else of_units
    yield "written out", "{" + ", ".join(f"{key}: {value}" for key, value in written_out(shape).items()) + "}"


def _tiers(plan: ClusterPlan, fabric: FabricPlan, shape: FabricShape) -> "Table":
    table = _table("tier", "switches", "model", "cables", "Gbit/s", "metres", "transceivers: switches", "nodes")
    for tier in count_tiers(plan, shape):
        gbps, metres = (", ".join(map(str, values)) for values in (tier.gbps, tier.metres))
        of_switches, of_nodes = (str(count or "-") for count in tier.transceivers)
        table.add_row(
            tier.name, str(tier.switches), fabric.switch_model or "-", str(tier.cables), gbps, metres, of_switches, of_nodes
        )
    return table


def _switches(plan: ClusterPlan, switches: list[SwitchPlan]) -> "Table":
    table = _table("switch", "AS number", "loopback", "to nodes", "to switches", "Gbit/s")
    for switch in switches[:_ROWS_SHOWN]:
        there = Counter(port.role for port in plan.cabled(switch))
        every = Counter(port.role for port in switch.ports)
        cables = [
            f"{there[role]} of {every[role]}" if every[role] > there[role] else str(there[role]) for role in ("node", "fabric")
        ]
        speeds = ", ".join(sorted({str(port.gbps) for port in switch.ports}))
        numbers = (str(switch.asn or "-"), switch.router_id or "-")
        table.add_row(switch.name, *numbers, *cables, speeds)
    if len(switches) > _ROWS_SHOWN:
        table.add_row("...", f"{len(switches) - _ROWS_SHOWN} more; --json has all")
    return table


def _section(console: "Console", title: str, table: "Table") -> None:
    console.print(f"\n[bold]{title}[/]")
    console.print(table)


def _table(*columns: str) -> "Table":
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _ranks(plan: JobPlan) -> "Table":
    table = _table("rank", "slot", "local rank", *plan.mesh.axes)
    for rank in plan.ranks[:_ROWS_SHOWN]:
        table.add_row(str(rank.rank), str(rank.slot), str(rank.local_rank), *map(str, rank.coords))
    if plan.world_size > _ROWS_SHOWN:
        table.add_row("...", f"{plan.world_size - _ROWS_SHOWN} more; --json has all")
    return table


def _print_environment(console: "Console", plan: JobPlan) -> None:
    console.print("\n[bold]environment of every rank[/]")
    for variable in plan.env:
        # `=eth0` is a value of NCCL's, and `NAME==eth0` looks like a mistake.
        value = f"'{variable.value}'" if variable.value.startswith("=") else variable.value
        print_line(console, f"  {variable.name}={value}", hang=4)
        print_line(console, f"      {variable.reason}", hang=6)
        print_line(console, f"      {variable.source}", hang=6, style="dim")
