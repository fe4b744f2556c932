"""Binds slots to nodes, and slots to the partners that hold copies of their captures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Binding:
    """Slot -> node index, and the slots whose node is outside of the domain of the rest of their segment."""

    nodes: Mapping[int, int]
    outside: tuple[int, ...] = ()


def bind(
    slots: int,
    live: Mapping[int, str | None],
    held: Mapping[int, int] | None = None,
    segment_slots: int = 1,
    *,
    required: bool = False,
) -> Binding | None:
    """Bind every slot to a node of `live` (node index -> its domain, None if unknown). Return None if that is impossible.

    A slot keeps its node in `held` while that node is alive; another gets the lowest free node of its segment's domain, or
    else the lowest free node anywhere, which is listed as `outside`. With `required` a segment of `segment_slots`
    consecutive slots never spans domains: it is bound whole into a domain that has room for it, or not at all.
    """
    nodes = {slot: node for slot, node in (held or {}).items() if node in live and slot < slots}
    # By domain, the lowest last.
    free: dict[str | None, list[int]] = {}
    for node in sorted(live.keys() - set(nodes.values()), reverse=True):
        free.setdefault(live[node], []).append(node)
    outside: list[int] = []
    for first in range(0, slots, segment_slots):
        segment = range(first, min(first + segment_slots, slots))
        if not _bind_segment(segment, nodes, free, outside, live, required=required):
            return None
    return Binding({slot: nodes[slot] for slot in range(slots)}, tuple(outside))


def _bind_segment(
    segment: range,
    nodes: dict[int, int],
    free: dict[str | None, list[int]],
    outside: list[int],
    live: Mapping[int, str | None],
    *,
    required: bool,
) -> bool:
    """Give the slots of one segment that have no node one of `free`. Return False if there is none for one of them."""
    there = [live[nodes[slot]] for slot in segment if slot in nodes]
    if len(there) == len(segment) and not (required and len(set(there)) > 1):
        return True
    home = _home(len(segment), there, free)
    if required and len({*there, home}) > 1:
        # It no longer fits into its domain: it moves as a whole.
        for slot in segment:
            if slot in nodes:
                back = free.setdefault(live[nodes[slot]], [])
                back.append(nodes.pop(slot))
                back.sort(reverse=True)
        home = _home(len(segment), [], free)
    for slot in segment:
        if slot in nodes:
            continue
        if not free or (required and home not in free):
            return False
        chosen = home if home in free else min(free, key=lambda domain: free[domain][-1])
        if chosen != home:
            outside.append(slot)
        nodes[slot] = free[chosen].pop()
        if not free[chosen]:
            del free[chosen]
    return True


def _home(size: int, there: Sequence[str | None], free: Mapping[str | None, Sequence[int]]) -> str | None:
    """Return the domain that can hold a segment of `size` slots with its nodes `there`; of several, the one with most of it,
    then the one with the lowest free node. If none can hold it, the one that holds most."""
    room = {domain: len(free.get(domain, ())) for domain in (*there, *free)}
    fitting = [domain for domain in room if room[domain] + there.count(domain) >= size]
    if fitting and not there:
        return min(fitting, key=lambda domain: free[domain][-1])
    in_order = dict.fromkeys([*there, *sorted(free, key=lambda domain: free[domain][-1])])
    if fitting:
        return max((domain for domain in in_order if domain in fitting), key=there.count)
    return max(in_order, key=lambda domain: (there.count(domain), min(room[domain], size - len(there))), default=None)


def node_of(slot: int, moved: Mapping[int, int]) -> int:
    """Return the node of a slot: slot i is on node i, unless `moved` (slot -> node) has another."""
    return moved.get(slot, slot)


def slot_of(node: int, slots: int, moved: Mapping[int, int]) -> int | None:
    """Return the slot on a node; None on a spare."""
    if node < slots and node_of(node, moved) == node:
        return node
    return next((slot for slot, other in moved.items() if other == node), None)


def partner_of(slot: int, slots: int, segment_slots: int) -> int | None:
    """Return the slot whose node holds copies of this slot's captures; None for the only slot.

    `segment_slots` consecutive slots share a failure domain. Each slot is the partner of exactly one other, and as few as
    possible have theirs in the same domain: none if no domain has more than half of the slots.
    """
    if slots == 1:
        return None
    return (slot + (segment_slots if segment_slots < slots else 1)) % slots
