"""Finds the rank that blocks the others from where each one is when none makes progress, and whether that proves a hang."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# A library may wait for another thread or machine on the script's behalf; the main thread alone does not distinguish
# that from a deadlock.
_LIBRARY = re.compile(r"/lib/python3|/(site|dist)-packages/|(^|/)headway/runner/|<frozen |^<")
# Code that waits for something outside of the job: a client's own code, or the standard library's below it. An event
# loop waits for its sockets.
_CLIENT = re.compile(
    r"/(socket|ssl|asyncio/(base_events|selector_events)|http/client|urllib/request|xmlrpc/client)\.py:"
    r"|/(site|dist)-packages/(urllib3|requests|httpx|httpcore|aiohttp|anyio|websockets?|grpc|ray|boto3|botocore|openai|zmq)/"
)
# A thread returns from these in a receive on a TCP socket, and in a sleep (linux net/core/sock.c,
# kernel/time/hrtimer.c).
_FROM_OUTSIDE = frozenset({"wait_woken", "sk_wait_data", "tcp_recvmsg_locked", "hrtimer_nanosleep", "do_nanosleep"})
# Frames that must be equal for two ranks to be in the same place.
_STACK_DEPTH = 3


@dataclass(frozen=True)
class Standing:
    """A rank of a generation without progress. `section` is where it is, by its stack where that is more precise than
    its heartbeat.

    `stopped`, `held` and `idle` are from two probes of its process, half a second apart or more: stopped by a signal;
    the same stack; the same stack and neither CPU time nor I/O. `waits_on` is the kernel function that its main thread
    sleeps in.
    """

    rank: int
    step: int
    section: str
    stack: tuple[str, ...] = ()
    stopped: bool = False
    held: bool = False
    idle: bool = False
    waits_on: str | None = None

    @property
    def place(self) -> tuple[int, str, tuple[str, ...]]:
        return self.step, self.section, self.stack[:_STACK_DEPTH]

    @property
    def locked(self) -> bool:
        """Whether it waits for a lock in the script's own code, or is in native code that it called, and is completely idle."""
        on_lock = self.waits_on is not None and self.waits_on.startswith("futex")
        own_code = bool(self.stack) and not _LIBRARY.search(self.stack[0])
        return self.idle and self.section in ("compute", "script") and on_lock and own_code


def waits_outside(stack: Sequence[str], waits_on: str | None) -> bool:
    """Return whether a main thread waits for something that no rank of the job does: a reply over the network, or a clock."""
    if waits_on in _FROM_OUTSIDE:
        return True
    for frame in stack:
        if _CLIENT.search(frame):
            return True
        # The script's own code.
        if not _LIBRARY.search(frame):
            return False
    return False


def proven(standings: Sequence[Standing]) -> tuple[tuple[int, ...], str] | None:
    """Return the culprits and the proof, when the evidence leaves only a hang; None when only a timeout can decide."""
    stopped = tuple(each.rank for each in standings if each.stopped)
    if stopped and (len(stopped) < len(standings) or len(standings) == 1):
        return stopped, "its process is stopped (state T or Z in /proc/PID/stat), and no rank makes progress"
    usual = _majority(standings)
    locked = [each for each in standings if each.locked and each.place != usual]
    others = [each for each in standings if each not in locked]
    if not locked or len(locked) > len(others):
        return None
    if not all(each.section == "collective" or (each.held and each.place == usual) for each in others):
        return None
    why = f"is stuck at {locked[0].stack[0]} without CPU time or I/O, and all other ranks wait"
    return tuple(each.rank for each in locked), why


def outliers(standings: Sequence[Standing]) -> tuple[int, ...]:
    """Return the ranks in another place than most; of two, the one that is not in a collective, or is behind. Empty
    when all are equal."""
    usual = _majority(standings)
    if usual is not None:
        return tuple(each.rank for each in standings if each.place != usual)
    working = tuple(each.rank for each in standings if each.section != "collective")
    if 0 < len(working) <= len(standings) // 2:
        return working
    least = min((each.step for each in standings), default=0)
    behind = tuple(each.rank for each in standings if each.step == least)
    return behind if len(behind) <= len(standings) // 2 else ()


def _majority(standings: Sequence[Standing]) -> tuple[int, str, tuple[str, ...]] | None:
    """Return the place of more than half of all ranks."""
    found = Counter(each.place for each in standings).most_common(1)
    return found[0][0] if found and 2 * found[0][1] > len(standings) else None
