"""Reads which sessions and routes a switch has, from FRR's JSON, and compares two moments. Pure.

FRRouting/frr bgpd/bgp_vty.c (show bgp summary), bfdd/bfdd_vty.c (show bfd peers), zebra/zebra_vty.c (show ip route summary).
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct

# What a switch may lose of its routes, or of a neighbor's: the rest of a fabric changes too while a switch is looked at.
_MOST_LOST = 0.5


class SwitchSessions(Struct, frozen=True):
    """The routes that each neighbor with an established BGP session announces, the interfaces or addresses of BFD's sessions that are up,
    and the number of routes in the kernel."""

    bgp: Mapping[str, int]
    bfd: frozenset[str]
    routes: int


def read_sessions(bgp: str, bfd: str, routes: str) -> SwitchSessions:
    """Return the sessions of `show bgp summary json`, `show bfd peers json` and `show ip route summary json`; none of a daemon that does
    not run, which prints no JSON."""
    return SwitchSessions(
        bgp=dict(_established(_parsed(bgp))),
        bfd=frozenset(str(peer.get("interface") or peer.get("peer")) for peer in _up(_parsed(bfd))),
        routes=_number(_parsed(routes), "routesTotalFib"),
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _established(found: Any) -> Iterator[tuple[str, int]]:
    for family in found.values() if isinstance(found, dict) else ():
        peers = family.get("peers") if isinstance(family, dict) else None
        for name, peer in peers.items() if isinstance(peers, dict) else ():
            if peer.get("state") == "Established":
                yield name, _number(peer, "pfxRcd")


def _up(found: Any) -> Iterator[Mapping[str, Any]]:
    yield from (peer for peer in found if peer.get("status") == "up") if isinstance(found, list) else ()


def _number(found: Any, key: str) -> int:
    number = found.get(key) if isinstance(found, dict) else None
    return number if isinstance(number, int) else 0


def lost(before: SwitchSessions, after: SwitchSessions, bgp: Collection[str], bfd: Collection[str]) -> list[str]:
    """Return the losses between two moments, in words. Only neighbors in `bgp` and `bfd` still have to have a session."""
    found = []
    for name, routes in before.bgp.items():
        if name in bgp and name not in after.bgp:
            found.append(f"the BGP session with {name} is down")
        elif name in bgp and after.bgp[name] < routes * _MOST_LOST:
            found.append(f"{name} announces {after.bgp[name]} routes, and announced {routes}")
    found += [f"the BFD session with {name} is down" for name in sorted(before.bfd - after.bfd) if name in bfd]
    if after.routes < before.routes * _MOST_LOST:
        found.append(f"the kernel has {after.routes} routes, and had {before.routes}")
    return found
