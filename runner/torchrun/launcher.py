"""torchrun's command line -> a run directory, a place in it, and the supervisor in this process' place.

Flags are torchrun's own, parsed by torch's own parser. What we do not carry out is refused by name; nothing is ignored silently but what
only tunes how torchrun itself polls and meets.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headway.runner.agent import store
from headway.runner.agent.launch import Torchrun
from headway.runner.agent.processes import fall_with_parent
from headway.runner.agent.warm import PASSED_ON
from headway.runner.checkpoint.posix import write_atomic
from headway.runner.contract import RunConfig, from_json
from headway.runner.rundir import RunDirectory, open_run
from headway.runner.torchrun.arguments import UsageError, bound_cpus, max_nodes, parse, streams, unserved
from headway.runner.torchrun.configure import configure, run_name, script_name
from headway.runner.torchrun.early import Begun
from headway.runner.torchrun.meeting import (
    LOOPBACK,
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

ONCE_S = 0.0  # one try


@dataclass(frozen=True)
class Place:
    """This node's part of the run. `shared`: its run directory is that of all nodes."""

    directory: RunDirectory
    node: int
    address: str
    shared: bool = True


def runs_folder() -> Path:
    return Path(os.environ.get("HEADWAY_RUNS", "runs"))


# --- one node -----------------------------------------------------------------------------------------------------------


def open_alone(arguments: argparse.Namespace, config: RunConfig) -> Place:
    """Run id: --rdzv-id, else the scheduler's job id, else the script's name and a number."""
    name = run_name(arguments)
    if not name:
        stem, number = script_name(arguments), 1
        while (runs_folder() / f"{stem}-{number}").exists():
            number += 1
        name = f"{stem}-{number}"
    return Place(open_attempt(name, config, script_name(arguments)), 0, LOOPBACK)


def open_attempt(name: str, config: RunConfig, job: str) -> RunDirectory:
    """The run's next attempt: an id seen before is a further attempt of the same run."""
    while True:
        attempt = sum(1 for _ in (runs_folder() / name / "attempts").glob("*"))
        try:
            return open_run(runs_folder(), name, config, attempt, job=job)
        except FileExistsError:  # another launcher took it in this moment: look again
            continue


# --- several nodes ------------------------------------------------------------------------------------------------------


def meet(arguments: argparse.Namespace) -> Place:
    """This node's place: as the host of the endpoint, or as one that the run's coordinator has let in."""
    endpoint = endpoint_of(arguments)
    config = configure(arguments, endpoint.port)
    name = run_name(arguments) or f"{script_name(arguments)}-{endpoint.port}"
    secret, known = secret_of(endpoint, name, os.environ)
    body = {"host": "", "domain": None, "node": endpoint.node, "procs": config.procs_per_slot}
    run, address = runs_folder() / name, arguments.local_addr or listening_address(endpoint.host)
    if endpoint.hosted:
        if (entered := _into_what_goes_on(endpoint, run, secret, {**body, "host": address})) is not None:
            return _settle(entered, config, secret, address)
        if (guard := take(endpoint, address)) is not None:
            if known:
                _say(
                    f"whoever knows run `{name}`, endpoint and user id can join, as with torchrun; set HEADWAY_SECRET_FILE to forbid it"
                )
            directory = open_attempt(name, config, script_name(arguments))
            write_atomic(directory.secret_file, secret.hex().encode() + b"\n", mode=0o600)
            guard.detach()
            return Place(directory, 0, address)
    here = arguments.local_addr or address_towards(endpoint.host, endpoint.port)
    entered = enter(endpoint, run, secret, {**body, "host": here}, config.timeouts["join"].floor_s)
    return _settle(entered, config, secret, here)


def _into_what_goes_on(endpoint: Endpoint, run: Path, secret: bytes, body: dict[str, object]) -> Entered | None:
    """A place in an attempt whose coordinator has moved to another node, where a store that this one shares says so."""
    if not any(published(run)):
        return None
    try:
        return enter(endpoint, run, secret, body, ONCE_S)
    except MeetingError:
        return None


