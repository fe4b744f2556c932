"""Compares the cables that devices report with those of a plan: wrong, swapped, missing and extra ones, each once."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from msgspec import Struct, field

from headway.jobspec.plan import ClusterPlan
from headway.templates.cabling.read import SeenCable, SeenCables, SeenEnd

# A port for data, as operating systems and InfiniBand name it; `eth0` is for management.
_PORT = re.compile(r"(Ethernet|swp)?[0-9]+(/[0-9]+|s[0-9]+)?")

End = tuple[str, str]
Cable = frozenset[End]


class Miscabling(Struct, frozen=True):
    """A difference. `what`: `wrong`, `swapped`, `missing` or `extra`; `ends` are those of the cables concerned."""

    what: str
    message: str
    ends: frozenset[End]


class PlannedCables(Struct, frozen=True, dict=True):
    """The planned cables. `adapters` has the node and adapter of each hardware address that an inventory has."""

    cluster: ClusterPlan
    adapters: Mapping[str, End] = field(default_factory=dict)

    @cached_property
    def far(self) -> Mapping[End, End]:
        """The other end of each end."""
        found: dict[End, End] = {}
        for link in self.cluster.links:
            found[link.a, link.a_port] = (link.b, link.b_port)
            found[link.b, link.b_port] = (link.a, link.a_port)
        return found

    @cached_property
    def coming(self) -> Mapping[End, End]:
        """The other end of each port for a device that does not exist yet, and back."""
        there, found = self.cluster.devices, dict[End, End]()
        for switch in self.cluster.switches:
            for port in switch.ports:
                if port.peer not in there:
                    found[switch.name, port.name] = (port.peer, port.peer_port)
                    found[port.peer, port.peer_port] = (switch.name, port.name)
        return found

    @cached_property
    def cables(self) -> frozenset[Cable]:
        """All of them."""
        return frozenset(frozenset({(link.a, link.a_port), (link.b, link.b_port)}) for link in self.cluster.links)

    @cached_property
    def devices(self) -> Mapping[str, str]:
        """The planned devices by their names, and nodes by their SSH address too."""
        names = {switch.name: switch.name for switch in self.cluster.switches} | {
            node.name: node.name for node in self.cluster.nodes
        }
        names |= {device: device for device, _ in self.coming}
        return names | {node.host: node.name for node in self.cluster.nodes if node.host}

    @cached_property
    def interfaces(self) -> Mapping[End, End]:
        """The adapter of each network interface that the cluster file has, by node and interface."""
        of_group = {group.name: group.interfaces or () for group in self.cluster.groups}
        return {
            (node.name, each.interface): (node.name, each.nic) for node in self.cluster.nodes for each in of_group[node.group]
        }

    def end_of(self, seen: SeenEnd) -> End:
        """Return the planned end that a device means: its name may have a domain, and its port several names."""
        for port in seen.ports:
            if port.lower() in self.adapters:
                return self.adapters[port.lower()]
        device = self.devices.get(seen.device) or self.devices.get(seen.device.partition(".")[0], seen.device)
        named = next((self.interfaces[device, port] for port in seen.ports if (device, port) in self.interfaces), None)
        if named is not None:
            return named
        known = next((port for port in seen.ports if (device, port) in self.far or (device, port) in self.coming), None)
        return device, known or next(iter(seen.ports), "?")

    def planned(self, end: End) -> End | None:
        """Return the other end of an end, whether its device exists or is to come."""
        return self.far.get(end) or self.coming.get(end)

    def seen(self, reported: SeenCable) -> Cable:
        """Return the cable by its planned ends. A node whose adapters LLDP names otherwise, as network interfaces do, counts as
        connected by the planned one: its name alone is known."""
        own, far = self.end_of(reported.own), self.end_of(reported.far)
        planned = self.planned(own)
        if planned is not None and not self.planned(far) and far[0] == planned[0] and far[0] not in self.cluster.switch_roles:
            far = planned
        return frozenset({own, far})


def miscablings(cabling: PlannedCables, reports: Iterable[SeenCables]) -> Iterator[Miscabling]:
    """Yield each cable that differs from the plan, as far as the reports cover it."""
    reports = tuple(reports)
    covered = {cabling.devices.get(device, device) for report in reports for device in report.devices}
    seen = {cabling.seen(cable) for report in reports for cable in report.cables if _concerns(cabling, cable)}
    stray = sorted((cable for cable in seen - cabling.cables if len(cable) > 1 and not _has_come(cabling, cable)), key=sorted)
    explained: set[End] = set()
    for pair in _swapped(cabling, stray):
        explained |= pair.ends
        yield pair
    for cable in stray:
        if not cable <= explained:
            yield _wrong(cabling, cable)
            explained |= cable
    for cable in sorted(cabling.cables - seen, key=sorted):
        if any(device in covered for device, _ in cable) and not any(end in explained for end in cable):
            a, b = sorted(cable)
            yield Miscabling("missing", f"no cable between {_name(a)} and {_name(b)}, or its link is down", cable)


def _has_come(cabling: PlannedCables, cable: Cable) -> bool:
    """Whether the cable is that of a device to come, which is in its place before the cluster file has it."""
    a, b = cable
    return cabling.coming.get(a) == b


def _concerns(cabling: PlannedCables, cable: SeenCable) -> bool:
    """Whether one end is an adapter with a planned cable or a port of a planned switch; management ports and other fabrics are not
    judged."""
    ends = (cabling.end_of(cable.own), cabling.end_of(cable.far))
    roles = cabling.cluster.switch_roles
    return any(end in cabling.far or (end[0] in roles and _PORT.fullmatch(end[1]) is not None) for end in ends)


def _swapped(cabling: PlannedCables, stray: Iterable[Cable]) -> Iterator[Miscabling]:
    """Yield pairs of cables of which each has the other's end: one exchange puts both right."""
    left = {end: cable for cable in stray for end in cable}
    done: set[Cable] = set()
    for cable in stray:
        a, b = sorted(cable)
        far = cabling.planned(a)
        if cable in done or far is None or not cabling.planned(b):
            continue
        other = left.get(far)
        if other is None or other == cable or other in done or len(other) != 2:
            continue
        (third,) = other - {far}
        if cabling.planned(third) == b:
            done |= {cable, other}
            one, two = _name(far), _name(b)
            message = f"the cables in {one} and {two} are swapped: {_name(a)} belongs to {one}, {_name(third)} to {two}"
            yield Miscabling("swapped", message, cable | other)


def _wrong(cabling: PlannedCables, cable: Cable) -> Miscabling:
    a, b = sorted(cable, key=lambda end: (end not in cabling.far, end not in cabling.coming, end))
    planned = cabling.planned(a)
    if planned is None:
        return Miscabling("extra", f"a cable between {_name(a)} and {_name(b)}, which the plan does not have", cable)
    message = f"the cable in {_name(a)} leads to {_name(b)}, not to {_name(planned)}"
    return Miscabling("wrong", message, cable)


def _name(end: End) -> str:
    return f"`{end[1]}` of `{end[0]}`"
