"""Finds why a generation ended: one cause, with a fingerprint that stays the same when the failure repeats."""

import builtins
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from headway.runner.contract import CauseKind, Exit
from headway.runner.health.watch import Hang
from headway.runner.health.xid import Xid, describe, first_grave


class Ended(NamedTuple):
    """A rank that ended. `asked`: on an order. `oom`: the kernel's out-of-memory killer ended it. `xids` are the errors that the driver of
    the node's devices has reported since the generation began."""

    rank: int
    node: int
    code: int
    how: str
    asked: bool
    step: int
    oom: bool = False
    xids: tuple[Xid, ...] = ()


@dataclass(frozen=True)
class Raised:
    """An exception as a worker reported it: `type` is the qualified name, `text` its first line, `at` the innermost frame of the user's
    code as `file:line function`, `sample` the first position of the batch that was computed, where the trainer knows it."""

    type: str
    text: str
    at: str | None = None
    step: int | None = None
    sample: int | None = None


@dataclass(frozen=True)
class Cause:
    """`fingerprint` has no ranks, addresses, sizes or times in it, so that two failures of one origin have the same.

    `outside`: something else than the job's own code and data ended it, so that the same again at the same step is chance. `final`: every
    further start would end like this one.
    """

    kind: CauseKind
    fingerprint: str
    text: str
    rank: int | None
    node: int | None
    host: str | None
    step: int
    sample: int | None = None
    outside: bool = False
    final: bool = False


# How the ranks of a node ended that was given up.
NODE_LOST = "node lost"
# How those ended whose node came back without them.
STARTED_ANEW = "its node restarted"


class Precedence(IntEnum):
    """How close an end is to the first cause: when several ranks end, the lowest of these began it."""

    NODE_GONE = 0
    KERNEL_OOM = 1
    SIGNAL = 2
    SAID_FINAL = 3
    OWN_EXCEPTION = 4
    # NCCL's watchdog aborts a process that has lost its peer, as a failed assertion does.
    ABORTED = 5
    EXIT_CODE = 6
    OWN_EXCEPTION_WHILE_STOPPING = 7
    PEER_GONE = 8
    # Codes that ranks reach together: who disagreed is the cause.
    AGREED = 9
    ASKED = 10


def cause_of(exits: Sequence[Ended], raised: Mapping[int, Raised], hosts: Mapping[int, str], *, script: bool = False) -> Cause:
    """Return the first cause among the ends of a generation's ranks.

    An end that was not ordered comes before one that was, a signal before an exit code, a rank's own error before one about a lost peer.
    `hosts` is node -> host name. Exit codes of a `script` are not the runner's. Raises ValueError without an end.
    """
    candidates = [end for end in exits if end.code != 0] or exits
    candidates = _on_a_dead_device(candidates, raised) or candidates
    first = min(candidates, key=lambda end: _order(end, raised.get(end.rank), script=script))
    error = raised.get(first.rank) if first.code > 0 else None
    text = f"{first.how}: {_said(error)}" if error else first.how
    step = error.step if error is not None and error.step is not None else max(end.step for end in exits)
    if not is_node_gone(first.how) and first_grave(first.xids) is not None:
        return _of_a_device(first, hosts, step, text)
    kind = _kind(first, error, script=script)
    outside = _is_from_outside(first, kind)
    # All ranks raise this error, whichever was wrong.
    is_of_all = kind is CauseKind.CORRUPTION
    return Cause(
        kind,
        _fingerprint(kind, first, error),
        f"{text}; the kernel's log: {describe(first.xids)}" if first.xids else text,
        None if is_of_all else first.rank,
        None if is_of_all else first.node,
        None if is_of_all else hosts.get(first.node),
        step,
        sample=error.sample if error else None,
        outside=outside,
        final=first.code == Exit.STOP and not script,
    )


