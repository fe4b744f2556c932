"""Prints each claim on the control plane, beside torchrun's rendezvous in the same run; 1 if one does not hold."""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.claim import Claim, MeasureError, Spread, compared, report, spread, within
from benchmarks.control_plane.fleet import PROCS, SPARES, Fleet, fleet
from benchmarks.control_plane.peer import Rendezvous, measure
from headway.runner.coordinator.vitals import beat_interval_s

_PEER = f"torchrun's c10d rendezvous, torch {torch.__version__}"


class Share(Claim):
    """`ours`, `peer` and `goal` are shares of one core."""

    unit = "of a core"
    goal_unit = "of a core"


def claims(nodes: int, peers: int, seconds: float) -> Iterator[Claim]:
    """What `peers` agents take with either, then what `nodes` agents take with ours."""
    theirs = measure(peers, seconds)
    with tempfile.TemporaryDirectory() as at:
        with fleet(Path(at), peers) as small:
            few_s = _joined_s(small)
        yield compared(f"{peers} agents join", _pair(few_s, theirs.join_s), _PEER, 1.0, _conditions(peers))
        with fleet(Path(at), nodes) as large:
            yield from _large(large, nodes, theirs, f"{_PEER}, with {peers} agents", seconds)


def _large(large: Fleet, nodes: int, theirs: Rendezvous, peer: str, seconds: float) -> Iterator[Claim]:
    conditions = _conditions(nodes)
    beat_s = beat_interval_s(nodes)

    def anew(ours_s: float) -> tuple[Spread, Spread]:
        return _pair(ours_s, theirs.join_s)

    yield within(f"{nodes} agents join, and each knows its slot", anew(_joined_s(large)), peer, 10.0, conditions)
    _started_at(large)
    time.sleep(2 * beat_s)
    ours = _pair(large.coordinator_share(seconds), max(theirs.share, 0.001))
    what = f"a coordinator with {nodes} agents that beat every {beat_s:g} s"
    yield Share(what, *ours, peer, ours[0].median / ours[1].median, 0.25, ours[0].median <= 0.25, conditions)
    large.do("fail", number=7)
    failed = large.heard("failed")["at"]
    what = "a rank fails: until every agent holds the new generation and its ranks"
    yield within(what, anew(_started_at(large) - failed), peer, 2.0, conditions)
    time.sleep(2 * beat_s)
    large.do("lose", number=9)
    lost = large.heard("lost")["at"]
    found = large.given_up(2) - lost
    what = "a node is lost and a spare takes its slot: the same, from the moment that it was given up"
    yield within(what, anew(_started_at(large) - lost - found), peer, 2.0, f"{conditions}; given up after {found:.1f} s")
    time.sleep(2 * beat_s)
    what = "the coordinator is killed: until its successor has every agent and the generation"
    yield within(what, anew(_failed_over_s(large, 3)), f"{peer} (a lost store ends its job)", 5.0, conditions)


def _joined_s(job: Fleet) -> float:
    return float(-job.heard("joining")["at"] + job.heard("assigned")["at"])


def _started_at(job: Fleet) -> float:
    """When the last agent had the next generation. Raises MeasureError when one has found other ranks than `contract.bind` gives it."""
    said = job.heard("started")
    if said["wrong"]:
        raise MeasureError(f"{said['wrong']} agents of generation {said['generation']} hold other ranks than they should")
    return float(said["at"])


def _failed_over_s(job: Fleet, generation: int) -> float:
    killed, wall = time.monotonic(), time.time()
    job.kill_coordinator()
    job.coordinate(1)
    assigned_s = float(job.heard("assigned")["at"]) - killed
    return max(assigned_s, job.noted(generation, "adopted") - wall)


def _pair(ours: float, theirs: float) -> tuple[Spread, Spread]:
    return spread([ours]), spread([theirs])


def _conditions(nodes: int) -> str:
    return (
        f"one run; {nodes - SPARES} slots of {PROCS} ranks and {SPARES} spares, simulated over the real protocol in a process on another "
        f"core than the coordinator's, loopback, Python {platform.python_version()}, {os.cpu_count()} CPUs, load "
        f"{os.getloadavg()[0]:.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_plane", description=__doc__)
    parser.add_argument("--nodes", type=int, default=12_500, help="agents of the large job")
    parser.add_argument("--peers", type=int, default=200, help="agents that torchrun's rendezvous is given")
    parser.add_argument("--seconds", type=float, default=30.0, help="over which the coordinator's CPU time is taken")
    parser.add_argument("--json", action="store_true", help="print an object a claim")
    options = parser.parse_args()
    found = claims(options.nodes, options.peers, options.seconds)
    return report(found, ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
