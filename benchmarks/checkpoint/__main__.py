"""Prints each claim on checkpoints, with the figures of headway and its peer in the same run; exits with 1 if one does not hold."""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.checkpoint import planning, rounds, world
from benchmarks.checkpoint.inflation import Window
from benchmarks.checkpoint.ours import Behind
from benchmarks.claim import Claim, Spread, compared, report, spread, within

_DCP = f"torch.distributed.checkpoint {torch.__version__}"


def claims(count: int) -> Iterator[Claim]:
    """Yield what planning costs, then all that two ranks can show, in so many rounds each."""
    yield from _planning()
    tiers = _conditions(count, "tiers memory and shared")
    yield compared(
        "how long `save` blocks", _pair(rounds.blocked, count), "a copy of the same bytes into warm memory", 1.5, tiers
    )
    yield compared("a durable save, every byte hashed", _pair(rounds.durable, count), f"{_DCP}, save", 0.7, tiers)
    script = _conditions(count, "a script's dcp.save, durable; checksums included, which its next step makes")
    yield compared("a script's dcp.save and its checksums", _pair(rounds.recorded, count), f"{_DCP}, save", 1.3, script)
    peer = "the same through headway's format, HEADWAY_DCP=headway"
    yield compared("a script's dcp.save and its checksums", _pair(rounds.recorded_or_own, count), peer, 1.5, script)
    cached = _conditions(count, "files in the page cache")
    yield compared("a load, every byte verified", _pair(rounds.warm_load, count), f"{_DCP}, load", 1.2, cached)
    on_disk = _conditions(count, "files on disk, not in the page cache")
    peer = "the same load from disk"
    yield compared("a restore from shared memory, every byte verified", _pair(rounds.restore, count), peer, 0.5, on_disk)
    yield _inflation(world.behind(count), count)


def _inflation(found: dict[str, list[Window]], count: int) -> Claim:
    """Compare ours with the configuration of the peer that has the lowest median."""
    inflation = {way: spread([window.inflation_s for window in each]) for way, each in found.items()}
    ours = inflation.pop(Behind.name)
    best, *_, worst = sorted(inflation, key=lambda way: inflation[way].median)
    return compared(
        "how much longer the steps next to a save take until it is durable",
        (ours, inflation[best]),
        f"the best of {len(inflation)} configurations of {_DCP}, async_save: {best} (the worst, {worst}: "
        f"{inflation[worst].median:.3f} s)",
        0.5,
        _conditions(
            count, "a training step of FSDP2 and AdamW; waits before the optimizer's step included; tiers memory and shared"
        ),
    )


def _planning() -> Iterator[Claim]:
    command = [sys.executable, "-m", "benchmarks.checkpoint.planning"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[2]).stdout)
    (first, kept), (their_first, their_kept) = found["ours"], found["peer"]
    what = f"planning a save of {planning.TENSORS} tensors on {planning.RANKS} simulated ranks"
    conditions = f"one process with a fake process group; plans are not sent, {platform.python_version()}, {os.cpu_count()} CPUs"
    yield within(f"{what}, the first time", (spread([first]), spread([their_first])), f"{_DCP}, its global plan", 5.0, conditions)
    yield within(f"{what}, again", (spread(kept), spread(their_kept)), f"{_DCP}, plans cached", 0.1, conditions)


def _pair(measure: world.Measure, count: int) -> tuple[Spread, Spread]:
    one, other = world.pair(measure, count)
    return spread(one), spread(other)


def _conditions(count: int, more: str) -> str:
    at = tempfile.gettempdir()
    kind = next(
        (line.split()[2] for line in reversed(Path("/proc/mounts").read_text().splitlines()) if line.split()[1] == "/"), "?"
    )
    return (
        f"{count} rounds in turn, {world.RANKS} gloo ranks of one thread, 524 MB with AdamW's moments, {kind} at {at}, "
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs; {more}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each measurement; both sides take turns")
    parser.add_argument("--json", action="store_true", help="print one JSON object per claim")
    options = parser.parse_args()
    return report(claims(options.rounds), ["--json"] if options.json else [])


if __name__ == "__main__":
    sys.exit(main())
