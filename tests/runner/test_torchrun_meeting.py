"""Where nodes of a torchrun command meet: the endpoint, its one host, the secret, and what a node is told that enters."""

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.runner import worker as workers
from headway.runner.checkpoint.authority import of_job
from headway.runner.contract import Checkpoint, RunConfig, from_json
from headway.runner.coordinator.entrance import Entrance
from headway.runner.messages import Link, Message, listen
from headway.runner.rundir import RunDirectory, open_run
from headway.runner.torchrun import launcher, meeting
from headway.runner.torchrun.arguments import UsageError, parse
from headway.runner.torchrun.configure import configure
from headway.runner.torchrun.meeting import (
    Endpoint,
    Entered,
    MeetingError,
    address_towards,
    endpoint_of,
    enter,
    listening_address,
    published,
    secret_of,
    take,
)

SCRIPT = str(Path(__file__).parents[2] / "examples/one-word/train.py")
ELSEWHERE = "192.0.2.1"  # of TEST-NET-1 (RFC 5737): nobody's
SECRET = b"s" * 32


def endpoint(*words: str) -> Endpoint:
    return endpoint_of(parse(["--nnodes", "2", *words, SCRIPT]))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ELSEWHERE}:77"),
            Endpoint(ELSEWHERE, 77, hosted=False, sure=False, node=None),
        ),
        (
            ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost"),
            Endpoint("localhost", 29400, hosted=True, sure=False, node=None),
        ),
        (
            ("--rdzv-backend", "c10d", "--rdzv-endpoint", ELSEWHERE, "--rdzv-conf", "is_host=True"),
            Endpoint(ELSEWHERE, 29400, hosted=True, sure=True, node=None),
        ),
        (("--node-rank", "1", "--master-addr", ELSEWHERE), Endpoint(ELSEWHERE, 29500, hosted=False, sure=True, node=1)),
        (("--node-rank", "0", "--master-port", "7"), Endpoint("127.0.0.1", 7, hosted=True, sure=True, node=0)),
        (("--rdzv-endpoint", "a:8", "--node-rank", "3"), Endpoint("a", 8, hosted=False, sure=True, node=3)),
    ],
)
def test_the_endpoint_and_its_host_are_torchruns(words: tuple[str, ...], expected: Endpoint) -> None:
    assert endpoint(*words) == expected


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
            "--rdzv-endpoint localhost:0: nodes can meet only at a port",
        ),
        (("--rdzv-endpoint", "localhost"), "nodes can meet only at a port"),
        (("--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"), "store_type=file"),
        (("--rdzv-backend", "c10d", "--rdzv-conf", "is_host=maybe"), "is_host=maybe"),
    ],
)
def test_an_endpoint_that_nobody_can_meet_at_is_refused(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(UsageError) as refused:
        endpoint(*words)
    assert named in str(refused.value)


def test_a_machine_whose_own_name_leads_nowhere_still_knows_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: str) -> bool:
        raise socket.gaierror(socket.EAI_NONAME, "the machine's own name is unknown")

    monkeypatch.setattr(meeting, "_matches_machine_hostname", fails)
    found = [endpoint("--rdzv-backend", "c10d", "--rdzv-endpoint", host).hosted for host in ("127.0.0.1", ELSEWHERE)]
    assert found == [True, False]


# --- the host -----------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_of_two_on_one_machine_the_first_hosts() -> None:
    here = Endpoint("localhost", free_port(), hosted=True, sure=False, node=None)
    first = take(here, "127.0.0.1")
    assert first is not None
    with first:
        assert take(here, "127.0.0.1") is None
    again = take(here, "127.0.0.1")
    assert again is not None
    again.close()


def test_two_users_may_host_one_port_at_two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Endpoint("localhost", free_port(), hosted=True, sure=False, node=None)
    mine = take(here, "127.0.0.1")
    assert mine is not None
    with mine, socket.create_server(("127.0.0.1", here.port)):
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        assert take(here, "127.0.0.1") is None
        theirs = take(here, "127.0.0.2")
        assert theirs is not None
        theirs.close()


def test_a_port_that_somebody_else_has_is_no_place_to_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = Endpoint("localhost", server.getsockname()[1], hosted=True, sure=False, node=None)
        assert take(here, "127.0.0.1") is None
        with pytest.raises(MeetingError, match="cannot be hosted here"):
            take(Endpoint("localhost", here.port, hosted=True, sure=True, node=0), "127.0.0.1")


def test_nothing_listens_beyond_loopback_unless_the_endpoint_is() -> None:
    assert listening_address("localhost") == "127.0.0.1"
    assert listening_address("127.0.0.5") == "127.0.0.5"
    assert listening_address(ELSEWHERE) == ELSEWHERE
    assert address_towards("127.0.0.1") == "127.0.0.1"