def _on_a_dead_device(ends: Sequence[Ended], raised: Mapping[int, Raised]) -> list[Ended]:
    """The ends on nodes with a device that must be reset: the others follow from them, asked or not. None where a node is gone, or where
    a rank elsewhere has raised what no device explains."""
    dead = [end for end in ends if end.xids and first_grave(end.xids) is not None]
    if not dead:
        return []
    others = [end for end in ends if first_grave(end.xids) is None]
    reasons = [raised[end.rank] for end in others if end.rank in raised and not end.asked]
    explained = any(is_node_gone(end.how) for end in ends) or any(kind_of(error) is not CauseKind.CRASH for error in reasons)
    return [] if explained else dead


def _said(error: Raised) -> str:
    """As a traceback's last line has it."""
    name = _name(error)
    return ": ".join(part for part in (name, error.text.removeprefix(f"{name}: ")) if part)


def _of_a_device(end: Ended, hosts: Mapping[int, str], step: int, how: str) -> Cause:
    """Return the cause that the driver reported: more specific than the rank's end, which may follow from the loss of a peer."""
    grave = first_grave(end.xids)
    assert grave is not None  # noqa: S101  callers have looked
    text = f"{describe(end.xids)} in the kernel's log; rank {end.rank}: {how}"
    fingerprint = f"{CauseKind.HARDWARE}: Xid {grave.number}"
    return Cause(CauseKind.HARDWARE, fingerprint, text, end.rank, end.node, hosts.get(end.node), step, outside=True)


def hang_cause(hang: Hang, nodes: Mapping[int, int], hosts: Mapping[int, str], step: int, exits: Sequence[Ended] = ()) -> Cause:
    """Return the cause of a generation that was ended because it made no progress.

    `nodes` is rank -> node index. Without culprits no node is named, unless a driver reported in `exits` that a device must be reset.
    """
    rank = min(hang.ranks, default=None)
    node = None if rank is None else nodes.get(rank)
    text = f"no heartbeat for {hang.silent_s:.1f} s in {hang.section}: {hang.why}"
    grave = [end for end in exits if first_grave(end.xids) is not None]
    if grave:
        return _of_a_device(min(grave, key=lambda end: (end.rank not in hang.ranks, end.rank)), hosts, step, text)
    where = f"hang: {hang.section}"
    return Cause(CauseKind.HANG, where, text, rank, node, None if node is None else hosts.get(node), step)


def corruption_cause(found: str, ranks: Sequence[int], nodes: Mapping[int, int], hosts: Mapping[int, str], step: int) -> Cause:
    """Ranks were shown to compute, or to hold, what others do not. `nodes` is rank -> node index: of several that are suspected, one
    is named only where all are on it."""
    rank = ranks[0] if len(ranks) == 1 else None
    suspected = {nodes.get(each) for each in ranks}
    node = suspected.pop() if len(suspected) == 1 else None
    host = None if node is None else hosts.get(node)
    return Cause(CauseKind.CORRUPTION, str(CauseKind.CORRUPTION), found, rank, node, host, step, outside=True)


def passing_fault(host: str | None, found: str, step: int) -> Cause:
    """Return the cause of a step that a rank on this host computed wrongly once, and correctly again: nothing ended by it."""
    return Cause(
        CauseKind.CORRUPTION,
        str(CauseKind.CORRUPTION),
        found,
        None,
        None,
        host,
        step,
        outside=True,
    )


def node_lost_cause(node: int, host: str | None, why: str, step: int) -> Cause:
    """A node that was given up while none of its ranks ran."""
    return Cause(
        CauseKind.NODE_LOST,
        str(CauseKind.NODE_LOST),
        f"node {host or node} was lost: {why}",
        None,
        node,
        host,
        step,
        outside=True,
    )


# --- which end came first ---------------------------------------------------------------------------------------------

# Exit codes besides 0 that all ranks reach by agreement.
AGREED = frozenset({Exit.PREEMPTED, Exit.UNVERIFIED, Exit.SUPERSEDED})


