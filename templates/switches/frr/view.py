"""Reads the switch as a whole from the commands of an `frr.conf`, and finds the faults of this file alone.

Defaults: FRRouting/frr bgpd/bgp_vty.c (FRR_CFG_DEFAULT), by `frr defaults`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.problem import Severity
from headway.templates.reading import BfdView, BgpView, DeviceView, Fault, FilterLine, NeighborView, PortView, Traits
from headway.templates.switches.frr.check import judge

_DEFAULT_BGP = re.compile(r"router bgp (\d+(?:\.\d+)?)(?: vrf default)?")
_PROFILE = re.compile(r"bfd\|profile ([^|\s]+)")
_ROUTE_MAP = re.compile(r"route-map (\S+) (permit|deny) \d+")
_LIST = re.compile(r"(?:ip (prefix-list)|(access-list)|bgp as-path (access-list)) (\S+)(?: seq (\d+))? (permit|deny) (\S+)(.*)")
_RANK = re.compile(r"set (as-path (?:prepend|exclude)|local-preference|weight|metric)\b.*")
_LENGTH = re.compile(r"(ge|le) (\d+)")
_UNICAST = ("address-family ipv4 unicast", "address-family ipv4")
# Settings with a name, an address or a number of the switch in them.
_OF_SWITCH = re.compile(r"(hostname|!)|.*(router-id|\|network |aggregate-address|neighbor \S*[\d.:]|description)")
_INSTANCE = re.compile(r"^router bgp [\d.]+")
_YES, _NO = "yes", "no"
_HOLD_S = {"datacenter": 9}
_USUAL_HOLD_S = 180
# FRR's default in seconds for the datacenter profile is 10, and 120 elsewhere.
_SLOW_CONNECT_S = 30
_SLOW_ADVERTISEMENT_S = 5


class Bgp(Struct, frozen=True, dict=True):
    """BGP's default instance: `key` is its command. `commands` are below it, `neighbors` those of each neighbor and group.

    A neighbor's command has the block that it is in: `("address-family ipv4 unicast", "activate", "yes")`.
    """

    key: str
    commands: Mapping[str, str]
    neighbors: Mapping[str, tuple[tuple[str, str, str], ...]]

    @cached_property
    def names(self) -> list[str]:
        """Neighbors and groups with a command outside of address families."""
        return [name for name, commands in self.neighbors.items() if any(not block for block, _, _ in commands)]

    def is_group(self, name: str) -> bool:
        """Whether the name is a peer group's."""
        return ("", "peer-group", _YES) in self.neighbors.get(name, ())

    def of(self, name: str) -> tuple[tuple[tuple[str, str, str], ...], ...]:
        """The commands of the neighbor and of its group, which fully describe it."""
        own = self.neighbors.get(name, ())
        top = {command: value for block, command, value in own if not block}
        group = top.get("interface peer-group") or top.get("peer-group")
        return (own,) if group is None else (own, self.neighbors.get(group, ()))


def device_view(interfaces: Mapping[str, str], others: Mapping[str, str], bgp: Bgp | None) -> DeviceView:
    """Return the switch, given the values of the settings of interfaces, and of all others, by their keys."""
    return DeviceView(
        os="frr",
        name=others.get("hostname"),
        ports=dict(_ports(interfaces)),
        bgp=None if bgp is None else _view_of_bgp(others, bgp),
        bfd=dict(_bfd(others)),
        keys={"name": "hostname"},
    )


