"""Rules about BGP: sessions that come up, all equal paths in use, routes that are exchanged, and a dead link that is found in time."""

import ipaddress
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from headway.templates.audit.finding import Finding
from headway.templates.audit.machines import JoinedPorts, Machine, Network, is_within, network_of
from headway.templates.reading import BgpView, FilterLine, NeighborView

# A session is slow from this hold time on; FRR's and EOS's default is 180 s, that of the datacenter profile 9 s.
_SLOW_HOLD_S = 60
_USUAL_HOLD_S = 180
_MULTIPLIER = 3
# How switches name their ports.
_OF_SWITCH = re.compile(r"(swp|Eth|Et)\d|Ethernet|Port|et-|xe-|$")
_MANAGEMENT = ("eth", "mgmt", "Management")
# Less than the scheduling delay of a busy switch's CPU.
_FASTEST_BFD_MS = 50
# FRR's, EOS's and Cumulus's defaults are 900 ms.
_SLOWEST_BFD_MS = 5000


def hold_of(bgp: BgpView, neighbor: NeighborView) -> int | None:
    """Return the seconds after which a silent session ends; None where the file does not set them."""
    return bgp.hold_s if neighbor.hold_s is None else neighbor.hold_s


def check_routing(machine: Machine, cables: list[JoinedPorts]) -> Iterator[Finding]:
    """Yield findings about the machine's BGP."""
    bgp = machine.bgp
    if bgp is None or bgp.neighbors is None:
        yield from _hashing(machine)
        return
    peers = {link.a_port: link.b for link in cables if link.a is machine}
    peers |= {link.b_port: link.a for link in cables if link.b is machine}
    up = {name: each for name, each in bgp.neighbors.items() if each.is_up}
    yield from _sessions(machine, bgp, up)
    yield from _remote(machine, bgp, peers)
    yield from _timers(machine, bgp, up)
    yield from _paths(machine, bgp, up, peers)
    yield from _policies(machine, bgp, up)
    yield from _filters(machine, bgp, up)
    yield from _ranks(machine, bgp, up)
    yield from _networks(machine, bgp, up)
    yield from _hashing(machine)
    yield from _bfd(machine)


def _bfd(machine: Machine) -> Iterator[Finding]:
    for file, device in machine.devices:
        for view in device.bfd.values():
            time_ms = max(view.transmit_ms or 0, view.receive_ms or 0) * (view.multiplier or _MULTIPLIER)
            if time_ms < _FASTEST_BFD_MS or (view.multiplier or _MULTIPLIER) < 2:
                message = (
                    f"BFD takes a link down after {time_ms} ms; one delayed packet of a busy CPU does so, and paths flap "
                    "under every collective"
                )
                yield Finding("HW841", file, view.key, message, "use 300 ms and a multiplier of 3")
            elif time_ms > _SLOWEST_BFD_MS:
                message = (
                    f"BFD takes a dead link down after {time_ms / 1000:g} s; collectives over it stand still as long, although "
                    "BFD is there to find it within a second"
                )
                yield Finding("HW841", file, view.key, message, "use 300 ms and a multiplier of 3", doubtful=True)


def _sessions(machine: Machine, bgp: BgpView, up: dict[str, NeighborView]) -> Iterator[Finding]:
    neighbors = bgp.neighbors or {}
    ends = [port.view.peer[1] for port in machine.ports.values() if port.view.peer is not None]
    if not neighbors and ends and not any(_OF_SWITCH.match(end) for end in ends):
        # All of its cables lead to hosts: one switch is the fabric, or a plane of it.
        return
    if not up:
        message = "no BGP neighbor is up: " + (
            f"all {len(neighbors)} are shut, without an AS, or not active for IPv4" if neighbors else "there is none"
        )
        message += "; the switch has no route to another one, and collectives across it fail"
        yield Finding(
            "HW833",
            machine.bgp_file,
            bgp.key,
            message,
            "activate its neighbors, with `remote-as external`",
            doubtful=not neighbors,
        )
    for name, neighbor in neighbors.items():
        if name not in up and up:
            message = (
                f"the neighbor {name} is shut, without an AS, or not active for IPv4; its link idles, and the others carry "
                "its share"
            )
            yield Finding("HW833", machine.bgp_file, neighbor.key, message, "activate it, or remove it")


