"""Reads what an `frr.conf` configures, including one written by hand.

vtysh's rules: FRRouting/frr doc/user/basic.rst and bgp.rst; lib/command.c for what leaves a block.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from headway.templates.reading import Reading, RoutingView, Setting
from headway.templates.switches.frr.view import as_number, device_view, exchanges_routes, faults, traits, unicast

# The blocks of a file, their inner blocks, and the ends of blocks.
_OUTER = re.compile(r"(interface|router|vrf|route-map|key chain|nexthop-group|pbr-map) .+|bfd|line vty|segment-routing")
_INNER = re.compile(r"(address-family|profile|peer|vni) .+")
_EXIT = re.compile(r"exit(-.*)?")
_FRR = re.compile(r"(frr (version|defaults)|interface|router) .+")

# Commands with one value, which the next line with the same words replaces; every other command is a separate setting.
_ONE_VALUE = re.compile(
    r"(frr version|frr defaults|hostname|log syslog|description|ipv6 nd ra-interval"
    r"|ip router-id|bgp router-id|timers bgp|maximum-paths ibgp|maximum-paths"
    r"|remote-as|interface peer-group|interface remote-as|peer-group|update-source"
    r"|timers connect|timers|advertisement-interval|bfd profile"
    r"|detect-multiplier|receive-interval|transmit-interval) (.+)"
)
_NEIGHBOR = re.compile(r"neighbor (\S+) (.+)")
_DEFAULT_BGP = re.compile(r"router bgp (\d+(?:\.\d+)?)(?: vrf default)?")

_YES, _NO = "yes", "no"


def read(text: str) -> Reading:
    """Return every command as a setting, and BGP of the default VRF; ValueError if the text is not an frr.conf.

    `router bgp 65001|neighbor FABRIC|remote-as` -> `external`. The value of a command without one is `yes`, after `no`
    it is `no`.
    """
    lines = [(number, " ".join(line.split()), line) for number, line in enumerate(text.splitlines(), 1)]
    commands = [(number, words, _indent(line)) for number, words, line in lines if words and words[0] not in "!#"]
    if not any(_FRR.fullmatch(words) for _, words, _ in commands):
        raise ValueError("line 1: no `frr defaults`, `interface` or `router` in it, so this is not an frr.conf")
    settings = dict(_settings(commands))
    values = {key: setting.value for key, setting in settings.items()}
    return Reading(
        settings,
        routing=_routing(values),
        device=device_view(values),
        faults=partial(faults, values),
        traits=partial(traits, values),
    )


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass
class _Block:
    words: str
    indent: int
    has_indented: bool = False


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _settings(commands: list[tuple[int, str, int]]) -> Iterator[tuple[str, Setting]]:
    inside: list[_Block] = []
    for number, words, indent in commands:
        _leave(inside, words, indent)
        if words == "end" or _EXIT.fullmatch(words):
            continue
        for block in inside:
            block.has_indented |= indent > block.indent
        yield _setting([block.words for block in inside], words, number)
        if (_INNER if inside else _OUTER).fullmatch(words):
            inside.append(_Block(words, indent))


def _leave(inside: list[_Block], words: str, indent: int) -> None:
    """Take off the blocks that end before or with this line. FRR ignores indentation: it counts in a block that has used it."""
    if words == "end" or (indent == 0 and _OUTER.fullmatch(words)):
        inside.clear()
    elif _EXIT.fullmatch(words):
        del inside[-1:]
    elif len(inside) > 1 and _INNER.fullmatch(words):
        del inside[1:]
    while inside and inside[-1].has_indented and indent <= inside[-1].indent:
        inside.pop()


def _setting(path: list[str], words: str, line: int) -> tuple[str, Setting]:
    bare = words.removeprefix("no ")
    if neighbor := _NEIGHBOR.fullmatch(bare):
        path, bare = [*path, f"neighbor {neighbor[1]}"], neighbor[2]
    valued = _ONE_VALUE.fullmatch(bare)
    key, value = (valued[1], valued[2]) if valued else (bare, _YES)
    return "|".join([*path, key]), Setting(_NO if words.startswith("no ") else value, line)


# --- BGP --------------------------------------------------------------------------------------------------------------


def _routing(values: Mapping[str, str]) -> RoutingView:
    """Return BGP of the default VRF, only with neighbors that can exchange IPv4 routes."""
    instance = next((found for key in values if (found := _DEFAULT_BGP.fullmatch(key))), None)
    if instance is None:
        return RoutingView()
    bgp = {key.removeprefix(f"{instance[0]}|"): value for key, value in values.items() if key.startswith(f"{instance[0]}|")}
    names = {found[1] for key in bgp if (found := re.match(r"neighbor ([^|]+)\|", key))}
    max_paths = unicast(bgp, "maximum-paths")
    return RoutingView(
        asn=as_number(instance[1]),
        router_id=bgp.get("bgp router-id", values.get("ip router-id")),
        neighbors=frozenset(name for name in names if exchanges_routes(bgp, name)),
        max_paths=int(max_paths) if max_paths is not None and max_paths.isdecimal() else None,
    )
