"""Turns torchrun's command line into a run directory and a node index, and replaces this process with the supervisor.

Flags are torchrun's own, parsed by torch's own parser. Unsupported ones are refused by name; the only ignored ones tune
how torchrun itself polls and meets.
"""

import argparse
import contextlib
import errno
import json
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headway.runner.agent import store
from headway.runner.agent.launch import Torchrun
from headway.runner.agent.listening import LOOPBACK, STORE_BACKLOG, address_towards, listen
from headway.runner.agent.processes import fall_with_parent
from headway.runner.agent.warm import PASSED_ON
from headway.runner.contract import RunConfig, RunDirectory, from_json, to_json
from headway.runner.launches import Launch, LaunchCommand
from headway.runner.posix import create_exclusive, write_atomic
from headway.runner.rundir import open_run
from headway.runner.start import START
from headway.runner.torchrun.arguments import UsageError, bound_cpus, given_master, max_nodes, parse, streams, unserved
from headway.runner.torchrun.command import command_of
from headway.runner.torchrun.configure import RUN, configure, insisted_name, run_name, script_name
from headway.runner.torchrun.early import Begun
from headway.runner.torchrun.naming import RunChoice, choose, choose_named, look_at, runs_of
from headway.runner.torchrun.rendezvous import (
    Entered,
    MeetingError,
    Wanted,
    endpoint_of,
    enter,
    listening_address,
    secret_of,
    take,
)
from headway.runs import runs_folder

# One try.
ONCE_S = 0.0


@dataclass(frozen=True)
class NodePlace:
    """This node's part of the run.

    `shared`: its run directory is that of all nodes. `store` listens at the command line's address of the rendezvous
    store.
    """

    directory: RunDirectory
    node: int
    address: str
    shared: bool = True
    store: socket.socket | None = None


def _runs() -> Path:
    return runs_folder(os.environ)[0]


def open_named(name: str, config: RunConfig, job: str, launch: Launch, *, insists: bool = False) -> RunDirectory | None:
    """Create the attempt for the command, of a run of this name; with `insists`, of exactly this run.

    None if the command is to join a running attempt. Raises UsageError if it may not.
    """
    runs = _runs()
    while True:
        choice = _choice(runs, name, launch, insists=insists)
        if choice.enters:
            return None
        try:
            if choice.new:
                (runs / choice.name).mkdir(parents=True)
            directory = open_run(
                runs, choice.name, config, choice.attempt, job, launch=to_json(launch, indent=2).encode() + b"\n"
            )
        except FileExistsError:
            # Another launcher has just taken it: look again.
            continue
        if choice.line is not None:
            _say(choice.line)
        return directory


def _choice(runs: Path, name: str, launch: Launch, *, insists: bool) -> RunChoice:
    if insists:
        there = (runs / name).exists()
        named = look_at(runs / name, launch, os.environ, always=True) if there else None
        return choose_named(named, name)
    candidates = [look_at(runs / each, launch, os.environ) for each in runs_of(runs, name)]
    return choose(name, candidates, launch.command.name)


# --- one node -----------------------------------------------------------------------------------------------------------


def open_alone(arguments: argparse.Namespace, config: RunConfig) -> NodePlace:
    """Open a run on one node.

    Its name is HEADWAY_RUN, else --rdzv-id or the scheduler's job, else the script's name with an unused number.
    """
    launch = Launch.own(command_of(arguments, config.procs_per_slot, os.environ, alone=True), None, os.environ)
    listening = _listen_for_store(arguments)
    job, insisted = script_name(arguments), insisted_name(os.environ)
    if not (name := insisted or run_name(arguments)):
        name = _numbered(job)
        text = to_json(launch, indent=2).encode() + b"\n"
        return NodePlace(open_run(_runs(), name, config, 0, job, launch=text), 0, LOOPBACK, store=listening)
    directory = open_named(name, config, job, launch, insists=bool(insisted))
    assert directory is not None  # noqa: S101  a single-node run is never joined
    return NodePlace(directory, 0, LOOPBACK, store=listening)


def _listen_for_store(arguments: argparse.Namespace) -> socket.socket | None:
    """Listen at --master-addr and --master-port, or at the endpoint. Raises UsageError if that is impossible."""
    if (master := given_master(arguments)) is None:
        return None
    host, port = master
    try:
        try:
            return listen(host, STORE_BACKLOG, port)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        # A service's address, which leads here by way of another machine: torchrun's store listens on all.
        everywhere = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if everywhere else socket.AF_INET
        return socket.create_server(("", port), family=family, backlog=STORE_BACKLOG, dualstack_ipv6=everywhere)
    except OSError as error:
        said = f"--rdzv-endpoint {host}:{port}" if arguments.rdzv_endpoint else f"--master-port {port}"
        raise UsageError(f"{said}: {error.strerror or error}") from None


