"""Splits a configuration of EOS into its top-level commands, each with the lines below it."""

import re
from collections.abc import Collection, Iterator

from headway.jobspec.problem import Severity

# The first line of a command with those below it.
Block = tuple[str, ...]

_PORT = re.compile(r"interface (Ethernet\d+(?:/\d+)*)")
# Of which headway decides everything: a preset that stayed would pause other priorities, or route in another way.
_OWN = re.compile(
    r"(no )?(interface (Ethernet|Loopback0\b)|router (bgp|bfd)\b|qos (profile|map|rewrite|random-detect)\b|priority-flow-control\b"
    r"|hostname\b|ip routing\b|ipv6 unicast-routing\b|ip hardware fib load-balance\b|service routing protocols model\b|end\b)"
)


# Commands of the management plane, and lines of a port that do not change what it carries.
_OF_SITE = re.compile(
    r"(no )?(aaa|alias|banner|clock|daemon|dns|email|enable|environment|event-|interface (Management|Loopback[1-9])|ip (domain|name-server"
    r"|ssh|host|radius|tacacs|route vrf (?i:mgmt))|lldp|logging|management|monitor|ntp|prompt|ptp|queue-monitor|radius-server|role|schedule"
    r"|sflow|snmp-server|spanning-tree|switchport default|tacacs-server|terminal|transceiver|username|vrf instance (?i:mgmt)|vlan)\b"
)
_OF_PORT = re.compile(r"(no )?(description|load-interval|lldp|logging|snmp|sflow|comment|!!)\b.*")


def judge(key: str) -> Severity | None:
    """Return how much a command matters that is not as the plan has it, by its path: None where the site decides it."""
    first, _, rest = key.partition("|")
    if rest and _OF_PORT.fullmatch(rest.rpartition("|")[2]):
        return None
    if rest.rpartition("|")[2].startswith("neighbor ") and " description " in rest:
        return None
    if _OWN.match(first):
        return Severity.ERROR
    return None if _OF_SITE.match(first) else Severity.WARNING


def read_blocks(text: str) -> tuple[Block, ...]:
    """Return the commands of a running configuration; ValueError, with the line, for other text."""
    blocks: list[list[str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.rstrip()
        if not bare or bare.startswith("!"):
            continue
        if not bare[0].isspace():
            blocks.append([bare])
        elif blocks:
            blocks[-1].append(bare)
        else:
            raise ValueError(f"line {number}: an indented line without a command above it")
        if bare[0] in "{[<":
            raise ValueError(f"line {number}: not a command of EOS")
    if not blocks:
        raise ValueError("line 1: no command in it")
    return tuple(map(tuple, blocks))


def front_ports(blocks: Collection[Block]) -> Iterator[str]:
    """Yield the names of the front panel's ports that a base has a block of."""
    for first, *_ in blocks:
        found = _PORT.fullmatch(first)
        if found:
            yield found[1]


def of_site(blocks: Collection[Block], keep: Collection[str]) -> Iterator[Block]:
    """Yield the commands that headway leaves to the site."""
    for block in blocks:
        port = _PORT.fullmatch(block[0])
        if not _OWN.match(block[0]) or (port is not None and port[1] in keep):
            yield block
