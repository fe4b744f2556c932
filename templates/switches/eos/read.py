"""Reads a running configuration of Arista EOS: ports, QoS profiles, PFC, ECN, BGP.

Commands and defaults: EOS User Manual, chapters Quality of Service, Priority Flow Control and BGP; aristanetworks/avd eos_cli_config_gen
for their forms in a running configuration.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache, partial

from msgspec import Struct, field

from headway.templates.reading import (
    BfdView,
    BgpView,
    DeviceView,
    EcnView,
    Fault,
    FilterLine,
    MarkingView,
    NeighborView,
    PortView,
    QosView,
    Reading,
    RoutingView,
    Setting,
    Traits,
)
from headway.templates.switches.eos.blocks import judge

_EIGHT = range(8)
_DSCPS = range(64)
_PORT = re.compile(r"interface (Ethernet\d+(?:/\d+)*)")
_EOS = re.compile(
    r"interface (Ethernet|Management|Loopback|Vlan|Port-Channel)\d|router bgp|qos (profile|map)|hostname|ip routing"
)
_QUEUE = re.compile(r"(?:uc-)?tx-queue (\d)")
_ECN = re.compile(
    r"random-detect ecn minimum-threshold (\d+) (\w+) maximum-threshold (\d+) (\w+)"
    r"(?: max-mark-probability (\d+))?(?: weight \d+)?"
)
# EOS prints the unit as it was typed; its manual does not define whether a kbyte is 1000 or 1024 bytes. A multiple of 64 counts as the
# latter.
_UNITS = {"bytes": 0, "kbytes": 1, "mbytes": 2}
_HOLD_S = 180
# Of traffic class 0 is DSCP 8 to 15, and of class 1 DSCP 0 to 7, on all of Arista's platforms.
_DEFAULT_CLASSES = (1, 0, 2, 3, 4, 5, 6, 7)
_FACTS = frozenset({"queue of DSCP", "PFC of priority", "queue that PFC pauses for priority", "marking of queue"})
_FEC = {"reed-solomon": "rs", "fire-code": "fc"}
_MEMBER = r"neighbor (?:interface )?(\S+)"
_PREFIXES = re.compile(r"(?:ip prefix-list (\S+) )?(?:seq (\d+) )?(permit|deny) (\S+/\d+)(.*)")
_RANK = re.compile(r"set (as-path prepend|local-preference|weight|metric)\b.*")


class _Block(Struct):
    """A command with those below it, by their words."""

    key: str
    line: int
    inner: "dict[str, _Block]" = field(default_factory=dict)

    def after(self, start: str) -> str | None:
        """Return the rest of the command that begins so; the last one counts."""
        return next((words[len(start) :].strip() for words in reversed(self.inner) if words.startswith(start)), None)

    def key_of(self, start: str) -> str:
        return next((block.key for words, block in self.inner.items() if words.startswith(start)), self.key)


def is_eos(text: str) -> bool:
    """Return whether the text looks like EOS: blocks of three blanks between lines of `!`, or its own first line."""
    if re.search(r"^! (device|Command: show running-config|boot system flash:.*EOS)", text, re.MULTILINE) and "EOS" in text:
        return True
    if re.search(r"^(frr |feature |version \d|service integrated-vtysh)", text, re.MULTILINE):
        return False
    return bool(re.search(r"^(interface \S+\d|router bgp \d+|qos profile \S+)\n   \S", text, re.MULTILINE))


def read(text: str) -> Reading:
    """Return every command as a setting, a view for each Ethernet port, and BGP of the default VRF.

    `interface Ethernet1/1|mtu 9214` -> the empty value. ValueError if the text is not a running configuration.
    """
    root = _Block("", 0)
    inside: list[tuple[int, _Block]] = [(-1, root)]
    is_banner = False
    for number, line in enumerate(text.splitlines(), 1):
        words = " ".join(line.split())
        # A banner's text continues to a line of its own.
        if is_banner:
            is_banner = line.strip() != "EOF"
            continue
        is_banner = words.startswith("banner ")
        if not words or words[0] == "!" or words in {"end", "exit"}:
            continue
        indent = len(line) - len(line.lstrip())
        while inside[-1][0] >= indent:
            inside.pop()
        parent = inside[-1][1]
        block = parent.inner.setdefault(words, _Block(f"{parent.key}|{words}".lstrip("|"), number))
        inside.append((indent, block))
    if not any(_EOS.match(words) for words in root.inner):
        raise ValueError(
            "line 1: no `hostname`, `interface Ethernet` or `router bgp` in it, so this is not a configuration of EOS"
        )
    switch = _Switch(root)
    return Reading(
        dict(_settings(root)),
        switch.views,
        switch.routing,
        switch.device,
        partial(_faults, switch),
        partial(_traits, switch),
    )


def _settings(block: _Block) -> Iterator[tuple[str, Setting]]:
    for inner in block.inner.values():
        yield inner.key, Setting("", inner.line)
        yield from _settings(inner)


class _Switch:
    """The meaning of a configuration."""

    def __init__(self, root: _Block) -> None:
        self.root = root
        self.ports = {found[1]: block for words, block in root.inner.items() if (found := _PORT.fullmatch(words))}
        self.profiles = {words.split()[2]: block for words, block in root.inner.items() if words.startswith("qos profile ")}

    def qos_of(self, port: _Block) -> list[_Block]:
        """The blocks that set a port's QoS: its own, and its profile's."""
        profile = self.profiles.get(port.after("service-profile ") or "")
        return [port] if profile is None else [port, profile]

    @cached_property
    def views(self) -> dict[str, QosView]:
        made: dict[tuple[int, ...] | str, QosView] = {}
        views = {}
        for name, port in self.ports.items():
            blocks = self.qos_of(port)
            own = [words for words in port.inner if words.startswith(("qos", "priority-flow", "tx-queue", "uc-tx-queue"))]
            known = str((own, port.after("service-profile ")))
            if own == [] and len(blocks) == 1:
                continue
            if known not in made or any(port.inner[words].inner for words in own):
                made[known] = self._view(blocks)
            views[name] = made[known]
        return views

    def _view(self, blocks: list[_Block]) -> QosView:
        commands = [words for block in blocks for words in block.inner]
        pfc = {
            int(found[1]) for words in commands if (found := re.fullmatch(r"priority-flow-control priority (\d) no-drop", words))
        }
        is_on = "priority-flow-control on" in commands or "priority-flow-control mode on" in commands
        classes, queues = self.maps
        trusts = not any(words in {"qos trust cos", "no qos trust"} for words in commands)
        places = {dscp: queues[classes[dscp]] for dscp in _DSCPS} if trusts else {}
        ecn: dict[int, EcnView | None] = (
            dict.fromkeys(_EIGHT) if any("random-detect ecn" in each for each in self.all_ecn) else {}
        )
        weights: dict[int, int | None] = {}
        for block in reversed(blocks):
            for words, inner in block.inner.items():
                found = _QUEUE.fullmatch(words)
                if found:
                    queue = int(found[1])
                    for command in inner.inner:
                        if _ECN.match(command):
                            ecn[queue] = _thresholds(command)
                    share = inner.after("bandwidth percent ") or inner.after("bandwidth guaranteed percent ")
                    if share is not None and share.isdecimal():
                        weights[queue] = int(share)
                    elif "priority strict" in inner.inner:
                        weights[queue] = None
        return QosView(
            # PFC's priorities are EOS's traffic classes.
            priorities=dict(classes) if trusts else {},
            queues=places,
            pfc={priority: is_on and priority in pfc for priority in _EIGHT} if is_on or pfc else {},
            paused_queues={priority: queues[priority] for priority in pfc},
            ecn=ecn,
            weights=weights,
            says=_FACTS if is_on or pfc or not trusts else frozenset(),
        )

    @cached_property
    def all_ecn(self) -> list[str]:
        return [key.key for key in _every(self.root) if "random-detect ecn minimum" in key.key]

    @cached_property
    def maps(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """DSCP -> traffic class, traffic class -> transmit queue."""
        classes = {dscp: _DEFAULT_CLASSES[dscp >> 3] for dscp in _DSCPS}
        queues = {each: each for each in _EIGHT}
        for words in self.root.inner:
            found = re.fullmatch(r"qos map dscp ([\d ,-]+) to traffic-class (\d)", words)
            if found:
                classes.update(dict.fromkeys(_numbers(found[1]), int(found[2])))
            found = re.fullmatch(r"qos map traffic-class ([\d ,-]+) to (?:uc-)?tx-queue (\d)", words)
            if found:
                queues.update(dict.fromkeys(_numbers(found[1]), int(found[2])))
        return classes, queues

    @cached_property
    def bgp(self) -> _Block | None:
        return next((block for words, block in self.root.inner.items() if re.fullmatch(r"router bgp \d+(\.\d+)?", words)), None)

    @cached_property
    def device(self) -> DeviceView:
        watch = [words for words in self.root.inner if words.startswith("priority-flow-control pause watchdog")]
        timeouts = [float(words.split()[-1]) for words in watch if re.search(r"timeout [\d.]+$", words)]
        name = self.root.after("hostname ")
        loopbacks = {
            words.removeprefix("interface "): block
            for words, block in self.root.inner.items()
            if words.startswith("interface Loopback")
        }
        return DeviceView(
            os="eos",
            name=name,
            ports={name: _port(block) for name, block in {**self.ports, **loopbacks}.items()},
            bgp=self._bgp(),
            marking=dict(self._marking()),
            bfd=dict(_bfd(self.root)),
            hashed=self._hashed(),
            watches=bool(watch),
            watchdog_ms=int(max(timeouts) * 1000) if timeouts else None,
            keys={"name": self.root.key_of("hostname "), "hashed": self._hash_key()},
        )

    def _marking(self) -> Iterator[tuple[str, MarkingView]]:
        for block in (*self.profiles.values(), *self.ports.values()):
            for words, inner in block.inner.items():
                for command, own in inner.inner.items() if _QUEUE.fullmatch(words) else ():
                    found = _ECN.match(command)
                    if found:
                        yield f"{block.key}, {words}", MarkingView(own.key, _thresholds(command, in_order=True))

    def _hash_lines(self) -> list[str]:
        return [words for words in self.root.inner if re.match(r"(ip )?load-(sharing|balance)\b.*fields ip\b", words)]

    def _hash_key(self) -> str:
        return next(iter(self._hash_lines()), "")

    def _hashed(self) -> frozenset[str] | None:
        lines = self._hash_lines()
        if not lines:
            return None
        has_ports = any(re.search(r"source-port|ip-tcp-udp-header|l4-source|src-l4", words) for words in lines)
        return frozenset({"ip", "port"} if has_ports else {"ip"})

    def _bgp(self) -> BgpView | None:
        if self.bgp is None:
            return None
        bgp = self.bgp
        family = next(
            (block for words, block in bgp.inner.items() if words in {"address-family ipv4", "address-family ipv4 unicast"}),
            _Block("", 0),
        )
        commands: dict[str, dict[str, _Block]] = {}
        for block in (family, bgp):
            for words, inner in block.inner.items():
                found = re.match(_MEMBER + r" (.+)", words)
                if found:
                    commands.setdefault(found[1], {}).setdefault(found[2], inner)
        groups = {name for name, own in commands.items() if {"peer group", "peer-group"} & own.keys()}
        is_active = "no bgp default ipv4-unicast" not in bgp.inner
        timers = (bgp.after("timers bgp ") or "").split()
        ranking = dict(self._ranking())
        paths = (bgp.after("maximum-paths ") or family.after("maximum-paths ") or "1").split()[0]
        lines = [words for block in (bgp, family) for words in block.inner]
        redistributes = any(words.startswith("redistribute connected") for words in lines)
        networks = tuple(words.split()[1] for words in lines if words.startswith(("network ", "aggregate-address ")))
        return BgpView(
            bgp.key,
            asn=_as_number(bgp.key.split()[2]),
            router_id=bgp.after("router-id "),
            neighbors={
                name: _neighbor(name, commands, is_active, ranking)
                for name in commands
                if name not in groups and _is_neighbor(name)
            },
            max_paths=int(paths) if paths.isdecimal() else None,
            relaxes="no bgp bestpath as-path multipath-relax" not in bgp.inner,
            hold_s=int(timers[1]) if len(timers) > 1 and timers[1].isdecimal() else _HOLD_S,
            policies=dict(self._policies()),
            announces=None if redistributes else networks,
            aggregates=tuple(words.split()[1] for words in lines if words.startswith("aggregate-address ")),
            lists=self._lists(),
            keys={
                "asn": bgp.key,
                "router_id": bgp.key_of("router-id "),
                "max_paths": bgp.key_of("maximum-paths "),
                "relaxes": bgp.key_of("no bgp bestpath as-path"),
                **({"hold_s": bgp.key_of("timers bgp ")} if timers else {}),
            },
        )

    def _policies(self) -> Iterator[tuple[str, bool]]:
        permits: dict[str, bool] = {}
        for words in self.root.inner:
            found = re.fullmatch(r"route-map (\S+)(?: (permit|deny) \d+)?", words)
            if found:
                permits[found[1]] = permits.get(found[1], False) or found[2] != "deny"
        yield from permits.items()

    def _ranking(self) -> Iterator[tuple[str, str]]:
        """Yield each route map that ranks routes, with what it sets to do so."""
        for words, block in self.root.inner.items():
            found = re.fullmatch(r"route-map (\S+)(?: (permit|deny) \d+)?", words)
            ranks = next((made[1] for each in block.inner if (made := _RANK.fullmatch(each))), None) if found else None
            if found and ranks:
                yield found[1], ranks

    def _lists(self) -> dict[str, tuple[FilterLine, ...]]:
        """Return the prefix lists, which have each line by itself or below their name."""
        found: dict[str, list[tuple[int, FilterLine]]] = {}
        for words, block in self.root.inner.items():
            if words.startswith("ip prefix-list "):
                lines = found.setdefault(f"prefix-list {words.split()[2]}", [])
                for each in (words, *block.inner):
                    line = _PREFIXES.fullmatch(each)
                    if line:
                        bounds = {name: int(number) for name, number in re.findall(r"(ge|le|eq) (\d+)", line[5])}
                        length = int(line[4].rpartition("/")[2])
                        low = bounds.get("ge", bounds.get("eq", length))
                        high = bounds.get("le", bounds.get("eq", 128 if "ge" in bounds else length))
                        lines.append((int(line[2] or 10 * len(lines)), FilterLine(line[3] == "permit", line[4], low, high)))
        return {name: tuple(made for _, made in sorted(lines, key=lambda each: each[0])) for name, lines in found.items()}

    @cached_property
    def routing(self) -> RoutingView | None:
        bgp = self.device.bgp
        if bgp is None:
            return None
        up = frozenset(name for name, each in (bgp.neighbors or {}).items() if each.is_up)
        return RoutingView(bgp.asn, bgp.router_id, up, bgp.max_paths)


def _every(block: _Block) -> Iterator[_Block]:
    for inner in block.inner.values():
        yield inner
        yield from _every(inner)


def _numbers(text: str) -> Iterator[int]:
    """Parse `26`, `24 26`, `24-31`, `24,26`."""
    for word in re.split(r"[ ,]+", text.strip()):
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _as_number(text: str) -> int:
    high, _, low = text.rpartition(".")
    return int(high or 0) * 65536 + int(low)


def _thresholds(command: str, in_order: bool = False) -> EcnView:
    """Return the thresholds; of segments and times, whose bytes depend on the platform, only where the order of the two matters."""
    found = _ECN.match(command)
    if found is None:
        return EcnView()
    percent = int(found[5]) if found[5] else None
    values = [_bytes(int(found[1]), found[2]), _bytes(int(found[3]), found[4])]
    if None in values and in_order and found[2] == found[4]:
        # Numbers of one unit may be compared, and as these are many bytes each they are no bytes.
        return EcnView(int(found[1]) * 256, int(found[3]) * 256, percent)
    return EcnView(values[0], values[1], percent)


def _bytes(value: int, unit: str) -> int | None:
    if unit not in _UNITS:
        return None
    base = 1024 if value % 64 == 0 else 1000
    return value * (1 if unit == "bytes" else base ** _UNITS[unit])


def _port(block: _Block) -> PortView:
    speed = re.search(r"(\d+)g", block.after("speed ") or "")
    fec = block.after("error-correction encoding ")
    addresses = [words.split()[2] for words in block.inner if re.fullmatch(r"ip address [\d.]+/\d+( secondary)?", words)]
    pauses = [words for words in block.inner if re.fullmatch(r"flowcontrol (send|receive) on", words)]
    text = block.after("description ") or ""
    words = [word.strip(",;:") for word in (text if len(text.split()) > 1 else text.replace("_", " ")).split()]
    mtu = block.after("mtu ")
    return PortView(
        enabled="shutdown" not in block.inner,
        mtu=int(mtu) if mtu and mtu.isdecimal() else None,
        mbps=int(speed[1]) * 1000 if speed else None,
        fec="none" if "no error-correction encoding" in block.inner else _FEC.get(fec or ""),
        addresses=tuple(addresses),
        peer=(words[0], words[1]) if len(words) == 2 else None,
        pauses=bool(pauses),
        has_link_local="ipv6 enable" in block.inner or any(words.startswith("ipv6 address") for words in block.inner),
        keys={
            "port": block.key,
            "enabled": block.key_of("shutdown"),
            "mtu": block.key_of("mtu "),
            "mbps": block.key_of("speed "),
            "fec": block.key_of("no error-correction" if "no error-correction encoding" in block.inner else "error-correction"),
            "addresses": block.key_of("ip address "),
            "peer": block.key_of("description "),
            "pauses": block.key_of("flowcontrol "),
            "has_link_local": block.key_of("ipv6 "),
        },
    )


def _is_neighbor(name: str) -> bool:
    return re.fullmatch(r"[\d.]+|[0-9a-fA-F:]+(%\S+)?|Ethernet[\d/,-]+|Et[\d/,-]+|Port-Channel\d+|Vlan\d+", name) is not None


def _neighbor(
    name: str, commands: Mapping[str, Mapping[str, _Block]], is_active: bool, ranking: Mapping[str, str]
) -> NeighborView:
    own = commands[name]
    joined = next((found for words in own if (found := re.match(r"(?:peer group|peer-group) (\S+)(.*)", words))), None)
    group = commands.get(joined[1], {}) if joined else {}
    every = {**group, **own}
    remote: int | str | None = None
    for words in every:
        found = re.fullmatch(r"(?:.* )?remote-as (\S+)", words)
        if found:
            remote = _as_number(found[1]) if re.fullmatch(r"\d+(\.\d+)?", found[1]) else found[1]
        elif "peer-filter" in words and remote is None:
            remote = "external"
    timers = next((words.split() for words in every if words.startswith("timers ")), [])
    active = "activate" in every or (is_active and "no activate" not in every)
    policies = {words.split()[2]: words.split()[1] for words in every if re.fullmatch(r"route-map \S+ (in|out)", words)}
    return NeighborView(
        next(iter(own.values())).key,
        remote_as=remote,
        is_up=remote is not None and "shutdown" not in every and active,
        hold_s=int(timers[2]) if len(timers) > 2 and timers[2].isdecimal() else None,
        bfd=any(words == "bfd" or words.startswith("bfd ") for words in every),
        policies=policies,
        allows_own_as=any(words.startswith("allowas-in") for words in every),
        waits="passive" in every,
        lists=tuple(
            (words.split()[2], f"prefix-list {words.split()[1]}")
            for words in every
            if re.fullmatch(r"prefix-list \S+ (in|out)", words)
        ),
        ranks=(
            *(words for words in every if re.fullmatch(r"weight [1-9]\d*", words)),
            *(f"{ranking[policy]} (route map {policy})" for policy in policies.values() if policy in ranking),
        ),
        most_routes=next((int(found[1]) for words in every if (found := re.match(r"maximum-routes (\d+)", words))), None),
        signs=any(words.startswith("password ") for words in every),
    )


def _bfd(root: _Block) -> Iterator[tuple[str, BfdView]]:
    for block in _every(root):
        found = re.search(r"(?:bfd )?interval (\d+) min-rx (\d+) multiplier (\d+)", block.key.rpartition("|")[2])
        if found:
            yield block.key, BfdView(block.key, int(found[1]), int(found[2]), int(found[3]))


@lru_cache(4096)
def _is_of_plan(words: str) -> bool:
    """Return whether a line of a port is not the site's own choice."""
    return judge(f"interface Ethernet1|{words}") is not None


