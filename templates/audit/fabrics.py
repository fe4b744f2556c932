"""Finds the files of other fabrics than that of the collectives: scripts that name theirs, and switches that only its adapters lead to.

Devices of two fabrics treat packets differently, and rightly so: each fabric is compared with itself.
"""

from collections.abc import Iterable, Iterator, Mapping

from headway.templates.audit.machines import JoinedPorts, Machine, links, machines
from headway.templates.reading import Reading


def other_fabrics(readings: Mapping[str, Reading]) -> Mapping[str, str]:
    """Return the fabric of each file that is of another one, by the file's name; nothing where no host's file names one."""
    if not any(reading.device is not None and reading.device.fabric for reading in readings.values()):
        return {}
    found = machines(readings)
    return fabrics_of(found, links(found))


def fabrics_of(found: Iterable[Machine], cables: Iterable[JoinedPorts]) -> Mapping[str, str]:
    """Return the same for machines and their cables."""
    named = {file: device.fabric for machine in found for file, device in machine.devices if device.fabric is not None}
    if not named:
        return {}
    by_file: dict[str, str] = dict(named)
    for switches, ends in _connected(found, cables):
        fabrics = {machine.fabric_of(port) for machine, port in ends}
        if len(fabrics) == 1 and (fabric := fabrics.pop()) is not None:
            by_file |= dict.fromkeys((file for switch in switches for file in switch.files), fabric)
    return by_file


def _connected(
    found: Iterable[Machine], cables: Iterable[JoinedPorts]
) -> Iterator[tuple[list[Machine], list[tuple[Machine, str]]]]:
    """Yield switches that are connected to each other, with the hosts' ends of the cables to them."""
    switches = [machine for machine in found if machine.os != "host"]
    near: dict[int, list[Machine]] = {id(switch): [] for switch in switches}
    ends: dict[int, list[tuple[Machine, str]]] = {id(switch): [] for switch in switches}
    for cable in cables:
        for machine, _, other, other_port in cable.ends:
            if machine.os == "host":
                continue
            if other.os == "host":
                ends[id(machine)].append((other, other_port))
            else:
                near[id(machine)].append(other)
    seen: set[int] = set()
    for switch in switches:
        group, waiting = [], [switch]
        while waiting:
            machine = waiting.pop()
            if id(machine) not in seen:
                seen.add(id(machine))
                group.append(machine)
                waiting += near[id(machine)]
        if group:
            yield group, [end for machine in group for end in ends[id(machine)]]