def _order(end: Ended, error: Raised | None, *, script: bool) -> tuple[int, bool]:
    """Among ends that are equally close, one whose kind is known by name goes first."""
    own = error is not None and not says_a_peer_is_gone(error)
    if own and error is not None and end.asked and end.code > 0 and not _is_a_way_to_leave(error):
        return Precedence.OWN_EXCEPTION_WHILE_STOPPING, False
    named = own and error is not None and kind_of(error) in (CauseKind.OUT_OF_MEMORY, CauseKind.NAN, CauseKind.STORAGE)
    return _order_of_unasked(end, error, own=own, script=script) if not end.asked else Precedence.ASKED, not named


def _order_of_unasked(end: Ended, error: Raised | None, *, own: bool, script: bool) -> Precedence:
    if is_node_gone(end.how):
        return Precedence.NODE_GONE
    if end.oom:
        return Precedence.KERNEL_OOM
    if end.code < 0:
        return Precedence.ABORTED if end.code == -signal.SIGABRT else Precedence.SIGNAL
    if not script and end.code == Exit.STOP:
        return Precedence.SAID_FINAL
    if not script and end.code in AGREED:
        return Precedence.AGREED
    if error is None:
        return Precedence.EXIT_CODE
    return Precedence.OWN_EXCEPTION if own else Precedence.PEER_GONE


def is_node_gone(how: str) -> bool:
    """Whether a rank ended because its node did."""
    return how.startswith((NODE_LOST, STARTED_ANEW))


def _is_a_way_to_leave(error: Raised) -> bool:
    """Return whether the error is one that a process raises because it is asked to stop."""
    return _name(error) in ("KeyboardInterrupt", "SystemExit", "SIGTERMException", "SignalException")


# --- what kind it is --------------------------------------------------------------------------------------------------

# What gloo, NCCL, TCPStore and our own collectives say on the ranks that are left: texts of torch 2.13.0
# (torch/csrc/distributed/c10d/{ProcessGroupNCCL,TCPStore,socket}.cpp) and of its gloo (gloo/transport/tcp/pair.cc).
_PEER_GONE = re.compile(
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe|connection was closed|recvvalue failed"
    r"|timed out waiting \d+ ?ms for|application timeout caused pair closure|connect(?:full)?mesh failed|failed to connect"
    r"|watchdog caught collective operation timeout|ncclremoteerror|remote process exited or there was a network error"
    r"|nccl communicator (?:was|has been) aborted|ncclsystemerror|wait timeout after \d+ ?ms|failed to recv, got 0 bytes"
    r"|unable to (?:read from|write to) socket",
    re.IGNORECASE,
)
_PEER_TYPES = frozenset({"PeerError", "DistNetworkError", "DistStoreError"})
_NO_MEMORY = re.compile(
    r"(?:CUDA|HIP|XPU) out of memory|CUBLAS_STATUS_ALLOC_FAILED|can't allocate memory|Cannot allocate memory|\[Errno 12\]"
)
# ENOSPC, EDQUOT, EIO, EROFS, ESTALE, EREMOTEIO, ENXIO, ENOTCONN (a FUSE mount whose process died): errno(3), Linux numbers.
_STORAGE = re.compile(
    r"\[Errno (?:28|122|5|30|116|121|6|107)\]|No space left on device|Stale file handle|Input/output error|Disk quota exceeded"
    r"|Transport endpoint is not connected|Read-only file system|PytorchStreamWriter failed"
)
_DEVICE = re.compile(
    r"\b(?:CUDA|HIP|NCCL|cuDNN|CUBLAS|CUSOLVER|NVML)\w* (?:error|failure)|CUDNN_STATUS|CUBLAS_STATUS|uncorrectable ECC"
)
_CHILD = re.compile(
    r"DataLoader worker \(pid.*\) (?:is killed by|exited unexpectedly)"
    # torch/utils/data/dataloader.py, torch/csrc/DataLoader.cpp.
)
# A rank that was wrong raises it like all others.
_CORRUPTION = "headway.runner.corruption.CorruptionError"
# Torch's anomaly mode (torch/csrc/autograd/engine.cpp)
_NAN = re.compile(r"returned nan values in its \d+th output")


