"""Inspects workers from outside: process state, use of CPU and I/O, and the stack of the main thread.

Nothing here stops a process or needs its interpreter: faulthandler writes the stacks in the worker whichever thread has the GIL, and
py-spy, if it is on PATH, reads those of a process that cannot (a stopped one).
"""

import asyncio
import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from headway.runner.agent.flight import THREAD
from headway.runner.agent.processes import catches, children
from headway.runner.contract import STACKS_SIGNAL
from headway.runner.health.watch import Probe
from headway.runner.within import within

DUMP_S = 0.3
LOOK_S = 0.01
PY_SPY_S = 5.0
# Of a rank's stacks: each long pause adds some, for as long as the run lasts.
STACKS_BYTES = 1 << 20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# proc(5), stat, from the state on: utime, stime, and those of children that were waited for.
_CPU_FIELDS = slice(11, 15)
_FAULTHANDLER = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
# Written with `all_threads` true, and false.
_OWN_STACK = re.compile(r"^(?:Current thread |Stack )", re.MULTILINE)
_PY_SPY = re.compile(r"^    (?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
# The section of a frame, innermost first. A save or a load that waits for others is in a collective.
_PLACES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (where, re.compile(pattern))
    for where, pattern in (
        ("collective", r"torch/distributed/(distributed_c10d|c10d_logger|_functional_collectives)|torch/distributed/fsdp/"),
        ("collective", r"torch/autograd/graph\.py:\d+ _engine_run_backward"),
        (
            "restore",
            r"(torch/serialization\.py:\d+ (load|_load)\b|safetensors/.*load|checkpoint/.*\b(load|read|restore|fetch)\w*$)",
        ),
        (
            "save",
            r"torch/serialization\.py|torch/distributed/checkpoint/|safetensors/|headway/runner/checkpoint/|/runner/checkpoint/",
        ),
        ("compile", r"torch/_(dynamo|inductor|functorch)/|triton/"),
        (
            "data",
            r"torch/utils/data/|multiprocessing/(queues|connection)\.py|/queue\.py:\d+ get\b|datasets/|runner/train/(data|loader)\.py",
        ),
    )
)
_WAKE_NOBODY = ("gloo_", "pt_", THREAD)  # how threads' names begin
# Between a frame that waits and the one that decides: frames of the standard library.
_THROUGH = re.compile(r"/(threading|selectors|socket|ssl|contextlib|_decorators|_contextlib)\.py:")


async def look(
    pids: Mapping[int, int], stacks: Callable[[int], Path], dump: Callable[[Collection[int]], None]
) -> dict[int, Probe]:
    """Probes processes, `{rank: pid}`. `dump` has those of some ranks write their stacks to the files that `stacks` names by rank."""
    facts = {rank: (state(pid), *usage(pid)) for rank, pid in pids.items()}
    for rank in pids:
        _begin_anew_if_long(stacks(rank))
    # Only of one that sleeps: in one that computes, faulthandler can meet a frame that CPython 3.11 has just freed, and the process dies
    # of SIGSEGV (seen after 1,054, 8,579 and 19,803 signals to a process that imports torch).
    from_inside = {
        rank for rank, pid in pids.items() if facts[rank][0] in "SD" and waits_for_a_lock(pid) and catches(pid, STACKS_SIGNAL)
    }
    written = {rank: _size(stacks(rank)) for rank in from_inside}
    if from_inside:
        dump(from_inside)
    found = {rank: stack for rank in from_inside if (stack := await _awaited(stacks(rank), written[rank]))}
    for rank, pid in pids.items():
        if rank not in found and facts[rank][0] not in "ZX":
            found[rank] = await seen_by_py_spy(pid, stacks(rank))
    return {rank: Probe(*facts[rank], stack := found.get(rank, ()), where(stack), waits_on(pids[rank])) for rank in pids}


def state(pid: int) -> str:
    """proc(5)'s letter; `X` for a process that is gone."""
    return (_stat(pid) or ["X"])[0]


def waits_on(pid: int) -> str | None:
    """The kernel function that the main thread sleeps in (proc(5), wchan); None where that is not shown, or it does not sleep, or another
    thread of the process waits for a clock or for another process, and may wake it then: one that uploads, and that the loop waits for."""
    name = _text(Path(f"/proc/{pid}/wchan"))
    others = (path for path in Path(f"/proc/{pid}/task").glob("*") if path.name != str(pid))
    return None if name in (None, "", "0") or any(map(_may_wake, others)) else name


