"""Represents a claim on speed: the figures of headway and a named peer in one run, and whether the claim holds."""

import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

_TIMEOUT_S = 900


class MeasureError(Exception):
    """A program that was to be measured is not there, or did not do what it was to do."""


@dataclass(frozen=True)
class Command:
    """A program that ends with 0 and prints the text `says` if it did its work, and the folder that it runs in."""

    words: Sequence[str | Path]
    folder: Path
    says: str


@dataclass(frozen=True)
class Spread:
    """The cost of several runs."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Claim:
    """`ours`, `peer` and `goal` are CPU seconds, user and system; `ratio` is ours over the peer's, by their medians."""

    unit: ClassVar[str] = "s of CPU"
    goal_unit: ClassVar[str] = "s"
    bound: ClassVar[str] = "at most"

    claim: str
    ours: Spread
    peer: Spread
    peer_name: str
    ratio: float
    goal: float
    holds: bool
    conditions: str


class Within(Claim):
    """`ours`, `peer` and `goal` are seconds."""

    unit = "s"


class Compared(Claim):
    """`ours` and `peer` are seconds, `goal` is what the ratio may be."""

    unit = "s"
    goal_unit = "times the peer's"


def judged(claim: str, pair: tuple[Spread, Spread], peer_name: str, goal: float, conditions: str) -> Claim:
    """Return the claim that our median is not above the goal."""
    ours, peer = pair
    return Claim(claim, ours, peer, peer_name, ours.median / peer.median, goal, ours.median <= goal, conditions)


def within(claim: str, pair: tuple[Spread, Spread], peer_name: str, goal: float, conditions: str) -> Claim:
    """Return the claim that our median is not above the goal, in seconds."""
    ours, peer = pair
    return Within(claim, ours, peer, peer_name, ours.median / peer.median, goal, ours.median <= goal, conditions)


def compared(claim: str, pair: tuple[Spread, Spread], peer_name: str, goal: float, conditions: str) -> Claim:
    """Return the claim that our median is not above the goal times the peer's."""
    ours, peer = pair
    ratio = ours.median / peer.median
    return Compared(claim, ours, peer, peer_name, ratio, goal, ratio <= goal, conditions)


def interleaved(ours: Command, peer: Command, rounds: int, bytecode: Path) -> tuple[Spread, Spread]:
    """CPU seconds of both, run in turn, after one run each that is not counted; compiled Python is kept below `bytecode`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    for command in (ours, peer):
        _cpu_seconds(command, environment)
    pairs = [(_cpu_seconds(ours, environment), _cpu_seconds(peer, environment)) for _ in range(rounds)]
    first, second = (spread(measured) for measured in zip(*pairs, strict=True))
    return first, second


def _cpu_seconds(command: Command, environment: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            command.words, cwd=command.folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise MeasureError(f"{command.words[0]} cannot be started ({error.strerror}); `make peers` installs the peers") from error
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode or command.says not in done.stdout:
        said = (done.stdout + done.stderr)[-1000:]
        raise MeasureError(f"{command.words[0]} ended with {done.returncode} and did not print `{command.says}`: {said}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def spread(seconds: Sequence[float]) -> Spread:
    """Median, lowest and highest."""
    return Spread(statistics.median(seconds), min(seconds), max(seconds))


def report(claims: Iterable[Claim], arguments: Sequence[str]) -> int:
    """Prints each claim as soon as it is measured, with --json as an object a line; 1 if one does not hold, 3 without a peer."""
    held = True
    try:
        for claim in claims:
            print(json.dumps(asdict(claim)) if "--json" in arguments else _line(claim), flush=True)
            held = held and claim.holds
    except MeasureError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 3
    return 0 if held else 1


def _line(claim: Claim) -> str:
    verdict = "holds" if claim.holds else "DOES NOT HOLD"
    return (
        f"{verdict}: {claim.claim}: {_seconds(claim.ours, claim.unit)}, goal {claim.bound} {claim.goal:g} {claim.goal_unit}; "
        f"{claim.peer_name}: {_seconds(claim.peer, claim.unit)}; ratio {claim.ratio:.2f} ({claim.conditions})"
    )


def _seconds(spread: Spread, unit: str) -> str:
    return f"{spread.median:.3f} {unit} ({spread.low:.3f} to {spread.high:.3f})"
