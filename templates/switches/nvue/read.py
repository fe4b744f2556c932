"""Reads a configuration of Cumulus Linux: lines of `nv config show -o commands`, or NVUE's YAML (startup.yaml).

Commands and defaults: docs.nvidia.com cumulus-linux-515 and -516: Quality of Service, RDMA over Converged Ethernet, BGP, BFD.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import yaml

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
from headway.templates.switches.nvue import roce
from headway.templates.switches.nvue.tree import MOST_DEPTH, members

_EIGHT = range(8)
_DSCPS = range(64)
_COMMAND = re.compile(r"(?:\S+[$#]\s*)?nv set (.+)")
_ON = frozenset({"on", "enable", "enabled", "yes", "true", "up"})
_OFF = frozenset({"off", "disable", "disabled", "no", "false", "down"})
_FEC = {"rs": "rs", "baser": "fc", "off": "none", "none": "none", "auto": "auto"}
_FACTS = frozenset({"queue of DSCP", "PFC of priority", "queue that PFC pauses for priority", "marking of queue"})
_LOSSLESS = ("lossless", "lossless-single-ipool")
# The words of a port's addresses: until 5.14, and from 5.15 on.
_FAMILIES = ("ip", "ipv4")
_HOLD_S = 9
_MAX_PATHS = 64

Tree = dict[str, Any]


def is_nvue(text: str) -> bool:
    """Return whether the text is NVUE's: commands, or a YAML list with a `set`."""
    return bool(re.search(r"^(?:\S+[$#]\s*)?nv set \S", text, re.MULTILINE) or re.search(r"^- set:\s*$", text, re.MULTILINE))


def read(text: str) -> Reading:
    """Return every attribute as a setting, a view for each port, and BGP of the default VRF.

    `interface|swp1|link|mtu|9216` -> the empty value. ValueError, with the line, if the text is not NVUE's.
    """
    paths = dict(_of_yaml(text) if re.search(r"^- (set|header):", text, re.MULTILINE) else _of_commands(text))
    if not paths:
        raise ValueError("line 1: neither `nv set` nor a YAML list with `set`, so this is not a configuration of NVUE")
    tree: Tree = {}
    for path in paths:
        node = tree
        for word in path:
            node = node.setdefault(word, {})
    switch = _Switch(tree)
    return Reading(
        {"|".join(path): Setting("", line) for path, line in paths.items()},
        switch.views,
        switch.routing,
        switch.device,
        partial(_faults, switch),
        partial(_traits, switch),
    )


# --- text -------------------------------------------------------------------------------------------------------------