def _numbered(stem: str) -> str:
    """Return an unused run name, and create its folder."""
    runs, number = _runs(), 1
    while True:
        try:
            (runs / f"{stem}-{number}").mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return f"{stem}-{number}"


# --- several nodes ------------------------------------------------------------------------------------------------------


def meet(arguments: argparse.Namespace) -> NodePlace:
    """Return this node's place: as the host of the endpoint, or as one that the run's coordinator has admitted."""
    endpoint = endpoint_of(arguments)
    config = configure(arguments, endpoint.port)
    job, insisted = script_name(arguments), insisted_name(os.environ)
    name = insisted or run_name(arguments) or f"{job}-{endpoint.port}"
    command = command_of(arguments, config.procs_per_slot, os.environ, alone=False)
    wanted = Wanted(endpoint, _runs(), name, command)
    secret, known = secret_of(endpoint, name, os.environ)
    body = {"host": "", "domain": None, "node": endpoint.node, "procs": config.procs_per_slot}
    address = arguments.local_addr or listening_address(endpoint.host)
    if endpoint.hosted:
        if (entered := _into_what_goes_on(wanted, secret, {**body, "host": address})) is not None:
            return _settle(entered, config, secret, address, command)
        if (guard := take(endpoint, address)) is not None:
            launch = Launch.own(command, str(endpoint), os.environ)
            # If it is to join, another node hosts the endpoint.
            with guard:
                directory = open_named(name, config, job, launch, insists=bool(insisted))
                if directory is not None:
                    guard.detach()
            if directory is not None:
                if known:
                    _say(
                        f"anyone who knows run `{name}`, endpoint and user id can join, as with "
                        f"torchrun; set HEADWAY_SECRET_FILE to prevent it"
                    )
                write_atomic(directory.secret_file, secret.hex().encode() + b"\n", mode=0o600)
                return NodePlace(directory, 0, address)
    here = arguments.local_addr or address_towards(endpoint.host, endpoint.port)
    entered = enter(wanted, secret, {**body, "host": here}, config.timeouts["join"].floor_s)
    return _settle(entered, config, secret, here, command)


def _into_what_goes_on(wanted: Wanted, secret: bytes, body: dict[str, object]) -> Entered | None:
    """Join an attempt whose coordinator has moved to another node, if a shared store has its address."""
    if not any(wanted.published()):
        return None
    try:
        return enter(wanted, secret, body, ONCE_S)
    except MeetingError:
        return None


def _settle(entered: Entered, asked: RunConfig, secret: bytes, address: str, command: LaunchCommand) -> NodePlace:
    """Return the run directory for this node's place: the shared one, or else a local one."""
    config = from_json(RunConfig, entered.run_json)
    if config.procs_per_slot != asked.procs_per_slot:
        raise UsageError(
            f"--nproc-per-node: {asked.procs_per_slot} here but {config.procs_per_slot} where the "
            f"run started; use the same number on all nodes"
        )
    if command.kind != "program" and command.code != entered.code:
        _say(
            f"{command.name} differs from the code that run `{entered.run}` started with on the node {entered.host}:{entered.port}"
        )
    path, content = entered.proof
    for root in (Path(entered.root), (_runs() / entered.run).resolve()):
        if _reads(root / path) == content:
            return NodePlace(RunDirectory(root, entered.attempt), entered.node, address)
    directory = _own_directory(entered, config, secret)
    _say(
        f"the nodes share no storage: headway commits no checkpoints, the report is on the node {entered.host}:{entered.port}, "
        "and the run ends with that node; set HEADWAY_RUNS to a folder that all nodes see"
    )
    return NodePlace(directory, entered.node, address, shared=False)