def waits_for_a_lock(pid: int) -> bool:
    """Return whether the main thread sleeps in a futex: the one wait that a signal's handler does not disturb. Sleep, pause, poll and
    their kin return early (signal(7)), and torch's own connect reports that on stderr with a stack. Only a lock can prove a hang, so no
    other thread needs to be asked."""
    return (_text(Path(f"/proc/{pid}/wchan")) or "").startswith("futex")


def _may_wake(thread: Path) -> bool:
    """Return whether a thread waits for anything but another one. Threads that wait for other ranks or for a request to dump wake none."""
    waits, name = _text(thread / "wchan"), _text(thread / "comm")
    return waits is not None and not waits.startswith("futex") and not (name or "").startswith(_WAKE_NOBODY)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # it has ended, or is another user's
        return None


def usage(pid: int) -> tuple[float, int]:
    """Return seconds of CPU, and bytes read and written, of a process and its descendants; ended ones count once they were reaped."""
    cpu_s, io_bytes = 0.0, 0
    for each in (pid, *below(pid)):
        fields = _stat(each)
        cpu_s += sum(map(int, fields[_CPU_FIELDS])) / TICKS_PER_S if fields else 0
        io_bytes += _io_bytes(each)
    return round(cpu_s, 2), io_bytes


def below(pid: int) -> list[int]:
    """The processes that a process's main thread has started, and theirs."""
    return [found for child in children(pid) for found in (child, *below(child))]


def where(stack: Iterable[str]) -> str | None:
    """Return the section of a stack, one of contract.SECTIONS; None if unknown, as for a frame of the script."""
    for frame in stack:
        for place, pattern in _PLACES:
            if pattern.search(frame):
                return place
        if not _THROUGH.search(frame) and "/site-packages/" not in frame and "/torch/" not in frame and "<frozen" not in frame:
            return None
    return None


def main_thread(text: str) -> tuple[str, ...]:
    """The newest stack of the thread that wrote a faulthandler dump, innermost first: the signal went to the main one."""
    heads = list(_OWN_STACK.finditer(text))
    if not heads:
        return ()
    frames = []
    for line in text[heads[-1].end() :].splitlines()[1:]:
        if (match := _FAULTHANDLER.match(line)) is None:
            break
        frames.append("{file}:{line} {function}".format(**match.groupdict()))
    return tuple(frames)


async def seen_by_py_spy(pid: int, evidence: Path) -> tuple[str, ...]:
    """The main thread's stack by py-spy, which is also appended to `evidence`; empty where it is not there, or may not look."""
    if (program := shutil.which("py-spy")) is None:
        return ()
    process = await asyncio.create_subprocess_exec(
        program, "dump", "--nonblocking", "--pid", str(pid), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        text = (await within(PY_SPY_S, process.communicate()))[0].decode(errors="replace")
    except TimeoutError:
        process.kill()
        return ()
    with evidence.open("a") as file:
        file.write(text)
    return py_spy_main_thread(text)


def py_spy_main_thread(text: str) -> tuple[str, ...]:
    """The frames of `MainThread` in what `py-spy dump` prints."""
    blocks = [block.splitlines() for block in re.split(r"^(?=Thread )", text, flags=re.MULTILINE) if block.startswith("Thread ")]
    lines = next((block[1:] for block in blocks if '"MainThread"' in block[0]), [])
    frames = [match for line in lines if (match := _PY_SPY.match(line))]
    return tuple("{file}:{line} {function}".format(**match.groupdict()) for match in frames)


async def _awaited(path: Path, start: int) -> tuple[str, ...]:
    """The stack that a dump appends behind byte `start` within DUMP_S; it is whole when nothing more comes."""
    until, length = time.monotonic() + DUMP_S, -1
    stack: tuple[str, ...] = ()
    while time.monotonic() < until:
        text = _read(path, start)
        stack = main_thread(text)
        if stack and len(text) == length:
            break
        length = len(text)
        await asyncio.sleep(LOOK_S)
    return stack


def _read(path: Path, start: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _begin_anew_if_long(path: Path) -> None:
    """Empty the file once it has STACKS_BYTES; its writers append."""
    if _size(path) >= STACKS_BYTES:
        with contextlib.suppress(OSError):
            os.truncate(path, 0)


def _stat(pid: int) -> list[str]:
    """The fields of proc(5) stat from the state on; none of a process that is gone. The name before them may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _io_bytes(pid: int) -> int:
    """Bytes that went through read and write calls, of sockets and pipes too (proc(5), io); 0 where that may not be seen."""
    try:
        pairs = [line.split() for line in Path(f"/proc/{pid}/io").read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(count) for name, count in pairs if name in ("rchar:", "wchar:"))
