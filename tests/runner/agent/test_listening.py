"""Where a node listens, so that the other nodes find it there."""

import socket
from collections.abc import Mapping
from typing import Any

import pytest

from headway.runner.agent import listening
from headway.runner.agent.listening import reachable_address

HERE = "198.51.100.7"


def known(monkeypatch: pytest.MonkeyPatch, hosts: Mapping[str, list[str]]) -> None:
    """A machine whose resolver knows these hosts, and no others."""

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
        # Debian, and installers that name the machine beside localhost.
        ({"n1": ["127.0.1.1"], "n2": ["198.51.100.8"]}, "towards n2"),
        ({"n1": ["127.0.0.1", "::1"], "n2": ["198.51.100.8"]}, "towards n2"),
        ({"n1": ["127.0.1.1"], "n2": ["127.0.1.1"], "n3": ["198.51.100.9"]}, "towards n3"),
        ({"n1": ["127.0.1.1", HERE], "n2": ["198.51.100.8"]}, HERE),
        # Nothing says that another address were better.
        ({"n1": ["127.0.1.1"]}, "n1"),
        ({"n1": ["127.0.1.1"], "n2": ["127.0.0.1"]}, "n1"),
        ({"n2": ["198.51.100.8"]}, "n1"),
    ],
)
def test_a_node_listens_on_its_name_unless_others_cannot_find_it_there(
    hosts: Mapping[str, list[str]], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, hosts)
    assert reachable_address("n1", ["n2", "n3"]) == expected
