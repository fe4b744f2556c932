"""Rules about the files of an InfiniBand subnet manager: each by itself, next to the others of its folder, and next to the cables.

Partitions: opensm(8), PARTITION CONFIGURATION.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from headway.templates.audit.finding import Finding
from headway.templates.reading import NetlistView, PartitionView, Reading, SubnetView

_DEFAULT_KEY = 0x7FFF
_FILES = {"root_guid_file": "root-guids", "node_name_map_name": "ib-node-name-map", "partition_config_file": "partitions.conf"}
_RENDER = "render the files again from the cluster file"


def check_subnets(readings: Mapping[str, Reading]) -> Iterator[Finding]:
    """Yield findings about the files of each folder that has any of a subnet manager."""
    folders: dict[PurePosixPath, dict[str, tuple[str, Reading]]] = {}
    for file, reading in readings.items():
        path = PurePosixPath(file)
        if reading.subnet is not None:
            folders.setdefault(path.parent, {})[reading.subnet.kind] = (file, reading)
    for found in folders.values():
        views = {kind: (file, reading.subnet) for kind, (file, reading) in found.items() if reading.subnet is not None}
        settings = {key: each.value for key, each in found["opensm.conf"][1].settings.items()} if "opensm.conf" in found else {}
        netlist = views["topology.net"][1].netlist if "topology.net" in views else None
        if settings:
            yield from _references(found["opensm.conf"][0], settings, views)
        if "root-guids" in views:
            yield from _roots(*views["root-guids"], netlist, settings)
        if "partitions.conf" in views:
            yield from _partitions(*views["partitions.conf"], settings)
        if "ib-node-name-map" in views:
            yield from _names(*views["ib-node-name-map"], netlist)
        if netlist is not None:
            yield from _cables(views["topology.net"][0], netlist)


def _references(file: str, settings: Mapping[str, str], views: Mapping[str, tuple[str, SubnetView]]) -> Iterator[Finding]:
    """Compare the files that opensm.conf names with those next to it."""
    for setting, kind in _FILES.items():
        name = PurePosixPath(settings.get(setting, "")).name
        if name and name != kind and kind in views and not any(PurePosixPath(own).name == name for own, _ in views.values()):
            message = f"`{setting}` is {settings[setting]}, and the folder has {kind}; opensm reads another file, or none"
            yield Finding("HW871", file, setting, message, f"set the path of {kind}, or remove that file", doubtful=True)
    lanes = any(name.startswith("qos_") for name in settings)
    if settings.get("qos", "").upper() == "TRUE" and not lanes and "qos_policy_file" not in settings:
        message = "QoS is on, and no lane, weight or policy is set; opensm's own mapping of service levels to lanes counts"
        yield Finding("HW871", file, "qos", message, "set `qos_sl2vl` and `qos_vlarb_low`, or `qos FALSE`", doubtful=True)


def _roots(file: str, view: SubnetView, netlist: NetlistView | None, settings: Mapping[str, str]) -> Iterator[Finding]:
    roots = [_guid(line) for line in view.guids]
    broken = next((line for line, guid in zip(view.guids, roots, strict=True) if guid is None), None)
    if broken is not None:
        message = f"`{broken}` is not a GUID; opensm skips it or the rest of the file, and finds other roots than are meant"
        yield Finding("HW871", file, broken, message, "write GUIDs: 0xb83fd20300000001")
    known = [guid for guid in roots if guid is not None]
    twice = next((line for line, guid in zip(view.guids, roots, strict=True) if guid is not None and known.count(guid) > 1), None)
    if twice is not None:
        message = f"the root {twice} is there twice, so that another switch of the top tier may be missing"
        yield Finding("HW871", file, twice, message, "list each switch of the top tier once")
    if not known and settings.get("root_guid_file"):
        message = "it has no root; Up/Down guesses the roots by distances, and after a lost spine it may take a leaf for one"
        yield Finding("HW871", file, "", message, "list the GUIDs of the top tier")
    if netlist is None or not known:
        return
    identified = {guid: name for device, name in netlist.switches.items() if (guid := _guid_of(device)) is not None}
    foreign = next(
        (line for line, guid in zip(view.guids, roots, strict=True) if guid is not None and guid not in identified), None
    )
    if foreign is not None and identified:
        message = f"the root {foreign} is not a switch in the list of cables, and routes through it may form a loop"
        yield Finding("HW871", file, foreign, message, "list the GUIDs of the top tier")
    top = _top(netlist)
    for device in sorted(netlist.switches):
        guid, name = _guid_of(device), netlist.switches[device]
        if guid is not None and device in top and guid not in known:
            message = (
                f"{name} is in the top tier, and is not among the roots; paths through it turn down and up again, or it idles"
            )
            yield Finding("HW871", file, view.guids[0], message, f"add 0x{guid:016x}")
        elif guid is not None and device not in top and guid in known:
            line = next(line for line in view.guids if _guid(line) == guid)
            message = f"{name} is a root, and is not in the top tier; Up/Down sends paths through a leaf"
            yield Finding("HW871", file, line, message, "list the switches of the top tier alone")


def _top(netlist: NetlistView) -> set[str]:
    """Return the switches farthest from adapters; all of them where none is farther than another."""
    near = {far for (device, _), (far, _) in netlist.ends.items() if device not in netlist.switches and far in netlist.switches}
    near |= {
        device for (device, _), (far, _) in netlist.ends.items() if device in netlist.switches and far not in netlist.switches
    }
    linked: dict[str, set[str]] = {}
    for (device, _), (far, _) in netlist.ends.items():
        if device in netlist.switches and far in netlist.switches:
            linked.setdefault(device, set()).add(far)
            linked.setdefault(far, set()).add(device)
    seen, tier = set(near), set(near)
    while True:
        above = {far for device in tier for far in linked.get(device, ())} - seen
        if not above:
            return tier
        seen |= above
        tier = above


def _partitions(file: str, view: SubnetView, settings: Mapping[str, str]) -> Iterator[Finding]:
    default = next((each for each in view.partitions if each.name == "Default" or each.key == _DEFAULT_KEY), None)
    if default is None:
        message = (
            "the default partition has no rule, so all ports are its limited members: they cannot reach each other, and NCCL's "
            "connections fail"
        )
        yield Finding("HW871", file, "", message, "add `Default=0x7fff, ipoib, defmember=full : ALL, SELF=full ;`")
    else:
        yield from _default(file, default)
    for each in view.partitions:
        if each.service_level and settings.get("qos", "").upper() == "FALSE":
            message = (
                f"the partition {each.name} has service level {each.service_level}, and QoS is off; the level has no lane, and does "
                "nothing"
            )
            yield Finding("HW871", file, each.line, message, "set `sl=0`, or configure QoS in opensm.conf", doubtful=True)


def _default(file: str, default: PartitionView) -> Iterator[Finding]:
    everyone = next((each for each in default.members if each.name in {"ALL", "ALL_CAS"}), None)
    if default.key not in (None, _DEFAULT_KEY):
        message = (
            f"the default partition has the key {default.key:#06x}; its key is 0x7fff, and NCCL uses the first one of each port"
        )
        yield Finding("HW871", file, default.line, message, "set `Default=0x7fff`")
    if everyone is None and not any(_guid(each.name) is not None for each in default.members):
        message = "the default partition has no adapter as a member; no port may talk to another, and NCCL's connections fail"
        yield Finding("HW871", file, default.line, message, "add `ALL=full`")
    elif everyone is not None and not everyone.is_full:
        message = (
            "all ports are limited members of the default partition; they do not reach each other, and NCCL's connections fail"
        )
        yield Finding("HW871", file, default.line, message, "set `ALL=full`, or `defmember=full`")
    if not default.has_ipoib:
        message = (
            "the default partition has no `ipoib`, and so no broadcast group; IP over InfiniBand and RDMA-CM find no neighbor"
        )
        yield Finding("HW871", file, default.line, message, "add `ipoib`, unless nothing uses IP there", doubtful=True)
    if not any(each.name == "SELF" or (each.name == "ALL" and each.is_full) for each in default.members):
        message = "the subnet manager's port is not a full member of the default partition; others do not reach its services"
        yield Finding("HW871", file, default.line, message, "add `SELF=full`", doubtful=True)


def _names(file: str, view: SubnetView, netlist: NetlistView | None) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for text, name in view.names.items():
        if owners.setdefault(name, text) != text:
            message = f"{name} is the name of {owners[name]} and of {text}; reports name the wrong switch, and people pull the wrong cable"
            yield Finding("HW871", file, f'{text} "{name}"', message, "give each switch its name")
    identified = {
        guid: name for device, name in (netlist.switches if netlist else {}).items() if (guid := _guid_of(device)) is not None
    }
    for text, name in view.names.items():
        number = _guid(text)
        named = identified.get(number) if number is not None else None
        if identified and named is None:
            message = f"no switch of the cables' list has the GUID {text} ({name}); reports show a number in place of its name"
            yield Finding("HW871", file, f'{text} "{name}"', message, _RENDER, doubtful=True)
        elif named is not None and named != name:
            message = f"{text} is {name} here and {named} in the cables' list; reports name the wrong switch"
            yield Finding("HW871", file, f'{text} "{name}"', message, _RENDER)


def _cables(file: str, netlist: NetlistView) -> Iterator[Finding]:
    """Find cables that one of their ends only has."""
    for (device, port), (far, far_port) in netlist.ends.items():
        back = netlist.ends.get((far, far_port))
        if back != (device, port):
            ours, theirs = (netlist.devices.get(each, each) for each in (device, far))
            other = "has no cable there" if back is None else f"leads to {netlist.devices.get(back[0], back[0])} port {back[1]}"
            message = (
                f"{ours} port {port} leads to {theirs} port {far_port}, which {other}; one cable goes elsewhere, or is missing"
            )
            yield Finding("HW826", file, f'[{port}]\t"{far}"[{far_port}]', message, "follow the cable, and correct the list")


def _guid(text: str) -> int | None:
    try:
        return int(text, 16) if text.lower().startswith("0x") else None
    except ValueError:
        return None


def _guid_of(device: str) -> int | None:
    """Return the GUID in ibnetdiscover's id of a switch, `S-b83fd20300000001`; None for a name."""
    return _guid(f"0x{device[2:]}") if device.startswith("S-") else None
