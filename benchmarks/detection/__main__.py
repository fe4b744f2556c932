"""Prints each claim on hang detection, compared with timeouts on the same job; exits with 1 if one does not hold."""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.claim import Claim, Spread, report, spread, within
from benchmarks.detection import trace
from benchmarks.detection.detectors import Detector, LearnedTimeout, Ours, StepTimeout
from benchmarks.detection.job import SLOW
from benchmarks.detection.live import observe
from benchmarks.detection.replay import replayed
from benchmarks.detection.synthetic import Job, Steps, fitted
from benchmarks.detection.trace import Trace

TRACES = Path(__file__).with_name("traces")
# The named rank and the claim. Of two ranks in two different collectives none is named; of three or more, the minority.
PROVEN: dict[str, tuple[tuple[int, ...], str]] = {
    "is_stopped": ((1,), "a rank that is stopped is named"),
    "holds_the_interpreter": ((1,), "a rank that holds the interpreter is named"),
    "deadlocks": ((1,), "a rank that deadlocks is named"),
    "skips": ((), "ranks in collectives that never meet are found"),
}
# Hangs that nothing proves, the last one where no flight recorder answers: the timeout that ends them, and whom it names. Who loops may be
# at work, so it is ended by `busy`, which is set to this.
IN_TIME: dict[str, tuple[float, tuple[int, ...]]] = {"loops": (900.0, (1,)), "skips": (600.0, ())}
FIXED_S = 45.0
# rank_heartbeat_timeout of nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/api/config.html.
NVRX_S = 2700.0
# Ranks of the synthetic jobs, which share the steps.
WORLDS = (2, 8)
# Steps from one long event to the next.
EVERY = 300.0
_AT_STEP, _LIMIT_S = 60, 120.0

Make = Callable[[int, float], Detector]
PEERS: dict[str, Make] = {
    f"a fixed timeout of {FIXED_S:.0f} s": lambda _, __: StepTimeout(FIXED_S),
    "5 times the longest step of the first 10 s": lambda _, now_s: LearnedTimeout(now_s),
    f"NVRx's default timeout, {NVRX_S:.0f} s": lambda _, __: StepTimeout(NVRX_S),
}


class FalseKills(Claim):
    """`ours`, `peer` and `goal` are how often a healthy job was ended; `ratio` is the difference."""

    unit = "kills"
    goal_unit = "kills"


def claims(steps: int, rounds: int) -> Iterator[Claim]:
    """Recorded traces, then synthetic ones of so many steps, then hangs of real processes, so often each."""
    recorded = [trace.read(path) for path in sorted(TRACES.glob("*.jsonl"))]
    yield _on_recorded([each for each in recorded if each.what in SLOW])
    yield _on_synthetic(fitted([step_s for each in recorded for step_s in each.steps_s]), steps)
    for what in PROVEN:
        yield _live(what, rounds)
    for each in recorded:
        if each.what in IN_TIME:
            yield _in_time(each)


def _on_recorded(traces: Sequence[Trace]) -> Claim:
    kills = {name: sum(replayed(each, make) is not None for each in traces) for name, make in {"ours": Ours, **PEERS}.items()}
    conditions = f"{len(traces)} jobs of two processes in which one takes 8 s for something; {_others(kills)}"
    return _kills("jobs ended that were only slow, recorded", kills, conditions)


def _on_synthetic(drawn: Steps, steps: int) -> Claim:
    """Run all detectors on the same jobs. One that would have ended a job begins again."""
    makes: dict[str, Make] = {"ours": Ours, **PEERS}
    kills, happened, hours = dict.fromkeys(makes, 0), 0, 0.0
    for ranks in WORLDS:
        job, detectors = Job(ranks, drawn, EVERY, seed=ranks), [make(ranks, 0.0) for make in makes.values()]
        for number in job.run(steps // len(WORLDS), detectors):
            name = list(makes)[number]
            kills[name] += 1
            detectors[number] = makes[name](ranks, job.now_s)
        happened, hours = happened + sum(job.happened.values()), hours + job.now_s / 3600
    conditions = (
        f"{steps} steps of {drawn.median_s:.3f} s, sigma {drawn.sigma:.2f}, Pareto tail {drawn.tail:.1f} for 1 in {drawn.tail_every}, "
        f"fitted to the recorded ones; {happened} stalls of 2 to 500 s in {hours:.0f} h of virtual time, {_others(kills)}"
    )
    return _kills(f"jobs ended that were only slow, in {steps} steps", kills, conditions)


def _kills(claim: str, kills: dict[str, int], conditions: str) -> Claim:
    (_, ours), (peer_name, peer), *_ = kills.items()
    pair = [Spread(each, each, each) for each in (ours, peer)]
    return FalseKills(claim, pair[0], pair[1], peer_name, float(ours - peer), 0.0, ours == 0, conditions)


def _others(kills: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in list(kills.items())[2:])


def _live(what: str, rounds: int) -> Claim:
    """Real processes under the watch; the timeouts see their messages, and then silence."""
    (ranks, found), right = PROVEN[what], 0
    after_s, peers_s, bounds_s = list[float](), dict[str, list[float]](), list[float]()
    for _ in range(rounds):
        seen = observe(what, _AT_STEP, 0.0, _LIMIT_S)
        after_s.append(_LIMIT_S if seen.named_after_s is None else seen.named_after_s)
        right += seen.hang is not None and seen.hang.ranks == ranks
        bounds_s.append(seen.trace.bound_s)
        for name, make in PEERS.items():
            named = replayed(seen.trace, make, on_s=NVRX_S + 60.0)
            peers_s.setdefault(name, []).append(NVRX_S + 60.0 if named is None else named.after_s)
    (peer_name, peer), *others = peers_s.items()
    more = ", ".join(f"{name}: {spread(each).median:.1f} s" for name, each in others)
    whom = "rank 1" if ranks else "nobody"
    conditions = (
        f"{whom} of 2 was named in {right} of {rounds}; the goal is 2 s or 5 times the steps' p99; {more}; torchrun: never, gloo gives "
        f"up after 1800 s; {_machine()}"
    )
    claim = within(found, (spread(after_s), spread(peer)), peer_name, min(bounds_s), conditions)
    return claim if right == rounds else _failed(claim)


def _failed(claim: Claim) -> Claim:
    return type(claim)(**{**vars(claim), "holds": False})


def _in_time(each: Trace) -> Claim:
    """Hangs that only a section's timeout ends."""
    limit_s, ranks = IN_TIME[each.what]
    makes: tuple[Make, ...] = (partial(Ours, busy_s=limit_s), next(iter(PEERS.values())))
    ours, peer = (replayed(each, make, on_s=limit_s + 60.0) for make in makes)
    found = [limit_s + 60.0 if named is None else named.after_s for named in (ours, peer)]
    right = ours is not None and ours.ranks == ranks
    claim = within(
        f"a job of two with a rank that {each.what} is ended, naming {ranks or 'nobody'}",
        (spread(found[:1]), spread(found[1:])),
        next(iter(PEERS)),
        limit_s + 5.0,
        f"recorded and then silent; it may be at work for all that can be seen, so a timeout decides, `busy` set to {limit_s:.0f} s",
    )
    return claim if right else _failed(claim)


def _machine() -> str:
    return f"gloo, Python {platform.python_version()}, {os.cpu_count()} CPUs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps of the synthetic jobs")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each hang of real processes")
    parser.add_argument("--json", action="store_true", help="print one JSON object per claim")
    options = parser.parse_args()
    return report(claims(options.steps, options.rounds), ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