def traits(interfaces: Mapping[str, str], others: Mapping[str, str]) -> Traits:
    """Return what the routing of a switch usually shares with others: settings that have no name, address or AS number in them."""
    device: dict[str, str] = {}
    ports: dict[str, dict[str, str]] = {}
    for key, value in interfaces.items():
        interface, _, command = key.partition("|")
        own = ports.get(interface)
        if own is None:
            own = ports[interface] = {}
        if command and not command.startswith(("description", "ip address", "ipv6 address", "shutdown")):
            own[command] = value
    for key, value in others.items():
        command, bar, below = key.partition("|")
        name = _name_of(command, below) if bar else _name_of(key, None)
        if name is not None:
            device[name] = value
    # What all of its ports have is a trait of the switch.
    first, *rest = ports.values() or ({},)
    common = {
        command: value for command, value in first.items() if all(each == first or each.get(command) == value for each in rest)
    }
    return Traits(device | {f"interface *|{command}": value for command, value in sorted(common.items())})


def _name_of(command: str, below: str | None) -> str | None:
    """Return the setting's name without the switch's AS number; None for one that is its own, or the site's."""
    if not command.startswith("router bgp "):
        key = command if below is None else f"{command}|{below}"
        return None if _is_of_switch(key) or _judge(key) is None else key
    block = _without_number(command)
    if below is None:
        return None if block == "router bgp *" or _is_of_switch(block) or _judge(command) is None else block
    return _name_below(block, below)


@lru_cache(4096)
def _without_number(command: str) -> str:
    return _INSTANCE.sub("router bgp *", command)


@lru_cache(65536)
def _name_below(block: str, below: str) -> str | None:
    # The number of an instance makes no difference to what is judged.
    name = f"{block}|{below}"
    return None if _is_of_switch(name) or _judge(f"{block.replace('*', '1', 1)}|{below}") is None else name


@lru_cache(65536)
def _judge(key: str) -> Severity | None:
    """Return how much the setting matters; a log or a terminal may differ."""
    return judge(key)


@lru_cache(65536)
def _is_of_switch(key: str) -> bool:
    """Return whether the setting is a switch's own. A fabric's switches have most of them in common."""
    return _OF_SWITCH.match(key) is not None


def instance_of(values: Mapping[str, str]) -> str | None:
    """Return the command of BGP's default instance; None without one."""
    return next((key for key in values if key.startswith("router bgp ") and _DEFAULT_BGP.fullmatch(key)), None)


def bgp_of(values: Mapping[str, str]) -> Bgp | None:
    """Return BGP's default instance, given every setting's value by its key; None without one."""
    instance = instance_of(values)
    if instance is None:
        return None
    start = len(instance) + 1
    commands = {key[start:]: value for key, value in values.items() if key.startswith(f"{instance}|")}
    neighbors: dict[str, list[tuple[str, str, str]]] = {}
    for key, value in commands.items():
        block, place, rest = ("", "neighbor ", key[9:]) if key.startswith("neighbor ") else key.rpartition("|neighbor ")
        name, bar, command = rest.partition("|")
        if place and bar:
            neighbors.setdefault(name, []).append((block, command, value))
    return Bgp(instance, commands, {name: tuple(own) for name, own in neighbors.items()})


def as_number(text: str) -> int:
    """Parse an AS number, also in RFC 5396's notation: 64086.59904."""
    high, _, low = text.rpartition(".")
    return int(high or 0) * 65536 + int(low)


def _exchanges_routes(bgp: Bgp, members: tuple[tuple[tuple[str, str, str], ...], ...]) -> bool:
    """Return whether it has an AS, is not shut down, and is active for IPv4, by its own lines or its group's."""
    top = [{command: value for block, command, value in each if not block} for each in members]
    has_as = any(each.get(key, _NO) != _NO for each in top for key in ("remote-as", "interface remote-as"))
    is_shut = any(each.get("shutdown") == _YES for each in top)
    said = [
        word
        for each in members
        if (
            word := next(
                (value for place in (*_UNICAST, "") for block, command, value in each if (block, command) == (place, "activate")),
                None,
            )
        )
        is not None
    ]
    is_active = said[0] == _YES if said else bgp.commands.get("bgp default ipv4-unicast") != _NO
    return has_as and not is_shut and is_active


