"""Shows what ranks print into torchrun's log files on the terminal, as torchrun's --tee does."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any, TextIO

from msgspec import Struct, field

from headway.runner.contract import RunDirectory

# As torch's own tail (multiprocessing/tail_log.py)
POLL_S = 0.1
# While nothing comes: looking costs the ranks' cores something.
SELDOM_S = 1.0
STREAMS = {"stdout": 1, "stderr": 2}  # bits of torchrun's --tee
# Folders of restarts that are read: the one before may still be written to while the next begins.
NEWEST = 2


class FileTail(Struct):
    """The whole lines that a file has grown by, each time it is asked."""

    path: Path
    _read: int = 0

    def lines(self, *, whole: bool = True) -> list[str]:
        """New lines; with `whole` false, what is left at the end without a newline too."""
        try:
            if self.path.stat().st_size == self._read:
                return []
            with self.path.open("rb") as file:
                file.seek(self._read)
                found = file.read()
        except FileNotFoundError:
            return []
        if whole:
            found = found[: found.rfind(b"\n") + 1]
        self._read += len(found)
        *lines, rest = found.decode(errors="replace").split("\n")
        return [f"{line}\n" for line in ([*lines, rest] if rest else lines)]


class LogTail(Struct):
    """`logs/attempt_<k>/<local rank>/{stdout,stderr}.log` of the ranks in `ranks` (local rank -> bits of STREAMS), followed.
    `notes`: where the runner notes which rank each one's is (runner/agent/launch.py, rank_note)."""

    logs: Path
    notes: Path
    ranks: Mapping[int, int]
    role: str
    filters: Mapping[str, Sequence[str]]
    _tails: dict[tuple[Path, int, str], FileTail] = field(default_factory=dict)

    def show(self, *, whole: bool = True) -> bool:
        """Shows what is new; whether anything was."""
        shown = False
        for folder in sorted(self.logs.glob("attempt_*"), key=lambda path: int(path.name.split("_")[1]))[-NEWEST:]:
            for local_rank, bits in self.ranks.items():
                for stream in (name for name, bit in STREAMS.items() if bits & bit):
                    shown |= self._show(folder, local_rank, stream, whole=whole)
        return shown

    def _show(self, folder: Path, local_rank: int, stream: str, *, whole: bool) -> bool:
        path = folder / str(local_rank) / f"{stream}.log"
        tail = self._tails.setdefault((folder, local_rank, stream), FileTail(path))
        if not (lines := tail.lines(whole=whole)):
            return False
        prefix = _prefix(self.role, local_rank, self.notes / "-".join(path.parent.parts[-3:]))
        target: TextIO = getattr(sys, stream)
        target.writelines(prefix + line for line in lines)
        target.flush()
        if wanted := self.filters.get(stream):
            with (folder / f"filtered_{stream}.log").open("a") as file:
                file.writelines(prefix + line for line in lines if any(part in line for part in wanted))
        return True


def pause_s(before_s: float, *, shown: bool) -> float:
    """Until the next look: POLL_S after one that has found something, then longer and longer up to SELDOM_S."""
    return POLL_S if shown else min(2 * before_s, SELDOM_S)


def _prefix(role: str, local_rank: int, rank_file: Path) -> str:
    """Return torchrun's prefix of a line; a template in the environment may name the rank too (local_elastic_agent.py)."""
    template = os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
    if template is None:
        return f"[{role}{local_rank}]:"
    rank = rank_file.read_text() if rank_file.exists() else ""
    return Template(template).safe_substitute(role_name=role, rank=rank, local_rank=local_rank)


@contextmanager
def following(terminal: Mapping[str, Any]) -> Iterator[None]:
    """Shows what the ranks print while the block runs, and the rest at its end. Without --tee, nothing."""
    if not terminal["logs"] or not terminal["teed"]:
        yield
        return
    ranks = {int(rank): bits for rank, bits in terminal["teed"].items()}
    notes = RunDirectory(Path(terminal["run"]), terminal["attempt"]).teed
    tail, over = LogTail(Path(terminal["logs"]), notes, ranks, terminal["role"], terminal["filters"]), threading.Event()

    def follow() -> None:
        next_s = POLL_S
        while not over.wait(next_s):
            next_s = pause_s(next_s, shown=tail.show())

    thread = threading.Thread(target=follow, name="log-tail", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        tail.show(whole=False)
