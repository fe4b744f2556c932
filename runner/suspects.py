"""Keeps a list of repeatedly failing hosts per cluster, shared by all jobs: `<runs>/suspects/<cluster>.jsonl`."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.runner.contract import CauseKind
from headway.runner.lines import append_line, read_lines

STRIKES = 3.0
WINDOW_S = 14 * 24 * 3600.0
# For the lock; one write of a line is whole without it on a local file system.
_PATIENCE_S = 1.0
_POLL_S = 0.02

_ALWAYS_OF_THE_HOST = (str(CauseKind.NODE_LOST), f"{CauseKind.HARDWARE}:", str(CauseKind.CORRUPTION))  # fingerprints


@dataclass(frozen=True)
class Strike:
    """One failure on a host; `wall` in Unix seconds."""

    wall: float
    run: str
    host: str
    kind: str
    fingerprint: str
    weight: float


def file_of(runs: Path, cluster: str) -> Path:
    """Return the file of the strikes against a cluster's hosts."""
    return runs / "suspects" / f"{cluster.replace('/', '_')}.jsonl"


def record(path: Path, against: Strike) -> None:
    """Append the strike. Raises OSError if the file cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        append_line(path, asdict(against))


def lemons(path: Path, now: float) -> dict[str, float]:
    """The hosts with STRIKES or more within WINDOW_S before `now` (Unix seconds), each with its sum of weights.

    The same failure again in one run counts once. One that a run met on several hosts counts against none of them: it moved with the
    job; a node's loss and a device's faults do not move.
    """
    counted = {}
    hosts: dict[tuple[str, str], set[str]] = {}
    for each in _strikes(path, now):
        counted[each.run, each.fingerprint, each.host, _occasion(each)] = each.weight
        hosts.setdefault((each.run, each.fingerprint), set()).add(each.host)
    sums: dict[str, float] = {}
    for (run, fingerprint, host, _), weight in counted.items():
        if fingerprint.startswith(_ALWAYS_OF_THE_HOST) or len(hosts[run, fingerprint]) == 1:
            sums[host] = sums.get(host, 0.0) + weight
    return {host: weight for host, weight in sorted(sums.items()) if weight >= STRIKES}


def _occasion(each: Strike) -> float:
    """A node that is lost, comes back and is lost again has failed twice."""
    return each.wall if each.kind == CauseKind.NODE_LOST else 0.0


def _strikes(path: Path, now: float) -> Iterator[Strike]:
    for line, _ in read_lines(path):
        try:
            found = Strike(**line)
            if now - WINDOW_S <= found.wall <= now:
                yield found
        except TypeError:  # a later version has more fields
            continue


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file's lock; without it after a second, since a lock server that does not answer must not hold up a run."""
    with path.open("ab") as file:
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until:
                    break
                time.sleep(_POLL_S)
        yield
