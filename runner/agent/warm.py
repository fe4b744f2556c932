"""Manages warm standbys for the supervisor: one process per local rank that has imported everything and waits for an order.

An order goes into a memfd and comes with the worker's descriptors in one datagram (SCM_RIGHTS), so that a standby that does not read
can never block who orders. A standby that is dead, not ready, of another environment or silent is killed, and costs nothing else.
One that began with its node is the first worker to be: its order may come while it imports, as any process in its place would have to.
"""

import array
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headway.runner.agent.processes import kill_group, spawn
from headway.runner.agent.source import may_set_environment
from headway.runner.start import START

READY, TAKEN = b"ready", b"taken"
ORDERS_FD, WANTED_FD, STORE_FD = "HEADWAY_ORDERS_FD", "HEADWAY_WANTED_FD", "HEADWAY_STORE_FD"
# Room behind the environment of a standby's start, in which it shows the worker's own (proc(5), environ), as a fresh process would.
ROOM, ROOM_BYTES = "HEADWAY_ROOM", 8192
# A standby waits in recvmsg: it answers within a millisecond unless it is stopped or the machine has stalled.
ANSWER_S = 1.0
# Variables that differ between two generations of a rank, and those that also differ between ranks: libraries may read them on import.
OF_A_GENERATION = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "TORCH_FR_DUMP_TEMP_FILE"}
)
OF_A_RANK = frozenset({"RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "WANDB_RUN_ID"})
# Packages that read nothing of a rank's own when they are imported; a standby that has only these may become any rank.
OF_ANY_RANK = frozenset({"headway", "numpy", "torch"})
# Libraries that a standby imports where the first generation's worker has; what a script brings itself is run by the script only.
LIBRARIES = frozenset(
    {
        "accelerate",
        "datasets",
        "einops",
        "filelock",
        "fsspec",
        "headway",
        "huggingface_hub",
        "lightning",
        "lightning_fabric",
        "lightning_utilities",
        "numpy",
        "packaging",
        "pandas",
        "peft",
        "psutil",
        "pyarrow",
        "pytorch_lightning",
        "regex",
        "requests",
        "safetensors",
        "scipy",
        "tokenizers",
        "torch",
        "torchmetrics",
        "torchvision",
        "tqdm",
        "transformers",
        "yaml",
    }
)
# Every worker needs these before its first step; the first optimizer that is made imports torch._dynamo.
ALWAYS = ("torch", "torch.distributed", "torch._dynamo")
# Standbys that a process passes on to the supervisor that takes its place: {local rank: [pid, descriptor of its orders]}.
PASSED_ON = "HEADWAY_STANDBYS"


@dataclass
class Standby:
    """`environment` is what the imports have seen; `libraries`: they went beyond OF_ANY_RANK; `first`: it began with its node, before
    anything was known of its rank; `ready`: it has imported everything."""

    pid: int
    orders: socket.socket
    environment: Mapping[str, str]
    libraries: bool
    first: bool = False
    ready: bool = False

    def hear(self) -> bool:
        """Read its message; return False if it has ended."""
        try:
            said = self.orders.recv(len(READY), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.ready = self.ready or said == READY
        return bool(said)


@dataclass(frozen=True)
class WorkerOrder:
    """A worker to become: the module and its arguments, the whole environment, and descriptors by the variable that names them. `added`:
    the variables that are not its node's but were put on top by our launch, which nothing reads on import but what sees devices."""

    local_rank: int
    argv: Sequence[str]
    environment: Mapping[str, str]
    descriptors: Mapping[str, int]
    stdout: int
    stderr: int
    added: frozenset[str] = frozenset()


def first_imports(words: Sequence[str]) -> Sequence[str]:
    """Return the modules that the first workers of `SCRIPT ARGS...` import before it: none if it may set variables that torch reads."""
    return () if may_set_environment(words) else ALWAYS


def start_standby(
    argv: Sequence[str],
    environment: Mapping[str, str],
    companion: Mapping[str, str],
    modules: Sequence[str],
    cpus: Iterable[int] | None = None,
    *,
    first: bool = False,
    stdin: bool = False,
    overlays: Mapping[str, Mapping[str, str | None]] = MappingProxyType({}),
    store: socket.socket | None = None,
) -> Standby:
    """Starts a standby for workers that run `argv` under `environment`; `modules` are imported in addition to those of every worker.

    `companion` is the environment that the process itself starts with, the same for all processes of the node. A `first` one imports as
    fast as a worker would, and `environment` is its node's: an order may add the variables of a launch (`_unfit`).
    `overlays` are the script's changes of its environment before it imports a library. One with `store` forks the host of the
    rendezvous store, once it has torch.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wants = {"argv": list(argv), "environment": dict(environment), "modules": list(modules), "first": first}
    wants |= {
        "overlays": {library: dict(changes) for library, changes in overlays.items()},
        "cpus": sorted(os.sched_getaffinity(0)),
    }
    wanted = memfd("headway-standby", wants)
    descriptors = {ORDERS_FD: theirs.fileno(), WANTED_FD: wanted}
    if store is not None:
        descriptors[STORE_FD] = store.fileno()
    started_with = {**companion, **{name: str(fd) for name, fd in descriptors.items()}, ROOM: "x" * ROOM_BYTES}
    room = "." * sum(len(word) + 1 for word in argv)
    command = [sys.executable, "-u", START, "headway.runner.agent.standby", room]
    nowhere = Path(os.devnull)
    pid = spawn(command, started_with, descriptors.values(), nowhere, nowhere, cpus, stdin=stdin)
    theirs.close()
    os.close(wanted)
    return Standby(pid, ours, environment, any(name.partition(".")[0] not in OF_ANY_RANK for name in modules), first)


def pass_on(standbys: Mapping[int, Standby]) -> str:
    """Return the standbys of PASSED_ON; their descriptors are inheritable from here on."""
    for standby in standbys.values():
        standby.orders.set_inheritable(True)
    return json.dumps({local_rank: [standby.pid, standby.orders.fileno()] for local_rank, standby in standbys.items()})


def take_on(said: str, environment: Mapping[str, str]) -> dict[int, Standby]:
    """The standbys, by local rank, that the process before this image has passed on, started under `environment`."""
    found = {}
    for local_rank, (pid, descriptor) in json.loads(said).items():
        orders = socket.socket(fileno=descriptor)
        orders.set_inheritable(False)
        found[int(local_rank)] = Standby(pid, orders, environment, libraries=False, first=True)
    return found


def hand_over(orders: Sequence[tuple[Standby, WorkerOrder]]) -> tuple[dict[int, int], dict[int, str]]:
    """Makes workers of standbys: local rank -> pid of those that have taken their order, and why the others, which are killed, have not."""
    refused = {order.local_rank: _unfit(standby, order) or _unsent(standby, order) for standby, order in orders}
    until = time.monotonic() + ANSWER_S
    taken = {}
    for standby, order in orders:
        if not refused[order.local_rank] and (not standby.ready or _answers(standby, until)):
            taken[order.local_rank] = standby.pid
        else:
            kill_group(standby.pid, signal.SIGKILL)
        standby.orders.close()
    return taken, {rank: why or "it did not answer" for rank, why in refused.items() if rank not in taken}


def memfd(name: str, content: Mapping[str, Any]) -> int:
    """A file without a name that holds `content` as JSON, read from its beginning."""
    descriptor = os.memfd_create(name)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(content).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _unfit(standby: Standby, order: WorkerOrder) -> str:
    """Why a standby cannot become what is ordered: it is not there yet, or what it has imported it would import otherwise now."""
    if not standby.hear():
        return "it has ended"
    if not standby.ready and not standby.first:
        return "it was still importing"
    of_its_own = OF_A_GENERATION | (frozenset() if standby.libraries else OF_A_RANK)
    if standby.first:
        of_its_own |= order.added - {"CUDA_VISIBLE_DEVICES"}
    before, now = standby.environment, order.environment
    changed = {name for name in {*before, *now} - of_its_own if before.get(name) != now.get(name)}
    named = sorted(name for name in changed if not name.startswith("HEADWAY_"))
    return f"the environment differs: {', '.join(named)}" if named else ""


def _unsent(standby: Standby, order: WorkerOrder) -> str:
    """Sends the order; why that was not possible."""
    names = list(order.descriptors)
    content = memfd("headway-order", {"argv": list(order.argv), "environment": dict(order.environment), "descriptors": names})
    passed = array.array("i", [content, order.stdout, order.stderr, *order.descriptors.values()])
    try:
        standby.orders.sendmsg([b"order"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)], socket.MSG_DONTWAIT)
    except OSError as error:
        return str(error)
    finally:
        os.close(content)
    return ""


def _answers(standby: Standby, until: float) -> bool:
    ready, _, _ = select.select([standby.orders], [], [], max(until - time.monotonic(), 0))
    try:
        return bool(ready) and standby.orders.recv(len(TAKEN), socket.MSG_DONTWAIT) == TAKEN
    except OSError:
        return False