def _remote(machine: Machine, bgp: BgpView, peers: dict[str, Machine]) -> Iterator[Finding]:
    by_address = (
        {
            address.partition("/")[0]: other
            for other in peers.values()
            for port in other.ports.values()
            for address in port.view.addresses
        }
        if (bgp.neighbors or {}).keys() - peers.keys()
        else {}
    )
    for name, neighbor in (bgp.neighbors or {}).items():
        other = peers.get(name) or by_address.get(name)
        asn = other.bgp.asn if other is not None and other.bgp is not None else None
        expected = neighbor.remote_as
        if asn is None or other is None or expected is None:
            continue
        wrong = {"external": asn == bgp.asn, "internal": asn != bgp.asn}.get(
            str(expected), isinstance(expected, int) and expected != asn
        )
        if wrong:
            message = (
                f"the neighbor {name} is to be AS {expected}, and {other.name} is AS "
                f"{asn}{'' if bgp.asn != asn else ', as this switch is'}; the session never comes up, and the link idles"
            )
            yield Finding("HW837", machine.bgp_file, neighbor.key, message, "set the AS number of the switch at the other end")


def _timers(machine: Machine, bgp: BgpView, up: dict[str, NeighborView]) -> Iterator[Finding]:
    for neighbor in up.values():
        hold = hold_of(bgp, neighbor)
        is_set = neighbor.hold_s is not None or "hold_s" in bgp.keys
        if neighbor.bfd and is_set and hold is not None and hold >= _USUAL_HOLD_S:
            message = (
                f"the hold time is {hold} s; BFD finds a dead link, but routes through a switch whose BGP hangs stay for as long, and "
                "collectives over it stand still"
            )
            yield Finding("HW842", machine.bgp_file, neighbor.key, message, "set timers 3 9", doubtful=True)
            return
        if hold is None or neighbor.bfd:
            continue
        if hold == 0 or hold >= _SLOW_HOLD_S:
            times = "never" if hold == 0 else f"after {hold} s"
            message = (
                f"without BFD a link that fails silently is found {times}; collectives over it stand still as long, and "
                "NCCL's retries run out"
            )
            yield Finding("HW832", machine.bgp_file, neighbor.key, message, "turn BFD on, or set timers 3 9", doubtful=not is_set)
            return


def _paths(machine: Machine, bgp: BgpView, up: dict[str, NeighborView], peers: dict[str, Machine]) -> Iterator[Finding]:
    if len(up) < 2:
        return
    if bgp.max_paths is not None and bgp.max_paths < len(up) and machine.role != "core":
        message = f"BGP uses {bgp.max_paths} of {len(up)} equal paths; the other links idle, and collectives share what is left"
        is_leaf = machine.role == "leaf"
        key = bgp.keys.get("max_paths", bgp.key)
        yield Finding(
            "HW834", machine.bgp_file, key, message, f"set the number of equal paths to {len(up)} or more", doubtful=not is_leaf
        )
    if bgp.relaxes is False:
        numbers = {other.bgp.asn for name, other in peers.items() if name in up and other.bgp is not None}
        if len(numbers) != 1:
            message = (
                "paths through different AS numbers are not used together (`multipath-relax` is missing); one of the links "
                "carries everything"
            )
            hint = "add `bgp bestpath as-path multipath-relax`"
            yield Finding("HW834", machine.bgp_file, bgp.keys.get("relaxes", bgp.key), message, hint, doubtful=len(numbers) < 2)


