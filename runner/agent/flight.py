"""Reads torch's flight recorder from outside: asks a rank for its dump, and reads which collectives it has entered.

NCCL's process groups make a pipe for each rank, and write a dump when a process writes to it (ProcessGroupNCCL.hpp, DumpPipe); for all
others a worker's own thread does the same (boot/flight.py). A dump is a pickle of plain values, and is read as nothing else.
"""

import contextlib
import hashlib
import json
import math
import os
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headway.runner.contract import RunDirectory
from headway.runner.health.collectives import Collective, CollectiveOperation

# torch takes the newer name first (torch/csrc/distributed/c10d/FlightRecorder.cpp).
DUMPS, DUMPS_BEFORE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
PIPES = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DUMP_BYTES = 1 << 28
# A dump takes torch up to 0.1 s of a core: of a long silence there is one whenever it has become longer by this share.
AGAIN_S, AGAIN_SHARE = 5.0, 8
GROUPS = 64  # of a rank, in a message
# Collectives by which two ranks are known to count alike.
BEFORE = 100
# Before the one that a rank waits in, and from there on.
ABOUT = 4
# In the names of operations that may well differ by rank.
_UNLIKE = ("send", "recv", "coalesced")
# What NCCL does alike, and torch calls now so and now so (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
_ALIKE = {
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_reduce_barrier": "barrier",
}
# Of a worker, which dumps when it is asked; the kernel keeps 15 letters.
THREAD = "headway-flight"


