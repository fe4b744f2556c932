"""Checks switches: there are enough for the nodes and rails, with ports and addresses for every cable."""

import re
from collections.abc import Generator, Iterator, Sequence
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from math import gcd

from headway.jobspec.catalog.switches import switches as models
from headway.jobspec.check.multiples import divisors, listed_numbers
from headway.jobspec.document import Path
from headway.jobspec.problem import CLUSTER, Misfit, Problem, Severity
from headway.jobspec.resolve.links import last_asn
from headway.jobspec.resolve.nodes import adapters_on
from headway.jobspec.resolve.sizes import (
    SizeError,
    Sizes,
    are_counted,
    lanes_of,
    ports_and_speeds,
    ports_of,
    rails_of,
    sizes_of,
    speed_of,
)
from headway.jobspec.spec.fabric import GBPS, Fabric, Switches
from headway.jobspec.spec.nodes import NodeGroup
from headway.jobspec.suggest import did_you_mean, joined_or, known_in

# RFC 7607, 4893, 7300: 0, AS_TRANS and the last of both lengths are reserved.
_RESERVED_ASNS = (23456, 65535, 4294967295)

_PRIVATE = ("10.10.0.0", "10.128.0.0", "172.16.0.0")
_PRIVATE_ASNS = ((64512, 65534), (4200000000, 4294967294))
_SHARED = IPv4Network("100.64.0.0/10")

# IEEE 802.3's rates of a port, and of its fastest lane (802.3dj), in Gb/s.
_RATES = (1, 10, 25, 40, 50, 100, 200, 400, 800, 1600)
_FASTEST_LANE = 200

# Operating systems that run on the switches of one vendor.
_VENDORS = {"nvue": "NVIDIA", "eos": "Arista"}
_TRANSPORTS = {"ethernet": "Ethernet", "infiniband": "InfiniBand"}

# A plan holds each cable with both of its ends; to make one with a quarter of this many took 6 s of one core and 0.24 GB. Three tiers
# without oversubscription have three cables for each adapter, so this is a fabric of 349,525 adapters.
_MOST_CABLES = 1_048_576
# Ports of the largest chassis, and problems of counts that the ports alone do not explain.
_MOST_PORTS, _TWO = 1024, 2