def _policies(machine: Machine, bgp: BgpView, up: dict[str, NeighborView]) -> Iterator[Finding]:
    for name, neighbor in up.items():
        is_external = neighbor.remote_as == "external" or (isinstance(neighbor.remote_as, int) and neighbor.remote_as != bgp.asn)
        missing = [way for way in ("in", "out") if way not in neighbor.policies]
        if bgp.requires_policy and is_external and missing:
            message = (
                f"BGP requires a policy for {name} (RFC 8212), and it has none {' and '.join(missing)}; the session is up, "
                "and exchanges no route"
            )
            yield Finding("HW836", machine.bgp_file, neighbor.key, message, "add `no bgp ebgp-requires-policy`, or route maps")
            return
        for way, policy in neighbor.policies.items():
            if policy not in bgp.policies:
                message = f"the route map {policy} ({way}) is not defined; FRR denies every route of {name} then"
                yield Finding(
                    "HW836",
                    machine.bgp_file,
                    neighbor.key,
                    message,
                    "define it, or remove it from the neighbor",
                    doubtful=machine.os in {"eos", "nvue"},
                )
                return
            if not bgp.policies[policy]:
                message = f"the route map {policy} ({way}) permits nothing; {name} exchanges no route, and its link idles"
                yield Finding("HW836", machine.bgp_file, f"route-map {policy}", message, "let it permit the fabric's networks")
                return


def _filters(machine: Machine, bgp: BgpView, up: dict[str, NeighborView]) -> Iterator[Finding]:
    """Find lists of a neighbor that keep routes from it that the fabric needs."""
    summaries = [network for each in bgp.aggregates if (network := network_of(each)) is not None]
    announced = [network for each in bgp.announces or () if (network := network_of(each)) is not None]
    own = [each for each in announced if not any(each != other and is_within(each, other) for other in summaries)]
    for name, neighbor in up.items():
        for way, title in neighbor.lists:
            lines = bgp.lists.get(title)
            if lines is None:
                message = f"the {title} ({way}) of {name} is not defined; FRR denies every route then, and the link idles"
                hint, doubtful = "define it, or remove it from the neighbor", machine.os in {"eos", "nvue"}
            elif not any(line.permits for line in lines):
                message = f"the {title} ({way}) permits nothing; {name} exchanges no route, and its link idles"
                hint, doubtful = "let it permit the fabric's networks", False
            else:
                kept = next((each for each in own if not _permits(lines, each)), None) if way == "out" else None
                if kept is None:
                    continue
                message = f"the {title} keeps {kept} from {name}; other leaves do not reach it through that link"
                hint, doubtful = f"let it permit {kept}", False
            yield Finding("HW836", machine.bgp_file, neighbor.key, message, hint, doubtful=doubtful)
            return


def _permits(lines: tuple[FilterLine, ...], network: Network) -> bool:
    """Return what the first line that the network matches does with it; what matches none is denied."""
    for line in lines:
        whole = network_of(line.network) if line.network is not None else None
        if line.network is None or (
            whole is not None and is_within(network, whole) and line.low <= network.prefixlen <= line.high
        ):
            return line.permits
    return False


def _ranks(machine: Machine, bgp: BgpView, up: dict[str, NeighborView]) -> Iterator[Finding]:
    """Find a neighbor whose routes have another rank than those of the others, so that the paths are not equal."""
    plain = next((name for name, neighbor in up.items() if not neighbor.ranks), None)
    ranked = next((name for name, neighbor in up.items() if neighbor.ranks), None)
    if plain is not None and ranked is not None:
        message = (
            f"routes of {ranked} have a rank of their own, by {' and '.join(up[ranked].ranks)}, and those of {plain} do not; the paths are "
            "not equal, and some links idle"
        )
        yield Finding("HW834", machine.bgp_file, up[ranked].key, message, "rank the routes of all uplinks alike")


