"""Reads the switch as a whole from the commands of an `frr.conf`, and finds the faults of this file alone.

Defaults: FRRouting/frr bgpd/bgp_vty.c (FRR_CFG_DEFAULT), by `frr defaults`.
"""

import re
from collections.abc import Iterator, Mapping

from headway.templates.reading import BfdView, BgpView, DeviceView, Fault, NeighborView, PortView, Traits

_DEFAULT_BGP = re.compile(r"router bgp (\d+(?:\.\d+)?)(?: vrf default)?")
_UNICAST = ("address-family ipv4 unicast", "address-family ipv4")
_YES, _NO = "yes", "no"
_HOLD_S = {"datacenter": 9}
_USUAL_HOLD_S = 180
# FRR's default in seconds for the datacenter profile is 10, and 120 elsewhere.
_SLOW_CONNECT_S = 30
_SLOW_ADVERTISEMENT_S = 5


def device_view(values: Mapping[str, str]) -> DeviceView:
    """Return the switch, given every setting's value by its key."""
    return DeviceView(
        os="frr",
        name=values.get("hostname"),
        ports=dict(_ports(values)),
        bgp=_bgp(values),
        bfd=dict(_bfd(values)),
        keys={"name": "hostname"},
    )


def traits(values: Mapping[str, str]) -> Traits:
    """Return what the routing of a switch usually shares with others: settings that have no name, address or AS number in them."""
    own = re.compile(r"(interface|hostname|!)|.*(router-id|\|network |aggregate-address|neighbor \S*[\d.:]|description)")
    shared = {re.sub(r"^router bgp [\d.]+", "router bgp *", key): value for key, value in values.items() if not own.match(key)}
    return Traits({key: value for key, value in shared.items() if not key.endswith("router bgp *")})


def instance_of(values: Mapping[str, str]) -> str | None:
    """Return the command of BGP's default instance; None without one."""
    return next((key for key in values if _DEFAULT_BGP.fullmatch(key)), None)


def as_number(text: str) -> int:
    """Parse an AS number, also in RFC 5396's notation: 64086.59904."""
    high, _, low = text.rpartition(".")
    return int(high or 0) * 65536 + int(low)


def exchanges_routes(bgp: Mapping[str, str], name: str) -> bool:
    """Return whether it is not a group, has an AS, is not shut down, and is active for IPv4, by its own lines or its group's."""
    if bgp.get(f"neighbor {name}|peer-group") == _YES:
        return False
    members = _members(bgp, name)
    has_as = any(
        bgp.get(f"neighbor {each}|{key}", _NO) != _NO for each in members for key in ("remote-as", "interface remote-as")
    )
    is_shut = any(bgp.get(f"neighbor {each}|shutdown") == _YES for each in members)
    said = [word for each in members if (word := unicast(bgp, f"neighbor {each}|activate")) is not None]
    is_active = said[0] == _YES if said else bgp.get("bgp default ipv4-unicast") != _NO
    return has_as and not is_shut and is_active


def unicast(bgp: Mapping[str, str], key: str) -> str | None:
    """Return a setting of IPv4 routes: from their block, or, as in old files, from BGP's own."""
    return next((bgp[place] for place in (*(f"{block}|{key}" for block in _UNICAST), key) if place in bgp), None)


def _members(bgp: Mapping[str, str], name: str) -> list[str]:
    group = bgp.get(f"neighbor {name}|interface peer-group") or bgp.get(f"neighbor {name}|peer-group")
    return [name] if group is None else [name, group]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _ports(values: Mapping[str, str]) -> Iterator[tuple[str, PortView]]:
    blocks: dict[str, dict[str, str]] = {}
    for key, value in values.items():
        if key.startswith("interface "):
            name, _, rest = key.removeprefix("interface ").partition("|")
            blocks.setdefault(name.split()[0], {}).update({rest: value} if rest else {})
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
        found = re.fullmatch(r"bfd\|profile ([^|\s]+)", key)
        if found:
            transmit, receive, multiplier = (
                _number(values.get(f"{key}|{name}")) for name in ("transmit-interval", "receive-interval", "detect-multiplier")
            )
            # FRR's defaults (doc/user/bfd.rst).
            yield found[1], BfdView(key, transmit or 300, receive or 300, multiplier or 3)