def check_switches(path: Path, fabric: Fabric, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check the switches of the fabric at `path`, if it has some, against their nodes."""
    if fabric.switches is None:
        return
    at, switches = (*path, "switches"), fabric.switches
    if are_counted(fabric):
        yield from _check_spines(at, switches, fabric.planes, rails_of(fabric, groups))
        yield from _check_counts(at, fabric, switches, groups)
    elif not rails_of(fabric, groups):
        hint = "list the adapters connected to it, for example `nics: [mlx5_0, mlx5_1]`"
        yield Problem("HW510", CLUSTER, at, "no node has an adapter for these switches", hint, at_key=True)
    try:
        sizes = sizes_of(fabric, groups)
    except SizeError as error:
        stated = error.key if getattr(switches, error.key) is not None else None
        yield Problem("HW510", CLUSTER, (*at, stated) if stated else at, error.message, error.hint, at_key=stated is None)
    else:
        yield from _check_cables(at, fabric, sizes, groups)
        if fabric.transport != "infiniband":
            yield from _check_pools(at, switches, sizes)
            yield from _check_numbers(at, switches, sizes)
    yield from _check_model(at, fabric, switches, groups)
    if fabric.transport != "infiniband":
        yield from _check_speed(at, fabric, switches, groups)
    yield from _check_systems((*at, "os"), [choice.kind for choice in switches.os])


def check_planes(path: Path, fabric: Fabric, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check that each plane of the fabric at `path` has a rail, whether its switches are planned or not."""
    planes, rails = fabric.planes, rails_of(fabric, groups)
    if planes > rails > 0:
        message = f"{planes} planes are more than the {rails} rails, so that {planes - rails} of them would have no leaf"
        yield Problem("HW525", CLUSTER, (*path, "planes"), message, f"use {rails} planes or fewer")
    elif rails and rails % planes:
        message = f"{rails} rails are not a multiple of {planes} planes, so some planes have one rail more than others"
        hint = f"use {listed_numbers(divisors(rails))}"
        yield Problem("HW525", CLUSTER, (*path, "planes"), message, hint, Severity.WARNING)


def _check_counts(path: Path, fabric: Fabric, switches: Switches, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check leaves and ports. Where leaves, spines and nodes are all too many for the ports, their number is the one mistake."""

    def found(of: Switches) -> list[Problem]:
        ports = _check_ports(path, of, fabric.planes, rails_of(fabric, groups))
        return [*_check_leaves(path, fabric, of, groups), *ports]

    problems = found(switches)
    if len(problems) > _TWO and switches.ports is not None:
        for ports in range(switches.ports + 1, _MOST_PORTS + 1):
            if not found(switches.model_copy(update={"ports": ports})):
                message = (
                    f"{switches.ports} ports are too few for the nodes, {switches.leaves} leaves and {switches.spines} spines"
                )
                hint = f"write the ports of one switch, at least {ports}"
                yield Problem("HW510", CLUSTER, (*path, "ports"), message, hint)
                return
    yield from problems


def _check_leaves(path: Path, fabric: Fabric, switches: Switches, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    attached = [nodes for nodes in groups if adapters_on(nodes, fabric)]
    rails, room, leaves = rails_of(fabric, groups), ports_of(switches) // 2, switches.leaves or 0
    wanted = -(-sum(nodes.count for nodes in attached) // room) * rails
    if not attached:
        hint = "list the adapters connected to it, for example `nics: [mlx5_0, mlx5_1]`"
        yield Problem("HW510", CLUSTER, (*path, "leaves"), "no node has an adapter for these switches", hint)
    elif leaves < wanted or leaves % rails:
        message = f"{leaves} leaves are not a multiple of the {rails} rails (`nics`)"
        if leaves < wanted:
            message = f"{leaves} leaves are too few: a leaf has room for {room} nodes, half of its `ports`"
        hint = f"the nodes need {wanted}: one for each of the {rails} rails, for every {room} nodes"
        yield Problem("HW510", CLUSTER, (*path, "leaves"), message, hint)


def _check_spines(path: Path, switches: Switches, planes: int, rails: int) -> Iterator[Problem]:
    spines = switches.spines or 0
    if spines % planes:
        message = f"{spines} spines are not a multiple of the {planes} planes"
        hint = f"use a multiple of the planes, for example {-(-spines // planes) * planes}"
        if whole := [number for number in divisors(gcd(spines, rails)) if number > 1]:
            hint += f", or {listed_numbers(whole)} planes"
        yield Problem("HW525", CLUSTER, (*path, "spines"), message, hint)


def _check_cables(path: Path, fabric: Fabric, sizes: Sizes, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check the number of cables before any of them is planned."""
    down = sum(nodes.count * len(adapters_on(nodes, fabric)) for nodes in groups)
    up = sizes.leaves * sizes.leaf_up + sizes.spines * sizes.spine_up if sizes.tiers > 1 else 0
    if down + up > _MOST_CABLES:
        between = "between leaves and spines" if sizes.tiers < 3 else "between switches"
        message = f"{down} cables to nodes and {up} {between} are more than the {_MOST_CABLES} of one plan"
        hint = "describe some of the nodes as a separate cluster, or leave `switches` out"
        yield Problem("HW527", CLUSTER, path, message, hint, at_key=True)


def _check_ports(path: Path, switches: Switches, planes: int, rails: int) -> Iterator[Problem]:
    """Check that a leaf has ports for the spines of its plane, a spine for the leaves of its plane."""
    up = ports_of(switches) - ports_of(switches) // 2
    spines, uplinks, leaves = -(-(switches.spines or 0) // planes), switches.uplinks or 1, switches.leaves or 0
    leaves = leaves if planes == 1 or not rails else leaves // rails * -(-rails // planes)
    of_a_plane = "" if planes == 1 else " of a plane"
    if spines * uplinks > up:
        fewer = f"`uplinks: {up // spines}`," if up >= spines else f"at most {up} spines{of_a_plane} with `uplinks: 1`,"
        message = f"{spines} spines{of_a_plane} with {uplinks} uplinks each need more than the {up} upper ports of a leaf"
        at = "spines" if switches.uplinks is None or up < spines else "uplinks"
        yield Problem("HW510", CLUSTER, (*path, at), message, f"use {fewer} or switches with more ports")
        if uplinks > 1:
            # Fewer uplinks may be enough for the ports of a spine too.
            return
    there = switches.spine_ports or ports_of(switches)
    if leaves * uplinks > there:
        message = f"{leaves} leaves{of_a_plane} with {uplinks} uplinks each need more than the {there} ports of a spine"
        planes_too = "" if planes >= rails else f"more planes (up to {rails}), "
        fewer = f"`uplinks: {there // leaves}`" if there >= leaves else "fewer leaves"
        yield Problem("HW510", CLUSTER, (*path, "leaves"), message, f"use {fewer}, {planes_too}or switches with more ports")


def _check_numbers(path: Path, switches: Switches, sizes: Sizes) -> Iterator[Problem]:
    last = last_asn(switches, sizes)
    for reserved in _RESERVED_ASNS:
        if switches.asn <= reserved <= last:
            message = f"{sizes.most_leaves} leaves number on from AS {switches.asn}, past the reserved AS number {reserved}"
            if sizes.tiers > 2:
                message = f"leaves and pods number on from AS {switches.asn} to {last}, past the reserved AS number {reserved}"
            yield Problem("HW511", CLUSTER, (*path, "asn"), message, "start at another number, for example 4200000000")


def _check_systems(path: Path, kinds: Sequence[str]) -> Iterator[Problem]:
    """Check that an operating system has one set of options."""
    for index, kind in enumerate(kinds):
        if kind in kinds[:index]:
            hint = "keep one of the two: a switch gets one set of files per system"
            yield Problem("HW209", CLUSTER, (*path, index, "kind"), f"`{kind}` is in `os` twice", hint)


def _check_model(path: Path, fabric: Fabric, switches: Switches, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check the model. Its ports are counted in lanes: a port that is broken out is several, each with its share of them."""
    if switches.model is None:
        return
    model = models().get(switches.model)
    if model is None:
        message = f"the catalogue has no switch `{switches.model}`, so its ports are unknown"
        near = known_in(switches.model, _models_for(fabric)) or did_you_mean(switches.model, _models_for(fabric), "switches")
        hint = near.text
        if near.fix is None:
            missing = [key for key in ("ports", "speed", "uplink_speed", "lanes") if getattr(switches, key) is None]
            if "ports" in missing:
                message += f": headway plans {ports_of(switches)} of them"
            said = (
                f"describe it: {', '.join(f'`{key}`' for key in missing)}, and `spine_ports` of a chassis; or " if missing else ""
            )
            hint = f"{said}{near.text}"
        yield Problem("HW231", CLUSTER, (*path, "model"), message, hint, Severity.WARNING, fix=near.fix)
        return
    if model.name not in _models_for(fabric):
        message = f"the {model.name} is a switch of {_TRANSPORTS[model.transport]}, but `{fabric.name}` is {fabric.transport}"
        hint = f"use {joined_or([f'`{each}`' for each in _models_under(fabric, switches, groups)])}"
        if model.transport == "infiniband" and any(choice.kind == "opensm" for choice in switches.os):
            hint = f"set `transport: infiniband`, or {hint}"
        yield Problem("HW526", CLUSTER, (*path, "model"), message, hint, misfit=Misfit.OTHER_TRANSPORT)
        return
    speed = speed_of(fabric, groups)
    lanes, room = lanes_of(switches, speed), model.ports * model.lanes
    ports = ports_of(switches, speed)
    if ports * lanes > room:
        has = f"{model.ports} ports of {model.lanes} lanes"
        message = f"{ports} ports of {lanes} lanes are {ports * lanes} lanes, but the {model.name} has {room}: {has}"
        hint = f"use {room // lanes} `ports`, or fewer `lanes` for broken-out ports"
        yield Problem("HW526", CLUSTER, (*path, "ports"), message, hint)
    fastest = min(model.gbps, model.gbps * lanes // model.lanes)
    for key, found, most in (("speed", speed, fastest), ("uplink_speed", ports_and_speeds(fabric, groups).up_speed, model.gbps)):
        if found > most * GBPS and (key == "speed" or found != speed):
            over = f" over {lanes} lanes" if key == "speed" else ""
            message = f"{found // GBPS}Gb/s{over}, but the {model.name} has ports of {model.gbps}Gb/s over {model.lanes}"
            if key == "speed" and switches.lanes is not None and found <= model.gbps * GBPS:
                hint = f"set `lanes: {model.lanes}`, or leave `lanes` out"
                yield Problem("HW526", CLUSTER, (*path, "lanes"), message, hint, fix=str(model.lanes))
                return
            yield Problem("HW526", CLUSTER, (*path, key), message, f"use {most}Gb/s or less")


def _models_under(fabric: Fabric, switches: Switches, groups: Sequence[NodeGroup]) -> list[str]:
    """Return the models for the fabric's transport that its operating systems run on, as far as these are of one vendor; of them, those
    with ports as fast as its cables, the slowest first."""
    vendors = {_VENDORS[each.kind] for each in switches.os if each.kind in _VENDORS}
    fitting = [name for name in _models_for(fabric) if models()[name].vendor in vendors]
    named = sorted(fitting or _models_for(fabric), key=lambda name: models()[name].gbps)
    speed = max(speed_of(fabric, groups), switches.uplink_speed or 0)
    return [name for name in named if models()[name].gbps * GBPS >= speed] or named


def _models_for(fabric: Fabric) -> list[str]:
    """Return the models of the catalogue for the fabric's transport."""
    kind = "infiniband" if fabric.transport == "infiniband" else "ethernet"
    return [name for name, each in models().items() if each.transport == kind]


def _check_speed(path: Path, fabric: Fabric, switches: Switches, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check that Ethernet has such a speed and such ports."""
    speed = speed_of(fabric, groups) // GBPS
    lanes = lanes_of(switches, speed * GBPS)
    if switches.uplink_speed is not None and switches.uplink_speed // GBPS not in _RATES:
        message = f"Ethernet has no port speed of {switches.uplink_speed // GBPS}Gb/s"
        yield Problem("HW526", CLUSTER, (*path, "uplink_speed"), message, "use one of its rates, for example 400Gb/s")
    if speed not in _RATES:
        message = f"Ethernet has no port speed of {speed}Gb/s"
        nearest = min(_RATES, key=lambda rate: abs(rate - speed))
        yield Problem("HW526", CLUSTER, (*path, "speed"), message, f"use one of its rates, for example {nearest}Gb/s")
    elif lanes & (lanes - 1):
        message = f"no port has {lanes} lanes"
        yield Problem("HW526", CLUSTER, (*path, "lanes"), message, "use 1, 2, 4 or 8")
    elif switches.model is None and speed > lanes * _FASTEST_LANE:
        message = f"{speed}Gb/s over {lanes} lanes is {speed // lanes}Gb/s a lane, and the fastest have {_FASTEST_LANE}Gb/s"
        yield Problem(
            "HW526", CLUSTER, (*path, "lanes"), message, f"use {-(-speed // _FASTEST_LANE)} or more, or leave `lanes` out"
        )


def _check_pools(path: Path, switches: Switches, sizes: Sizes) -> Iterator[Problem]:
    """Check that both pools are networks, large enough, and disjoint."""
    upper = max(sizes.most_spines, sizes.cores) + 1
    most = 2 * max(upper if sizes.tiers < 3 else 2 * upper, sizes.most_leaves + 1)
    loopbacks = yield from _check_pool((*path, "loopbacks"), switches.loopbacks, most, switches.addresses)
    links = 2 * sizes.most_leaves * sizes.down
    addresses = yield from _check_pool((*path, "addresses"), switches.addresses, links, switches.loopbacks)
    if loopbacks and addresses and loopbacks.overlaps(addresses):
        message = f"`loopbacks` {switches.loopbacks} and `addresses` {switches.addresses} overlap"
        hint = "give the switches and the links separate networks"
        key = next((each for each in ("addresses", "loopbacks") if each in switches.model_fields_set), "loopbacks")
        own, other = (addresses, loopbacks) if key == "addresses" else (loopbacks, addresses)
        free = (IPv4Network(f"{begin}/{own.prefixlen}", strict=False) for begin in _PRIVATE)
        if (found := next((each for each in free if each.is_private and not each.overlaps(other)), None)) is not None:
            hint += f": set for example `{key}: {found}`"
        yield Problem("HW511", CLUSTER, (*path, key), message, hint)
    yield from _check_public(path, switches, addresses)


def _check_public(path: Path, switches: Switches, addresses: IPv4Network | None) -> Iterator[Problem]:
    """Warn about numbers of the internet's (RFC 1918, 6598, 6996): another network may have them."""
    is_of_site = addresses is None or addresses.is_private or addresses.subnet_of(_SHARED) or addresses.is_multicast
    if not is_of_site:
        message = (
            f"{addresses} is of the internet: hosts of that network are unreachable from the nodes, or these are announced there"
        )
        yield Problem(
            "HW534", CLUSTER, (*path, "addresses"), message, "use a private network, for example 10.10.0.0/16", Severity.WARNING
        )
    if not any(first <= switches.asn <= last for first, last in _PRIVATE_ASNS) and switches.asn not in _RESERVED_ASNS:
        message = f"AS {switches.asn} is not a private one: its owner's routes look like loops of this fabric"
        yield Problem("HW534", CLUSTER, (*path, "asn"), message, "use 4200000000, or 64512 to 65534", Severity.WARNING)


def _check_pool(path: Path, text: str, wanted: int, other: str) -> Generator[Problem, None, IPv4Network | None]:
    """Yield the pool's problems; return its network, or None. `other` is the other pool, which it must not overlap."""
    try:
        network = IPv4Network(text)
    except (AddressValueError, NetmaskValueError, ValueError):
        hint = f"write the network's first address and its prefix length, for example `{_example(text, wanted, other)}`"
        fix = _whole_network(text)
        if fix is not None:
            yield Problem("HW511", CLUSTER, path, f"`{text}` is an address inside of a network", f"write `{fix}`", fix=fix)
            return None
        yield Problem("HW511", CLUSTER, path, f"`{text}` is not an IPv4 network", hint)
        return None
    if not _is_unicast(network):
        message = f"`{text}` cannot be used for devices: it is loopback, multicast, link-local or reserved"
        yield Problem(
            "HW511", CLUSTER, path, message, "use one of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16, or a network that you own"
        )
        return None
    if network.num_addresses < wanted:
        message = f"`{text}` has {network.num_addresses} addresses, but {wanted} are needed"
        yield Problem(
            "HW511", CLUSTER, path, message, f"use a shorter prefix: `{text.partition('/')[0]}/{32 - (wanted - 1).bit_length()}`"
        )
        return None
    return network


def _example(text: str, wanted: int, other: str) -> str:
    """Return a network that is large enough and apart from the other pool, which begins like the text if that can be."""
    prefix = min(16, 32 - (wanted - 1).bit_length())
    try:
        taken = IPv4Network(other)
    except ValueError:
        taken = None
    begun = re.match(r"(?:10\.[0-9]{1,3}|172\.(?:1[6-9]|2[0-9]|3[01])|192\.168)(?=\.)", text)
    for begin in ([f"{begun[0]}.0.0"] if begun is not None else []) + ["10.255.0.0", *_PRIVATE]:
        network = _whole_network(f"{begin}/{prefix}")
        if network is not None and (taken is None or not IPv4Network(network).overlaps(taken)):
            return network
    return "10.255.0.0/16"


def _whole_network(text: str) -> str | None:
    """Return the network that the address with the length of a prefix is in."""
    try:
        return str(IPv4Network(text, strict=False)) if "/" in text else None
    except ValueError:
        return None


def _is_unicast(network: IPv4Network) -> bool:
    special = (IPv4Network(each) for each in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"))
    return not any(network.overlaps(each) for each in special)


def in_network(address: str, network: str) -> bool:
    """Return whether it is an address of the network; False for a name, and for an invalid network."""
    try:
        return IPv4Address(address) in IPv4Network(network)
    except ValueError:
        return False