def _networks(machine: Machine, bgp: BgpView, up: dict[str, NeighborView]) -> Iterator[Finding]:
    """Find networks of the switch's ports that are not announced, and announced ones that it does not have."""
    if bgp.announces is None or not up:
        return
    announced = {network for each in bgp.announces if (network := network_of(each)) is not None}
    family = bgp.key
    summaries = {network for each in bgp.aggregates if (network := network_of(each)) is not None}
    if not announced:
        message = "it announces no network and redistributes none; other switches have no route to its hosts"
        yield Finding(
            "HW838",
            machine.bgp_file,
            family,
            message,
            "announce its networks, or `redistribute connected`",
            doubtful=machine.role != "leaf",
        )
        return
    addresses = list(_addresses(up))
    # The networks that it announces are those of IPv4, and none is that of a management port.
    own: dict[str, list[Network]] = {
        name: [
            network for address in port.view.addresses if (network := network_of(address)) is not None and network.version == 4
        ]
        for name, port in machine.ports.items()
        if name not in up and not name.startswith(_MANAGEMENT)
    }
    for name, networks in own.items():
        if any(address in network for address in addresses for network in networks):
            continue
        unheard = next(
            (each for each in networks if each not in announced and not any(is_within(each, other) for other in announced)),
            None,
        )
        if unheard is not None:
            message = (
                f"the network {unheard} of {name} is not announced; other leaves have no route to the host there, and its "
                "rail reaches this leaf only"
            )
            yield Finding(
                "HW838",
                machine.bgp_file,
                family,
                message,
                f"add `network {unheard}`",
                doubtful=name.startswith(("Loopback", "lo")),
            )
        elif summaries:
            yield from _summarized(machine, name, networks, announced - summaries, summaries)
    every = [network for networks in own.values() for network in networks]
    # FRR's loopback may be another file's.
    is_elsewhere = machine.os not in {"eos", "nvue"} and not any(name.startswith(("Loopback", "lo")) for name in own)
    if is_elsewhere and bgp.router_id:
        every += [network] if (network := network_of(f"{bgp.router_id}/32")) is not None else []
    addressed = any(networks for name, networks in own.items() if not name.startswith(("Loopback", "lo")))
    for network in sorted(announced.difference(every), key=str) if addressed else ():
        if not any(is_within(each, network) for each in every):
            message = (
                f"it announces {network}, and none of its ports is in it; packets for it come here and are dropped, or it is "
                "never announced"
            )
            yield Finding("HW838", machine.bgp_file, family, message, "announce the networks of its ports", doubtful=True)


def _summarized(
    machine: Machine, name: str, networks: list[Network], announced: set[Network], summaries: set[Network]
) -> Iterator[Finding]:
    """Find a port's network that only a summary has, which BGP announces while it has another part of it."""
    for each in networks:
        if each not in announced and not any(is_within(each, other) for other in announced):
            summary = next(other for other in summaries if is_within(each, other))
            parts = any(other != summary and is_within(other, summary) for other in announced)
            message = f"the network {each} of {name} is announced as a part of {summary} only" + (
                ", while another port of it is up; then its rail reaches no other leaf"
                if parts
                else ", of which the switch announces no part; so it announces nothing, and no other leaf reaches its hosts"
            )
            hint = f"add `network {each}`"
            yield Finding("HW838", machine.bgp_file, machine.bgp.key if machine.bgp else "", message, hint, doubtful=parts)


def _addresses(names: Iterable[str]) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    for name in names:
        # A name of an interface begins with a letter that no address begins with, or has no dot and colon.
        if "." in name or ":" in name:
            try:
                yield ipaddress.ip_address(name.partition("%")[0])
            except ValueError:
                continue


def _hashing(machine: Machine) -> Iterator[Finding]:
    for file, device in machine.devices:
        if device.hashed is not None and "port" not in device.hashed:
            message = (
                "UDP ports do not take part in the choice among equal paths; all queue pairs of two hosts take one link, and "
                "the others idle"
            )
            yield Finding("HW835", file, device.keys.get("hashed", ""), message, "hash source and destination port too")


