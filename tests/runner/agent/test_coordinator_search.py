"""Tests what a node reports about a coordinator that it cannot reach."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from headway.runner.agent import coordinator_search
from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.coordinator_search import CoordinatorSearch
from headway.runner.agent.protocol import PrintLine, Request
from headway.runner.contract import HeartbeatPage, Mesh, RunConfig, RunDirectory, Trainer, from_json
from headway.runner.coordinator.term import Term
from headway.runner.rundir import open_run

CONFIG = RunConfig(
    slots=2, procs_per_slot=1, mesh=Mesh(dp_shard=2), trainer=Trainer("script", {"argv": ["x.py"]}), spec_hash="ab"
)


def search(directory: RunDirectory, asked: list[Request]) -> CoordinatorSearch:
    """The agent of the second node; its requests to the supervisor are in `asked`."""
    config = from_json(RunConfig, directory.run_json.read_text())
    page = HeartbeatPage(memoryview(bytearray(HeartbeatPage.bytes_for(1))))
    return CoordinatorSearch(AgentState(config, directory, 1, "n2", page), 0, asked.append, lambda _: None)


@pytest.mark.parametrize(
    ("name", "address", "shown"),
    [("localhost", "localhost", "localhost:{port}"), ("n1", "127.0.0.1", "n1 (127.0.0.1:{port})")],
)
def test_the_log_has_name_address_and_port_of_an_unreachable_coordinator(
    name: str, address: str, shown: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(coordinator_search, "UNREACHED_S", 0.0)
    asked: list[Request] = []
    directory = open_run(tmp_path, "case-0123abcd-1", CONFIG, 0)
    with socket.socket() as silent:
        # Nothing listens on this port.
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert Term.take(directory, 0, name).publish(address, port)
        found = search(directory, asked)

        async def tried() -> None:
            for _ in range(3):
                at = found._address()
                assert at is not None
                assert await found._try(at, 0.0, lambda _, __: None) is None

        monkeypatch.setattr(found, "is_over_without", lambda _: False)
        asyncio.run(tried())
    (line,) = (each.text for each in asked if isinstance(each, PrintLine))
    assert line.startswith(f"n2 cannot reach the coordinator on {shown.format(port=port)}, tried for ")
    assert line in caplog.messages


def test_a_brief_loss_of_the_coordinator_is_not_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = open_run(tmp_path, "case-0123abcd-1", CONFIG, 0)
    Term.take(directory, 0, "n1").publish("127.0.0.1", 1)
    asked: list[Request] = []
    found = search(directory, asked)
    monkeypatch.setattr(found, "is_over_without", lambda _: False)
    at = found._address()
    assert at is not None
    assert asyncio.run(found._try(at, 0.0, lambda _, __: None)) is None
    assert asked == []
    assert json.loads(directory.coordinator.read_text())["term"] == 1
