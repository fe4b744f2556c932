"""torchrun's rendezvous under the same load: agents that join it, and what its store costs while they keep it alive."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.claim import MeasureError
from benchmarks.control_plane.fleet import ROOT, cores, share


@dataclass(frozen=True)
class Rendezvous:
    """Seconds until all agents had their ranks; what the store used of a core afterwards."""

    join_s: float
    share: float


def measure(agents: int, seconds: float) -> Rendezvous:
    """Raises MeasureError when the agents do not all get a rank."""
    store = _process(cores()[0], "serve")
    try:
        assert store.stdout is not None  # noqa: S101  a pipe
        joining = _process(cores()[1], "join", store.stdout.readline().strip(), str(agents))
        try:
            assert joining.stdout is not None  # noqa: S101  a pipe
            said = json.loads(joining.stdout.readline() or "{}")
            if not said.get("complete"):
                raise MeasureError(f"{agents} agents did not all join torchrun's rendezvous: {said.get('error')}")
            return Rendezvous(said["took_s"], share(store.pid, seconds))
        finally:
            joining.kill()
            joining.wait()
    finally:
        store.kill()
        store.wait()


def _process(core: int, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.control_plane.rendezvous", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(process.pid, {core})
    return process
