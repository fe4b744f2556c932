"""Tests the address that a node listens on, so that other nodes find it."""

import socket
from collections.abc import Mapping
from typing import Any

import pytest

from headway.runner.agent import listening
from headway.runner.agent.listening import interface_of, reachable_address

HERE = "198.51.100.7"


def known(monkeypatch: pytest.MonkeyPatch, hosts: Mapping[str, list[str]]) -> None:
    """A machine whose resolver has these hosts, and no others."""

    def resolve(host: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        if host not in hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in hosts[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(listening, "address_towards", lambda host: f"towards {host}")


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ({"n1": [HERE], "n2": ["198.51.100.8"]}, "n1"),
        # Debian, and installers that put the machine's name on localhost's line.
        ({"n1": ["127.0.1.1"], "n2": ["198.51.100.8"]}, "towards n2"),
        ({"n1": ["127.0.0.1", "::1"], "n2": ["198.51.100.8"]}, "towards n2"),
        ({"n1": ["127.0.1.1"], "n2": ["127.0.1.1"], "n3": ["198.51.100.9"]}, "towards n3"),
        ({"n1": ["127.0.1.1", HERE], "n2": ["198.51.100.8"]}, HERE),
        # Nothing indicates that another address is better.
        ({"n1": ["127.0.1.1"]}, "n1"),
        ({"n1": ["127.0.1.1"], "n2": ["127.0.0.1"]}, "n1"),
        ({"n2": ["198.51.100.8"]}, "n1"),
    ],
)
def test_a_node_listens_on_its_name_unless_others_cannot_resolve_it(
    hosts: Mapping[str, list[str]], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, hosts)
    assert reachable_address("n1", ["n2", "n3"]) == expected


@pytest.mark.parametrize(
    ("hosts", "interfaces", "expected"),
    [
        # Slurm has separate addresses, such as that of the node that started the tasks.
        ({}, "", "towards 198.51.100.1"),
        ({"n2": ["198.51.100.8"]}, "", "towards n2"),
        ({}, "management", HERE),
        ({"n1": ["127.0.1.1"], "n2": ["198.51.100.8"]}, "eth9,management", HERE),
        ({"n1": ["127.0.1.1"], "n2": ["127.0.1.1"]}, "eth9", "towards 198.51.100.1"),
        ({"n1": ["198.51.100.9"]}, "management", "n1"),
    ],
)
def test_a_node_with_an_unresolvable_name_uses_its_route_address(
    hosts: Mapping[str, list[str]], interfaces: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, hosts)
    monkeypatch.setattr(listening, "interface_addresses", lambda: [("lo", "127.0.0.1"), ("management", HERE)])
    assert reachable_address("n1", ["n2", "n3"], interfaces, "198.51.100.1") == expected


def test_interface_of_finds_loopback_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
