"""Derives the sizes of a switched fabric from its nodes, adapters and switch models: tiers, ports for nodes, switches, links per pair.

The lowest tier is made of units: as many nodes as a leaf has ports for, with a leaf for every `leaf_rails` rails. The next tier has the
fewest switches that give every lower one the same number of links to each of them; this rule gives the tables of NVIDIA's reference
architectures for DGX H100, B200 and B300 (docs.nvidia.com, "network fabrics"). If no two tiers fit, units are grouped into pods, and
spine i of every pod connects to the same group of cores (Al-Fares et al., SIGCOMM 2008). Where that takes fewer switches, a pod is a rail:
the leaves of one rail in all units have separate spines, and neighboring spines share a group of cores, as in NVIDIA's DGX A100 SuperPOD
(RA-09950-001).

Links between switches have the fastest speed of the model. Where two tiers are too few for it and enough for slower links, of which a
switch has more, they are slower: 64 ports of 800 Gb/s are 128 of 400.

All but the leaves and pods that exist follows from `grow_to`, so nothing else changes on the way there.
"""

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.catalog.nics import nics
from headway.jobspec.catalog.switches import switches as models
from headway.jobspec.resolve.nodes import adapters_on
from headway.jobspec.spec.fabric import GBPS, Fabric, Switches
from headway.jobspec.spec.nodes import NodeGroup

# Of a port of 400 Gb/s over lanes of 50 Gb/s, without a model.
_LANES = 8
_PORTS = 64
_SPEED = 400 * GBPS

# The share of a leaf's ports for nodes that may stay unused so that the rest is a power of two, whose addresses are one network.
_SPARED = 1 / 16
# By how much a number of links may miss a whole one, since ratios are written with few digits: 1.067 for 16 to 15.
_ROUNDING = 0.05

_ONE_LEAF = ("leaf-spine", "fat-tree")
_FEW_TIERS = 2
# Of one there is nothing to connect.
_FEW_RAILS = 2


