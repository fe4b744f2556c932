"""Replays a trace to a detector in virtual time."""

import bisect
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.detection.detectors import Detector
from benchmarks.detection.trace import Heard, Trace
from headway.runner.health.watch import Probe

TICK_S = 0.1


@dataclass(frozen=True)
class Named:
    """Whom a detector would have ended the job for, and how long after rank 1 did what the trace is called after."""

    ranks: tuple[int, ...]
    after_s: float


def replayed(trace: Trace, make: Callable[[int, float], Detector], on_s: float = 0.0) -> Named | None:
    """Return what the detector would have done. After its end the trace continues for `on_s` as it ended: silent."""
    heard = [*trace.heard, *_silence(trace, on_s)]
    looks = [each for each in heard if each.probes]
    times = [each.at_s for each in looks]
    detector, now_s, next_at = make(trace.ranks, heard[0].at_s), heard[0].at_s, 0
    while now_s <= heard[-1].at_s:
        while next_at < len(heard) and heard[next_at].at_s <= now_s:
            if heard[next_at].beats:
                detector.beat(heard[next_at].beats, heard[next_at].at_s)
            next_at += 1
        probe, named = detector.tick(now_s)
        if named is not None:
            return Named(named, now_s - trace.happened_s)
        if probe and (at := bisect.bisect_left(times, now_s)) < len(looks):
            detector.probed({rank: each for rank, each in looks[at].probes.items() if rank in probe}, now_s)
        now_s += TICK_S
    return None


def _silence(trace: Trace, seconds: float) -> list[Heard]:
    """Return the messages if no rank had moved for so long after the end."""
    last = next(each for each in reversed(trace.heard) if each.beats and each.probes)
    found = []
    for half_seconds in range(1, round(2 * seconds) + 1):
        more_s = 0.5 * half_seconds
        beats = {rank: beat._replace(age_s=(beat.age_s or 0.0) + more_s) for rank, beat in last.beats.items()}
        found.append(Heard(last.at_s + more_s, beats, _on_cpu(last, more_s)))
    return found


def _on_cpu(last: Heard, more_s: float) -> dict[int, Probe]:
    """Probes of the same processes later: who was running has run on."""
    return {
        rank: dataclasses.replace(probe, cpu_s=probe.cpu_s + (more_s if probe.state == "R" else 0.0))
        for rank, probe in last.probes.items()
    }