def _bgp(values: Mapping[str, str]) -> BgpView | None:
    instance = instance_of(values)
    if instance is None:
        return None
    found = _DEFAULT_BGP.fullmatch(instance)
    bgp = {key.removeprefix(f"{instance}|"): value for key, value in values.items() if key.startswith(f"{instance}|")}
    names = [each for each in dict.fromkeys(_names(bgp)) if bgp.get(f"neighbor {each}|peer-group") != _YES]
    commands = _of_neighbors(bgp)
    profile = values.get("frr defaults", "traditional")
    timers = bgp.get("timers bgp", "").split()
    is_free = profile == "datacenter"
    required = bgp.get("bgp ebgp-requires-policy", _NO if is_free else _YES) == _YES
    family = f"{instance}|{_UNICAST[0]}"
    return BgpView(
        instance,
        asn=as_number(found[1]) if found else None,
        router_id=bgp.get("bgp router-id", values.get("ip router-id")),
        neighbors={name: _neighbor(instance, bgp, commands, name) for name in names},
        max_paths=_number(unicast(bgp, "maximum-paths")),
        relaxes=bgp.get("bgp bestpath as-path multipath-relax") == _YES,
        requires_policy=required,
        hold_s=_number(timers[1]) if len(timers) > 1 else _HOLD_S.get(profile, _USUAL_HOLD_S),
        policies=dict(_policies(values)),
        announces=_announced(bgp),
        keys={
            "asn": instance,
            "router_id": f"{instance}|bgp router-id",
            "max_paths": f"{family}|maximum-paths",
            "relaxes": f"{instance}|bgp bestpath as-path multipath-relax",
            **({"hold_s": f"{instance}|timers bgp"} if timers else {}),
        },
    )


def _names(bgp: Mapping[str, str]) -> Iterator[str]:
    for key in bgp:
        if key.startswith("neighbor ") and "|" in key:
            yield key[len("neighbor ") : key.index("|")]


def _of_neighbors(bgp: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the commands of each neighbor and group, also those in the blocks of address families."""
    found: dict[str, dict[str, str]] = {}
    for key, value in bgp.items():
        _, start, rest = key.rpartition("neighbor ") if not key.startswith("neighbor ") else ("", "neighbor ", key[9:])
        name, bar, command = rest.partition("|")
        if start and bar:
            found.setdefault(name, {}).setdefault(command, value)
    return found


def _neighbor(instance: str, bgp: Mapping[str, str], commands: Mapping[str, Mapping[str, str]], name: str) -> NeighborView:
    members = [commands.get(each, {}) for each in _members(bgp, name)]

    def of(key: str) -> str | None:
        return next((each[key] for each in members if key in each), None)

    remote = of("remote-as") or of("interface remote-as")
    timers = (of("timers") or "").split()
    every = [(key, value) for each in members for key, value in each.items()]
    policies: dict[str, str] = {}
    for key, value in every:
        if key.startswith("route-map ") and value == _YES and len(words := key.split()) == 3:
            policies.setdefault(words[2], words[1])
    return NeighborView(
        f"{instance}|neighbor {name}",
        remote_as=as_number(remote) if remote and re.fullmatch(r"\d+(\.\d+)?", remote) else remote,
        is_up=exchanges_routes(bgp, name),
        hold_s=_number(timers[1]) if len(timers) > 1 else None,
        bfd=any(value != _NO for key, value in every if key == "bfd" or key.startswith("bfd ")),
        policies=policies,
        allows_own_as=any(key.startswith("allowas-in") for key, _ in every),
    )


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


def _policies(values: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield each route map and whether it permits anything."""
    permits: dict[str, bool] = {}
    for key, value in values.items():
        found = re.fullmatch(r"route-map (\S+) (permit|deny) \d+", key)
        if found and value == _YES:
            permits[found[1]] = permits.get(found[1], False) or found[2] == "permit"
    yield from permits.items()


# --- faults of one file -----------------------------------------------------------------------------------------------


def faults(values: Mapping[str, str]) -> Iterator[Fault]:
    """Yield the faults of the file."""
    instance = instance_of(values)
    if instance is None:
        return
    bgp = {key.removeprefix(f"{instance}|"): value for key, value in values.items() if key.startswith(f"{instance}|")}
    profiles = {found[1] for key in values if (found := re.fullmatch(r"bfd\|profile ([^|\s]+)", key))}
    groups = {name for name in _names(bgp) if bgp.get(f"neighbor {name}|peer-group") == _YES}
    for key, value in bgp.items():
        if key.endswith("|bfd profile") and value not in profiles:
            message = (
                f"there is no BFD profile {value}; the session runs with BFD's defaults, or without, and a dead link is found "
                "later"
            )
            yield Fault("HW845", f"{instance}|{key}", message, "define it below `bfd`, or correct the name")
        if key.endswith(("|interface peer-group", "|peer-group")) and value not in {_YES, _NO} and value not in groups:
            message = f"there is no peer group {value}; FRR refuses the line, and the link carries nothing"
            yield Fault("HW845", f"{instance}|{key}", message, f"add `neighbor {value} peer-group`, or correct the name")
        if key.endswith("|advertisement-interval") and (_number(value) or 0) > _SLOW_ADVERTISEMENT_S:
            message = (
                f"routes are announced every {value} s; after the loss of a link, collectives wait as long for the next path"
            )
            yield Fault("HW842", f"{instance}|{key}", message, "set 0", doubtful=True)
        if key.endswith("|timers connect") and (_number(value) or 0) > _SLOW_CONNECT_S:
            message = f"a lost session is tried again after {value} s; the link stays idle as long after it is mended"
            yield Fault("HW842", f"{instance}|{key}", message, "set 1 to 10 seconds", doubtful=True)
        if key.endswith("timers") or key == "timers bgp":
            yield from _timers(f"{instance}|{key}", value)
    yield from _forwarding(values)


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
