"""Tests where nodes of a torchrun command meet: the endpoint, its one host, the secret, and the answer to a node that joins."""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.runner import worker as workers
from headway.runner.agent.listening import address_towards
from headway.runner.checkpoint.authority import of_job
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.contract import Checkpoint, RunConfig, RunDirectory, from_json, to_json
from headway.runner.coordinator.admission import Admission
from headway.runner.launches import Launch
from headway.runner.messages import Link, Message, listen
from headway.runner.rundir import open_run
from headway.runner.torchrun import launcher, rendezvous
from headway.runner.torchrun.arguments import UsageError, parse
from headway.runner.torchrun.command import command_of
from headway.runner.torchrun.configure import configure
from headway.runner.torchrun.rendezvous import (
    Endpoint,
    Entered,
    MeetingError,
    Wanted,
    endpoint_of,
    enter,
    listening_address,
    secret_of,
    take,
)

SCRIPT = str(Path(__file__).parents[3] / "examples/one-word/train.py")
ELSEWHERE = "192.0.2.1"  # in TEST-NET-1 (RFC 5737): no machine's
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
            "--rdzv-endpoint localhost:0: set a port that all nodes know",
        ),
        (("--rdzv-endpoint", "localhost"), "set a port that all nodes know"),
        (("--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"), "store_type=file"),
        (("--rdzv-backend", "c10d", "--rdzv-conf", "is_host=maybe"), "is_host=maybe"),
    ],
)
def test_an_unusable_endpoint_is_refused(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(UsageError) as refused:
        endpoint(*words)
    assert named in str(refused.value)


def test_a_machine_with_an_unresolvable_name_still_has_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: str) -> bool:
        raise socket.gaierror(socket.EAI_NONAME, "the machine's own name is unknown")

    monkeypatch.setattr(rendezvous, "_matches_machine_hostname", fails)
    found = [endpoint("--rdzv-backend", "c10d", "--rdzv-endpoint", host).hosted for host in ("127.0.0.1", ELSEWHERE)]
    assert found == [True, False]


# --- the host -----------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_first_of_two_launchers_on_one_machine_hosts() -> None:
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


def test_a_port_in_use_by_another_process_cannot_be_hosted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = Endpoint("localhost", server.getsockname()[1], hosted=True, sure=False, node=None)
        assert take(here, "127.0.0.1") is None
        with pytest.raises(MeetingError, match="cannot be hosted here"):
            take(Endpoint("localhost", here.port, hosted=True, sure=True, node=0), "127.0.0.1")


def test_nothing_listens_beyond_loopback_unless_the_endpoint_does() -> None:
    assert listening_address("localhost") == "127.0.0.1"
    assert listening_address("127.0.0.5") == "127.0.0.5"
    assert listening_address(ELSEWHERE) == ELSEWHERE
    assert address_towards("127.0.0.1") == "127.0.0.1"


def test_the_secret_is_the_given_one_or_derived_from_run_and_endpoint(tmp_path: Path) -> None:
    here, other = (Endpoint("a", port, hosted=True, sure=False, node=None) for port in (1, 2))
    (tmp_path / "secret").write_text("given\n")
    given = secret_of(here, "run", {"HEADWAY_SECRET_FILE": str(tmp_path / "secret")})
    assert given == secret_of(other, "run", {"HEADWAY_SECRET": "given"})
    assert (given[1], secret_of(here, "run", {})[1]) == (False, True)
    found = {given[0], *(secret_of(at, name, {})[0] for at in (here, other) for name in ("run", "else"))}
    assert len(found) == 5, "run, endpoint and what was given all count"


# --- the others ---------------------------------------------------------------------------------------------------------


# The endpoint of these tests' runs, whichever port a test's coordinator has.
HERE = "localhost:29400"