def says_a_peer_is_gone(error: Raised) -> bool:
    """Whether the exception is what a rank raises that has lost another one, which then is nearer to the first cause."""
    return _name(error) in _PEER_TYPES or _PEER_GONE.search(error.text) is not None


def kind_of(error: Raised) -> CauseKind:
    """Classify a rank's exception by its origin."""
    name, text = _name(error), f"{error.type}: {error.text}"
    if name in ("OutOfMemoryError", "MemoryError", "NoMemoryError") or _NO_MEMORY.search(text):
        return CauseKind.OUT_OF_MEMORY
    if name in ("NonFiniteError", "FloatingPointError") or _NAN.search(text):
        return CauseKind.NAN
    if error.type == _CORRUPTION:
        return CauseKind.CORRUPTION
    if name in ("StoreError", "ObjectError", "ChainError") or _STORAGE.search(text):
        return CauseKind.STORAGE
    if says_a_peer_is_gone(error) or _is_from_the_device(name, text) or _is_from_the_system(name) or _CHILD.search(text):
        return CauseKind.CRASH
    return CauseKind.USER_ERROR


def _is_from_the_device(name: str, text: str) -> bool:
    """A device-side assertion is raised by the script's own values; every other device error may be the device's."""
    return "device-side assert" not in text and (name == "AcceleratorError" or _DEVICE.search(text) is not None)


def _is_from_the_system(name: str) -> bool:
    """OSError and its kin: files, processes and connections, which may be there the next time."""
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, OSError)


def _name(error: Raised) -> str:
    return error.type.rpartition(".")[2]


_FROM_OUTSIDE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL})


def _kind(end: Ended, error: Raised | None, *, script: bool) -> CauseKind:
    if is_node_gone(end.how):
        return CauseKind.NODE_LOST
    if end.oom:
        return CauseKind.OUT_OF_MEMORY
    if end.code == -signal.SIGTERM or (end.code == Exit.PREEMPTED and not script):
        return CauseKind.PREEMPTION
    if end.code == Exit.STOP and not script:
        return CauseKind.USER_ERROR
    return kind_of(error) if error is not None else CauseKind.CRASH


def _is_from_outside(end: Ended, kind: CauseKind) -> bool:
    """Signals that a process does not raise against itself, and what happens to nodes and to stores."""
    by_signal = -end.code in _FROM_OUTSIDE and not end.oom
    return by_signal or kind in (CauseKind.NODE_LOST, CauseKind.PREEMPTION, CauseKind.STORAGE, CauseKind.CORRUPTION)


# --- the same again ---------------------------------------------------------------------------------------------------

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_PATH = re.compile(r"(?:/[\w.@+-]+){2,}")
_NUMBER = re.compile(r"\b0x[0-9a-f]+\b|\d[\d.,:]*", re.IGNORECASE)
_FINGERPRINT_CHARACTERS = 120


def _fingerprint(kind: CauseKind, end: Ended, error: Raised | None) -> str:
    if is_node_gone(end.how):
        return str(kind)
    if error is None:
        return f"{kind}: {end.how}"
    return f"{kind}: {_name(error)} at {error.at or '?'}: {unspecific(error.text)}"


def unspecific(text: str) -> str:
    """The text without numbers, addresses, paths and what it quotes: what is left is the same for all ranks and times."""
    for pattern in (_QUOTED, _PATH, _NUMBER):
        text = pattern.sub("*", text)
    return " ".join(text.split())[:_FINGERPRINT_CHARACTERS]