def _settle(entered: Entered, asked: RunConfig, secret: bytes, address: str) -> Place:
    """The run directory for the place that this node was given: the one that all share, else one of its own."""
    config = from_json(RunConfig, entered.run_json)
    if config.procs_per_slot != asked.procs_per_slot:
        raise UsageError(
            f"--nproc-per-node: {asked.procs_per_slot} here and {config.procs_per_slot} where the run began; nodes must have the same"
        )
    path, content = entered.proof
    for root in (Path(entered.root), (runs_folder() / entered.run).resolve()):
        if _reads(root / path) == content:
            return Place(RunDirectory(root, entered.attempt), entered.node, address)
    directory = _own_directory(entered, config, secret)
    _say(
        f"the nodes share no store: headway commits no checkpoints, the report lies on the node of {entered.host}:{entered.port}, "
        "and the run ends with that node; set HEADWAY_RUNS to a folder that all nodes see"
    )
    return Place(directory, entered.node, address, shared=False)


def _reads(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None


def _own_directory(entered: Entered, config: RunConfig, secret: bytes) -> RunDirectory:
    """A run directory of this node's own, which knows the coordinator by its address."""
    try:
        directory = open_run(runs_folder(), entered.run, config, entered.attempt, every_node=True)
    except FileExistsError as error:
        raise MeetingError(f"{error} is of another run of that name; set HEADWAY_RUNS to another folder") from None
    write_atomic(directory.secret_file, secret.hex().encode() + b"\n", mode=0o600)
    address = {"host": entered.host, "port": entered.port, "term": 0, "node": 0}
    write_atomic(directory.coordinator, json.dumps(address).encode() + b"\n")
    return directory


# --- both ---------------------------------------------------------------------------------------------------------------


def log_folder(arguments: argparse.Namespace, directory: RunDirectory) -> Path | None:
    """A folder of this node's own for what its workers print, as torch makes one: None with --log-dir /dev/null."""
    if arguments.log_dir == os.devnull:
        return None
    base = Path(arguments.log_dir) if arguments.log_dir else directory.attempt_directory / "logs"
    base.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{directory.root.name}_", dir=base)).resolve()


def terminal(arguments: argparse.Namespace, place: Place, config: RunConfig, logs: Path | None) -> dict[str, object]:
    """What the launcher that waits for this process shows of the run."""
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


def prepare(argv: Sequence[str]) -> tuple[Place, dict[str, str]]:
    """This node's place, and the environment that its supervisor gets beside ours. Raises UsageError, MeetingError, ValueError."""
    arguments = parse(argv)
    for name in unserved(dict(os.environ)):
        _say(f"{name} asks torchrun's agent for something; headway's does not do it")
    place = meet(arguments) if max_nodes(arguments) > 1 else open_alone(arguments, configure(arguments))
    os.environ.pop("HEADWAY_SECRET", None)  # workers need none, and a script's tracker may keep its environment
    config = from_json(RunConfig, place.directory.run_json.read_text())
    logs = log_folder(arguments, place.directory)
    environment = {"HEADWAY_HOST": place.address, "HEADWAY_SHARED_STORE": str(int(place.shared))}
    if logs is not None:
        environment["HEADWAY_LOGS"] = str(logs)
    if cpus := bound_cpus(arguments, config.procs_per_slot):
        environment["HEADWAY_CPUS"] = json.dumps(cpus)
    if config.procs_per_slot > 1 and "OMP_NUM_THREADS" not in os.environ:
        environment["OMP_NUM_THREADS"] = "1"  # as torchrun does
    if (descriptor := os.environ.pop("HEADWAY_TERMINAL_FD", None)) is not None:
        with os.fdopen(int(descriptor), "w") as pipe:
            json.dump(terminal(arguments, place, config, logs), pipe)
    return place, environment


def launch(argv: Sequence[str], begun: Begun) -> NoReturn:
    """Becomes the supervisor of this node's part of the run, with the workers that were begun; exits with 2 where there is none."""
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
    with contextlib.suppress(OSError):  # the supervisor starts one
        own[store.PASSED_ON] = store.pass_on(store.fork_host())
    if config.slots > 1:  # a launcher that is killed is a node that is lost, as with torchrun; nobody asked the others to stop
        fall_with_parent()
    # In place of this process: the supervisor is small and single-threaded, and this one has imported torch.
    words = [str(directory.run_json), "--attempt", str(directory.attempt), "--node", str(place.node)]
    os.execve(sys.executable, [sys.executable, "-m", "headway.runner", *words], own)