class SizeError(ValueError):
    """No fabric has these sizes: the setting of `switches` at fault, what is wrong with it, and the remedy."""

    def __init__(self, key: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.key, self.message, self.hint = key, message, hint


class Sizes(Struct, frozen=True):
    """Counts of one fabric. A unit is `unit` nodes and the `width` leaves that they are connected to; a pod is `pod_units` units.

    `down` are the ports of a leaf for nodes, `uplinks` the links between a leaf and each spine of its pod and plane, `core_uplinks`
    those between a spine and each core of its group; a group has `core_group` cores, and `core_share` spines of each pod. `spine_down` are
    the ports of a spine for leaves. With `has_rail_pods` a pod has the leaves of one rail in every unit.
    `leaves`, `spines` and `pods` exist now; `most_leaves`, `most_spines` and `most_pods` are those at the size that it may grow to.
    """

    tiers: int
    rails: int
    planes: int
    leaf_rails: int
    width: int
    down: int
    unit: int
    leaves: int
    uplinks: int = 0
    spines: int = 0
    pod_units: int = 0
    pod_spines: int = 0
    spine_down: int = 0
    pods: int = 1
    core_uplinks: int = 0
    core_group: int = 0
    cores: int = 0
    most_leaves: int = 0
    most_spines: int = 0
    most_pods: int = 1
    core_share: int = 1
    has_rail_pods: bool = False

    @property
    def leaf_up(self) -> int:
        """Links of a leaf to spines."""
        return self.pod_spines // self.planes * self.uplinks

    @property
    def spine_up(self) -> int:
        """Links of a spine to cores."""
        return self.core_group * self.core_uplinks

    def leaf_of_rail(self, rail: int) -> int:
        """Return the leaf of its unit that a rail is connected to."""
        return rail // self.planes // self.leaf_rails * self.planes + rail % self.planes


class LeafPorts(Struct, frozen=True):
    """The ports of a leaf: links to nodes of `speed` bit/s over `lanes` lanes, to switches of `up_speed` over `up_lanes`.

    It has `cages`, each of `cage` lanes; ports of two kinds do not share one.
    """

    speed: int
    lanes: int
    up_speed: int
    up_lanes: int
    cages: int
    cage: int

    @property
    def every(self) -> int:
        """Ports of a switch if all are for nodes."""
        return self.cages * self.cage // self.lanes

    @property
    def every_up(self) -> int:
        """Ports of a switch if all are for switches."""
        return self.cages * self.cage // self.up_lanes

    def lanes_below(self, down: int) -> int:
        """Return the lanes before the first port for switches: whole cages, if both kinds of ports have different lanes."""
        step = self.cage if self.lanes != self.up_lanes else 1
        return -(-down * self.lanes // step) * step

    def up_for(self, down: int, ratio: float) -> int:
        """Return the fewest links up for so many ports for nodes."""
        return max(1, math.ceil(down * self.speed / (ratio * self.up_speed) - _ROUNDING))

    def largest_down(self, ratio: float) -> int:
        """Return the most ports for nodes that leave enough for the links up; 0 where there are none."""
        whole = self.cages if self.lanes != self.up_lanes else self.every
        step = self.cage // self.lanes if self.lanes != self.up_lanes else 1
        for taken in range(whole - 1, 0, -1):
            down = taken * step
            up = self.up_for(down, ratio)
            if self.lanes == self.up_lanes:
                fits = down + up <= self.every
            else:
                fits = taken + -(-up * self.up_lanes // self.cage) <= self.cages
            if fits:
                power = 1 << (down.bit_length() - 1)
                return power if down - power <= down * _SPARED else down
        return 0


# Settings of sizes that `leaves` and `spines` alone do not state.
_OTHERS = ("tiers", "node_ports", "leaf_rails", "cores", "core_uplinks", "grow_to", "uplink_speed")


def are_counted(fabric: Fabric) -> bool:
    """Return whether the document states the sizes of two tiers: leaves for each rail, and spines; the lower half of a leaf's ports is
    for nodes. headway derives all other sizes."""
    switches = fabric.switches
    if switches is None or fabric.pods > 1 or fabric.shape not in (None, "rail-optimized"):
        return False
    is_stated = switches.leaves is not None and switches.spines is not None
    return is_stated and all(getattr(switches, key) is None for key in _OTHERS)


def rails_of(fabric: Fabric, groups: Sequence[NodeGroup]) -> int:
    """Return the rails of the fabric: its setting, else the number of a node's adapters on it; 0 when none has one."""
    return fabric.rails or max((len(adapters_on(nodes, fabric)) for nodes in groups), default=0)


def nodes_on(fabric: Fabric, groups: Sequence[NodeGroup]) -> int:
    """Return the nodes with an adapter on the fabric."""
    return sum(nodes.count for nodes in groups if adapters_on(nodes, fabric))


def ports_of(switches: Switches, speed: int | None = None) -> int:
    """Return the ports of a switch: those that are set, else all of the model with so many lanes."""
    model = models().get(switches.model or "")
    if switches.ports is not None or model is None:
        return switches.ports or _PORTS
    return max(2, model.ports * model.lanes // lanes_of(switches, speed))


def lanes_of(switches: Switches, speed: int | None = None) -> int:
    """Return the lanes of a port to a node: those that are set, else the fewest of the model that carry the speed."""
    if switches.lanes is not None:
        return switches.lanes
    return _fewest_lanes(switches.model, speed or switches.speed or _SPEED)


def _fewest_lanes(model_name: str | None, speed: int) -> int:
    model = models().get(model_name or "")
    if model is None:
        return _LANES
    per_lane = model.gbps * GBPS // model.lanes
    return next((lanes for lanes in (1, 2, 4) if lanes < model.lanes and speed <= lanes * per_lane), model.lanes)


def speed_of(fabric: Fabric, groups: Sequence[NodeGroup]) -> int:
    """Return the speed of a link to a node in bit/s: the setting, else the adapters' if headway derives the sizes, else 400 Gb/s."""
    switches = fabric.switches
    if switches is None or switches.speed is not None or are_counted(fabric):
        return (switches.speed if switches else None) or _SPEED
    found = [nodes.nic_speed or _catalogued(nodes.nic, fabric.transport) for nodes in groups if adapters_on(nodes, fabric)]
    return max(found, default=0) or _SPEED


def _catalogued(nic: str | None, transport: str) -> int:
    model = nics().get(nic or "")
    return 0 if model is None else model.gbps.get(transport, 0) * GBPS


def ports_and_speeds(fabric: Fabric, groups: Sequence[NodeGroup]) -> LeafPorts:
    """Return the ports of the leaves of a fabric with switches."""
    switches = fabric.switches
    assert switches is not None  # noqa: S101 (for mypy: the caller asks for switched fabrics only)
    model, speed = models().get(switches.model or ""), speed_of(fabric, groups)
    if switches.uplink_speed is not None:
        return _leaf_ports(switches, speed, switches.uplink_speed)
    if switches.speed is not None or are_counted(fabric) or model is None:
        return _leaf_ports(switches, speed, speed)
    fastest = _leaf_ports(switches, speed, model.gbps * GBPS)
    found = fastest
    while found.up_speed > speed and not _is_flat(fabric, groups, found):
        half = found.up_speed // 2
        found = _leaf_ports(switches, speed, half if half >= speed else speed)
    return found if _is_flat(fabric, groups, found) else fastest


def _is_flat(fabric: Fabric, groups: Sequence[NodeGroup], ports: LeafPorts) -> bool:
    """Return whether two tiers of such ports are enough."""
    assert fabric.switches is not None  # noqa: S101 (for mypy: the caller asks for switched fabrics only)
    try:
        rails = rails_of(fabric, groups) or 1
        return _Derivation(fabric, fabric.switches, rails, nodes_on(fabric, groups), ports).sizes().tiers <= _FEW_TIERS
    except SizeError:
        return False


def _leaf_ports(switches: Switches, speed: int, up_speed: int) -> LeafPorts:
    model, lanes = models().get(switches.model or ""), lanes_of(switches, speed)
    up_lanes = lanes if up_speed == speed else _fewest_lanes(switches.model, up_speed)
    cage = max(lanes, up_lanes) if model is None else max(model.lanes * (model.ports // (model.cages or model.ports)), lanes)
    return LeafPorts(speed, lanes, up_speed, up_lanes, max(1, ports_of(switches, speed) * lanes // cage), cage)


def sizes_of(fabric: Fabric, groups: Sequence[NodeGroup]) -> Sizes:
    """Return the sizes of a fabric with switches, as they are set or follow. Raises SizeError if no fabric has them."""
    switches = fabric.switches
    assert switches is not None  # noqa: S101 (for mypy: the caller asks for switched fabrics only)
    rails = rails_of(fabric, groups) or 1
    if are_counted(fabric):
        return _counted(fabric, switches, rails)
    return _Derivation(fabric, switches, rails, nodes_on(fabric, groups), ports_and_speeds(fabric, groups)).sizes()


def _counted(fabric: Fabric, switches: Switches, rails: int) -> Sizes:
    """Return the sizes of two tiers with the stated switches; the checks have their limits."""
    leaves, spines, down = switches.leaves or 1, switches.spines or 1, ports_of(switches) // 2
    return Sizes(
        tiers=2,
        rails=rails,
        planes=fabric.planes,
        leaf_rails=1,
        width=rails,
        down=down,
        unit=down,
        leaves=leaves,
        uplinks=switches.uplinks or 1,
        spines=spines,
        pod_units=max(1, -(-leaves // rails)),
        pod_spines=spines,
        spine_down=switches.spine_ports or ports_of(switches),
        most_leaves=leaves,
        most_spines=spines,
    )


class _Derivation(Struct, frozen=True):
    fabric: Fabric
    switches: Switches
    rails: int
    nodes: int
    ports: LeafPorts

    def sizes(self) -> Sizes:
        """Return one tier if it carries all nodes, else two, else three."""
        self._check_stated()
        if self._fits_one_tier():
            return self._one_tier()
        ratio = self.fabric.oversubscription.leaf
        down = self.switches.node_ports or self.ports.largest_down(ratio)
        up = self.ports.up_for(down, ratio) if down else 0
        up = self._stated_up(down, up)
        leaf_rails = self._leaf_rails(down)
        unit = down // leaf_rails
        if unit < 1:
            message = f"a leaf has {down} ports for nodes, and {leaf_rails} rails of a node share one"
            raise SizeError("leaf_rails", message, "use a model with more ports, or let fewer rails share a leaf")
        width = _width(self.rails, self.planes, leaf_rails)
        units = -(-self.most_nodes // unit)
        if self.switches.leaves is not None:
            units = max(units, -(-self.switches.leaves // width))
        lowest = Sizes(
            1, self.rails, self.planes, leaf_rails, width, down, unit, self._leaves(unit, width), most_leaves=units * width
        )
        return self._two_tiers(lowest, units, up) or self._three_tiers(lowest, units, up)

    @property
    def planes(self) -> int:
        """Nothing connects the rails of `rail-only`, so each is a plane."""
        return self.rails if self.fabric.shape == "rail-only" else self.fabric.planes

    @property
    def most_nodes(self) -> int:
        return max(self.nodes, self.switches.grow_to or 0, 1)

    def _check_stated(self) -> None:
        grow_to, shared, whole = self.switches.grow_to, self.switches.leaf_rails, -(-self.rails // self.planes)
        if shared is not None and shared > whole:
            message = f"{shared} rails are to share a leaf, and {'the fabric' if self.planes == 1 else 'a plane'} has {whole}"
            raise SizeError("leaf_rails", message, f"use {whole} or fewer, or leave `leaf_rails` out")
        if grow_to is not None and grow_to < self.nodes:
            message = f"{self.nodes} nodes are on the fabric, more than the {grow_to} that it may grow to"
            raise SizeError("grow_to", message, f"use {self.nodes} or more")

    def _fits_one_tier(self) -> bool:
        stated = self.switches
        if stated.tiers is not None:
            return stated.tiers == 1
        if stated.spines or stated.cores or stated.uplinks or self.fabric.pods > 1 or self.fabric.shape == "rail-optimized":
            return False
        rails = stated.leaf_rails or -(-self.rails // self.planes)
        return rails >= -(-self.rails // self.planes) and self.most_nodes * rails <= (stated.node_ports or self.ports.every)

    def _one_tier(self) -> Sizes:
        """Return a switch for each plane, that no other is connected to."""
        shared, down = -(-self.rails // self.planes), self.switches.node_ports or self.ports.every
        unit = down // shared
        if unit < self.most_nodes:
            message = f"{self.most_nodes} nodes with {shared} adapters each need more than the {down} ports of one switch"
            raise SizeError("tiers", message, "use `tiers: 2`, or leave `tiers` out")
        width = _width(self.rails, self.planes, shared)
        above = [name for name in ("spines", "uplinks", "cores") if getattr(self.switches, name)]
        above += ["leaves"] if (self.switches.leaves or 0) > width else []
        if above:
            named = " and ".join(f"`{name}`" for name in above)
            message = f"`tiers: 1` is one switch for each plane and nothing above it, which contradicts {named}"
            raise SizeError("tiers", message, f"leave `tiers` out, or for one tier {named}")
        return Sizes(1, self.rails, self.planes, shared, width, down, unit, self._leaves(unit, width), most_leaves=width)

    def _stated_up(self, down: int, up: int) -> int:
        """Return the links up of a leaf that `spines` and `uplinks` state, if both are there."""
        stated = self.switches
        if (
            stated.uplinks is not None
            and stated.spines is not None
            and self.fabric.pods == 1
            and not (stated.tiers == 3 or stated.cores)
        ):
            up = stated.uplinks * (stated.spines // self.planes)
        taken = self.ports.lanes_below(down) + up * self.ports.up_lanes
        if down < 1 or taken > self.ports.cages * self.ports.cage:
            message = f"a leaf does not have ports for {down} links to nodes and {up} to switches"
            raise SizeError("node_ports" if stated.node_ports else "model", message, "use fewer `node_ports`, or leave them out")
        return up

    def _leaf_rails(self, down: int) -> int:
        """Return the rails that share a leaf: all of the plane in `leaf-spine`; else so many that the nodes fill a leaf."""
        whole = -(-self.rails // self.planes)
        if self.switches.leaf_rails is not None:
            return self.switches.leaf_rails
        if self.fabric.shape in _ONE_LEAF:
            return whole
        if self.fabric.shape == "rail-optimized" or self.switches.leaves is not None:
            return 1
        return max((rails for rails in range(1, whole + 1) if whole % rails == 0 and self.most_nodes * rails <= down), default=1)

    def _leaves(self, unit: int, width: int) -> int:
        needed, stated = -(-max(1, self.nodes) // unit) * width, self.switches.leaves
        if stated is not None and (stated < needed or stated % width):
            message = (
                f"{stated} leaves are too few"
                if stated < needed
                else f"{stated} leaves are not a multiple of the {width} of a unit"
            )
            hint = f"the nodes need {needed}: {width} for every {unit} nodes; or leave `leaves` out"
            raise SizeError("leaves", message, hint)
        return stated or needed

    @property
    def _spine_ports(self) -> int:
        return self.switches.spine_ports or self.ports.every_up

    def _two_tiers(self, lowest: Sizes, units: int, up: int) -> Sizes | None:
        """Return the sizes with spines above all leaves; None where three tiers are stated or needed."""
        stated, of_plane = self.switches, -(-lowest.width // self.planes)
        if self.fabric.pods > 1 or stated.cores or stated.tiers == 3:
            return None
        found = self._stated_pair(units * of_plane, up, self._spine_ports) or _fan(units * of_plane, up, self._spine_ports)
        if found is None:
            if stated.tiers == 2 or stated.spines is not None:
                message = (
                    f"{units * of_plane} leaves{self._of_a_plane} with {up} links up each do not fit two tiers of these switches"
                )
                raise SizeError(
                    "tiers" if stated.tiers else "spines", message, "use three tiers, more planes or spines with more ports"
                )
            return None
        count, uplinks = found
        return replace(
            lowest,
            tiers=2,
            uplinks=uplinks,
            spines=count * self.planes,
            pod_units=units,
            pod_spines=count * self.planes,
            spine_down=self._spine_ports,
            most_spines=count * self.planes,
        )

    def _stated_pair(self, lower: int, up: int, ports: int) -> tuple[int, int] | None:
        """Return the spines of a plane and the links per pair that are stated; the one that is not follows from the other."""
        stated = self.switches
        if stated.spines is None and stated.uplinks is None:
            return None
        if stated.spines is not None and stated.spines % self.planes:
            message = f"{stated.spines} spines are not a multiple of the {self.planes} planes"
            raise SizeError("spines", message, f"use a multiple of {self.planes}, or leave `spines` out")
        count = stated.spines // self.planes if stated.spines is not None else up // (stated.uplinks or 1)
        uplinks = stated.uplinks or (up // count if count else 0)
        key = "uplinks" if stated.spines is None else "spines"
        if not count or not uplinks or lower * uplinks > ports:
            message = (
                f"{count} spines{self._of_a_plane} with {uplinks} links to each of {lower} leaves do not fit "
                f"{up} links up and {ports} ports"
            )
            raise SizeError(key, message, f"leave `{key}` out: it follows from the nodes and the model")
        return count, uplinks

    def _three_tiers(self, lowest: Sizes, units: int, up: int) -> Sizes:
        """Return the sizes with cores above pods of units, or above pods of rails where these have fewer switches."""
        of_rails = self._pods_of_rails(lowest, units, up)
        try:
            of_units = self._pods_of_units(lowest, units, up)
        except SizeError:
            if of_rails is None or self._contradiction(of_rails) is not None:
                raise
            return of_rails
        found = [of_units] if of_rails is None else [of_units, of_rails]
        agreed = [sizes for sizes in found if self._contradiction(sizes) is None]
        if not agreed:
            key = self._contradiction(of_units) or "cores"
            given, wanted = getattr(self.switches, key), getattr(of_units, key)
            if self.switches.tiers == 2 and key == "cores":
                message = f"{given} cores form a third tier, but `tiers` is 2"
                raise SizeError(key, message, "leave `cores` out, or write `tiers: 3`")
            raise SizeError(key, f"{given} {key} do not connect these pods", f"use {wanted}, or leave `{key}` out")
        return min(agreed, key=lambda sizes: sizes.most_spines + sizes.cores)

    def _contradiction(self, sizes: Sizes) -> str | None:
        """Return a stated number that the sizes do not have."""
        return next((key for key in ("spines", "cores") if getattr(self.switches, key) not in (None, getattr(sizes, key))), None)

    @property
    def _spine_room(self) -> int:
        """The ports of a pod's spine for leaves."""
        ratio = self.fabric.oversubscription.spine
        return int(self._spine_ports * ratio / (1 + ratio) + _ROUNDING)

    def _spine_up(self, spine_down: int) -> int:
        return max(1, math.ceil(spine_down / self.fabric.oversubscription.spine - _ROUNDING))

    def _pods_of_rails(self, lowest: Sizes, units: int, up: int) -> Sizes | None:
        """Return the sizes with a pod for each rail, in which cores are for traffic between rails alone; None where rails share leaves or
        planes, where pods are stated, and where a spine does not have ports for all units."""
        stated, rails, room = self.switches, lowest.width, self._spine_room
        if (
            rails < _FEW_RAILS
            or rails != lowest.rails
            or self.planes > 1
            or self.fabric.pods > 1
            or self.fabric.shape in _ONE_LEAF
        ):
            return None
        found = _fan(units, up, room)
        if stated.uplinks is not None:
            found = (up // stated.uplinks, stated.uplinks) if units * stated.uplinks <= room and up >= stated.uplinks else None
        if found is None:
            return None
        count, uplinks = found
        spine_down = units * uplinks
        shared = _shared_fan(rails, count, self._spine_up(spine_down), self.ports.every_up, stated.core_uplinks)
        if shared is None:
            return None
        share, group, core_uplinks = shared
        return replace(
            lowest,
            tiers=3,
            uplinks=uplinks,
            spines=rails * count,
            pod_units=units,
            pod_spines=count,
            spine_down=spine_down,
            pods=rails,
            core_uplinks=core_uplinks,
            core_group=group,
            cores=count // share * group,
            most_spines=rails * count,
            most_pods=rails,
            core_share=share,
            has_rail_pods=True,
        )

    def _pods_of_units(self, lowest: Sizes, units: int, up: int) -> Sizes:
        stated, of_plane, ports = self.switches, -(-lowest.width // self.planes), self._spine_ports
        room = self._spine_room
        pod_units = -(-units // self.fabric.pods) if self.fabric.pods > 1 else min(units, room // of_plane)
        found = None
        if pod_units and stated.uplinks is not None:
            found = (up // stated.uplinks, stated.uplinks) if pod_units * of_plane * stated.uplinks <= room else None
        elif pod_units:
            found = _fan(pod_units * of_plane, up, room)
        if found is None:
            leaves = f"{max(1, pod_units) * of_plane} leaves{self._of_a_plane}"
            message = f"a pod of {leaves} with {up} links up each does not fit spines of {ports} ports"
            hint = "use more `pods` or `planes`, fewer uplinks, a model with more ports, or `spine_ports` of a chassis"
            raise SizeError("model", message, hint)
        count, uplinks = found
        spine_down = pod_units * of_plane * uplinks
        spine_up = self._spine_up(spine_down)
        most_pods = -(-units // pod_units)
        group = _fan(most_pods, spine_up, self.ports.every_up)
        if stated.core_uplinks is not None and most_pods * stated.core_uplinks <= self.ports.every_up:
            group = (spine_up // stated.core_uplinks, stated.core_uplinks) if spine_up >= stated.core_uplinks else group
        if group is None:
            message = (
                f"{most_pods} pods are more than the {self.ports.every_up} ports of a core, so these switches need a fourth tier"
            )
            raise SizeError("model", message, "use more `planes`, or a model with more ports")
        pods = -(-(lowest.leaves // lowest.width) // pod_units)
        pod_spines = count * self.planes
        return replace(
            lowest,
            tiers=3,
            uplinks=uplinks,
            spines=pods * pod_spines,
            pod_units=pod_units,
            pod_spines=pod_spines,
            spine_down=spine_down,
            pods=pods,
            core_uplinks=group[1],
            core_group=group[0],
            cores=pod_spines * group[0],
            most_spines=most_pods * pod_spines,
            most_pods=most_pods,
        )

    @property
    def _of_a_plane(self) -> str:
        return "" if self.planes == 1 else " of a plane"


def _width(rails: int, planes: int, leaf_rails: int) -> int:
    """Return the leaves of a unit."""
    return 1 + max(rail // planes // leaf_rails * planes + rail % planes for rail in range(rails))


def _fan(lower: int, up: int, ports: int) -> tuple[int, int] | None:
    """Return the fewest upper switches that give each of the `lower` ones the same number of its `up` links, and this number; None
    where even one link to each does not fit their `ports`."""
    for count in range(max(1, -(-lower * up // ports)), up + 1):
        if up % count == 0 and lower * (up // count) <= ports:
            return count, up // count
    return None


def _shared_fan(pods: int, spines: int, up: int, ports: int, links: int | None) -> tuple[int, int, int] | None:
    """Return, for the fewest cores: how many spines of each pod share a group of cores, the cores of a group, and the links between a spine
    and each of them, if `links` does not state these; None where the `ports` of a core are too few for one spine of each pod."""
    found = [
        (spines // share * (up // each), share, up // each, each)
        for share in range(1, spines + 1)
        for each in ([links] if links is not None else range(1, up + 1))
        if spines % share == 0 and up % each == 0 and pods * share * each <= ports
    ]
    return min(found)[1:] if found else None
