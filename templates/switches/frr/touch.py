"""Derives from FRR's configuration which links of a switch a changed line may interrupt.

In: an `FrrChange`, both configurations and the switch's plan. Out: a `Touch` for each changed line.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from ipaddress import ip_address, ip_interface, ip_network

from msgspec import Struct

from headway.jobspec.plan import PortPlan, SwitchPlan
from headway.templates.switches.frr.change import FrrChange, FrrLine, normal_lines
from headway.templates.switches.frr.check import judge

_INTERFACE = re.compile(r"interface (\S+)(?: vrf \S+)?")
_NEIGHBOR = re.compile(r"(?:no )?neighbor (\S+) (.+)")
_MEMBER = re.compile(r"neighbor (\S+) (?:interface )?peer-group (\S+)")
_NETWORK = re.compile(r"(?:no )?network (\S+)")
_BFD_PEER = re.compile(r"peer .*\binterface (\S+).*")
# Lists and maps that other lines name.
_OBJECT = re.compile(
    r"(?:no )?(?:route-map"
    r"|(?:ip |ipv6 )?(?:prefix-list|access-list)"
    r"|bgp (?:as-path access-list|(?:large-|ext)?community-list(?: standard| expanded)?)) (\S+)\b.*"
)
# Commands that begin a block and do nothing by themselves.
_HEADER = re.compile(r"interface .*|bfd|address-family .*")
_HARMLESS = re.compile(r"(no )?(description|bgp log-neighbor-changes)\b.*")
# What FRR sets on an interface for the session of an unnumbered neighbor.
_DISCOVERY = re.compile(r"(no )?ipv6 nd (suppress-ra|ra-interval)\b.*")
# The instances of BGP.
_BGP = "router bgp "


class Touch(Struct, frozen=True):
    """A changed line, and the ports whose link or session it may interrupt: None where it may interrupt all of the switch."""

    line: FrrLine
    ports: frozenset[str] | None

    @property
    def is_harmless(self) -> bool:
        """Whether nothing is interrupted."""
        return self.ports is not None and not self.ports


NOTHING: frozenset[str] = frozenset()


def touches(
    change: FrrChange, running: str, wanted: str, switch: SwitchPlan, established: Collection[str] = NOTHING
) -> list[Touch]:
    """Return what each changed line touches. `established` are the neighbors whose BGP session is up: another one's lines can be removed
    without interrupting anything."""
    view = _View(switch, (*normal_lines(running), *normal_lines(wanted)), frozenset(established))
    removed = [Touch(line, NOTHING if view.is_down(line) else view.touched(line)) for line in change.removed]
    return removed + [Touch(line, view.touched(line)) for line in change.added]


class _View(Struct, frozen=True, dict=True):
    """The switch's plan, the lines of both configurations, and the neighbors whose session is up."""

    switch: SwitchPlan
    lines: tuple[FrrLine, ...]
    established: frozenset[str]

    @cached_property
    def ports(self) -> Mapping[str, PortPlan]:
        return {port.name: port for port in self.switch.ports}

    @cached_property
    def members(self) -> Mapping[str, frozenset[str]]:
        """The neighbors of each peer group."""
        found: dict[str, set[str]] = {}
        for line in self.lines:
            if match := _MEMBER.fullmatch(line.words):
                found.setdefault(match[2], set()).add(match[1])
        return {group: frozenset(names) for group, names in found.items()}

    @cached_property
    def groups(self) -> frozenset[str]:
        """The names of peer groups, with and without members."""
        return frozenset(
            words[1] for line in self.lines if (words := line.words.split())[2:] == ["peer-group"] and words[0] == "neighbor"
        )

    def is_down(self, line: FrrLine) -> bool:
        """Whether the line is about a neighbor without a session, or how it is found."""
        if neighbor := _NEIGHBOR.fullmatch(line.words):
            return neighbor[1] not in self.groups and neighbor[1] not in self.established
        interface = _INTERFACE.fullmatch(line.blocks[0]) if line.blocks else None
        return interface is not None and _DISCOVERY.fullmatch(line.words) is not None and interface[1] not in self.established

    def touched(self, line: FrrLine) -> frozenset[str] | None:
        """The ports that the line may interrupt; None for all of the switch."""
        if judge("|".join(line.place)) is None or _HARMLESS.fullmatch(line.words) or _HEADER.fullmatch(line.words):
            return NOTHING
        outer = line.blocks[0] if line.blocks else line.words
        if interface := _INTERFACE.fullmatch(outer):
            return None if interface[1] == "lo" else frozenset({interface[1]})
        if named := _OBJECT.fullmatch(outer):
            return self._of_users(named[1], frozenset())
        if outer == "bfd":
            return frozenset(peer[1] for words in line.place if (peer := _BFD_PEER.fullmatch(words))) or None
        return self._of_bgp(line) if outer.startswith(_BGP) and line.blocks else None

    def _of_bgp(self, line: FrrLine) -> frozenset[str] | None:
        if neighbor := _NEIGHBOR.fullmatch(line.words):
            return NOTHING if neighbor[2].startswith("description") else self._of_neighbor(neighbor[1])
        if network := _NETWORK.match(line.words):
            return self._with_network(network[1])
        return None

    def _of_neighbor(self, name: str) -> frozenset[str] | None:
        """The ports of a neighbor: an interface, an address, or all members of a group."""
        if name in self.groups:
            return _union(self._of_neighbor(member) for member in self.members.get(name, NOTHING))
        if name in self.ports:
            return frozenset({name})
        return self._at(name)

    def _at(self, address: str) -> frozenset[str] | None:
        try:
            found = ip_address(address)
        except ValueError:
            return None
        return self._only(
            port.name for port in self.ports.values() if port.address and found in ip_interface(port.address).network
        )

    def _with_network(self, written: str) -> frozenset[str] | None:
        try:
            network = ip_network(written, strict=False)
        except ValueError:
            return None
        ports = self.ports.values()
        return self._only(port.name for port in ports if port.address and ip_interface(port.address).network == network)

    @staticmethod
    def _only(names: Iterator[str]) -> frozenset[str] | None:
        return frozenset(names) or None

    def _of_users(self, name: str, known: frozenset[str]) -> frozenset[str] | None:
        """The ports whose sessions use a list or a map, also through other ones; none where no line names it."""
        if name in known:
            return NOTHING
        return _union(self._of_user(line, name, known | {name}) for line in self.lines if name in line.words.split()[1:])

    def _of_user(self, line: FrrLine, name: str, known: frozenset[str]) -> frozenset[str] | None:
        own = _OBJECT.fullmatch(line.blocks[0] if line.blocks else line.words)
        if own is not None:
            return NOTHING if own[1] == name else self._of_users(own[1], known)
        return self.touched(line)


def _union(parts: Iterator[frozenset[str] | None]) -> frozenset[str] | None:
    """All ports of the parts; None if one of them is all of the switch."""
    found = NOTHING
    for part in parts:
        if part is None:
            return None
        found |= part
    return found