def _of_commands(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    for number, line in enumerate(text.splitlines(), 1):
        found = _COMMAND.match(line.strip())
        if found:
            try:
                words = shlex.split(found[1])
            except ValueError:
                words = found[1].split()
            for path in _expanded(words):
                yield path, number


def _of_yaml(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"line {mark.line + 1 if mark else 1}: not YAML: {getattr(error, 'problem', None)}") from error
    except RecursionError as error:
        raise ValueError("line 1: nested too deep for a configuration of NVUE") from error
    for item in root.value if isinstance(root, yaml.SequenceNode) else ():
        for key, value in item.value if isinstance(item, yaml.MappingNode) else ():
            if key.value == "set":
                yield from _leaves(value, ())


def _leaves(node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    line = node.start_mark.line + 1
    if len(path) > MOST_DEPTH:
        raise ValueError(f"line {line}: nested deeper than {MOST_DEPTH} levels")
    if isinstance(node, yaml.MappingNode):
        if not node.value:
            yield from ((each, line) for each in _expanded(path))
        for key, value in node.value:
            yield from _leaves(value, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _leaves(value, path)
    else:
        yield from ((each, line) for each in _expanded((*path, str(node.value))))


# The words before lists and ranges of names and numbers.
_LISTED = frozenset({"interface", "neighbor", "traffic-class", "switch-priority", "dscp", "pcp"})


def _expanded(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a path for each member of its lists: `swp1-2,swp5`, `0,3`, `24-31`."""
    paths: list[tuple[str, ...]] = [()]
    for before, word in zip(("", *words), words, strict=False):
        listed = list(members(word)) if before in _LISTED else [word]
        paths = [(*path, member) for path in paths for member in listed]
    return paths


# --- meaning ----------------------------------------------------------------------------------------------------------


def _at(tree: Tree, *path: str) -> Tree:
    for word in path:
        tree = tree.get(word, {})
    return tree


def _value(tree: Tree, *path: str) -> str | None:
    """Return the attribute's value; the last one of several counts."""
    return next(reversed(_at(tree, *path)), None)


def _is_on(tree: Tree, *path: str) -> bool | None:
    """Return whether it is on, by `enable on`, `state enabled` or the word itself; None where the file does not set it."""
    word = _value(tree, *path, "enable") or _value(tree, *path, "state") or _value(tree, *path)
    return True if word in _ON else False if word in _OFF else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


class _Switch:
    """The meaning of a configuration."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.ports: dict[str, Tree] = {
            name: node for name, node in _at(tree, "interface").items() if re.fullmatch(r"swp\d+(s\d+)?", name)
        }

    @cached_property
    def roce(self) -> str | None:
        """The mode of `qos roce`; None where it is off."""
        if "roce" not in _at(self.tree, "qos") or _is_on(self.tree, "qos", "roce") is False:
            return None
        return _value(self.tree, "qos", "roce", "mode") or "lossless"

    def profile(self, port: Tree, kind: str) -> Tree:
        """The profile of a kind of QoS that a port has: its own, or that of all ports."""
        name = _value(port, "qos", kind, "profile") or "default-global"
        return _at(self.tree, "qos", kind, name)

    @cached_property
    def views(self) -> dict[str, QosView]:
        made: dict[str, QosView] = {}
        views = {}
        if self.roce == "lossy-multi-tc" or not (self.roce or any(kind in _at(self.tree, "qos") for kind in _KINDS)):
            return {}
        for name, port in self.ports.items():
            key = repr(_at(port, "qos"))
            if key not in made:
                made[key] = self._view(port)
            views[name] = made[key]
        return views

    def _view(self, port: Tree) -> QosView:
        mapping = self.profile(port, "mapping")
        trust = _value(mapping, "trust")
        trusts = trust in {"l3", "both"} or (self.roce is not None and trust is None)
        priorities = {dscp: dscp >> 3 for dscp in _DSCPS} if trusts else {}
        for word, node in _at(mapping, "dscp").items():
            dscp, priority = _number(word), _number(_value(node, "switch-priority"))
            if trusts and dscp is not None and priority is not None:
                priorities[dscp] = priority
        queues = dict(roce.QUEUES) if self.roce else {each: each for each in _EIGHT}
        for word, node in _at(self.profile(port, "egress-queue-mapping"), "switch-priority").items():
            priority, queue = _number(word), _number(_value(node, "traffic-class"))
            if priority is not None and queue is not None:
                queues[priority] = queue
        paused = self.paused(port)
        return QosView(
            priorities=priorities,
            queues={dscp: queues[priority] for dscp, priority in priorities.items() if priority in queues},
            pfc={priority: priority in paused for priority in _EIGHT},
            paused_queues={priority: queues[priority] for priority in paused if priority in queues},
            ecn=self._ecn(port),
            weights=self._weights(port),
            says=_FACTS,
        )

    def paused(self, port: Tree) -> set[int]:
        profile = self.profile(port, "pfc")
        named = {number for word in _at(profile, "switch-priority") if (number := _number(word)) is not None}
        halves = {_is_on(profile, way) for way in ("tx", "rx") if way in profile}
        if named:
            return set() if False in halves else named
        if profile and False in halves:
            return set()
        return {roce.PFC_PRIORITY} if self.roce in _LOSSLESS else set()

    def _ecn(self, port: Tree) -> dict[int, EcnView | None]:
        ecn: dict[int, EcnView | None] = dict.fromkeys(_EIGHT)
        if self.roce:
            ecn |= dict.fromkeys(roce.MARKED, roce.ECN)
        for word, node in _at(self.profile(port, "congestion-control"), "traffic-class").items():
            queue = _number(word)
            if queue is not None:
                is_marked = _is_on(node, "ecn")
                base = ecn.get(queue) or roce.ECN
                lowest, highest, percent = (
                    _number(_value(node, name)) for name in ("min-threshold", "max-threshold", "probability")
                )
                view = EcnView(lowest or base.min_bytes, highest or base.max_bytes, base.percent if percent is None else percent)
                ecn[queue] = None if is_marked is False else view
        return ecn

    def _weights(self, port: Tree) -> dict[int, int | None]:
        weights: dict[int, int | None] = dict(roce.WEIGHTS) if self.roce else {}
        for word, node in _at(self.profile(port, "egress-scheduler"), "traffic-class").items():
            queue, share = _number(word), _number(_value(node, "bw-percent"))
            if queue is not None:
                weights[queue] = None if _value(node, "mode") == "strict" else share or 0
        return weights

    @cached_property
    def device(self) -> DeviceView:
        watched = [port for port in self.ports.values() if _is_on(port, "qos", "pfc-watchdog")]
        is_hashed = _at(self.tree, "system", "forwarding", "ecmp-hash")
        hashed = None
        if is_hashed:
            hashed = frozenset({"ip"} if _is_on(is_hashed, "source-port") is False else {"ip", "port"})
        ports = {name: self._port(name, node) for name, node in _at(self.tree, "interface").items()}
        return DeviceView(
            os="nvue",
            name=_value(self.tree, "system", "hostname"),
            ports=ports,
            bgp=self._bgp(),
            marking=dict(self._marking()),
            bfd=dict(self._bfd()),
            hashed=hashed,
            watches=bool(watched),
            watchdog_ms=self._watchdog_ms() if watched else None,
            keys={"name": "system|hostname", "hashed": "system|forwarding|ecmp-hash"},
        )

    def _watchdog_ms(self) -> int:
        times = _at(self.tree, "qos", "pfc-watchdog")
        poll, polls = (_number(_value(times, name)) for name in ("polling-interval", "robustness"))
        return (poll or roce.WATCHDOG_POLL_MS) * (polls or roce.WATCHDOG_POLLS)

    def _port(self, name: str, node: Tree) -> PortView:
        speed = re.fullmatch(r"(\d+)([GM])?", _value(node, "link", "speed") or "")
        words = (_value(node, "description") or "").split()
        key = f"interface|{name}"
        pause = (
            self.profile(node, "link-pause")
            if _at(node, "qos", "link-pause") or "default-global" in _at(self.tree, "qos", "link-pause")
            else {}
        )
        link_local = _is_on(node, "ip", "ipv6") if "ipv6" in _at(node, "ip") else _is_on(node, "ipv6")
        family = "ipv4" if _at(node, "ipv4", "address") else "ip"
        return PortView(
            enabled=_is_on(node, "link"),
            mtu=_number(_value(node, "link", "mtu")),
            mbps=int(speed[1]) * (1 if speed[2] == "M" else 1000) if speed else None,
            fec=_FEC.get(_value(node, "link", "fec") or ""),
            addresses=tuple(address for family in _FAMILIES for address in _at(node, family, "address") if ":" not in address),
            peer=(words[0], words[1]) if len(words) == 2 else None,
            pauses=any(_is_on(pause, way) for way in ("rx", "tx")) if pause else None,
            has_link_local=link_local,
            keys={
                "port": key,
                "enabled": f"{key}|link|state",
                "mtu": f"{key}|link|mtu",
                "mbps": f"{key}|link|speed",
                "fec": f"{key}|link|fec",
                "addresses": f"{key}|{family}|address",
                "peer": f"{key}|description",
                "pauses": f"{key}|qos|link-pause",
                "has_link_local": f"{key}|ipv6" if "ipv6" in node else f"{key}|ip|ipv6",
            },
        )

    def _marking(self) -> Iterator[tuple[str, MarkingView]]:
        base = roce.ECN
        for profile, node in _at(self.tree, "qos", "congestion-control").items():
            for queue, own in _at(node, "traffic-class").items():
                lowest, highest, percent = (
                    _number(_value(own, name)) for name in ("min-threshold", "max-threshold", "probability")
                )
                key = f"qos|congestion-control|{profile}|traffic-class|{queue}"
                view = EcnView(lowest or base.min_bytes, highest or base.max_bytes, base.percent if percent is None else percent)
                # A class that only turns ECN off, or sets RED, has no thresholds to judge.
                if lowest is not None or highest is not None or percent is not None:
                    yield f"{profile}, traffic class {queue}", MarkingView(key, view, _is_on(own, "ecn") is not False)

    def _bfd(self) -> Iterator[tuple[str, BfdView]]:
        bgp = _at(self.tree, "vrf", "default", "router", "bgp")
        places = [
            (f"{kind} {name}", f"vrf|default|router|bgp|{kind}|{name}|bfd", _at(node, "bfd"))
            for kind in ("peer-group", "neighbor")
            for name, node in _at(bgp, kind).items()
        ]
        places += [
            (f"profile {name}", f"router|bfd|profile|{name}", node)
            for name, node in _at(self.tree, "router", "bfd", "profile").items()
        ]
        for name, key, own in places:
            if any(each in own for each in ("min-rx-interval", "min-tx-interval", "detect-multiplier")):
                receive, transmit, multiplier = (
                    _number(_value(own, each)) for each in ("min-rx-interval", "min-tx-interval", "detect-multiplier")
                )
                yield name, BfdView(key, transmit or 300, receive or 300, multiplier or 3)

    def _bgp(self) -> BgpView | None:
        shared, bgp = _at(self.tree, "router", "bgp"), _at(self.tree, "vrf", "default", "router", "bgp")
        if not shared and not bgp:
            return None
        key = "vrf|default|router|bgp" if bgp else "router|bgp"
        at = "vrf|default|router|bgp" if "autonomous-system" in bgp else "router|bgp"
        family = _at(bgp, "address-family", "ipv4-unicast")
        redistributes = "connected" in _at(family, "redistribute") and _is_on(family, "redistribute", "connected") is not False
        paths = _number(_value(family, "multipaths", "ebgp"))
        runs = all(_is_on(each) is not False for each in (shared, bgp, family))
        networks = tuple(each for name in ("network", "static-network", "aggregate-route") for each in _at(family, name))
        return BgpView(
            key,
            asn=_number(_value(bgp, "autonomous-system") or _value(shared, "autonomous-system")),
            router_id=_value(bgp, "router-id") or _value(shared, "router-id"),
            neighbors={name: self._neighbor(bgp, name, node, runs) for name, node in _at(bgp, "neighbor").items()},
            max_paths=_MAX_PATHS if paths is None else paths,
            relaxes=None if "path-selection" not in bgp else _is_on(bgp, "path-selection", "multipath", "aspath-ignore"),
            hold_s=_number(_value(bgp, "timers", "hold")) or _number(_value(shared, "timers", "hold")) or _HOLD_S,
            policies=dict(self._policies()),
            announces=None if redistributes else networks,
            aggregates=tuple(_at(family, "aggregate-route")),
            requires_policy=_is_on(bgp, "ebgp-requires-policy") is True,
            lists=dict(self._lists()),
            keys={
                "asn": f"{at}|autonomous-system",
                "router_id": f"{'vrf|default|router|bgp' if 'router-id' in bgp else 'router|bgp'}|router-id",
                "max_paths": f"{key}|address-family|ipv4-unicast|multipaths|ebgp",
                "relaxes": f"{key}|path-selection",
                **({"hold_s": f"{key}|timers|hold"} if _value(bgp, "timers", "hold") or _value(shared, "timers", "hold") else {}),
            },
        )

    def _neighbor(self, bgp: Tree, name: str, node: Tree, runs: bool) -> NeighborView:
        """Return the neighbor, given whether BGP runs for IPv4 at all."""
        group = _at(bgp, "peer-group", _value(node, "peer-group") or "")

        def of(*path: str) -> str | None:
            return _value(node, *path) or _value(group, *path)

        def on(*path: str) -> bool | None:
            own = _is_on(node, *path)
            return _is_on(group, *path) if own is None else own

        remote = of("remote-as")
        is_shut = on("shutdown") or on() is False
        policies, lists = {}, []
        for way, short in (("inbound", "in"), ("outbound", "out")):
            policy, named = (of("address-family", "ipv4-unicast", "policy", way, kind) for kind in ("route-map", "prefix-list"))
            if policy is not None:
                policies[short] = policy
            if named is not None:
                lists.append((short, f"prefix-list {named}"))
        weight = of("address-family", "ipv4-unicast", "weight")
        ranking = {policy: ranks for policy, ranks in self._ranking() if policy in policies.values()}
        return NeighborView(
            f"vrf|default|router|bgp|neighbor|{name}",
            remote_as=_number(remote) if _number(remote) is not None else remote,
            is_up=runs and remote is not None and not is_shut and on("address-family", "ipv4-unicast") is not False,
            hold_s=_number(of("timers", "hold")),
            bfd=self._has_bfd(_at(node, "bfd") or _at(group, "bfd"), on("bfd")),
            policies=policies,
            allows_own_as=on("address-family", "ipv4-unicast", "aspath", "allow-my-asn") is True,
            waits=on("passive-mode") is True,
            lists=tuple(lists),
            ranks=(
                *((f"weight {weight}",) if weight not in {None, "0"} else ()),
                *(f"{ranks} (route map {policy})" for policy, ranks in ranking.items()),
            ),
            most_routes=_number(of("address-family", "ipv4-unicast", "prefix-limits", "inbound", "maximum")),
            signs=of("password") is not None,
        )

    def _has_bfd(self, own: Tree, is_on: bool | None) -> bool:
        """Return whether a neighbor has BFD: by itself, or by a profile where the daemon runs."""
        if "profile" in own:
            return is_on is not False and _is_on(self.tree, "router", "bfd") is True
        return bool(own) if is_on is None else is_on

    def _policies(self) -> Iterator[tuple[str, bool]]:
        for name, node in _at(self.tree, "router", "policy", "route-map").items():
            yield name, any("permit" in _at(rule, "action") for rule in _at(node, "rule").values())

    def _ranking(self) -> Iterator[tuple[str, str]]:
        """Yield each route map that ranks routes, with what it sets to do so."""
        for name, node in _at(self.tree, "router", "policy", "route-map").items():
            sets = [each for rule in _at(node, "rule").values() for each in _at(rule, "set")]
            ranks = next((each for each in sets if each in {"as-path-prepend", "local-preference", "weight", "metric"}), None)
            if ranks is not None:
                yield name, ranks

    def _lists(self) -> Iterator[tuple[str, tuple[FilterLine, ...]]]:
        for name, node in _at(self.tree, "router", "policy", "prefix-list").items():
            lines = []
            for _, rule in sorted(_at(node, "rule").items(), key=lambda each: _number(each[0]) or 0):
                permits = _value(rule, "action") == "permit"
                for network, bounds in _at(rule, "match").items():
                    length = int(end) if (end := network.rpartition("/")[2]).isdecimal() else 0
                    low, high = (_number(_value(bounds, each)) for each in ("min-prefix-len", "max-prefix-len"))
                    top = high or (length if low is None else 128)
                    lines.append(FilterLine(permits) if network == "any" else FilterLine(permits, network, low or length, top))
            yield f"prefix-list {name}", tuple(lines)

    @cached_property
    def routing(self) -> RoutingView | None:
        bgp = self.device.bgp
        if bgp is None:
            return None
        up = frozenset(name for name, each in (bgp.neighbors or {}).items() if each.is_up)
        return RoutingView(bgp.asn, bgp.router_id, up, bgp.max_paths)


_KINDS = ("pfc", "mapping", "congestion-control", "egress-queue-mapping")


def _traits(switch: _Switch) -> Traits:
    device = {}
    for path in _paths(switch.tree, ()):
        if path[:1] == ("qos",) or path[:2] in {("system", "forwarding"), ("router", "adaptive-routing"), ("router", "policy")}:
            device["|".join(path)] = "yes"
        if path[:5] == ("vrf", "default", "router", "bgp", "peer-group") or (
            path[:4] == ("vrf", "default", "router", "bgp") and path[4:5] in (("path-selection",), ("timers",))
        ):
            device["|".join(path)] = "yes"
    ports = {}
    for name, node in switch.ports.items():
        own = {
            "|".join(path): "yes"
            for path in _paths(node, ())
            if path[:1] in {("link",), ("qos",), ("router",)} and path[:2] != ("link", "breakout")
        }
        if own and (_at(node, "ip", "address") or name in _at(switch.tree, "vrf", "default", "router", "bgp", "neighbor")):
            ports[name] = own
    return Traits(device, ports)


def _paths(tree: Tree, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not tree:
        yield path
    for word, inner in tree.items():
        yield from _paths(inner, (*path, word))


def _faults(switch: _Switch) -> Iterator[Fault]:
    qos = _at(switch.tree, "qos")
    bgp = _at(switch.tree, "vrf", "default", "router", "bgp")
    for name, node in switch.ports.items():
        for kind, own in _at(node, "qos").items():
            profile = _value(own, "profile")
            if (
                profile is not None
                and profile != "default-global"
                and profile not in _at(qos, kind)
                and not profile.startswith("lossy-multi-tc")
            ):
                message = (
                    f"there is no profile {profile} of `qos {kind}`; NVUE refuses the file, and the switch keeps its old settings"
                )
                yield Fault("HW845", f"interface|{name}|qos|{kind}|profile", message, "define it, or correct the name")
    for name, node in _at(bgp, "neighbor").items():
        group = _value(node, "peer-group")
        if group is not None and group not in _at(bgp, "peer-group"):
            message = f"there is no peer group {group}; the neighbor has no AS, and the link carries nothing"
            yield Fault("HW845", f"vrf|default|router|bgp|neighbor|{name}|peer-group", message, "define it, or correct the name")
    for kind in ("peer-group", "neighbor"):
        for name, node in _at(bgp, kind).items():
            profile = _value(node, "bfd", "profile")
            if profile is not None and profile not in _at(switch.tree, "router", "bfd", "profile"):
                message = f"there is no BFD profile {profile}; NVUE refuses the file, and the switch keeps its old settings"
                yield Fault(
                    "HW845", f"vrf|default|router|bgp|{kind}|{name}|bfd|profile", message, "define it, or correct the name"
                )
    if "roce" in qos and switch.roce is None:
        message = "`qos roce` is off; the switch neither pauses nor marks, and RDMA packets are dropped when a queue is full"
        yield Fault("HW804", "qos|roce", message, "set `nv set qos roce`", doubtful=True)
    yield from _profiles(switch)
    yield from _unwatched(switch)
    yield from _breakouts(switch)
    yield from _switched(switch)
    yield from _filters(switch)
    yield from _routing(switch)


def _profiles(switch: _Switch) -> Iterator[Fault]:
    qos = _at(switch.tree, "qos")
    for name, node in _at(qos, "mapping").items():
        if _value(node, "trust") in {"l2", "port"} and (switch.roce or _at(qos, "pfc")):
            message = (
                f"the profile {name} does not trust DSCP; routed packets have no VLAN tag, so all get one priority, and none "
                "is paused"
            )
            yield Fault("HW816", f"qos|mapping|{name}|trust", message, "set `trust both`")
    for name, node in _at(qos, "pfc").items():
        halves = {way: _is_on(node, way) for way in ("tx", "rx") if way in node}
        if False in halves.values() and (switch.roce in _LOSSLESS or _at(node, "switch-priority")):
            message = (
                f"the PFC profile {name} has {' and '.join(way for way, on in halves.items() if on is False)} off; pauses "
                "work one way or not at all, and packets are dropped"
            )
            yield Fault("HW806", f"qos|pfc|{name}", message, "set `tx` and `rx` to `enable`")
        xoff, buffer = _number(_value(node, "xoff-threshold")), _number(_value(node, "port-buffer"))
        if xoff is not None and buffer is not None and xoff >= buffer:
            message = f"PFC pauses at {xoff} bytes of a port buffer of {buffer}; nothing is left for what arrives after the pause"
            yield Fault("HW808", f"qos|pfc|{name}|xoff-threshold", message, "lower the threshold, or enlarge `port-buffer`")
        if _value(node, "cable-length") == "0":
            message = "the cable length is 0; there is no headroom, and what arrives after the pause is dropped"
            yield Fault("HW808", f"qos|pfc|{name}|cable-length", message, "set the length in metres")
    yield from _shares(switch)


def _shares(switch: _Switch) -> Iterator[Fault]:
    qos = _at(switch.tree, "qos")
    pools = {name: _number(_value(node, "memory-percent")) for name, node in _at(qos, "traffic-pool").items()}
    total = sum(share or 0 for share in pools.values())
    if total > 100:
        yield Fault(
            "HW814",
            "qos|traffic-pool",
            f"the traffic pools have {total} % of the memory; NVUE refuses the file, and the switch keeps its old settings",
            "let them sum to 100",
        )
    for name, share in pools.items():
        if "lossless" in name and share is not None and share < 20:
            message = (
                f"the lossless pool has {share} % of the memory; collectives fill it at once, and the switch pauses their senders"
            )
            yield Fault("HW814", f"qos|traffic-pool|{name}", message, "give it the larger share, for example 90", doubtful=True)
    for name, node in _at(qos, "egress-scheduler").items():
        shares = [
            share for own in _at(node, "traffic-class").values() if (share := _number(_value(own, "bw-percent"))) is not None
        ]
        if sum(shares) > 100:
            message = (
                f"the shares of {name} are {sum(shares)} % together; NVUE refuses the file, and the switch keeps its old settings"
            )
            yield Fault("HW815", f"qos|egress-scheduler|{name}", message, "let them sum to 100")
        share = _number(_value(node, "traffic-class", "3", "bw-percent"))
        if share is not None and share < 10 and switch.roce:
            message = f"the RDMA queue gets {share} % of a full link; other traffic makes it pause the senders of all collectives"
            yield Fault(
                "HW815", f"qos|egress-scheduler|{name}|traffic-class|3", message, "give it the larger share", doubtful=True
            )


def _unwatched(switch: _Switch) -> Iterator[Fault]:
    """Find ports that are paused without a watchdog, where others have one."""
    paused = {name: node for name, node in switch.ports.items() if _is_on(node, "link") and switch.paused(node)}
    without = [name for name, node in paused.items() if _is_on(node, "qos", "pfc-watchdog") is not True]
    for name in without if len(without) < len(paused) else ():
        message = f"{name} is paused and not watched, unlike other ports; an adapter that pauses without end stops the switch through it"
        yield Fault("HW811", f"interface|{name}", message, "set `qos pfc-watchdog` for it, too")


def _routing(switch: _Switch) -> Iterator[Fault]:
    """Find what keeps BGP from its sessions or its paths, and routes that drop."""
    shared, router = _at(switch.tree, "router", "bgp"), _at(switch.tree, "vrf", "default", "router")
    bgp = _at(router, "bgp")
    if _at(bgp, "neighbor") and not any(_value(each, "autonomous-system") for each in (shared, bgp)):
        message = "BGP has no AS number; NVUE refuses the file, and the switch has no route to another one"
        yield Fault("HW833", "vrf|default|router|bgp", message, "set `router bgp autonomous-system`")
    for name, node in _at(bgp, "neighbor").items():
        if _value(node, "type") == "numbered" and re.match(r"[a-z]+\d", name):
            message = f"the neighbor on {name} is numbered, and has no address; the session never comes up, and the link idles"
            yield Fault("HW833", f"vrf|default|router|bgp|neighbor|{name}|type", message, "set `type unnumbered`")
    for key, own in (("router|bgp", shared), ("vrf|default|router|bgp", bgp)):
        if _is_on(own, "graceful-shutdown"):
            message = "BGP is in graceful shutdown; its neighbors use every other path first, and these links stay idle"
            yield Fault("HW834", f"{key}|graceful-shutdown", message, "set it to `disabled`", doubtful=True)
    for network, node in _at(router, "static").items():
        if "blackhole" in _at(node, "via") or any(
            _value(each, "type") in {"blackhole", "reject"} for each in _at(node, "via").values()
        ):
            message = (
                f"the static route drops what goes to {network} and has no better route; hosts there may be unreachable from here"
            )
            hint = "remove it, unless it is a summary of the switch's networks"
            yield Fault("HW838", f"vrf|default|router|static|{network}", message, hint, doubtful=True)


def _switched(switch: _Switch) -> Iterator[Fault]:
    """Find routed ports that are in a bridge or a bond, or in another VRF than BGP."""
    neighbors = _at(switch.tree, "vrf", "default", "router", "bgp", "neighbor")
    bonds = {member: name for name, node in _at(switch.tree, "interface").items() for member in _at(node, "bond", "member")}
    routed = [
        name for name, node in switch.ports.items() if name in neighbors or any(_at(node, each, "address") for each in _FAMILIES)
    ]
    for name in routed:
        node = switch.ports[name]
        bridge = next(iter(_at(node, "bridge", "domain")), None)
        vrf = next((found for place in ((), *((each,) for each in _FAMILIES)) if (found := _value(node, *place, "vrf"))), None)
        if bridge is not None or name in bonds:
            group, key = (bridge, "bridge") if bridge is not None else (bonds[name], "type")
            message = (
                f"{name} is a member of {group}, and has an address or a session of its own; the link carries no routed packet"
            )
            yield Fault("HW838", f"interface|{name}|{key}", message, f"remove it from {group}")
        elif vrf not in (None, "default"):
            message = (
                f"{name} is in the VRF {vrf}, and BGP runs in the default one; the hosts or the neighbor there are not reached"
            )
            yield Fault("HW838", f"interface|{name}", message, "put all ports of the fabric into one VRF", doubtful=True)


def _filters(switch: _Switch) -> Iterator[Fault]:
    """Find ACLs of front ports that drop RDMA packets (Cumulus Linux, Access Control List Configuration)."""
    for name, node in switch.ports.items():
        for title in _at(node, "acl"):
            for number, rule in sorted(_at(switch.tree, "acl", title, "rule").items(), key=lambda each: _number(each[0]) or 0):
                match = _at(rule, "match", "ip")
                protocol = _value(match, "protocol")
                ports = {*_at(match, "udp", "dest-port"), *_at(match, "dest-port")}
                if protocol not in (None, "udp", "17", "ANY") or (ports and not ports & {"4791", "ANY"}):
                    continue
                narrow = bool(_at(match, "source-ip") or _at(match, "dest-ip") or _at(rule, "match", "mac"))
                if "permit" in _at(rule, "action") and not narrow:
                    break
                if {"deny", "drop"} & _at(rule, "action").keys() and not narrow:
                    message = f"rule {number} of the ACL {title} drops packets of RDMA on {name}; connections there time out"
                    yield Fault(
                        "HW817",
                        f"acl|{title}|rule|{number}",
                        message,
                        "remove it from the ports of the fabric",
                        doubtful=not ports,
                    )
                    break


def _breakouts(switch: _Switch) -> Iterator[Fault]:
    """Find ports of a broken-out cage that the breakout does not make, and settings of a cage that is split."""
    neighbors = _at(switch.tree, "vrf", "default", "router", "bgp", "neighbor")
    for name, node in _at(switch.tree, "interface").items():
        mode = re.fullmatch(r"(\d)x.*", _value(node, "link", "breakout") or "")
        if mode is None:
            continue
        if mode[1] != "1" and (name in neighbors or any(_at(node, each, "address") for each in _FAMILIES)):
            message = f"{name} is split by {mode[0]} and has an address or a session of its own; it does not exist, and its cable is dead"
            yield Fault("HW824", f"interface|{name}|link|breakout", message, f"remove the breakout, or configure {name}s0")
        parts = sorted(
            int(other.rpartition("s")[2])
            for other in switch.ports
            if other.startswith(f"{name}s") and other[len(name) + 1 :].isdecimal()
        )
        if parts and parts[-1] >= int(mode[1]):
            message = (
                f"the breakout {mode[0]} makes {mode[1]} ports, and {name}s{parts[-1]} is configured; it has no lanes, and "
                "stays down"
            )
            yield Fault("HW824", f"interface|{name}|link|breakout", message, "set the breakout of the ports that there are")