def opened(runs: Path, procs: int = 1, words: tuple[str, ...] = (), name: str = "job") -> tuple[RunConfig, RunDirectory]:
    arguments = parse(["--nnodes", "2", "--rdzv-backend", "c10d", "--nproc-per-node", str(procs), SCRIPT, *words])
    command = command_of(arguments, procs, {}, alone=False)
    launch = to_json(Launch.own(command, HERE, {})).encode()
    directory = open_run(runs, name, configure(arguments), 0, launch=launch)
    return from_json(RunConfig, directory.run_json.read_text()), directory


def wanted(runs: Path, port: int = 29400, words: tuple[str, ...] = (), host: str = "127.0.0.1") -> Wanted:
    command = command_of(parse([SCRIPT, *words]), 1, {}, alone=False)
    return Wanted(Endpoint(host, port, hosted=False, sure=False, node=None), runs, "job", command)


@contextlib.contextmanager
def coordinator(config: RunConfig, directory: RunDirectory, secret: bytes = SECRET) -> Iterator[int]:
    """The coordinator's own admission, served over its own transport on a port of loopback."""
    ready, over, port = threading.Event(), asyncio.Event(), 0
    entrance, loop = Admission(config, directory), asyncio.new_event_loop()

    def heard(link: Link, message: Message) -> None:
        link.send("entered", 0, 0, entrance.admit(message.body))

    async def serve() -> None:
        nonlocal port
        listener = await listen("127.0.0.1", 0, secret, config.run or "", heard, lambda *_: None)
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


def ask(port: int, run: Path, body: dict[str, Any], *words: str) -> Entered:
    return enter(wanted(run.parent, port, words), SECRET, body, 0.0)


def test_each_admitted_node_gets_a_separate_index(tmp_path: Path) -> None:
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
    with coordinator(config, directory) as port, pytest.raises(MeetingError, match="it has 1 processes per node; the run has 2"):
        ask(port, directory.root, {"host": "h", "node": None, "procs": 1})


def test_a_node_with_another_secret_is_refused_with_the_possible_causes(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)
    with coordinator(config, directory, b"other") as port, pytest.raises(MeetingError, match="or HEADWAY_SECRET differs"):
        ask(port, directory.root, {"host": "h", "node": None, "procs": 1})
    assert not (directory.attempt_directory / "entered").exists()