def _reads(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None


def _own_directory(entered: Entered, config: RunConfig, secret: bytes) -> RunDirectory:
    """Create a node-local run directory, which refers to the coordinator by its address. It has another name if this
    node already has a different run of that name."""
    runs, number = _runs(), 1
    while not _is_of(runs / (name := entered.run if number == 1 else f"{entered.run}-{number}"), entered.handle):
        number += 1
    directory = open_run(runs, name, config, entered.attempt, every_node=True, run=entered.run)
    write_atomic(directory.secret_file, secret.hex().encode() + b"\n", mode=0o600)
    address = {"host": entered.host, "port": entered.port, "term": 0, "node": 0}
    write_atomic(directory.coordinator, json.dumps(address).encode() + b"\n")
    return directory


def _is_of(root: Path, handle: str) -> bool:
    """Return whether a folder is that of the run with this record; a missing one is created."""
    try:
        root.mkdir(parents=True)
    except FileExistsError:
        return _reads(RunDirectory(root).handle) == handle
    return create_exclusive(RunDirectory(root).handle, handle.encode())


# --- one or several nodes -----------------------------------------------------------------------------------------------


def log_folder(arguments: argparse.Namespace, directory: RunDirectory) -> Path | None:
    """Return a node-local folder for the workers' output, as torch creates one: None with --log-dir /dev/null."""
    if arguments.log_dir == os.devnull:
        return None
    base = Path(arguments.log_dir) if arguments.log_dir else directory.logs
    base.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{directory.root.name}_", dir=base)).resolve()


def terminal(arguments: argparse.Namespace, place: NodePlace, config: RunConfig, logs: Path | None) -> dict[str, object]:
    """Return what the waiting launcher shows of the run."""
    given = Torchrun.of(config)
    assert given is not None  # noqa: S101  `configure` writes it
    _, teed = streams(arguments, config.procs_per_slot)
    shown = {rank: bits for rank, bits in teed.items() if bits and (given.shown is None or rank in given.shown)}
    return {
        "run": str(place.directory.root),
        "attempt": place.directory.attempt,
        "node": place.node,
        "shared": place.shared,
        "logs": None if logs is None else str(logs),
        "role": given.role,
        "teed": shown,
        "filters": {"stdout": arguments.duplicate_stdout_filters, "stderr": arguments.duplicate_stderr_filters},
    }


def _say(text: str) -> None:
    print(f"headway torchrun: {text}", file=sys.stderr, flush=True)


def prepare(argv: Sequence[str]) -> tuple[NodePlace, dict[str, str]]:
    """Return this node's place, and the additional environment of its supervisor. Raises UsageError, MeetingError, ValueError."""
    arguments = parse(argv)
    for name in unserved(dict(os.environ)):
        _say(f"{name} configures torchrun's agent; headway's agent ignores it")
    if (told := runs_folder(os.environ)[1]) is not None:
        _say(told)
    place = meet(arguments) if max_nodes(arguments) > 1 else open_alone(arguments, configure(arguments))
    # Workers do not need it, and a script's tracker may keep its environment.
    os.environ.pop("HEADWAY_SECRET", None)
    # A command that the script starts is another run.
    os.environ.pop(RUN, None)
    config = from_json(RunConfig, place.directory.run_json.read_text())
    logs = log_folder(arguments, place.directory)
    environment = {"HEADWAY_HOST": place.address, "HEADWAY_SHARED_STORE": str(int(place.shared))}
    if logs is not None:
        environment["HEADWAY_LOGS"] = str(logs)
    if cpus := bound_cpus(arguments, config.procs_per_slot):
        environment["HEADWAY_CPUS"] = json.dumps(cpus)
    if config.procs_per_slot > 1 and "OMP_NUM_THREADS" not in os.environ:
        # As torchrun does.
        environment["OMP_NUM_THREADS"] = "1"
    if (descriptor := os.environ.pop("HEADWAY_TERMINAL_FD", None)) is not None:
        with os.fdopen(int(descriptor), "w") as pipe:
            json.dump(terminal(arguments, place, config, logs), pipe)
    return place, environment


def launch(argv: Sequence[str], begun: Begun) -> NoReturn:
    """Become the supervisor of this node's part of the run, with the standbys that were started; exit with 2 if there
    is no run."""
    try:
        place, environment = prepare(argv)
    except (UsageError, MeetingError, ValueError, OSError) as error:
        _say(str(error))
        sys.exit(2)
    directory, own = place.directory, {**os.environ, **environment}
    config = from_json(RunConfig, directory.run_json.read_text())
    given = Torchrun.of(config)
    are_ours = given is not None and given.python and not given.virtual_local_rank
    if (passed_on := begun.pass_on(config.procs_per_slot, own, are_ours=are_ours)) is not None:
        own[PASSED_ON] = passed_on
    # The supervisor starts one.
    with contextlib.suppress(OSError):
        own[store.PASSED_ON] = store.pass_on(store.fork_host())
    # A launcher that is killed is a lost node, as with torchrun; the other nodes do not stop.
    if config.slots > 1:
        fall_with_parent()
    if place.store is not None:
        place.store.set_inheritable(True)
        own[store.SOCKET] = str(place.store.fileno())
    # In place of this process: the supervisor is small and single-threaded, and this one has imported torch.
    words = [str(directory.run_json), "--attempt", str(directory.attempt), "--node", str(place.node)]
    os.execve(sys.executable, [sys.executable, START, "headway.runner", *words], own)
