"""Puts torchrun's rendezvous under the same load: agents that join it, and the cost of its store while they keep alive."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.claim import MeasureError
from benchmarks.control_plane.fleet import ROOT, cores, share

JOIN_S = 300.0


class GaveUpError(Exception):
    """The peer has not done in time what it was given to do: no fault of the measurement."""


@dataclass(frozen=True)
class Rendezvous:
    """Seconds until all agents had their ranks; what the store used of a core afterwards."""

    join_s: float
    share: float


def measure(agents: int, seconds: float, patience_s: float = JOIN_S) -> Rendezvous:
    """Measure. Raises GaveUpError when the agents do not all get a rank in time, MeasureError when nothing can be measured."""
    with _process(cores()[0], "serve") as store:
        assert store.stdout is not None  # noqa: S101  a pipe
        with _process(cores()[1], "join", store.stdout.readline().strip(), str(agents), str(patience_s)) as joining:
            assert joining.stdout is not None  # noqa: S101  a pipe
            if not (line := joining.stdout.readline()):
                raise MeasureError(f"the agents of torchrun's rendezvous have ended with {joining.wait()}")
            said = json.loads(line)
            if not said["complete"]:
                raise GaveUpError(f"{agents} agents did not all join within {patience_s:g} s: {said['error']}")
            return Rendezvous(said["took_s"], share(store.pid, seconds))


@contextlib.contextmanager
def _process(core: int, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """Killed when the block is left."""
    command = [sys.executable, "-m", "benchmarks.control_plane.rendezvous", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            os.sched_setaffinity(process.pid, {core})
            yield process
        finally:
            process.kill()
