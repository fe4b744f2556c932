"""Keeps lists of repeatedly failing hosts per cluster, shared by all jobs and users: `<runs>/suspects/<cluster>.jsonl`."""

import fcntl
import glob
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Return the file of the strikes against a cluster's hosts; HEADWAY_SUSPECTS is the folder for runs of several users."""
    folder = os.environ.get("HEADWAY_SUSPECTS") or runs / "suspects"
    return Path(folder) / f"{cluster.replace('/', '_')}.jsonl"


def record(path: Path, against: Strike) -> None:
    """Append the strike, to another file next to `path` if that is another user's. Raises OSError if none can be written."""
    make_folder(path.parent)
    own = _writable(path)
    with _locked(own):
        append_line(own, asdict(against))


def make_folder(folder: Path) -> None:
    """Make the folder of the lists, which all can write who can write the one above it."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    above = stat.S_IMODE(folder.parent.stat().st_mode)
    if above & 0o022:
        folder.chmod(above)


def _writable(path: Path) -> Path:
    # Created here at once, unless another user did so: two runs that found no file would otherwise write one each.
    with suppress(PermissionError):
        path.touch()
    # By what the kernel allows: in a container's user namespace the number of a user means little.
    found = next((file for file in [path, *_others(path)] if os.access(file, os.W_OK)), None)
    return found or path.with_name(f"{path.stem}.{secrets.token_hex(4)}.jsonl")


def _others(path: Path) -> list[Path]:
    """The files of further users."""
    return sorted(path.parent.glob(f"{glob.escape(path.stem)}.*.jsonl"))


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
    for line, _ in (line for file in (path, *_others(path)) for line in read_lines(file)):
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
