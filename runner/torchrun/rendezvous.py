"""Implements the rendezvous of several nodes of a torchrun command: which node hosts the endpoint, and how the others join the run.

The endpoint's port is the coordinator's. A node that cannot host it asks there for a node index and the run's run.json.
"""

import argparse
import asyncio
import hashlib
import ipaddress
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.rendezvous.utils import (
    _matches_machine_hostname,
    _parse_rendezvous_config,
    parse_rendezvous_endpoint,
)

from headway.runner.agent.listening import LOOPBACK, address_towards
from headway.runner.launches import Launch, LaunchCommand
from headway.runner.messages import HANDSHAKE_S, ChannelError, Link, Message, connect
from headway.runner.torchrun.arguments import UsageError
from headway.runner.torchrun.naming import newest, runs_of
from headway.runner.within import within

# torch's defaults (c10d_rendezvous_backend.py, run.py).
C10D_PORT, STATIC_PORT = 29400, 29500
RETRY_S = 0.5
SAY_AFTER_S = 10.0
# In the envelope of a node without an index.
NO_NODE = -1


class MeetingError(Exception):
    """The endpoint did not admit this node; the message lists what was tried."""


@dataclass(frozen=True)
class Endpoint:
    """`hosted`: this machine is the endpoint's by name; `sure`: the command line specifies it. `node` is the requested
    index; None: any."""

    host: str
    port: int
    hosted: bool
    sure: bool
    node: int | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def endpoint_of(arguments: argparse.Namespace) -> Endpoint:
    """Return the endpoint of --rdzv-backend c10d or static. Raises UsageError or ValueError for one that nodes cannot meet at."""
    conf = _parse_rendezvous_config(arguments.rdzv_conf)
    if arguments.rdzv_backend == "static":
        given = arguments.rdzv_endpoint or f"{arguments.master_addr}:{arguments.master_port or STATIC_PORT}"
        host, port = parse_rendezvous_endpoint(given, -1)
        rank = arguments.node_rank
        endpoint = Endpoint(host, port, hosted=rank == 0, sure=True, node=rank)
    else:
        if conf.get("store_type", "tcp").lower() != "tcp":
            raise UsageError(f"--rdzv-conf store_type={conf['store_type']}: headway's nodes meet at a TCP endpoint")
        host, port = parse_rendezvous_endpoint(arguments.rdzv_endpoint, C10D_PORT)
        said = conf.get("is_host")
        hosted = _is_here(host) if said is None else _truth(said)
        endpoint = Endpoint(host, port, hosted, sure=said is not None, node=None)
    if endpoint.port < 1:
        raise UsageError(f"--rdzv-endpoint {endpoint}: set a port that all nodes know")
    return endpoint


def _is_here(host: str) -> bool:
    """Return whether `host` is this machine: by torch's rule, or else if an address of `host` can be listened on.

    torch overlooks addresses of further adapters, and gives up if the machine's own name does not resolve
    (rendezvous/utils.py, `_matches_machine_hostname`).
    """
    try:
        if _matches_machine_hostname(host):
            return True
    except OSError:
        pass
    try:
        socket.create_server((host, 0)).close()
    except OSError:
        return False
    return True


def _truth(text: str) -> bool:
    """Parse a yes or no of --rdzv-conf like torch (rendezvous/api.py, `get_as_bool`)."""
    lowered = text.strip().lower()
    if lowered in ("1", "true", "t", "yes", "y"):
        return True
    if lowered in ("0", "false", "f", "no", "n"):
        return False
    raise UsageError(f"--rdzv-conf is_host={text}: expected true or false")


# --- the host -----------------------------------------------------------------------------------------------------------


def take(endpoint: Endpoint, address: str) -> socket.socket | None:
    """Return a socket that makes this process the endpoint's host while it is open; None if there is another host, or
    its port is taken.

    It is a name of this network namespace and user, and not the port itself: each coordinator binds the port again.
    Between users the first to bind the port gets it, on any of its addresses.
    """
    guard = socket.socket(socket.AF_UNIX)
    try:
        guard.bind(f"\0headway-endpoint-{os.getuid()}-{endpoint.port}")
        socket.create_server((address, endpoint.port)).close()
    except OSError as error:
        guard.close()
        if endpoint.sure:
            raise MeetingError(f"{endpoint} cannot be hosted here: {error}") from None
        return None
    # It stays through exec.
    os.set_inheritable(guard.fileno(), True)
    return guard


def listening_address(host: str) -> str:
    """Return the address on which this machine listens for nodes that know it as `host`: the name itself, unless it
    resolves to loopback only here.

    Debian has a machine's own name at 127.0.1.1 in /etc/hosts (Debian Reference, 5.1.1), where no other machine finds
    it.
    """
    if host == "localhost" or _is_loopback(host):
        return LOOPBACK if host == "localhost" else host
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return host
    return host if any(not _is_loopback(address) for address in found) else address_towards("192.0.2.1")


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


