"""Tracks the nodes of an attempt: which are present, which were lost, and which slot each computes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headway.runner.contract import Binding, RunConfig, bind
from headway.runner.coordinator.events import Joined


@dataclass
class Member:
    """A node that has joined, or that an earlier coordinator knew. `host` is empty and `domain` None if unknown."""

    host: str
    domain: str | None
    # The newest that its agent has reported.
    generation: int
    # Time of its agent's last message: a node may vanish without ending its connection.
    heard_at: float
    # When its connection ended, or, if it was given up, the time of its last message.
    gone_at: float | None = None
    port: int | None = None
    # Where it listens for the other nodes.
    address: str = ""
    # Of its last rendezvous: a beat that was under way may still name it.
    used_port: int | None = None
    lost: bool = False  # given up; it may come back
    excluded: bool = False  # a suspect: others come first
    # An earlier coordinator knew it, and it has not joined this one.
    presumed: bool = False
    # This coordinator ended the connection, since the node took nothing.
    unanswered: bool = False

    @property
    def connected(self) -> bool:
        return self.gone_at is None

    def listens_at(self, port: int | None) -> None:
        if port != self.used_port:
            self.port = port

    def lends_port(self) -> None:
        """A rendezvous takes the open socket; the agent opens another."""
        self.used_port, self.port = self.port, None


@dataclass(frozen=True)
class Moved:
    """A slot that has another node than before. `outside`: not in the domain of the rest of its segment."""

    slot: int
    before: int | None
    node: int
    outside: bool


@dataclass
class Roster:
    config: RunConfig
    members: dict[int, Member] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)  # slot -> node
    slot_of: dict[int, int] = field(default_factory=dict)  # node -> slot
    # Members without a slot.
    unbound: set[int] = field(default_factory=set)
    # Where the binding differs from slot i on node i.
    moved: list[tuple[int, int]] = field(default_factory=list)
    # Nodes with a slot and without a connection.
    away: set[int] = field(default_factory=set)
    # Nodes with a device that must not compute any more.
    barred: set[int] = field(default_factory=set)
    # Nodes that cannot compute now: no socket opens, or a killed rank does not end.
    unfit: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._domain_of = {host: domain.name for domain in self.config.domains for host in domain.hosts}

    @property
    def least_slots(self) -> int:
        return self.config.slots if self.config.min_slots is None else self.config.min_slots

    @property
    def world_size(self) -> int:
        return len(self.slots) * self.config.procs_per_slot

    def presume(self, slots: Mapping[int, int], hosts: Mapping[int, str], now_s: float) -> None:
        """Presume the binding of an earlier coordinator; `hosts` as far as they are known. Its nodes count as silent since now."""
        for node in slots.values():
            self.members.setdefault(node, Member(hosts.get(node, ""), None, 0, now_s, gone_at=now_s, presumed=True))
        self._set(slots)

    def joined(self, event: Joined, now_s: float) -> None:
        known = self.members.get(event.node)
        domain = event.domain or self._domain_of.get(event.host)
        excluded = known is not None and known.excluded
        self.members[event.node] = Member(
            event.host, domain, event.generation, now_s, port=event.port, address=event.address or event.host, excluded=excluded
        )
        self.away.discard(event.node)
        if event.node not in self.slot_of:
            self.unbound.add(event.node)

    def disconnected(self, node: int, now_s: float, *, unanswered: bool = False) -> None:
        member = self.members.get(node)
        if member is not None and member.gone_at is None:
            member.gone_at, member.unanswered = member.heard_at if unanswered else now_s, unanswered
            if node in self.slot_of:
                self.away.add(node)

    def lose(self, node: int) -> None:
        member = self.members[node]
        member.lost = True
        member.gone_at = member.heard_at if member.gone_at is None else member.gone_at
        if node in self.slot_of:
            self.away.add(node)

    def ranks(self, node: int) -> range:
        """The ranks of the node; none on a spare."""
        if (slot := self.slot_of.get(node)) is None:
            return range(0)
        return range(slot * self.config.procs_per_slot, (slot + 1) * self.config.procs_per_slot)

    def node_of(self, rank: int) -> int:
        return self.slots[rank // self.config.procs_per_slot]

    def host(self, node: int | None) -> str | None:
        member = None if node is None else self.members.get(node)
        return None if member is None else member.host or None

    def spares(self) -> list[int]:
        """Return the connected nodes that could take a slot, in order."""
        usable = {node: self.members[node] for node in self.unbound - self.barred - self.unfit}
        return sorted(node for node, member in usable.items() if member.connected and not member.excluded)

    def states(self) -> dict[str, int]:
        """How many nodes compute, stand by, are not connected, and were given up."""
        found = dict.fromkeys(("computing", "spare", "away", "lost"), 0)
        for node, member in self.members.items():
            there = "computing" if node in self.slot_of else "spare"
            found["lost" if member.lost else there if member.connected else "away"] += 1
        return found

    def is_at_home(self) -> bool:
        """Return whether each slot's own node is present, so that no slot needs to move."""
        own = (self.members.get(node) for node in range(self.config.slots) if node not in self.barred)
        return all(member is not None and member.connected for member in own)

    def can_bind(self) -> bool:
        return self._binding() is not None

    def can_grow(self) -> bool:
        """Whether more slots could have a node than have one."""
        binding = self._binding()
        return binding is not None and len(binding.nodes) > len(self.slots)

    def bind(self) -> list[Moved] | None:
        """Give every slot a node that is not lost, and return the changes. None if too few are left; then nothing has changed."""
        binding = self._binding()
        if binding is None:
            return None
        before = self.slots
        self._set(binding.nodes)
        return [
            Moved(slot, before.get(slot), node, slot in binding.outside)
            for slot, node in binding.nodes.items()
            if before.get(slot) != node
        ]

    def replace(self) -> list[Moved]:
        """Give the slots of lost nodes others, as far as there are some, and return the changes; no other slot moves."""
        before = self.slots
        lost = [slot for slot, node in before.items() if self.members[node].lost]
        self._set({**before, **dict(zip(lost, self.spares(), strict=False))})
        return [Moved(slot, before[slot], node, outside=False) for slot, node in self.slots.items() if before[slot] != node]

    def _binding(self) -> Binding | None:
        """With as many slots as possible; for each number, first without suspects."""
        there = {n: m for n, m in self.members.items() if not m.lost and (m.gone_at is None or n in self.slot_of)}
        useless = self.barred | self.unfit
        usable = {node: member for node, member in there.items() if node not in useless}
        for slots in range(min(self.config.slots, len(usable)), self.least_slots - 1, -1):
            for live in self._candidates(usable):
                required = self.config.segment_required
                segment = self.config.segment_slots if required else self.config.partner_segment
                if (found := bind(slots, live, self.slots, segment, required=required)) is not None:
                    return found
        return None

    def _candidates(self, usable: Mapping[int, Member]) -> Iterator[dict[int, str | None]]:
        trusted = {node: member.domain for node, member in usable.items() if not member.excluded}
        yield trusted
        if len(trusted) < len(usable):
            yield {node: member.domain for node, member in usable.items()}

    def _set(self, slots: Mapping[int, int]) -> None:
        self.slots = dict(slots)
        self.slot_of = {node: slot for slot, node in self.slots.items()}
        self.unbound = self.members.keys() - self.slot_of.keys()
        self.moved = [(slot, node) for slot, node in self.slots.items() if slot != node]
        self.away = {node for node in self.slot_of if not self.members[node].connected}
