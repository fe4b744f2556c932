"""Reads what an `frr.conf` configures, including one written by hand.

vtysh's rules: FRRouting/frr doc/user/basic.rst and bgp.rst; lib/command.c for what leaves a block.
"""

import re
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from msgspec import Struct

from headway.templates.reading import BgpView, LazySettings, Reading, RoutingView, Setting
from headway.templates.switches.frr.view import bgp_of, device_view, faults, traits

# The blocks of a file, their inner blocks, and the ends of blocks.
_OUTER = re.compile(r"(interface|router|vrf|route-map|key chain|nexthop-group|pbr-map) .+|bfd|line vty|segment-routing")
_INNER = re.compile(r"(address-family|profile|peer|vni) .+")
_EXIT = re.compile(r"exit(-.*)?")
_FRR = re.compile(r"(frr (version|defaults)|interface|router) .+")
# How lines begin that these may match: most others are of one switch alone, and each of them is looked at.
_BLOCKS = (
    "interface ",
    "router ",
    "vrf ",
    "route-map ",
    "key chain ",
    "nexthop-group ",
    "pbr-map ",
    "bfd",
    "line vty",
    "segment-routing",
    "address-family ",
    "profile ",
    "peer ",
    "vni ",
    "exit",
    "end",
    "frr ",
)

# Commands with one value, which the next line with the same words replaces; every other command is a separate setting.
_ONE_VALUE = re.compile(
    r"(frr version|frr defaults|hostname|log syslog|description|ipv6 nd ra-interval"
    r"|ip router-id|bgp router-id|timers bgp|maximum-paths ibgp|maximum-paths"
    r"|remote-as|interface peer-group|interface remote-as|peer-group|update-source"
    r"|timers connect|timers|advertisement-interval|bfd profile"
    r"|detect-multiplier|receive-interval|transmit-interval) (.+)"
)
# How the words before such a value begin.
_VALUED = frozenset(
    {
        *("frr", "hostname", "log", "description", "ipv6", "ip", "bgp", "timers", "maximum-paths", "remote-as", "interface"),
        *("peer-group", "update-source", "advertisement-interval", "bfd", "detect-multiplier"),
        *("receive-interval", "transmit-interval"),
    }
)
_NEIGHBOR = re.compile(r"neighbor (\S+) (.+)")

_YES, _NO = "yes", "no"


def read(text: str) -> Reading:
    """Return every command as a setting, and BGP of the default VRF; ValueError if the text is not an frr.conf.

    `router bgp 65001|neighbor FABRIC|remote-as` -> `external`. The value of a command without one is `yes`, after `no`
    it is `no`.
    """
    commands = [(number, command) for number, line in enumerate(text.splitlines(), 1) if (command := _command(line)) is not None]
    if not any(command.is_frr for _, command in commands):
        raise ValueError("line 1: no `frr defaults`, `interface` or `router` in it, so this is not an frr.conf")
    found = list(_values(commands))
    interfaces: dict[str, str] = {}
    others: dict[str, str] = {}
    for key, value, _ in found:
        (interfaces if key.startswith("interface ") else others)[key] = value
    bgp = bgp_of(others)
    device = device_view(interfaces, others, bgp)
    return Reading(
        LazySettings(lambda: {key: Setting(value, line) for key, value, line in found}),
        routing=_routing(device.bgp),
        device=device,
        faults=partial(faults, others, bgp),
        traits=partial(traits, interfaces, others),
    )


class PlacedCommand(NamedTuple):
    """A command in its place: the commands of the blocks around it, the outer one first, its words, the setting that it is, and its line,
    counted from 1."""

    blocks: tuple[str, ...]
    words: str
    key: str
    value: str
    line: int


def placed_commands(text: str) -> list[PlacedCommand]:
    """Return the commands of a configuration as they are written, without those that end a block."""
    commands = [(number, command) for number, line in enumerate(text.splitlines(), 1) if (command := _command(line)) is not None]
    return [
        PlacedCommand(tuple(path.split("|")[:-1]), command.words, path + command.key, command.value, number)
        for path, command, number in _in_blocks(commands)
    ]


def _routing(bgp: BgpView | None) -> RoutingView:
    """Return BGP of the default VRF, only with neighbors that can exchange IPv4 routes."""
    if bgp is None:
        return RoutingView()
    up = frozenset(name for name, neighbor in (bgp.neighbors or {}).items() if neighbor.is_up)
    return RoutingView(bgp.asn, bgp.router_id, up, bgp.max_paths)


# --- commands ---------------------------------------------------------------------------------------------------------


class _Command(NamedTuple):
    """A line by itself: `key` below its block, and which blocks it begins or ends."""

    words: str
    indent: int
    key: str
    value: str
    is_frr: bool
    is_outer: bool
    is_inner: bool
    is_exit: bool


class _Block(Struct):
    path: str
    indent: int
    has_indented: bool = False


@lru_cache(65536)
def _command(line: str) -> _Command | None:
    """Return the command of the line; None for an empty one or a comment. A fabric's switches have most lines in common."""
    words = " ".join(line.split())
    if not words or words[0] in "!#":
        return None
    bare, path = words.removeprefix("no "), ""
    if bare.startswith("neighbor ") and (neighbor := _NEIGHBOR.fullmatch(bare)):
        path, bare = f"neighbor {neighbor[1]}|", neighbor[2]
    valued = _ONE_VALUE.fullmatch(bare) if bare.partition(" ")[0] in _VALUED else None
    key, value = (valued[1], valued[2]) if valued else (bare, _YES)
    indent, value = len(line) - len(line.lstrip()), _NO if words.startswith("no ") else value
    if not words.startswith(_BLOCKS):
        return _Command(words, indent, path + key, value, False, False, False, False)
    return _Command(
        words,
        indent,
        path + key,
        value,
        is_frr=_FRR.fullmatch(words) is not None,
        is_outer=_OUTER.fullmatch(words) is not None,
        is_inner=_INNER.fullmatch(words) is not None,
        is_exit=words == "end" or _EXIT.fullmatch(words) is not None,
    )


def _values(commands: list[tuple[int, _Command]]) -> Iterator[tuple[str, str, int]]:
    """Yield each setting: its key, its value and its line."""
    return ((path + command.key, command.value, number) for path, command, number in _in_blocks(commands))


def _in_blocks(commands: list[tuple[int, _Command]]) -> Iterator[tuple[str, _Command, int]]:
    """Yield each command but those that end a block, with the path of the blocks that it is in, and its line."""
    inside: list[_Block] = []
    for number, command in commands:
        indent = command.indent
        if inside and (indent <= inside[-1].indent or command.is_outer or command.is_inner or command.is_exit):
            _leave(inside, command)
        if command.is_exit:
            continue
        for block in inside:
            block.has_indented |= indent > block.indent
        path = inside[-1].path if inside else ""
        yield path, command, number
        if command.is_inner if inside else command.is_outer:
            inside.append(_Block(f"{path}{command.words}|", indent))


def _leave(inside: list[_Block], command: _Command) -> None:
    """Take off the blocks that end before or with this line. FRR ignores indentation: it counts in a block that has used it."""
    if command.words == "end" or (command.indent == 0 and command.is_outer):
        inside.clear()
    elif command.is_exit:
        del inside[-1:]
    elif len(inside) > 1 and command.is_inner:
        del inside[1:]
    while inside and inside[-1].has_indented and command.indent <= inside[-1].indent:
        inside.pop()