# --- the secret ---------------------------------------------------------------------------------------------------------


def secret_of(endpoint: Endpoint, name: str, environment: Mapping[str, str]) -> tuple[bytes, bool]:
    """Return the run's secret, and whether others can derive it: from the run's name, the endpoint and our user id."""
    if path := environment.get("HEADWAY_SECRET_FILE"):
        given = Path(path).read_bytes().strip()
    elif text := environment.get("HEADWAY_SECRET"):
        given = text.encode()
    else:
        known = f"{name}\0{endpoint}\0{os.getuid()}".encode()
        return hashlib.sha256(b"headway torchrun, known\0" + known).digest(), True
    return hashlib.sha256(b"headway torchrun, given\0" + name.encode() + b"\0" + given).digest(), False


# --- the others ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entered:
    """The coordinator's reply to a node that joined: its index, and the run.

    `proof` is a file below `root` and its content, by which a node recognizes a shared store; `host` and `port` are the
    coordinator's address. `handle` is the run's record, which is the same on all of its nodes, and `code` the hash of
    the script that it began with.
    """

    node: int
    attempt: int
    run: str
    root: str
    proof: tuple[str, str]
    run_json: str
    handle: str
    code: str | None
    host: str
    port: int


@dataclass(frozen=True)
class Wanted:
    """The run that a node looks for: of its command, under this name or one derived from it, meeting at the endpoint."""

    endpoint: Endpoint
    runs: Path
    name: str
    command: LaunchCommand

    def published(self) -> Iterator[tuple[str, int]]:
        """Yield the published coordinator addresses of such attempts that have not ended, if this node sees their directories."""
        for each in runs_of(self.runs, self.name):
            if (directory := newest(self.runs / each)) is None or directory.verdict.exists():
                continue
            launch = Launch.of(directory)
            if launch is None or launch.meets != str(self.endpoint) or launch.command.entry() != self.command.entry():
                continue
            try:
                found = json.loads(directory.coordinator.read_text())
                yield found["host"], found["port"]
            except (OSError, ValueError, KeyError):
                continue


def enter(wanted: Wanted, secret: bytes, body: Mapping[str, Any], patience_s: float) -> Entered:
    """Ask for a place in the run until there is one. Raises MeetingError after `patience_s`."""
    return asyncio.run(_enter(wanted, secret, body, patience_s))


async def _enter(wanted: Wanted, secret: bytes, body: Mapping[str, Any], patience_s: float) -> Entered:
    began, said, why, endpoint = time.monotonic(), False, "no answer", wanted.endpoint
    body = {**body, "command": wanted.command.entry()}
    while True:
        for host, port in dict.fromkeys([(endpoint.host, endpoint.port), *wanted.published()]):
            try:
                return await _ask(host, port, secret, body)
            except OSError as error:
                why = f"{host}:{port}: {error}"
            except ChannelError as error:
                why = f"{host}:{port}: {error} (another run is there, or HEADWAY_SECRET differs)"
        waited_s = time.monotonic() - began
        if waited_s > patience_s:
            raise MeetingError(f"after {patience_s:.0f} s this node could not join run `{wanted.name}`; {why}")
        if waited_s > SAY_AFTER_S and not said:
            print(f"headway torchrun: waiting at {endpoint}: {why}", file=sys.stderr, flush=True)
            said = True
        await asyncio.sleep(RETRY_S)


async def _ask(host: str, port: int, secret: bytes, body: Mapping[str, Any]) -> Entered:
    """Try one address once."""
    answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def heard(_: Link, message: Message) -> None:
        if message.kind == "entered" and not answered.done():
            answered.set_result(message)

    def lost(_: Link, why: str) -> None:
        if not answered.done():
            answered.set_exception(ChannelError(why))

    link = await connect(host, port, secret, None, 0, heard, lost)
    try:
        link.send("enter", 0, NO_NODE, body)
        message = await within(HANDSHAKE_S, answered)
    except TimeoutError:
        raise ChannelError("asked to join, but got no answer") from None
    finally:
        link.close()
    return _entered(message.body, host, port)


def _entered(body: Mapping[str, Any], host: str, port: int) -> Entered:
    try:
        if refused := body.get("refused"):
            raise MeetingError(str(refused))
        if body.get("ended"):
            raise ChannelError("the run there has just ended")
        place = body["node"], body["attempt"], body["run"], body["root"]
        path, content = body["proof"]
        return Entered(*place, (path, content), body["run_json"], body["handle"], body["code"], host, port)
    except (KeyError, ValueError, TypeError) as error:
        raise ChannelError(f"an invalid answer: {error!r}") from None
