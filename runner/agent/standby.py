"""Runs a standby worker: imports what the job's workers import, waits for an order, and becomes the worker of a rank.

Only the modules that it has imported before differ from a fresh process: environment, arguments, output, `__main__` and even
/proc/<pid>/environ and cmdline are the worker's. It never touches a device.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.runner.agent import store
from headway.runner.agent.processes import opens_a_device
from headway.runner.agent.warm import ALWAYS, LIBRARIES, OF_ANY_RANK, ORDERS_FD, READY, ROOM, STORE_FD, TAKEN, WANTED_FD
from headway.runner.imports import uncollected, under
from headway.runner.start import MODULE

IMPORTING_NICENESS = 10
# Where the kernel groups processes by session, niceness counts between groups only, and any user may set and reset that (sched(7)).
AUTOGROUP = Path("/proc/self/autogroup")
# The kernel takes no second change sooner (linux kernel/sched/autogroup.c)
AUTOGROUP_AGAIN_S = 0.1
HAS_A_DEVICE = 3  # exit code
# Fields of proc(5) stat, from 1: where each begins; where it ends is the next field.
_ARGUMENTS, _ENVIRONMENT = 48, 50


def worth_importing(names: Sequence[str], *, of_any_rank: bool) -> list[str]:
    """Return the modules that a standby imports if a worker has imported `names`; fewer if it does not know its rank yet."""
    packages = OF_ANY_RANK if of_any_rank else LIBRARIES
    return [*ALWAYS, *(name for name in names if name.partition(".")[0] in packages)]


def warm_up(module: str, names: Sequence[str], overlays: Mapping[str, Mapping[str, str | None]]) -> None:
    """Import the modules of `python START module`, and `names`, each with the variables that the script sets for its library. A module that
    cannot be imported is left to the worker."""
    with uncollected():
        for name in (module, *names):
            with contextlib.suppress(Exception), under(overlays.get(name.partition(".")[0], {})):
                imported = importlib.import_module(name)
                if name == module and hasattr(imported, "prepare"):
                    # Hooks that must be there before libraries give the hooked functions names of their own.
                    imported.prepare()
    forget(module)


def forget(module: str) -> None:
    """Drops a module that will run as `__main__`, which a fresh process does not find imported either. A package stays."""
    found = sys.modules.get(module)
    if found is None or hasattr(found, "__path__"):
        return
    del sys.modules[module]
    parent, _, name = module.rpartition(".")
    if hasattr(sys.modules.get(parent), name):
        delattr(sys.modules[parent], name)


def holds_a_device() -> bool:
    """Whether an import, of torch or of anything else, has made a device context: that keeps memory from the worker that still runs."""
    torch = sys.modules.get("torch")
    return (torch is not None and bool(torch.cuda.is_initialized())) or opens_a_device(os.getpid())


@contextlib.contextmanager
def less_important() -> Iterator[None]:
    """Gives way to the workers that compute; only where the kernel lets this process come back to its own niceness."""
    own, comes_back = os.getpriority(os.PRIO_PROCESS, 0), niceness_comes_back()
    group_be(IMPORTING_NICENESS)
    if comes_back:
        os.setpriority(os.PRIO_PROCESS, 0, own + IMPORTING_NICENESS)
    try:
        yield
    finally:
        group_be(0)
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), own)


def group_be(niceness: int) -> None:
    """Sets the niceness of this session's scheduling group, where there are such groups."""
    for _ in range(3):
        try:
            AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            time.sleep(AUTOGROUP_AGAIN_S)
        except OSError:
            return
        else:
            return


def niceness_comes_back() -> bool:
    """Whether a thread that made itself less important may undo that: it needs CAP_SYS_NICE or RLIMIT_NICE (setpriority(2))."""
    came_back = []

    def try_it() -> None:
        thread = threading.get_native_id()
        own = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, own + 1)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, thread, own)
            came_back.append(True)

    trial = threading.Thread(target=try_it)
    trial.start()
    trial.join()
    return bool(came_back)


