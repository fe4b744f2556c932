"""Reads the files next to an `opensm.conf`: roots, names of switches, partitions, and the cables as `ibnetdiscover` prints them.

The form of partitions: opensm(8), PARTITION CONFIGURATION.
"""

import re
from collections.abc import Iterator

from headway.templates.reading import MemberView, NetlistView, PartitionView, Reading, Setting, SubnetView

_NAME = re.compile(r'(0x[0-9a-fA-F]+)\s+"([^"]*)"')
_DEVICE = re.compile(r'(Switch|Ca|Hca|Rt)\s+\d+\s+"([^"]+)"(?:\s*#\s*"([^"]*)")?')
_PORT = re.compile(r'\[(\d+)\](?:\([0-9a-f]+\))?\s+"([^"]+)"\[(\d+)\]')


def read_roots(text: str) -> Reading:
    """Return each line as a setting, and the GUIDs in their order."""
    return Reading(dict(_lines(text)), subnet=SubnetView("root-guids", guids=tuple(line for line, _ in _lines(text))))


def read_names(text: str) -> Reading:
    """Return each line as a setting, and the name of each GUID."""
    names = {found[1].lower(): found[2] for line, _ in _lines(text) if (found := _NAME.match(line))}
    return Reading(dict(_lines(text)), subnet=SubnetView("ib-node-name-map", names=names))


def read_partitions(text: str) -> Reading:
    """Return each line as a setting, and the partitions."""
    return Reading(dict(_lines(text)), subnet=SubnetView("partitions.conf", partitions=tuple(_partitions(text))))


def read_netlist(text: str) -> Reading:
    """Return each line as a setting, and every cable from each of its ends."""
    devices: dict[str, str] = {}
    switches: dict[str, str] = {}
    ends: dict[tuple[str, str], tuple[str, str]] = {}
    own = ""
    for line in text.splitlines():
        if device := _DEVICE.match(line):
            own = device[2]
            devices[own] = device[3] or own
            if device[1] == "Switch":
                switches[own] = devices[own]
        elif (port := _PORT.match(line)) and own:
            ends[own, port[1]] = (port[2], port[3])
    netlist = NetlistView(devices, switches, ends)
    return Reading(dict(_lines(text)), subnet=SubnetView("topology.net", netlist=netlist))


def _lines(text: str) -> Iterator[tuple[str, Setting]]:
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].strip():
            yield words, Setting("", number)


def _partitions(text: str) -> Iterator[PartitionView]:
    bare = "\n".join(line.partition("#")[0] for line in text.splitlines())
    for rule in bare.split(";"):
        head, colon, members = " ".join(rule.split()).partition(":")
        if not head.strip():
            continue
        first, *flags = [each.strip() for each in head.split(",")]
        name, _, key = first.partition("=")
        options = dict(each.partition("=")[::2] for each in flags)
        yield PartitionView(
            # The settings of such a file are its lines, without comments.
            next((line for line, _ in _lines(text) if line.startswith(first.split("=")[0])), ""),
            name.strip(),
            _number(key),
            "ipoib" in options,
            _number(options.get("sl", "")),
            tuple(_member(each, options.get("defmember", "limited")) for each in members.split(",") if each.strip())
            if colon
            else (),
        )


def _member(text: str, usual: str) -> MemberView:
    name, _, membership = text.strip().partition("=")
    return MemberView(name.strip(), (membership.strip() or usual) in {"full", "both"})


def _number(text: str) -> int | None:
    try:
        return int(text.strip(), 0)
    except ValueError:
        return None