def _traits(switch: _Switch) -> Traits:
    device = {
        words: "yes"
        for words in switch.root.inner
        if words.startswith(("qos map", "priority-flow", "ip load", "load-balance", "ip routing", "ip hardware"))
    }
    for block in switch.profiles.values():
        device |= {each.key: "yes" for each in _every(block)}
    bgp = switch.bgp
    for words in bgp.inner if bgp is not None else ():
        if not re.search(r"router-id|network|\d+\.\d+\.\d+|neighbor interface|remote-as|description", words):
            device[f"router bgp *|{words}"] = "yes"
    own = re.compile(r"description|ip address|.*neighbor")
    ports = {
        name: {words: "yes" for words in block.inner if not own.match(words) and _is_of_plan(words)}
        for name, block in switch.ports.items()
        if "shutdown" not in block.inner
        and (block.after("service-profile ") or block.after("ip address ") or "ipv6 enable" in block.inner)
    }
    return Traits(device, ports)


def _unnumbered(switch: _Switch) -> Iterator[Fault]:
    """Find what EOS needs for sessions without IPv4 addresses (EOS User Manual, BGP: IPv4 routes with IPv6 next hops)."""
    bgp, root = switch.bgp, switch.root.inner
    first = next((block for words, block in bgp.inner.items() if words.startswith("neighbor interface ")), None) if bgp else None
    if bgp is None or first is None:
        return
    family = [words for block in bgp.inner.values() for words in block.inner]
    for is_there, what, effect in (
        (
            "ipv6 unicast-routing" in root,
            "ipv6 unicast-routing",
            "the ports send no router advertisements, and no session comes up",
        ),
        (
            any("next-hop address-family ipv6" in words for words in (*family, *bgp.inner)),
            "neighbor GROUP next-hop address-family ipv6 originate",
            "the sessions are up, and exchange no IPv4 route",
        ),
        (
            "service routing protocols model ribd" not in root,
            "service routing protocols model multi-agent",
            "the other model has no such sessions",
        ),
    ):
        if not is_there:
            message = f"BGP runs unnumbered, and `{what}` is missing; {effect}"
            yield Fault("HW839", first.key, message, f"add `{what}`")


