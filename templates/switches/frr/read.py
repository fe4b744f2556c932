"""Reads what an `frr.conf` configures, including one written by hand.

vtysh's rules: FRRouting/frr doc/user/basic.rst and bgp.rst; lib/command.c for what leaves a block.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway.templates.reading import Reading, RoutingView, Setting

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
_UNICAST = ("address-family ipv4 unicast", "address-family ipv4")

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
    return Reading(settings, routing=_routing({key: setting.value for key, setting in settings.items()}))


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
    max_paths = _unicast(bgp, "maximum-paths")
    return RoutingView(
        asn=_as_number(instance[1]),
        router_id=bgp.get("bgp router-id", values.get("ip router-id")),
        neighbors=frozenset(name for name in names if _exchanges_routes(bgp, name)),
        max_paths=int(max_paths) if max_paths is not None and max_paths.isdecimal() else None,
    )


def _as_number(text: str) -> int:
    """Parse an AS number, also in RFC 5396's notation: 64086.59904."""
    high, _, low = text.rpartition(".")
    return int(high or 0) * 65536 + int(low)


def _exchanges_routes(bgp: Mapping[str, str], name: str) -> bool:
    """Return whether it is not a group, has an AS, is not shut down, and is active for IPv4, by its own lines or its group's."""
    if bgp.get(f"neighbor {name}|peer-group") == _YES:
        return False
    group = bgp.get(f"neighbor {name}|interface peer-group") or bgp.get(f"neighbor {name}|peer-group")
    members = [name] if group is None else [name, group]
    has_as = any(
        bgp.get(f"neighbor {each}|{key}", _NO) != _NO for each in members for key in ("remote-as", "interface remote-as")
    )
    is_shut = any(bgp.get(f"neighbor {each}|shutdown") == _YES for each in members)
    said = [word for each in members if (word := _unicast(bgp, f"neighbor {each}|activate")) is not None]
    is_active = said[0] == _YES if said else bgp.get("bgp default ipv4-unicast") != _NO
    return has_as and not is_shut and is_active


def _unicast(bgp: Mapping[str, str], key: str) -> str | None:
    """Return a setting of IPv4 routes: from their block, or, as in old files, from BGP's own."""
    return next((bgp[place] for place in (*(f"{block}|{key}" for block in _UNICAST), key) if place in bgp), None)
