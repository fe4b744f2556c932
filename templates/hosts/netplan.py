"""Reads a host's YAML of netplan: addresses, MTU, routes and rules of each interface; and finds the faults of each file.

The words: canonical/netplan doc/netplan-yaml.md; their effect on systemd-networkd: src/networkd.c there, and systemd.network(5).
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial

import yaml
from msgspec import Struct
from msgspec.structs import replace

from headway.templates.hosts.view import faults, traits
from headway.templates.reading import DeviceView, Fault, PortView, Reading, Setting, Traits

_KINDS = frozenset(
    [
        *("ethernets", "bonds", "bridges", "vlans", "vrfs", "tunnels", "wifis", "modems"),
        *("dummy-devices", "virtual-ethernets", "nm-devices"),
    ]
)
_MAIN = "main"
_DEFAULTS = frozenset({"default", "0.0.0.0/0", "0/0", "::/0"})
_TRUE = frozenset({"true", "yes", "on", "y"})
_FALSE = frozenset({"false", "no", "off", "n"})
# Words of the routes and rules themselves, which their keys have.
_OF_KEYS = frozenset({"to", "from", "via", "table", "priority"})
# Of an interface whose MTU is not set.
_USUAL_MTU = 1500
_MOST_DEPTH = 8
# A line that headway writes into the files of other fabrics than the scale-out one.
_FABRIC = re.compile(r"^# fabric: ([a-z0-9-]+)$", re.MULTILINE)

Leaves = Iterator[tuple[str, Setting]]


def read(text: str) -> Reading:
    """Return the settings of each interface: `enp26s0np0|mtu`, `enp26s0np0|address|10.10.0.1/31`, `enp26s0np0|route|1000|default` with the
    gateway, `rule|10.10.0.1` with the table; and a port for each that looks like an RDMA adapter's.

    ValueError, with the line, for a text that is not a configuration of netplan.
    """
    network = _network(text)
    settings: dict[str, Setting] = {}
    for key, value in _pairs(network):
        if key in _KINDS:
            for name, definition in _pairs(value):
                settings.update(_of_interface(name, definition))
        else:
            settings.update(_flat(key, value, 0))
    found = _interfaces(settings)
    fabric = _FABRIC.search(text)
    device = DeviceView(
        os="host",
        ports={each.name: each.port for each in found.values() if each.is_rail},
        fabric=None if fabric is None else fabric[1],
    )
    return Reading(settings, device=device, faults=partial(_faults, settings, found, device), traits=partial(_traits, settings))


# --- text -------------------------------------------------------------------------------------------------------------


def _network(text: str) -> yaml.Node:
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # An end that is missing is reported behind the last line.
        line = min(mark.line + 1 if mark else 1, max(1, len(text.splitlines())))
        raise ValueError(f"line {line}: not YAML: {getattr(error, 'problem', None)}") from error
    except RecursionError as error:
        raise ValueError("line 1: nested too deep for a configuration of netplan") from error
    found = next((value for key, value in _pairs(root) if key == "network"), None) if root is not None else None
    if not isinstance(found, yaml.MappingNode):
        raise ValueError("line 1: no mapping `network`, so this is not a configuration of netplan")
    return found


def _pairs(node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode):
            yield key.value, value


def _items(node: yaml.Node) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _setting(node: yaml.Node) -> Setting:
    """Return a scalar, a boolean as `yes` or `no`, or the scalars of a list."""
    if isinstance(node, yaml.ScalarNode):
        word = "" if node.style else node.value.lower()
        return Setting("yes" if word in _TRUE else "no" if word in _FALSE else node.value, _line(node))
    return Setting(" ".join(str(each.value) for each in _items(node) if isinstance(each, yaml.ScalarNode)), _line(node))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _flat(key: str, node: yaml.Node, depth: int) -> Leaves:
    """Yield the settings below a key that headway does not interpret."""
    if isinstance(node, yaml.MappingNode) and depth < _MOST_DEPTH:
        for word, value in _pairs(node):
            yield from _flat(f"{key}|{word}", value, depth + 1)
    else:
        yield key, _setting(node)


def _of_interface(name: str, definition: yaml.Node) -> Leaves:
    for key, value in _pairs(definition):
        match key:
            case "addresses":
                for item in _items(value):
                    # One with options is the key of a mapping.
                    address = next((word for word, _ in _pairs(item)), None) if isinstance(item, yaml.MappingNode) else item.value
                    yield f"{name}|address|{address}", Setting(str(address), _line(item))
            case "routes":
                for item in _items(value):
                    yield from _of_route(name, item)
            case "routing-policy":
                for item in _items(value):
                    yield from _of_rule(item)
            case "gateway4" | "gateway6":
                yield f"{name}|route|{_MAIN}|default", _setting(value)
            case _:
                yield from _flat(f"{name}|{key}", value, 1)


def _of_route(name: str, item: yaml.Node) -> Leaves:
    words = {key: _setting(value) for key, value in _pairs(item)}
    target = words["to"].value if "to" in words else "default"
    place = f"{words['table'].value if 'table' in words else _MAIN}|{'default' if target in _DEFAULTS else target}"
    yield f"{name}|route|{place}", Setting(words["via"].value if "via" in words else "", _line(item))
    for key, setting in words.items():
        if key not in _OF_KEYS:
            yield f"{name}|route-{key}|{place}", setting


def _of_rule(item: yaml.Node) -> Leaves:
    words = {key: _setting(value) for key, value in _pairs(item)}
    source = words["from"].value.removesuffix("/32") if "from" in words else f"to {words['to'].value if 'to' in words else 'all'}"
    yield f"rule|{source}", Setting(words["table"].value if "table" in words else _MAIN, _line(item))
    if "priority" in words:
        yield f"rule-priority|{source}", words["priority"]
    for key, setting in words.items():
        if key not in _OF_KEYS:
            yield f"rule-{key}|{source}", setting


# --- meaning ----------------------------------------------------------------------------------------------------------


class _Interface(Struct, frozen=True):
    """An interface with its settings. `has_way`: its routes or rules have a table of their own."""

    name: str
    port: PortView
    has_way: bool
    is_of_main: bool

    @property
    def is_rail(self) -> bool:
        """Whether it looks like an RDMA adapter's, and not like the one by which the host is reached."""
        return not self.is_of_main and (self.has_way or (self.port.mtu or 0) > _USUAL_MTU)