def check_sessions(cables: list[JoinedPorts]) -> Iterator[Finding]:
    """Yield sessions, and BFD, of which one end only has its part."""
    for link in cables:
        for machine, name, other, other_port in link.ends:
            ours = ((machine.bgp.neighbors or {}) if machine.bgp else {}).get(name)
            theirs = ((other.bgp.neighbors or {}) if other.bgp else {}).get(other_port)
            if ours is None and theirs is not None and theirs.is_up and machine.bgp is not None and machine.bgp.neighbors:
                message = (
                    f"{other.name} {other_port} leads to {name} and has a BGP session there, and this switch has none; the "
                    "link idles, and others carry its share"
                )
                yield Finding("HW833", machine.bgp_file, machine.bgp.key, message, f"add the neighbor on {name}")
            if ours is not None and theirs is not None and ours.waits and theirs.waits and machine is link.a:
                message = (
                    f"this switch and {other.name} both wait for the other to open their session (`passive`); it never comes up, and the "
                    "link idles"
                )
                yield Finding("HW833", machine.bgp_file, ours.key, message, "remove `passive` at one end")
            if ours is not None and theirs is not None and ours.signs and not theirs.signs:
                message = f"the session has a password here, and none at {other.name} {other_port}; it never comes up, and the link idles"
                yield Finding("HW833", machine.bgp_file, ours.key, message, "set the same password at both ends, or none")
            if ours is not None and theirs is not None and ours.bfd is False and theirs.bfd:
                message = (
                    f"BFD is off here and on at {other.name} {other_port}; it stays down, and a link that fails silently is "
                    "found by the hold time only"
                )
                yield Finding("HW841", machine.bgp_file, ours.key, message, "turn BFD on at both ends")


def check_numbers(found: list[Machine]) -> Iterator[Finding]:
    """Yield leaves with one AS number: a leaf drops routes that have its own number in their path."""
    owners: dict[int, Machine] = {}
    for machine in found:
        bgp = machine.bgp
        if bgp is None or bgp.asn is None or machine.os == "host":
            continue
        other = owners.setdefault(bgp.asn, machine)
        if other is machine or any(each.allows_own_as for each in (bgp.neighbors or {}).values()):
            continue
        if any(each.remote_as in {"internal", bgp.asn} for each in (bgp.neighbors or {}).values()):
            continue
        if "leaf" in {machine.role, other.role} or machine.role != other.role:
            message = (
                f"AS {bgp.asn} is {other.name}'s too; each drops the other's routes as a loop, and their hosts do not reach "
                "each other"
            )
            yield Finding("HW830", machine.bgp_file, bgp.keys.get("asn", bgp.key), message, "give each leaf a number of its own")


def check_limits(found: list[Machine]) -> Iterator[Finding]:
    """Yield neighbors whose session ends before they have sent the networks of all switches: each has its loopback at least."""
    switches = sum(machine.bgp is not None and machine.os != "host" for machine in found)
    for machine in found:
        for name, neighbor in ((machine.bgp.neighbors or {}) if machine.bgp else {}).items():
            if neighbor.most_routes is not None and 0 < neighbor.most_routes < switches:
                message = (
                    f"the session of {name} ends at more than {neighbor.most_routes} routes, and {switches} switches announce some; its "
                    "link idles"
                )
                yield Finding("HW836", machine.bgp_file, neighbor.key, message, "allow all routes of the fabric")
                break


def check_summaries(found: list[Machine]) -> Iterator[Finding]:
    """Yield leaves that announce a summary with another leaf's networks in it."""
    owners = sorted(
        (
            (network, machine)
            for machine in found
            if machine.role == "leaf"
            for name, port in machine.ports.items()
            if not name.startswith(("Loopback", "lo"))
            for address in port.view.addresses
            if (network := network_of(address)) is not None and network.version == 4
        ),
        key=lambda each: each[0].network_address.packed,
    )
    starts = [network.network_address.packed for network, _ in owners]
    for machine in found:
        for each in machine.bgp.aggregates if machine.bgp and machine.role == "leaf" else ():
            summary = network_of(each)
            if summary is None or summary.version != 4 or not summary.prefixlen:
                continue
            first, last = (
                bisect_left(starts, summary.network_address.packed),
                bisect_right(starts, summary.broadcast_address.packed),
            )
            # A summary has the networks of its own leaf, and another's stand before or after them.
            other = next((each for each in (owners[first : first + 1] + owners[last - 1 : last]) if each[1] is not machine), None)
            if other is not None and first < last:
                message = (
                    f"it announces {summary}, in which {other[1].name} has {other[0]}; while that leaf is away, packets for its hosts come "
                    "here and are dropped"
                )
                yield Finding(
                    "HW838", machine.bgp_file, machine.bgp.key if machine.bgp else "", message, "announce its own networks alone"
                )