def _faults(switch: _Switch) -> Iterator[Fault]:
    root = switch.root
    yield from _unnumbered(switch)
    for words, block in root.inner.items():
        found = re.fullmatch(r"ip route (\S+/\d+) Null0\b.*", words)
        if found:
            message = f"the static route drops what goes to {found[1]} and has no better route; hosts there may be unreachable from here"
            hint = "remove it, unless it is a summary of the switch's networks"
            yield Fault("HW838", block.key, message, hint, doubtful=True)
    if switch.bgp is not None and not any(words.startswith("ip routing") for words in root.inner):
        message = "`ip routing` is missing, and EOS does not route without it; every packet between ports is dropped"
        yield Fault("HW838", switch.bgp.key, message, "add `ip routing`")
    for name, port in switch.ports.items():
        profile = port.after("service-profile ")
        if profile is not None and profile not in switch.profiles:
            message = f"there is no QoS profile {profile}; the port has neither PFC nor ECN, and drops RDMA packets"
            yield Fault("HW845", port.key_of("service-profile "), message, "define it, or correct the name")
        view = switch.views.get(name)
        if view is not None and any(view.pfc.values()) and not view.queues:
            message = (
                "PFC is on, and the port does not trust DSCP; routed packets get the port's own class, and none is in the "
                "paused queue"
            )
            yield Fault(
                "HW816", port.key_of("qos trust" if port.after("qos trust") else "no qos trust"), message, "set `qos trust dscp`"
            )
        commands = [words for block in switch.qos_of(port) for words in block.inner]
        lossless = [words for words in commands if re.fullmatch(r"priority-flow-control priority \d no-drop", words)]
        if lossless and not {"priority-flow-control on", "priority-flow-control mode on"} & set(commands):
            message = (
                "priorities are no-drop, and `priority-flow-control on` is missing; the port sends and obeys no pause, and drops"
            )
            yield Fault("HW806", switch.qos_of(port)[-1].key, message, "add `priority-flow-control on`")
            break
    yield from _queues(switch)
    yield from _watchdog(root)