class Recorder:
    """The flight recorders of one node's ranks."""

    def __init__(self, directory: RunDirectory, environment: Mapping[str, str]) -> None:
        """`environment` is the node's: a user's settings there take precedence."""
        self._evidence, self._environment = directory.evidence, environment
        folder = directory.attempt_directory / "pipes"
        ours = str(folder / "rank-") if PIPES not in environment and _takes_pipes(folder) else None
        self._pipes = environment.get(PIPES, ours)
        # Of each rank, when it was looked at last.
        self._signs_ns: dict[int, int] = {}
        self._asked_ns: dict[int, int] = {}

    def variables(self, generation: int) -> dict[str, str]:
        """Return the variables that a generation's workers need."""
        ours = {DUMPS: self._dumps(generation), PIPES: self._pipes, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
        return {name: text for name, text in ours.items() if text is not None and name not in self._environment}

    def _dumps(self, generation: int) -> str:
        """How the names of dumps begin; the rank follows. Each generation has its own, so that a hang's evidence stays."""
        given = self._environment.get(DUMPS) or self._environment.get(DUMPS_BEFORE)
        return given or str(self._evidence / f"flight-{generation}-")

    def to_ask(self, signs_ns: Mapping[int, int], now_ns: int) -> frozenset[int]:
        """The ranks to ask for a dump now: those that have not moved since the look before, seldom more the longer that lasts.
        `signs_ns` are their last heartbeats, on the clock of `now_ns`."""
        due = set()
        for rank, sign_ns in signs_ns.items():
            asked_ns = self._asked_ns.get(rank, 0)
            again_ns = max(int(AGAIN_S * 1e9), (now_ns - sign_ns) // AGAIN_SHARE)
            if self._signs_ns.get(rank) == sign_ns and (asked_ns <= sign_ns or now_ns - asked_ns >= again_ns):
                due.add(rank)
                self._asked_ns[rank] = now_ns
        self._signs_ns.update(signs_ns)
        return frozenset(due)

    def ask(self, generation: int, ranks: Iterable[int]) -> dict[int, tuple[Path, int]]:
        """Request dumps. Return, by rank that listens, the file and when it was written before (st_mtime_ns, 0 for never)."""
        before = {}
        for rank in ranks if self._pipes is not None else ():
            path = Path(f"{self._dumps(generation)}{rank}")
            written_ns = _written_ns(path)
            with contextlib.suppress(OSError):
                # No reader: no process group yet, or not one of torch.
                pipe = os.open(f"{self._pipes}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
                try:
                    os.write(pipe, b"1")
                finally:
                    os.close(pipe)
                before[rank] = path, written_ns
        return before

    def close(self, ranks: Iterable[int]) -> None:
        """Remove the pipes of ranks that will not be asked again: they would disturb a copy of the run's directory. Pipes in a place that
        a user has set stay."""
        if self._pipes is None or PIPES in self._environment:
            return
        for rank in ranks:
            with contextlib.suppress(OSError):
                Path(f"{self._pipes}{rank}.pipe").unlink()
        with contextlib.suppress(OSError):  # other nodes have theirs in it
            Path(self._pipes).parent.rmdir()


def answers(asked: Mapping[int, tuple[Path, int]]) -> dict[int, tuple[Collective, ...]]:
    """Return the dumps since `Recorder.ask` returned `asked`, without those that are not complete yet."""
    found = {}
    for rank, (path, before_ns) in asked.items():
        if _written_ns(path) > before_ns and (entered := read(path, rank)) is not None:
            found[rank] = entered
    return found


def read(path: Path, rank: int | None = None) -> tuple[Collective, ...] | None:
    """The newest collective of each group in a dump, those that have not completed first; None where it cannot be read, or where this is
    no `rank` of the process's group of all ranks: several worlds under one launch call their groups alike."""
    try:
        if path.stat().st_size > DUMP_BYTES:
            return None
        with path.open("rb") as file:
            dump = _PlainValues(file).load()
            return newest(dump) if rank is None or _is_rank(dump, rank) else None
    except Exception:
        # Bytes of another process: pickle and the parser may raise anything.
        return None


def newest(dump: Mapping[str, Any]) -> tuple[Collective, ...]:
    """Of torch's flight recorder, format 2 (FlightRecorder.hpp)."""
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    made: dict[str, Any] = {}
    for entry in dump.get("entries", ()):
        name = str(entry["process_group"][0])
        if entry["is_p2p"] or not name:
            continue
        if made.setdefault(name, entry.get("pg_id")) != entry.get("pg_id"):
            # Destroyed and made again: it counts from 1.
            made[name], groups[name] = entry.get("pg_id"), {}
        groups.setdefault(name, {})[int(entry["collective_seq_id"])] = entry
    known = dump.get("pg_config", {})
    found = [_collective(_among(name, known.get(name, {})), entries) for name, entries in groups.items()]
    return tuple(sorted(found, key=lambda each: each.done)[:GROUPS])


def _is_rank(dump: Mapping[str, Any], rank: int) -> bool:
    """Whether its group of all ranks has this rank; also where it does not say."""
    listed = (facts.get("ranks") for facts in dump.get("pg_config", {}).values() if facts.get("desc") == "default_pg")
    return all(rank in json.loads(str(ranks)) for ranks in listed if ranks)


def _among(name: str, facts: Mapping[str, Any]) -> str:
    """A group's name, with its first rank where that is known: where torch names groups by a count, the parts of one split share a name."""
    ranks = json.loads(str(facts.get("ranks") or "[]"))
    return f"{name}@{min(ranks)}" if ranks else name


def _collective(group: str, entries: Mapping[int, Mapping[str, Any]]) -> Collective:
    """`entries` are a group's, by their numbers."""
    newest = max(entries)
    last = entries[newest]
    done = max((number for number, entry in entries.items() if _is_done(entry)), default=0)
    waits = min((number for number in entries if number > done), default=0)
    about = waits or newest + 1
    near = [number for number in sorted(entries) if about - ABOUT <= number < about + ABOUT]
    recent = tuple(
        _recent(entries, number)
        for number in near
        if not any(word in _operation(entries[number]) for word in _UNLIKE) and _knows_before(entries, number)
    )
    sizes = ", ".join(f"{kind}{list(size)}" for kind, size in zip(last["input_dtypes"], last["input_sizes"], strict=False))
    what = f"{_operation(last)}({sizes[:80]})"
    on_device = waits > 0 and not _is_gloo(entries[waits])
    return Collective(group, str(last["process_group"][1]), newest, what, done == newest, waits, recent, on_device)


def _is_gloo(entry: Mapping[str, Any]) -> bool:
    return str(entry["profiling_name"]).startswith("gloo:")


def _is_done(entry: Mapping[str, Any]) -> bool:
    """Return whether it has completed. A gloo operation is only marked as retired; one of NCCL may be retired by a timeout."""
    return entry["state"] == "completed" or (_is_gloo(entry) and bool(entry["retired"]))


def _operation(entry: Mapping[str, Any]) -> str:
    name = str(entry["profiling_name"]).rpartition(":")[2]
    return _ALIKE.get(name, name)


def _knows_before(entries: Mapping[int, Mapping[str, Any]], number: int) -> bool:
    """Whether all that must be known before a number is: operations in a captured CUDA graph count and are not recorded."""
    return all(each in entries for each in range(max(1, number - BEFORE), number))


def _recent(entries: Mapping[int, Mapping[str, Any]], number: int) -> CollectiveOperation:
    before = [f"{each} {_agreed(entries[each])}" for each in range(max(1, number - BEFORE), number)]
    return CollectiveOperation(
        number, _agreed(entries[number]), hashlib.blake2b("\n".join(before).encode(), digest_size=8).hexdigest()
    )


def _agreed(entry: Mapping[str, Any]) -> str:
    """Return what all ranks must agree on: for an all_reduce also its size; the sizes of other operations may differ by rank."""
    name = _operation(entry)
    if name != "all_reduce":
        return name
    return f"{name} of {sum(math.prod(size) for size in entry['input_sizes']):,} elements"


class _PlainValues(pickle.Unpickler):
    """Numbers, texts and containers of them; nothing is imported and nothing called."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which a dump never needs")


def _takes_pipes(folder: Path) -> bool:
    """Return whether the file system has named pipes: without, torch would end the process that tries to make one."""
    trial = folder / f".try-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.mkfifo(trial)
        trial.unlink()
    except OSError:
        return False
    return True


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
