"""Prints each claim on the control plane, compared with torchrun's rendezvous in the same run; exits with 1 if one does not hold.

Where torchrun's agents do not find each other in time, that is reported, and ours is measured alone.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.claim import Claim, Compared, MeasureError, Within, compared, spread, within
from benchmarks.control_plane.alone import Alone, GaveUp, report_all
from benchmarks.control_plane.fleet import PROCS, SPARES, Fleet, fleet
from benchmarks.control_plane.peer import JOIN_S, GaveUpError, Rendezvous, measure
from headway.runner.coordinator.vitals import beat_interval_s

# Of each brief measurement; a lost node costs a spare.
ROUNDS = 3
# Of continuous measurements.
WINDOWS = 5
_PEER = f"torchrun's c10d rendezvous, torch {torch.__version__}"


class Share(Claim):
    """`ours`, `peer` and `goal` are shares of one core."""

    unit = "of a core"
    goal_unit = "of a core"


def claims(nodes: int, peers: int, seconds: float, patience_s: float = JOIN_S) -> Iterator[Claim | Alone | GaveUp]:
    """Yield what `peers` agents take with either, then what `nodes` agents take with ours."""
    theirs = None
    try:
        theirs = measure(peers, seconds, patience_s)
    except GaveUpError as error:
        yield GaveUp(_PEER, str(error))
    with tempfile.TemporaryDirectory() as at:
        with fleet(Path(at), peers) as small:
            few_s = _joined_s(small)
        yield _compared(f"{peers} agents join", few_s, theirs, 1.0, _conditions(peers))
        with fleet(Path(at), nodes) as large:
            yield from _large(large, nodes, theirs, f"{_PEER}, with {peers} agents", seconds)


def _large(large: Fleet, nodes: int, theirs: Rendezvous | None, peer: str, seconds: float) -> Iterator[Claim | Alone]:
    pause_s = 2 * beat_interval_s(nodes)
    joined_s = [_joined_s(large)]
    yield _within(f"{nodes} agents join, and each knows its slot", joined_s, theirs, peer, 10.0, _conditions(nodes))
    _started(large)
    time.sleep(pause_s)
    shares = [large.coordinator_share(seconds / WINDOWS) for _ in range(WINDOWS)]
    what = f"a coordinator with {nodes} agents that beat every {beat_interval_s(nodes):g} s"
    yield _share(what, shares, theirs, peer, 0.25, _conditions(nodes))
    what = "a rank fails: until every agent holds the new generation and its ranks"
    failed_s = [_failed_s(large, node, pause_s) for node in range(ROUNDS)]
    yield _within(what, failed_s, theirs, peer, 2.0, _conditions(nodes))
    what = "a node is lost and a spare takes its slot: the same, from the moment that it was given up"
    lost = [_lost_s(large, generation, pause_s) for generation in range(ROUNDS + 1, 2 * ROUNDS + 1)]
    given_up_s, bound_s = map(list, zip(*lost, strict=True))
    noted = f"{_conditions(nodes)}; given up after {spread(given_up_s).median:.1f} s"
    yield _within(what, bound_s, theirs, peer, 2.0, noted)
    what = "the coordinator is killed: until its successor has every agent and the generation"
    over_s = [_failed_over_s(large, 2 * ROUNDS + 1, node, pause_s) for node in range(1, ROUNDS + 1)]
    yield _within(what, over_s, theirs, f"{peer} (a lost store ends its job)", 5.0, _conditions(nodes))


# --- with the peer's figures, or alone --------------------------------------------------------------------------------


def _compared(what: str, ours_s: float, theirs: Rendezvous | None, goal: float, conditions: str) -> Claim | Alone:
    if theirs is None:
        return Alone(Compared, what, spread([ours_s]), _PEER, goal, None, conditions)
    return compared(what, (spread([ours_s]), spread([theirs.join_s])), _PEER, goal, conditions)


def _within(what: str, found_s: list[float], theirs: Rendezvous | None, peer: str, goal: float, conditions: str) -> Claim | Alone:
    ours = spread(found_s)
    if theirs is None:
        return Alone(Within, what, ours, peer, goal, ours.median <= goal, conditions)
    return within(what, (ours, spread([theirs.join_s])), peer, goal, conditions)


def _share(what: str, shares: list[float], theirs: Rendezvous | None, peer: str, goal: float, conditions: str) -> Claim | Alone:
    ours = spread(shares)
    if theirs is None:
        return Alone(Share, what, ours, peer, goal, ours.median <= goal, conditions)
    share = max(theirs.share, 0.001)
    return Share(what, ours, spread([share]), peer, ours.median / share, goal, ours.median <= goal, conditions)


# --- what is measured -------------------------------------------------------------------------------------------------


def _joined_s(job: Fleet) -> float:
    return float(-job.heard("joining")["at"] + job.heard("assigned")["at"])


def _started(job: Fleet) -> float:
    """When the last agent had the next generation. Raises MeasureError when one has found other ranks than `contract.bind` gives it."""
    said = job.heard("started")
    if said["wrong"]:
        raise MeasureError(f"{said['wrong']} agents of generation {said['generation']} hold other ranks than they should")
    return float(said["at"])


def _failed_s(job: Fleet, node: int, pause_s: float) -> float:
    """Return the seconds from the end of a rank on `node` until all agents have the next generation."""
    job.do("fail", number=node)
    failed = job.heard("failed")["at"]
    started_s = _started(job) - failed
    time.sleep(pause_s)
    return float(started_s)


def _lost_s(job: Fleet, generation: int, pause_s: float) -> tuple[float, float]:
    """Return the seconds for a node of `generation`, which runs: from its loss until it is given up, and from then
    until all agents have the next one."""
    job.do("lose", number=generation)
    lost = job.heard("lost")["at"]
    given_up = job.given_up(generation)
    started_s = _started(job) - given_up
    time.sleep(pause_s)
    return given_up - lost, started_s


def _failed_over_s(job: Fleet, generation: int, node: int, pause_s: float) -> float:
    """Return the seconds until the coordinator that `node` starts has all agents; those of the nodes before it have had
    `generation` too."""
    killed, wall = time.monotonic(), time.time()
    job.kill_coordinator()
    job.coordinate(node)
    # By the previous coordinator.
    while (assigned_s := float(job.heard("assigned")["at"]) - killed) < 0:
        continue
    found_s = max(assigned_s, job.noted(generation, "adopted", times=node) - wall)
    time.sleep(pause_s)
    return found_s


def _conditions(nodes: int) -> str:
    """With how fast the machine is just now: one that is shared may well take twice the time a minute later."""
    return (
        f"{nodes - SPARES} slots of {PROCS} ranks and {SPARES} spares, simulated over the real protocol in a process on another "
        f"core than the coordinator's, loopback, Python {platform.python_version()}, {os.cpu_count()} CPUs, load "
        f"{os.getloadavg()[0]:.1f}, a million turns of an empty loop: {1000 * min(timeit.repeat(number=1_000_000, repeat=3)):.0f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_plane", description=__doc__)
    parser.add_argument("--nodes", type=int, default=12_500, help="number of agents of the large job")
    parser.add_argument("--peers", type=int, default=200, help="number of agents that join torchrun's rendezvous")
    parser.add_argument("--seconds", type=float, default=30.0, help="time over which the coordinator's CPU time is measured")
    parser.add_argument("--patience", type=float, default=JOIN_S, help="seconds within which the peer's agents must join")
    parser.add_argument("--json", action="store_true", help="print one JSON object per claim")
    options = parser.parse_args()
    found = claims(options.nodes, options.peers, options.seconds, options.patience)
    return report_all(found, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
