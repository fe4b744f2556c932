"""Checks names: those that must differ within a list, and those of hosts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import AddressValueError, IPv4Address, IPv4Network

from headway.jobspec.document import Path
from headway.jobspec.problem import Problem
from headway.jobspec.suggest import Hint, did_you_mean

_SSH_PORT = 22
# "This host on this network" (RFC 6890), then multicast (RFC 5771), reserved addresses and broadcast (RFC 6890).
_OF_NO_HOST = (IPv4Network("0.0.0.0/8"), IPv4Network("224.0.0.0/3"))


def group_hint(name: str, groups: Mapping[str, bool]) -> Hint:
    """Return the hint for a group of nodes that there is not; `groups` are those that there are, and whether their nodes have GPUs."""
    with_gpus = [each for each, has_gpus in groups.items() if has_gpus] or list(groups)
    return did_you_mean(name, groups, "groups", with_gpus[0] if len(with_gpus) == 1 else None)


def check_unique(
    document: str, path: Path, key: str | None, names: Sequence[str], items: Sequence[object] = ()
) -> Iterator[Problem]:
    """Yield a problem for each name that occurred before in the list at `path`; `key` is the name's field in an item,
    if it has one. Of equal `items` one is too many."""
    before: set[str] = set()
    for index, name in enumerate(names):
        if name in before:
            place = (*path, index) if key is None else (*path, index, key)
            is_copy = key is None or (len(items) == len(names) and items[index] in items[:index])
            hint = "remove it here" if is_copy else "give each a unique name"
            yield Problem("HW209", document, place, f"`{name}` is used twice in `{path[-1]}`", hint)
        before.add(name)


def check_host(document: str, path: Path, host: str) -> Iterator[Problem]:
    """Yield a problem unless it is the address of one host."""
    if not is_host(host):
        message = f"`{host}` is neither a host name nor an IPv4 address, with or without a port from 1 to 65535"
        yield Problem("HW512", document, path, message, "write it as `10.0.0.11`, `gpu1.example.com` or `gpu1:2222`")
    elif _is_of_no_host(host.partition(":")[0]):
        message = f"`{host}` is not the address of a host"
        yield Problem("HW512", document, path, message, "write the address of the host itself, for example `10.0.0.11`")


def normal_host(host: str) -> str:
    """Return the address in the form in which two are compared: names are the same in capitals (RFC 4343), and 22 is
    the port without one."""
    name, _, port = host.lower().partition(":")
    number = int(port or _SSH_PORT)
    return name if number == _SSH_PORT else f"{name}:{number}"


def is_host(text: str) -> bool:
    """Return whether it is a host name (RFC 1123) or an IPv4 address, optionally with `:PORT`."""
    name, colon, port = text.partition(":")
    if colon and not 1 <= int(port) <= 65535:
        return False
    if re.fullmatch(r"[0-9.]+", name):
        return _is_address(name)
    return all(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?", label) for label in name.split("."))


def _is_of_no_host(name: str) -> bool:
    return _is_address(name) and any(IPv4Address(name) in network for network in _OF_NO_HOST)


def _is_address(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True