def receive(orders: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The order and its descriptors. Raises EOFError when the supervisor has gone.

    CPython 3.11's `socket.recv_fds` drops its flags, and the descriptors would be inherited by every child: so recvmsg.
    """
    size = socket.CMSG_SPACE(16 * 4)
    data, rights, _, _ = orders.recvmsg(16, size, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError
    descriptors = [
        int.from_bytes(content[place : place + 4], sys.byteorder)
        for _, _, content in rights
        for place in range(0, len(content) - len(content) % 4, 4)
    ]
    with os.fdopen(descriptors.pop(0), "rb") as file:
        order: dict[str, Any] = json.load(file)
    return order, descriptors


def become(order: dict[str, Any], descriptors: Sequence[int]) -> str:
    """Turns this process into the ordered worker, but for running it; returns the module to run."""
    for standard, descriptor in zip((1, 2), descriptors[:2], strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    named = {name: str(fd) for name, fd in zip(order["descriptors"], descriptors[2:], strict=True)}
    os.environ.clear()
    os.environ.update(order["environment"] | named)
    argv = order["argv"]
    show(argv, dict(os.environ))
    sys.orig_argv[:] = argv
    # Runpy sets the first one to the file of the module.
    sys.argv[:] = ["-m", *argv[MODULE + 1 :]]
    return str(argv[MODULE])


def show(argv: Sequence[str], environment: dict[str, str]) -> None:
    """Writes the worker's arguments and what is new in its environment where the kernel shows them (proc(5), cmdline and environ)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, arguments_end, start, end = (
        int(fields[number - 3 + more]) for number in (_ARGUMENTS, _ENVIRONMENT) for more in (0, 1)
    )
    if not all((arguments, arguments_end, start, end)):
        return
    write(arguments, arguments_end, "\0".join(argv))
    before = ctypes.string_at(start, end - start)
    room = before.find(f"\0{ROOM}=".encode()) + 1
    if room:
        known = set(before[:room].decode(errors="surrogateescape").split("\0"))
        new = [f"{name}={value}" for name, value in environment.items() if f"{name}={value}" not in known]
        write(start + room, end, "\0".join(new))


def write(start: int, end: int, text: str) -> None:
    """Fill the bytes of memory from `start` up to `end` with text and zeros; text without room is cut."""
    data = os.fsencode(text)[: end - start - 1]
    ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)


def main() -> None:
    orders, wanted = (int(os.environ.pop(name)) for name in (ORDERS_FD, WANTED_FD))
    with os.fdopen(wanted, "rb") as file:
        wants = json.load(file)
    listening = socket.socket(fileno=orders)
    listening.set_inheritable(False)
    host = int(os.environ.pop(STORE_FD, -1))
    if host >= 0:
        os.set_inheritable(host, False)
    os.environ.update(wants["environment"])
    with contextlib.nullcontext() if wants["first"] else less_important():
        warm_up(wants["argv"][MODULE], wants["modules"], wants["overlays"])
        if not wants["first"]:  # no process waits for it yet
            gc.collect()
    if host >= 0:
        with socket.socket(fileno=host) as orders_of_host:
            if "torch.distributed" in sys.modules:
                # Else the supervisor finds its end closed, and starts one by itself.
                store.fork_away(orders_of_host, wants["cpus"])
    ordered, _, _ = select.select([listening], [], [], 0)
    if holds_a_device() and not ordered:
        sys.exit(HAS_A_DEVICE)
    with contextlib.suppress(OSError):
        # A supervisor that has sent its order does not listen any more.
        listening.send(READY)
    try:
        order, descriptors = receive(listening)
    except (EOFError, OSError):
        return
    with contextlib.suppress(OSError):
        listening.send(TAKEN)
    listening.close()
    module = become(order, descriptors)
    runpy._run_module_as_main(module)  # type: ignore[attr-defined]  # what python calls: nothing is put back before the interpreter ends


if __name__ == "__main__":
    main()
