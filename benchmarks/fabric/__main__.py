"""Prints each claim on rendering and auditing a fabric, compared with pyavd by its cost of a switch; exits with 1 if one does not hold."""

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claim import Claim, MeasureError, compared, judged, report, spread

ROOT = Path(__file__).parents[2]
HEADWAY = Path(sys.executable).with_name("headway")
PEER = ROOT / ".venv-peers" / "avd" / "bin" / "python"
PEER_NAME = "pyavd 6.4.0"

_ROUNDS = 3
_GPUS_PER_NODE = 8
_PEER_LEAVES, _PEER_SPINES = 16, 8
_BYTES_PER_MB = 1e6
# GPUs and the CPU seconds that rendering their fabric may take.
_GOALS_S = {10_240: 10.0, 32_768: 20.0}
_MEMORY_MB = 500.0
_AUDIT_S = 5.0
_MANY_GPUS = 100_000
# What the cost of a GPU may grow by up to so many.
_LINEAR = 1.2


class Memory(Claim):
    """`ours`, `peer` and `goal` are megabytes of the process at its largest."""

    unit = "MB"
    goal_unit = "MB"


@dataclass(frozen=True)
class Cost:
    """CPU seconds, user and system, and bytes at the largest."""

    cpu_s: float
    memory_bytes: float
    output: str


Measure = Callable[..., Cost]


def claims(folder: Path) -> Iterator[Claim]:
    """Yield the claims; clusters and what is rendered from them are put into `folder`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")

    def cost(*words: str | Path) -> Cost:
        return _cost(words, folder, environment)

    peer_words = (PEER, ROOT / "benchmarks" / "fabric" / "avd.py", str(_PEER_LEAVES), str(_PEER_SPINES))
    cost(*peer_words)
    peers = [cost(*peer_words) for _ in range(_ROUNDS)]
    of_switch = [each.cpu_s / (_PEER_LEAVES + _PEER_SPINES) for each in peers]
    for gpus, goal_s in _GOALS_S.items():
        document = _cluster(folder / str(gpus), gpus)
        ours = [cost(HEADWAY, "render", document) for _ in range(_ROUNDS)]
        switches = len(_files(document, "config_db.json"))
        yield judged(
            f"`headway render` of {gpus:,} GPUs: {switches} switches and {gpus // _GPUS_PER_NODE} hosts",
            (spread([each.cpu_s for each in ours]), spread([each * switches for each in of_switch])),
            f"{PEER_NAME}, {switches} times its cost of a switch",
            goal_s,
            _conditions(_ROUNDS, "the first round writes the files, the others compare them"),
        )
    yield _memory(f"`headway render` of {gpus:,} GPUs", ours, peers)
    yield _linear(gpus, ours, _cluster(folder / str(_MANY_GPUS), _MANY_GPUS), cost)
    yield from _audit(folder / str(next(iter(_GOALS_S))) / "cluster.yaml", of_switch, cost)


def _memory(what: str, ours: list[Cost], peers: list[Cost]) -> Claim:
    first, second = (spread([each.memory_bytes / _BYTES_PER_MB for each in costs]) for costs in (ours, peers))
    name = f"{PEER_NAME} with {_PEER_LEAVES + _PEER_SPINES} switches"
    holds = first.median <= _MEMORY_MB
    return Memory(
        what, first, second, name, first.median / second.median, _MEMORY_MB, holds, _conditions(_ROUNDS, "at the largest")
    )


def _linear(gpus: int, ours: list[Cost], document: Path, cost: Measure) -> Claim:
    """Return the claim that each GPU costs about as much in a larger fabric; the time is that of as many GPUs."""
    large = cost(HEADWAY, "render", document)
    scaled = spread([each.cpu_s * _MANY_GPUS / gpus for each in ours])
    name = f"headway with {gpus:,} GPUs, scaled"
    return compared(
        f"`headway render` of {_MANY_GPUS:,} GPUs is linear",
        (spread([large.cpu_s]), scaled),
        name,
        _LINEAR,
        _conditions(1, "CPU seconds"),
    )


def _audit(document: Path, of_switch: list[float], cost: Measure) -> Iterator[Claim]:
    """Yield the claims on an audit of all switches, by themselves and with their cluster file; that has a warning for the missing base."""
    folder = document.parent / "rendered" / "big" / "switches"
    files = len(_files(document, "config_db.json")) + len(_files(document, "frr.conf"))
    switches = files // 2
    for words, counts, conditions in (
        ((), "no problems", "without the cluster file"),
        (("--cluster", document), "1 warning", "with the cluster file, whose files are rendered to compare them"),
    ):
        ours = [cost(HEADWAY, "audit", folder, *words) for _ in range(_ROUNDS)]
        if any(f"{files} files: {counts}" not in each.output for each in ours):
            raise MeasureError(f"`headway audit` did not read {files} files with {counts}: {ours[0].output[-500:]}")
        yield judged(
            f"`headway audit{' --cluster' if words else ''}` of {files} files of {switches} switches",
            (spread([each.cpu_s for each in ours]), spread([each * switches for each in of_switch])),
            f"{PEER_NAME}, rendering {switches} switches at its cost of one",
            _AUDIT_S,
            _conditions(_ROUNDS, conditions),
        )


def _files(document: Path, name: str) -> list[Path]:
    return list((document.parent / "rendered").rglob(name))


def _cluster(folder: Path, gpus: int) -> Path:
    """Write a cluster of nodes with eight GPUs and adapters, whose switches follow from their model."""
    nics = ", ".join(f"mlx5_{number}" for number in range(_GPUS_PER_NODE))
    roce = (
        "{name: roce, carries: collectives, dscp: 26, priority: 3, lossless: true, ecn: {min: 1MiB, max: 2MiB, percent: 5}, "
        "bandwidth_percent: 60}"
    )
    folder.mkdir()
    document = folder / "cluster.yaml"
    document.write_text(
        f"""apiVersion: headway/v1alpha1
kind: Cluster
name: big
scheduler: {{kind: slurm, options: {{partition: gpu, exclusive: true}}}}
node_groups:
  - {{name: h100, count: {gpus // _GPUS_PER_NODE}, cpus: 112, gpu: H100-SXM-80, gpus: 8, nics: [{nics}], nic: ConnectX-7}}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes:
      - {roce}
      - {{name: cnp, carries: cnp, dscp: 48, priority: 6}}
    switches: {{model: SN5600, os: [{{kind: sonic}}]}}
  - {{name: admin, role: management, transport: tcp, interface: eth0}}
storage:
  - {{name: runs, kind: posix, path: /lustre/runs, shared: true}}
"""
    )
    return document


def _cost(words: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> Cost:
    """Run a program that has to end with 0; its output is what it prints, on both streams."""
    with tempfile.TemporaryFile("w+") as printed:
        try:
            process = subprocess.Popen(words, cwd=folder, env=environment, stdout=printed, stderr=subprocess.STDOUT)
        except OSError as error:
            raise MeasureError(f"{words[0]} cannot be started ({error.strerror}); `make peers` installs the peers") from error
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        output = printed.read()
    if process.returncode:
        raise MeasureError(f"{words[0]} ended with {process.returncode}: {output[-1000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output)


def _conditions(rounds: int, more: str) -> str:
    return f"{rounds} rounds, bytecode cached, Python {platform.python_version()}, {os.cpu_count()} CPUs; {more}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        sys.exit(report(claims(Path(path)), sys.argv[1:]))
