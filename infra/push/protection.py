"""Decides in which order switches are changed, and which change would reach a node with a running job. Pure."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.jobspec.resolve.links import RANKS
from headway.templates.natural import natural
from headway.templates.switches.frr.touch import Touch


class NodesInUse(Struct, frozen=True):
    """The jobs that run on each node, by the plan's name of the node, as a person would name them. `unknown` are nodes that the scheduler
    does not have; `everywhere` are all running jobs."""

    jobs: Mapping[str, tuple[str, ...]]
    unknown: frozenset[str] = frozenset()
    everywhere: tuple[str, ...] = ()

    def of(self, node: str) -> tuple[str, ...]:
        """Return the jobs that may use the node: of one that the scheduler does not have, such as a file server, all that run."""
        return self.everywhere if node in self.unknown else self.jobs.get(node, ())


NONE_IN_USE = NodesInUse({})


class Protected(Struct, frozen=True):
    """A changed line that reaches a node with a running job: by this port, or by all of the switch (None)."""

    switch: str
    line: str
    port: str | None
    node: str
    job: str

    def __str__(self) -> str:
        way = "all links of the switch" if self.port is None else f"port {self.port}"
        return f"{self.switch}: `{self.line}` touches {way}, and so {self.node} with job {self.job}"


class FabricTree:
    """The devices of a cluster's fabrics by their names: which are above and below each."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.switches = {switch.name: switch for switch in plan.switches}
        self._nodes = {node.name for node in plan.nodes}
        self._below: dict[str, frozenset[str]] = {}

    def order(self, names: Collection[str]) -> list[SwitchPlan]:
        """Return the switches in the order in which they are changed, one at a time.

        Upper tiers come first, since other switches carry the traffic of each of theirs. Two switches in a row have as few lower neighbours
        in common as possible: planes and groups of cores alternate.
        """
        chosen = sorted(
            (self.switches[name] for name in names), key=lambda each: (each.fabric, -RANKS[each.role], natural(each.name))
        )
        return [
            each for _, tier in groupby(chosen, key=lambda each: (each.fabric, each.role)) for each in self._apart(list(tier))
        ]

    def _apart(self, tier: Sequence[SwitchPlan]) -> Iterator[SwitchPlan]:
        left = deque(tier)
        last: frozenset[str] = frozenset()
        while left:
            best = min(left, key=lambda each: len(last & self.lower(each.name)))
            left.remove(best)
            yield best
            last = self.lower(best.name)

    def lower(self, name: str) -> frozenset[str]:
        """Return the existing switches and nodes that a switch has a cable to, of the tier below it."""
        switch = self.switches[name]
        return frozenset(port.peer for port in switch.ports if self._is_lower(port.peer, switch))

    def upper(self, name: str) -> frozenset[str]:
        """Return the existing switches that a switch has a cable to, of the tier above it."""
        switch = self.switches[name]
        return frozenset(
            port.peer for port in switch.ports if port.peer in self.switches and not self._is_lower(port.peer, switch)
        )

    def _is_lower(self, peer: str, switch: SwitchPlan) -> bool:
        if peer in self._nodes:
            return True
        other = self.switches.get(peer)
        return other is not None and RANKS[other.role] < RANKS[switch.role]

    def nodes_below(self, name: str) -> frozenset[str]:
        """Return the nodes that a device is connected to downwards; of a node itself."""
        if name in self._nodes:
            return frozenset({name})
        if name not in self._below:
            self._below[name] = frozenset(node for each in self.lower(name) for node in self.nodes_below(each))
        return self._below[name]

    def reached(self, switch: str, port: str | None) -> frozenset[str]:
        """Return the nodes whose traffic a port carries: those below its lower end. None, and a port that the plan does not have, stand for
        the whole switch."""
        found = next((each for each in self.switches[switch].ports if each.name == port), None)
        if found is None:
            return self.nodes_below(switch)
        if found.peer in self._nodes or self._is_lower(found.peer, self.switches[switch]):
            return self.nodes_below(found.peer)
        # Of a device to come there is nothing to interrupt.
        return self.nodes_below(switch) if found.peer in self.switches else frozenset()

    def partners(self, names: Iterable[str]) -> list[str]:
        """Return the switches that carry the traffic of the lower neighbours of these while they are changed."""
        chosen = set(names)
        lower = {each for name in chosen for each in self.lower(name) if each in self.switches}
        return sorted({each for name in lower for each in self.upper(name)} - chosen, key=natural)


def protected(tree: FabricTree, switch: str, touches: Iterable[Touch], in_use: NodesInUse) -> list[Protected]:
    """Return each changed line with a node and job that it reaches: one node for each port."""
    found: dict[tuple[str | None, str], Protected] = {}
    for touch in touches:
        for port in (None,) if touch.ports is None else sorted(touch.ports, key=natural):
            for node in sorted(tree.reached(switch, port), key=natural):
                for job in in_use.of(node)[:1]:
                    found.setdefault((port, node), Protected(switch, str(touch.line).strip(), port, node, job))
    return list(found.values())


def cut_off(tree: FabricTree, switch: str, touches: Sequence[Touch], established: Mapping[str, Collection[str]]) -> list[str]:
    """Return the switches below that would lose their last path if the touched sessions failed.

    `established` has the neighbors with a session of each switch that was read; a switch that was not read counts as down.
    """
    if all(touch.is_harmless for touch in touches):
        return []
    whole = any(touch.ports is None for touch in touches)
    ports = frozenset(port for touch in touches for port in touch.ports or ())
    here = tree.switches[switch]
    below = {
        port.peer
        for port in here.ports
        if port.peer in tree.lower(switch)
        and port.peer in tree.switches
        and (whole or port.name in ports)
        and port.name in established.get(switch, ())
    }
    return sorted((each for each in below if not _has_another_path(tree, each, switch, established)), key=natural)


def _has_another_path(tree: FabricTree, lower: str, avoided: str, established: Mapping[str, Collection[str]]) -> bool:
    others = tree.upper(lower) - {avoided}
    # With one switch above there is nothing that could stand in.
    return not others or any(
        port.peer == lower and port.name in established.get(other, ()) for other in others for port in tree.switches[other].ports
    )