def test_waiting_for_an_unreachable_host_times_out_and_names_the_endpoint(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(MeetingError, match=rf"after 0 s this node could not join run `job`; 127.0.0.1:{port}: "):
        ask(port, tmp_path / "job", {})


def test_a_coordinator_that_has_moved_is_found_through_the_store(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)
    here = wanted(tmp_path, host="localhost")
    with coordinator(config, directory) as port:
        directory.coordinator.write_text(json.dumps({"host": "127.0.0.1", "port": port}))
        assert list(here.published()) == [("127.0.0.1", port)]
        assert enter(here, SECRET, {"host": "h", "node": None, "procs": 1}, 0.0).node == 1
    directory.verdict.write_text("{}")
    assert list(here.published()) == [], "the attempt is over"


def test_only_a_coordinator_with_the_same_command_and_endpoint_is_sought(tmp_path: Path) -> None:
    for name, words in (("job", ("--lr", "1")), ("job-2", ("--lr", "2")), ("else", ("--lr", "2"))):
        _, directory = opened(tmp_path, words=words, name=name)
        directory.coordinator.write_text(json.dumps({"host": name, "port": 1}))
    assert list(wanted(tmp_path, words=("--lr", "2"), host="localhost").published()) == [("job-2", 1)]
    assert list(wanted(tmp_path, words=("--lr", "3"), host="localhost").published()) == []
    assert list(wanted(tmp_path, port=1, words=("--lr", "2"), host="localhost").published()) == [], "another endpoint"


def test_a_run_is_joined_whatever_its_name_is(tmp_path: Path) -> None:
    config, directory = opened(tmp_path, name="job-7")
    with coordinator(config, directory) as port:
        assert ask(port, directory.root, {"host": "h", "node": None, "procs": 1}).run == "job-7"


@pytest.mark.parametrize(("words", "script", "what"), [(("--lr", "1"), SCRIPT, "arguments"), ((), "other.py", "script")])
def test_a_node_with_another_command_is_refused_and_shown_the_running_one(
    words: tuple[str, ...], script: str, what: str, tmp_path: Path
) -> None:
    config, directory = opened(tmp_path)
    if script != SCRIPT:
        script = str(tmp_path / script)
        Path(script).write_text("print()")
    command = command_of(parse([script, *words]), 1, {}, alone=False)
    assert command.words[0] == script
    with coordinator(config, directory) as port, pytest.raises(MeetingError) as refused:
        enter(dataclasses.replace(wanted(tmp_path, port), command=command), SECRET, {"node": None, "procs": 1}, 0.0)
    assert f"another command is running there, `{SCRIPT}` as run `job`: this node's differs in {what}" in str(refused.value)
    assert not (directory.attempt_directory / "entered").exists()


@pytest.mark.parametrize("edited", [False, True])
def test_a_moved_script_is_the_same_command_and_edits_are_reported(
    edited: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, directory = opened(tmp_path / "runs")
    (tmp_path / "train.py").write_bytes(Path(SCRIPT).read_bytes() + b"# more\n" * edited)
    command = command_of(parse([str(tmp_path / "train.py")]), 1, {"LR": "1"}, alone=False)
    with coordinator(config, directory) as port:
        found = enter(dataclasses.replace(wanted(tmp_path, port), command=command), SECRET, {"node": None, "procs": 1}, 0.0)
    assert found.node == 1
    launcher._settle(found, config, SECRET, "here", command)
    assert ("train.py differs from the code that run `job` started with" in capsys.readouterr().err) == edited


def test_the_port_of_an_ended_run_is_awaited(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)
    directory.verdict.write_text("{}")
    with coordinator(config, directory) as port, pytest.raises(MeetingError, match="the run there has just ended"):
        ask(port, directory.root, {"node": None, "procs": 1}, "of", "the", "next", "command")


def test_a_node_detects_whether_it_has_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, directory = opened(tmp_path / "host")
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path / "own"))
    with coordinator(config, directory) as port:
        entered = ask(port, directory.root, {"host": "h", "node": None, "procs": 1})
    shared = launcher._settle(entered, config, SECRET, "here", wanted(tmp_path).command)
    assert (shared.directory.root, shared.shared) == (directory.root, True)
    (directory.root / entered.proof[0]).unlink()
    own = launcher._settle(entered, config, SECRET, "here", wanted(tmp_path).command)
    assert (own.directory.root, own.node, own.shared) == (tmp_path / "own/job", 1, False)
    assert own.directory.secret() == SECRET
    assert json.loads(own.directory.coordinator.read_text())["port"] == entered.port
    assert from_json(RunConfig, own.directory.run_json.read_text()).store.url == str(tmp_path / "own/job/shared")
    assert own.directory.handle.read_text() == directory.handle.read_text(), "so trackers know it as one run"
    again = launcher._settle(entered, config, SECRET, "here", wanted(tmp_path).command)
    assert again.directory == own.directory


def test_two_runs_with_one_name_have_separate_folders_on_a_shared_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path / "own"))
    found = []
    for host in ("a", "b"):
        config, directory = opened(tmp_path / host)
        with coordinator(config, directory) as port:
            entered = ask(port, directory.root, {"host": "h", "node": None, "procs": 1})
        (directory.root / entered.proof[0]).unlink()
        found.append(launcher._settle(entered, config, SECRET, "here", wanted(tmp_path).command).directory)
    assert [each.root for each in found] == [tmp_path / "own/job", tmp_path / "own/job-2"]
    assert [from_json(RunConfig, each.run_json.read_text()).run for each in found] == ["job", "job"], "as the other nodes call it"


def test_without_a_shared_store_a_custom_loop_keeps_no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_current", [object()])
    monkeypatch.setenv("HEADWAY_SHARED_STORE", "0")
    with pytest.raises(RuntimeError, match="set HEADWAY_RUNS to a folder that all nodes see"):
        of_job(Checkpoint(), Ranks())