def test_the_secret_is_what_was_given_else_what_the_nodes_know(tmp_path: Path) -> None:
    here, other = (Endpoint("a", port, hosted=True, sure=False, node=None) for port in (1, 2))
    (tmp_path / "secret").write_text("given\n")
    given = secret_of(here, "run", {"HEADWAY_SECRET_FILE": str(tmp_path / "secret")})
    assert given == secret_of(other, "run", {"HEADWAY_SECRET": "given"})
    assert (given[1], secret_of(here, "run", {})[1]) == (False, True)
    found = {given[0], *(secret_of(at, name, {})[0] for at in (here, other) for name in ("run", "else"))}
    assert len(found) == 5, "run, endpoint and what was given all count"


# --- the others ---------------------------------------------------------------------------------------------------------


def opened(runs: Path, procs: int = 1) -> tuple[RunConfig, RunDirectory]:
    arguments = parse(["--nnodes", "2", "--rdzv-backend", "c10d", "--nproc-per-node", str(procs), SCRIPT])
    directory = open_run(runs, "job", configure(arguments), 0)
    return from_json(RunConfig, directory.run_json.read_text()), directory


@contextlib.contextmanager
def coordinator(config: RunConfig, directory: RunDirectory, secret: bytes = SECRET) -> Iterator[int]:
    """The coordinator's own entrance, served over its own transport on a port of loopback."""
    ready, over, port = threading.Event(), asyncio.Event(), 0
    entrance, loop = Entrance(config, directory), asyncio.new_event_loop()

    def heard(link: Link, message: Message) -> None:
        link.send("entered", 0, 0, entrance.admit(message.body))

    async def serve() -> None:
        nonlocal port
        listener = await listen("127.0.0.1", 0, secret, "job", heard, lambda *_: None)
        port = listener.port
        ready.set()
        await over.wait()
        listener.close()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    ready.wait()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def ask(port: int, run: Path, body: dict[str, Any], patience_s: float = 0.0) -> Entered:
    return enter(Endpoint("127.0.0.1", port, hosted=False, sure=False, node=None), run, SECRET, body, patience_s)


def test_each_that_enters_gets_an_index_of_its_own(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)
    with coordinator(config, directory) as port:
        nodes = [ask(port, directory.root, {"host": "h", "node": None, "procs": 1}) for _ in range(3)]
        asked = ask(port, directory.root, {"host": "h", "node": 1, "procs": 1})
    assert [entered.node for entered in nodes] == [1, 2, 3]
    assert asked.node == 1, "a node of a static rendezvous comes back as itself"
    assert from_json(RunConfig, nodes[0].run_json) == config
    assert len({entered.proof for entered in nodes}) == 3


def test_a_node_with_other_processes_is_refused_with_the_reason(tmp_path: Path) -> None:
    config, directory = opened(tmp_path, procs=2)
    with coordinator(config, directory) as port, pytest.raises(MeetingError, match="it has 1 processes a node; the run has 2"):
        ask(port, directory.root, {"host": "h", "node": None, "procs": 1})


def test_who_has_another_secret_does_not_enter_and_is_told_what_may_be_wrong(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)
    with coordinator(config, directory, b"other") as port, pytest.raises(MeetingError, match="or HEADWAY_SECRET differs"):
        ask(port, directory.root, {"host": "h", "node": None, "procs": 1})
    assert not (directory.attempt_directory / "entered").exists()


def test_where_nobody_is_the_wait_ends_and_says_where_it_was(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(MeetingError, match=rf"after 0 s the run `job` has let this node in nowhere; 127.0.0.1:{port}: "):
        ask(port, tmp_path / "job", {})


def test_a_coordinator_that_has_moved_is_found_through_the_store(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)
    with coordinator(config, directory) as port:
        directory.coordinator.write_text(json.dumps({"host": "127.0.0.1", "port": port}))
        assert list(published(directory.root)) == [("127.0.0.1", port)]
        assert ask(free_port(), directory.root, {"host": "h", "node": None, "procs": 1}).node == 1
    directory.verdict.write_text("{}")
    assert list(published(directory.root)) == [], "the attempt is over"


def test_a_node_sees_whether_it_has_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, directory = opened(tmp_path / "host")
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path / "own"))
    with coordinator(config, directory) as port:
        entered = ask(port, directory.root, {"host": "h", "node": None, "procs": 1})
    shared = launcher._settle(entered, config, SECRET, "here")
    assert (shared.directory.root, shared.shared) == (directory.root, True)
    (directory.root / entered.proof[0]).unlink()
    own = launcher._settle(entered, config, SECRET, "here")
    assert (own.directory.root, own.node, own.shared) == (tmp_path / "own/job", 1, False)
    assert own.directory.secret() == SECRET
    assert json.loads(own.directory.coordinator.read_text())["port"] == entered.port
    assert from_json(RunConfig, own.directory.run_json.read_text()).store.url == str(tmp_path / "own/job/shared")


def test_a_loop_of_ones_own_keeps_no_checkpoints_on_nodes_that_share_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_current", [object()])
    monkeypatch.setenv("HEADWAY_SHARED_STORE", "0")
    with pytest.raises(RuntimeError, match="set HEADWAY_RUNS to a folder that all nodes see"):
        of_job(Checkpoint())