def _unicast(bgp: Bgp, key: str) -> str | None:
    """Return a setting of IPv4 routes: from their block, or, as in old files, from BGP's own."""
    places = (*(f"{block}|{key}" for block in _UNICAST), key)
    return next((bgp.commands[place] for place in places if place in bgp.commands), None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _ports(interfaces: Mapping[str, str]) -> Iterator[tuple[str, PortView]]:
    blocks: dict[str, dict[str, str]] = {}
    by_command: dict[str, dict[str, str]] = {}
    for key, value in interfaces.items():
        command, _, rest = key.partition("|")
        block = by_command.get(command)
        if block is None:
            block = by_command[command] = blocks.setdefault(command.split()[1], {})
        if rest:
            block[rest] = value
    for name, block in blocks.items():
        addresses = [
            rest.split()[2]
            for rest, value in block.items()
            if rest.startswith("ip address ") and value == _YES and rest.split()[2:]
        ]
        words = block.get("description", "").split()
        keys = {"port": f"interface {name}", "peer": f"interface {name}|description", "enabled": f"interface {name}|shutdown"}
        if addresses:
            keys["addresses"] = f"interface {name}|ip address {addresses[0]}"
        if "ipv6 nd suppress-ra" in block:
            keys["has_link_local"] = f"interface {name}|ipv6 nd suppress-ra"
        yield (
            name,
            PortView(
                enabled=False if block.get("shutdown") == _YES else None,
                addresses=tuple(addresses),
                peer=(words[0], words[1]) if len(words) == 2 else None,
                # Unnumbered neighbors find each other by router advertisements.
                has_link_local=False if block.get("ipv6 nd suppress-ra") == _YES else None,
                keys=keys,
            ),
        )


def _bfd(values: Mapping[str, str]) -> Iterator[tuple[str, BfdView]]:
    for key in values:
        found = _PROFILE.fullmatch(key) if key.startswith("bfd|") else None
        if found:
            transmit, receive, multiplier = (
                _number(values.get(f"{key}|{name}")) for name in ("transmit-interval", "receive-interval", "detect-multiplier")
            )
            # FRR's defaults (doc/user/bfd.rst).
            yield found[1], BfdView(key, transmit or 300, receive or 300, multiplier or 3)


def _view_of_bgp(values: Mapping[str, str], bgp: Bgp) -> BgpView:
    found = _DEFAULT_BGP.fullmatch(bgp.key)
    profile = values.get("frr defaults", "traditional")
    timers = bgp.commands.get("timers bgp", "").split()
    is_free = profile == "datacenter"
    required = bgp.commands.get("bgp ebgp-requires-policy", _NO if is_free else _YES) == _YES
    return BgpView(
        bgp.key,
        asn=as_number(found[1]) if found else None,
        router_id=bgp.commands.get("bgp router-id", values.get("ip router-id")),
        neighbors=_neighbors(bgp, dict(_ranking(values))),
        max_paths=_number(_unicast(bgp, "maximum-paths")),
        relaxes=bgp.commands.get("bgp bestpath as-path multipath-relax") == _YES,
        requires_policy=required,
        hold_s=_number(timers[1]) if len(timers) > 1 else _HOLD_S.get(profile, _USUAL_HOLD_S),
        policies=dict(_policies(values)),
        announces=_announced(bgp.commands),
        aggregates=_aggregated(bgp.commands),
        lists=_lists(values),
        keys={
            "asn": bgp.key,
            "router_id": f"{bgp.key}|bgp router-id",
            "max_paths": f"{bgp.key}|{_UNICAST[0]}|maximum-paths",
            "relaxes": f"{bgp.key}|bgp bestpath as-path multipath-relax",
            **({"hold_s": f"{bgp.key}|timers bgp"} if timers else {}),
        },
    )


def _neighbors(bgp: Bgp, ranking: Mapping[str, str]) -> dict[str, NeighborView]:
    """Return the neighbors, given what route maps set that ranks routes. Most of a switch have the same commands."""
    made: dict[object, NeighborView] = {}
    found = {}
    for name in bgp.names:
        if not bgp.is_group(name):
            own = bgp.neighbors[name]
            if own not in made:
                made[own] = _neighbor(bgp, bgp.of(name), ranking)
            found[name] = made[own]._replace(key=f"{bgp.key}|neighbor {name}")
    return found


def _neighbor(bgp: Bgp, members: tuple[tuple[tuple[str, str, str], ...], ...], ranking: Mapping[str, str]) -> NeighborView:
    # The blocks of address families count with the rest.
    every = [(key, value) for each in members for key, value in {key: value for _, key, value in reversed(each)}.items()]

    def of(key: str) -> str | None:
        return next((value for each, value in every if each == key), None)

    remote = next((value for each, value in every if each in {"remote-as", "interface remote-as"}), None)
    timers = (of("timers") or "").split()
    policies: dict[str, str] = {}
    lists: dict[str, tuple[str, str]] = {}
    for key, value in every:
        words = key.split()
        if value != _YES or len(words) != 3:
            continue
        if words[0] == "route-map":
            policies.setdefault(words[2], words[1])
        elif words[0] in _KINDS_OF_LISTS:
            lists.setdefault(f"{words[0]} {words[2]}", (words[2], f"{_KINDS_OF_LISTS[words[0]]} {words[1]}"))
    most = next((key.split()[1] for key, value in every if key.startswith("maximum-prefix ") and value == _YES), None)
    weight = next((key for key, value in every if key.startswith("weight ") and value == _YES), None)
    return NeighborView(
        "",
        remote_as=as_number(remote) if remote and re.fullmatch(r"\d+(\.\d+)?", remote) else remote,
        is_up=_exchanges_routes(bgp, members),
        hold_s=_number(timers[1]) if len(timers) > 1 else None,
        bfd=any(value != _NO for key, value in every if key == "bfd" or key.startswith("bfd ")),
        policies=policies,
        allows_own_as=any(key.startswith("allowas-in") for key, _ in every),
        waits=of("passive") == _YES,
        lists=tuple(lists.values()),
        ranks=(
            *((weight,) if weight and weight != "weight 0" else ()),
            *(f"{ranking[policy]} (route map {policy})" for policy in policies.values() if policy in ranking),
        ),
        most_routes=_number(most),
        signs=any(key.startswith("password ") and value == _YES for key, value in every),
    )


# A neighbor's command -> the kind of list that it names.
_KINDS_OF_LISTS = {"prefix-list": "prefix-list", "distribute-list": "access-list", "filter-list": "as-path access-list"}


def _ranking(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each route map that ranks routes, with the first thing that it sets to do so."""
    found: dict[str, str] = {}
    for key, value in values.items():
        start, bar, command = key.partition("|")
        named = _ROUTE_MAP.fullmatch(start) if bar and value == _YES else None
        ranks = _RANK.fullmatch(command) if named else None
        if named and ranks:
            found.setdefault(named[1], ranks[1])
    yield from found.items()


def _lists(values: Mapping[str, str]) -> dict[str, tuple[FilterLine, ...]]:
    """Return the lists that filter routes, by kind and name. Of paths only whether a line is for all of them is known."""
    found: dict[str, list[tuple[int, FilterLine]]] = {}
    for key, value in values.items():
        line = _LIST.fullmatch(key) if value == _YES and ("-list " in key) else None
        if line is None:
            continue
        kind = line[1] or line[2] or f"as-path {line[3]}"
        lines = found.setdefault(f"{kind} {line[4]}", [])
        permits, what = line[6] == "permit", line[7]
        if line[3] and not permits and what not in {".*", "any"}:
            continue
        if line[3] or what == "any":
            made = FilterLine(permits)
        else:
            bounds = {name: int(number) for name, number in _LENGTH.findall(line[8])}
            length = int(what.rpartition("/")[2]) if "/" in what else 32
            is_exact = not bounds and (line[1] is not None or "exact-match" in line[8])
            made = FilterLine(permits, what, bounds.get("ge", length), bounds.get("le", length if is_exact else 128))
        lines.append((int(line[5] or 5 * len(lines) + 5), made))
    return {name: tuple(made for _, made in sorted(lines, key=lambda each: each[0])) for name, lines in found.items()}


def _announced(bgp: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the networks of its `network` and `aggregate-address` lines; None if it redistributes, so that others are announced too."""
    prefixes = tuple(f"{block}|" for block in _UNICAST)
    lines = [
        key.removeprefix(prefix)
        for key, value in bgp.items()
        for prefix in (*prefixes, "")
        if value == _YES and key.startswith(prefix)
    ]
    if any(line.startswith(("redistribute ", "neighbor")) and "redistribute" in line for line in lines):
        return None
    return tuple(dict.fromkeys(line.split()[1] for line in lines if line.startswith(("network ", "aggregate-address "))))


def _aggregated(bgp: Mapping[str, str]) -> tuple[str, ...]:
    found = (key.rpartition("|")[2] for key, value in bgp.items() if "aggregate-address " in key and value == _YES)
    return tuple(dict.fromkeys(words[1] for line in found if (words := line.split())[0] == "aggregate-address" and words[1:]))


def _policies(values: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield each route map and whether it permits anything."""
    permits: dict[str, bool] = {}
    for key, value in values.items():
        found = _ROUTE_MAP.fullmatch(key) if key.startswith("route-map ") else None
        if found and value == _YES:
            permits[found[1]] = permits.get(found[1], False) or found[2] == "permit"
    yield from permits.items()


# --- faults of one file -----------------------------------------------------------------------------------------------


def faults(values: Mapping[str, str], bgp: Bgp | None) -> Iterator[Fault]:
    """Yield the faults of the file."""
    if bgp is None:
        return
    instance = bgp.key
    profiles = {found[1] for key in values if key.startswith("bfd|") and (found := _PROFILE.fullmatch(key))}
    groups = {name for name in bgp.names if bgp.is_group(name)}
    for key, value in bgp.commands.items():
        place = f"{instance}|{key}"
        if key.endswith("|bfd profile") and value not in profiles:
            message = (
                f"there is no BFD profile {value}; the session runs with BFD's defaults, or without, and a dead link is found "
                "later"
            )
            yield Fault("HW845", place, message, "define it below `bfd`, or correct the name")
        if value not in groups and value not in {_YES, _NO} and key.endswith(("|interface peer-group", "|peer-group")):
            message = f"there is no peer group {value}; FRR refuses the line, and the link carries nothing"
            yield Fault("HW845", place, message, f"add `neighbor {value} peer-group`, or correct the name")
        for fault in _of_command(key, value):
            yield replace(fault, key=place)
    yield from _passive(values)
    unused = profiles - {value for key, value in bgp.commands.items() if key.endswith("|bfd profile")}
    for profile in sorted(unused if bgp.names and not any(key.startswith("bfd|peer") for key in values) else ()):
        message = f"no neighbor uses the BFD profile {profile}; without BFD, a link that fails silently is found by the hold time"
        hint = f"add `neighbor GROUP bfd profile {profile}`, or remove the profile"
        yield Fault("HW841", f"bfd|profile {profile}", message, hint, doubtful=True)
    yield from _forwarding(values)
    yield from _statics(values)


@lru_cache(65536)
def _of_command(key: str, value: str) -> tuple[Fault, ...]:
    """Return the faults that a command of BGP has by itself, with its key: most switches have the same commands."""
    return tuple(_alone(key, value))


def _alone(key: str, value: str) -> Iterator[Fault]:
    if key.endswith("|advertisement-interval") and (_number(value) or 0) > _SLOW_ADVERTISEMENT_S:
        message = f"routes are announced every {value} s; after the loss of a link, collectives wait as long for the next path"
        yield Fault("HW842", key, message, "set 0", doubtful=True)
    if key.endswith("|timers connect") and (_number(value) or 0) > _SLOW_CONNECT_S:
        message = f"a lost session is tried again after {value} s; the link stays idle as long after it is mended"
        yield Fault("HW842", key, message, "set 1 to 10 seconds", doubtful=True)
    if key.endswith("timers") or key == "timers bgp":
        yield from _timers(key, value)
    yield from _exceptions(key, value)


def _passive(values: Mapping[str, str]) -> Iterator[Fault]:
    for key, value in values.items():
        if key.startswith("bfd|profile ") and key.endswith("|passive-mode") and value == _YES:
            message = "BFD waits for the other end to begin (`passive-mode`); where both ends do, it never comes up"
            yield Fault("HW841", key, message, "remove `passive-mode`", doubtful=True)


def _exceptions(key: str, value: str) -> Iterator[Fault]:
    """Find a setting of BGP or of a neighbor that suits other networks, and not equal paths over links without IPv4 addresses."""
    words = key.rpartition("|")[2].split()
    if words == ["capability", "extended-nexthop"] and value == _NO:
        message = "the neighbor takes no IPv4 route with an IPv6 next hop; the session is up, and no route of the link is used"
        yield Fault("HW839", key, message, "remove `no neighbor ... capability extended-nexthop`")
    if words[:1] == ["local-as"] and words[1:] and value == _YES:
        message = (
            f"it shows its neighbors AS {words[1]} and its own; its paths are longer than others, which are used in their place"
        )
        yield Fault("HW834", key, message, "remove `local-as`", doubtful=True)
    if words[:2] == ["bgp", "dampening"] and value == _YES:
        message = "a path that went down and up is not used for minutes; a mended link idles"
        yield Fault("HW842", key, message, "remove `bgp dampening`", doubtful=True)
    if words[:2] == ["distance", "bgp"] and "255" in words and value == _YES:
        message = "routes of distance 255 are never installed; the switch has no route to other leaves"
        yield Fault("HW838", key, message, "remove `distance bgp`")


def _statics(values: Mapping[str, str]) -> Iterator[Fault]:
    """Find static routes that drop; of a whole default route, or of a summary that more specific routes fill, that is meant."""
    for key, value in values.items():
        if not key.startswith(("ip route ", "ipv6 route ")):
            continue
        words = key.split()
        if value == _YES and {"blackhole", "reject", "Null0"} & set(words[3:]):
            message = f"the static route drops what goes to {words[2]} and has no better route; hosts there may be unreachable from here"
            yield Fault("HW838", key, message, "remove it, unless it is a summary of the switch's networks", doubtful=True)


def _timers(key: str, value: str) -> Iterator[Fault]:
    numbers = [number for word in value.split() if (number := _number(word)) is not None]
    if len(numbers) == 2 and 0 < numbers[1] < 3 * numbers[0]:
        message = (
            f"keepalives come every {numbers[0]} s, and a session ends after {numbers[1]} s without one; one late packet "
            "takes a healthy link down"
        )
        yield Fault("HW842", key, message, f"set {numbers[1] // 3 or 1} {max(3, numbers[1])}")


def _forwarding(values: Mapping[str, str]) -> Iterator[Fault]:
    for key in ("ip forwarding", "ipv6 forwarding"):
        if values.get(key) == _NO:
            yield Fault("HW838", key, "forwarding is off; the switch drops every packet between its ports", f"remove `no {key}`")
    for key, value in values.items():
        if key.endswith("|bgp graceful-shutdown") and value == _YES:
            message = "BGP is in graceful shutdown; its neighbors use every other path first, and these links stay idle"
            yield Fault("HW834", key, message, "remove `bgp graceful-shutdown`")