def _interfaces(settings: Mapping[str, Setting]) -> Mapping[str, _Interface]:
    """Return the interfaces by their names."""
    names = dict.fromkeys(key.split("|")[0] for key in settings if "|" in key and not re.match(r"rule(-[a-z-]+)?\|", key))
    return {name: _interface(name, settings) for name in names}


def _interface(name: str, settings: Mapping[str, Setting]) -> _Interface:
    addresses = {key: setting.value for key, setting in settings.items() if key.startswith(f"{name}|address|")}
    routes = {tuple(key.split("|", 3)[2:]): key for key in settings if key.startswith(f"{name}|route|")}
    ways = {table: key for (table, target), key in routes.items() if table != _MAIN and target == "default"}
    ruled = any(f"rule|{address.partition('/')[0]}" in settings for address in addresses.values())
    mtu, dhcp = settings.get(f"{name}|mtu"), settings.get(f"{name}|dhcp4")
    way = next(iter(ways.values()), None)
    keys = {"mtu": f"{name}|mtu"} if mtu is not None else {}
    keys |= {"addresses": next(iter(addresses))} if addresses else {}
    keys |= {"gateway": way} if way is not None else {}
    port = PortView(
        mtu=int(mtu.value) if mtu is not None and mtu.value.isdecimal() else None,
        addresses=tuple(addresses.values()),
        gateway=settings[way].value if way is not None else None,
        keys=keys,
    )
    is_of_main = (_MAIN, "default") in routes or (dhcp is not None and dhcp.value == "yes")
    return _Interface(name, port, bool(ways) or ruled, is_of_main)


def _traits(settings: Mapping[str, Setting]) -> Traits:
    return replace(traits(settings), format="netplan")


def _faults(settings: Mapping[str, Setting], found: Mapping[str, _Interface], device: DeviceView) -> Iterator[Fault]:
    # The interface by which the host is reached may have the usual MTU.
    others = {f"{each.name}|mtu" for each in found.values() if not each.is_rail}
    yield from faults({key: setting for key, setting in settings.items() if key not in others}, {}, device)
    for each in found.values():
        if each.is_rail and each.port.addresses:
            yield from _of_rail(each, settings)


def _of_rail(rail: _Interface, settings: Mapping[str, Setting]) -> Iterator[Fault]:
    carrier = settings.get(f"{rail.name}|ignore-carrier")
    address = rail.port.keys["addresses"]
    if carrier is None or carrier.value != "yes":
        message = (
            f"systemd-networkd removes the address, routes and rules of {rail.name} when its link goes down; RDMA connections that would "
            "survive a short loss end"
        )
        key = f"{rail.name}|ignore-carrier" if carrier is not None else address
        yield Fault("HW851", key, message, "set `ignore-carrier: true`", doubtful=True)
    if rail.port.mtu is None:
        message = f"it sets the address of {rail.name} and no MTU; with the kernel's 1500 RDMA packets have 1024 bytes, a quarter of 4096"
        yield Fault("HW820", address, message, "set `mtu: 9000`, unless another file does", doubtful=True)
