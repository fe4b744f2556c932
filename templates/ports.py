"""Names ports as a switch's operating system does: the plan has SONiC's names, which count the lanes of the whole switch."""

import re
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.catalog.switches import switches as models
from headway.jobspec.plan import ClusterPlan, PortPlan, SwitchPlan

# Of a model that the catalogue does not have: OSFP and QSFP-DD.
_USUAL_CAGE_LANES = 8


class PortPlace(Struct, frozen=True):
    """Where a port is: in a cage counted from 1, which is split into `parts` ports; it is the `part`-th and begins at `lane`, both
    counted from 0."""

    cage: int
    part: int
    parts: int
    lane: int


PortName = Callable[[PortPlace], str]


def cage_lanes(cluster: ClusterPlan, fabric: str) -> int:
    """Return the lanes of a cage of the fabric's switches: those of an unsplit port."""
    model = models().get(cluster.fabric(fabric).switch_model or "")
    return _USUAL_CAGE_LANES if model is None else model.lanes


def place_of(name: str, lanes: int, of_cage: int) -> PortPlace:
    """Return the place of a port by its name in the plan: `Ethernet260` of 4 lanes is the second part of cage 33."""
    cage, lane = divmod(int(re.sub(r"\D", "", name) or 0), of_cage)
    return PortPlace(cage + 1, lane // lanes, max(1, of_cage // lanes), lane)


def named(switch: SwitchPlan, cluster: ClusterPlan, port_name: PortName) -> SwitchPlan:
    """Return the switch with the system's names for its own ports and for those at the other ends."""
    of_cage, roles = cage_lanes(cluster, switch.fabric), cluster.switch_roles

    def of(name: str, lanes: int) -> str:
        return port_name(place_of(name, lanes, of_cage))

    def renamed(port: PortPlan) -> PortPlan:
        # Both ends of a cable between switches have as many lanes.
        peer_port = of(port.peer_port, port.lanes) if port.peer in roles else port.peer_port
        return replace(port, name=of(port.name, port.lanes), peer_port=peer_port)

    return replace(switch, ports=tuple(map(renamed, switch.ports)))
