"""Expands and compresses lists of nodes in Slurm's notation, and knows the names that Slurm has for a cluster's nodes."""

import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

from headway.jobspec.plan import ClusterPlan, NodePlan

_PIECE = re.compile(r"[^\[\],]+|\[([^\]]*)\]|,")
_NUMBERED = re.compile(r"(.*?)(\d+)")


def expanded(names: str) -> Iterator[str]:
    """Yield the names of a list such as `gpu[001-128,130],login1`, in its order."""
    parts: list[Iterable[str]] = []
    for found in _PIECE.finditer(names):
        if found[0] == ",":
            yield from map("".join, itertools.product(*parts))
            parts = []
        else:
            parts.append([found[0]] if found[1] is None else _numbers(found[1]))
    yield from map("".join, itertools.product(*parts))


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers of `001-128,130`, each at least as long as the first of its range."""
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1))


def counted_up_to(names: str, most: int) -> int:
    """Return how many names the list has, or one more than `most` if they are more: `n[1-1000000000]` is not made."""
    count = 0
    for each in re.split(r",(?![^\[]*\])", names):
        product = 1
        for ranges in re.findall(r"\[([^\]]*)\]", each):
            if re.search(r"\d{10}", ranges):
                return most + 1
            ends = (part.partition("-") for part in ranges.split(","))
            product *= sum(max(0, int(last or first) - int(first) + 1) for first, _, last in ends)
        count += product
    return min(count, most + 1)


def with_count(names: str, count: int) -> str | None:
    """Return the list of one range with as many names, `gpu[001-016]` for `gpu[001-128]`; None for another list."""
    found = re.fullmatch(r"([^\[\],]*\[)([0-9]{1,9})-[0-9]{1,9}(\][^\[\],]*)", names)
    if found is None:
        return None
    return f"{found[1]}{found[2]}-{int(found[2]) + count - 1:0{len(found[2])}}{found[3]}"


def compressed(names: Iterable[str]) -> str:
    """Return names in Slurm's notation, in their order: `gpu[001-128,130],login1`."""
    written = []
    for stem, found in itertools.groupby(names, _stem):
        each = list(found)
        if stem is None or len(each) == 1:
            written += each
        else:
            written.append(f"{stem}[{','.join(_ranges([name.removeprefix(stem) for name in each]))}]")
    return ",".join(written)


def _stem(name: str) -> str | None:
    """Return the name without the number at its end; None for a name without one."""
    numbered = _NUMBERED.fullmatch(name)
    return None if numbered is None else numbered[1]


def _ranges(numbers: list[str]) -> Iterator[str]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != f"{int(last) + 1:0{len(first)}}":
            yield first if first == last else f"{first}-{last}"
            first = number
        last = number
    yield first if first == last else f"{first}-{last}"


def names_in_slurm(cluster: ClusterPlan, node_names: Mapping[str, str]) -> dict[str, str]:
    """Return Slurm's name of each node of the plan: that of `node_names` of its group, the short name of its host, or the plan's own."""
    counts = {group.name: group.count for group in cluster.groups}
    given = {
        group: list(expanded(names))
        for group, names in node_names.items()
        if counted_up_to(names, counts.get(group, 0)) == counts.get(group)
    }
    return {node.name: given[node.group][node.index] if node.group in given else _own_name(node) for node in cluster.nodes}


def _own_name(node: NodePlan) -> str:
    if node.host is None:
        return node.name
    try:
        ipaddress.ip_address(node.host)
    except ValueError:
        return node.host.partition(".")[0]
    return node.name