def _queues(switch: _Switch) -> Iterator[Fault]:
    for block in (*switch.profiles.values(), *switch.ports.values()):
        shares = [
            int(share)
            for words, inner in block.inner.items()
            if _QUEUE.fullmatch(words) and (share := inner.after("bandwidth percent ") or "").isdecimal()
        ]
        if sum(shares) > 100:
            message = (
                f"the queues' shares are {sum(shares)} % together; EOS scales or refuses them, and the lossless queue gets "
                "another share than is meant"
            )
            yield Fault("HW815", block.key, message, "let them sum to 100")
    view = next((view for view in switch.views.values() if any(view.pfc.values())), None)
    if view is None:
        return
    lossless = [priority for priority, on in view.pfc.items() if on]
    for priority in lossless:
        percent = view.weights.get(view.paused_queues.get(priority, priority), 100)
        if percent is not None and percent < 10 and len(view.weights) > 1:
            message = (
                f"the lossless queue {view.paused_queues[priority]} gets {percent} % of a full link; other traffic makes it "
                "pause all senders"
            )
            yield Fault("HW815", switch.ports[next(iter(switch.views))].key, message, "give it the larger share", doubtful=True)


def _watchdog(root: _Block) -> Iterator[Fault]:
    values = {}
    for words, block in root.inner.items():
        found = re.fullmatch(
            r"priority-flow-control pause watchdog (?:default )?(timeout|polling-interval|recovery-time) ([\d.]+).*", words
        )
        if found:
            values[found[1]] = (float(found[2]), block.key)
        if re.fullmatch(r"priority-flow-control pause watchdog action (notify-only|forward)", words):
            message = (
                "the watchdog only notifies; the queue of a port that is paused for ever is not emptied, and the pause spreads"
            )
            yield Fault("HW811", block.key, message, "set `action drop`", doubtful=True)
    poll = values.get("polling-interval")
    for name in ("timeout", "recovery-time"):
        if poll is not None and name in values and poll[0] > values[name][0] / 2:
            message = (
                f"the watchdog polls every {poll[0]} s, and its {name} is {values[name][0]} s; EOS wants at most half, and "
                "refuses the pair"
            )
            yield Fault("HW811", poll[1], message, f"set {values[name][0] / 2} or less")
