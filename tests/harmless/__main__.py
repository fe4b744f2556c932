"""Compares a script under torchrun (twice) and under `headway torchrun` (once), each time in a sandbox.

    .venv/bin/python -m tests.harmless --nproc-per-node 2 --folder ~/examples/minGPT-ddp mingpt/main.py

Prints the differences and exits with 1 if there are any. Texts that also differ between two runs of torchrun (times, random
numbers) are compared without their digits, and are named. The sandbox has no network; `--folder` is copied into the working folder
first.
"""

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .harness import HEADWAY, TORCHRUN, File, Observation, Sandbox, Scenario, differences, of_headway, of_torchrun, why_not

# Parts of a random number, a time or a generated name: any word with a digit in it, and six capitals.
NUMBER = re.compile(r"-?\b(\w*\d\w*(\.\d+)?(e[+-]\d+)?|[A-Z]{6})\b")


def observe(scenario: Scenario, launcher: Sequence[str], data: Path | None) -> Observation:
    """One run under a launcher, in a fresh sandbox that has a copy of `data`."""
    more = ("--max-restarts", "0") if scenario.fails else ()
    with tempfile.TemporaryDirectory(prefix="harmless-") as folder:
        sandbox = Sandbox(Path(folder) / "sandbox")
        if data is not None:
            shutil.copytree(data, sandbox.folder / "work", symlinks=True, dirs_exist_ok=True)
        seen = sandbox.seen(sandbox.start(scenario.command(launcher, more), scenario.environment, scenario.stdin))
        return (of_headway if launcher == HEADWAY else of_torchrun)(seen, scenario)


def without_noise(first: Observation, second: Observation, ours: Observation) -> tuple[Observation, Observation, list[str]]:
    """`first` and `ours` without everything in which two runs of torchrun differ, and the names of it: texts lose their digits, and files
    whose names or bytes are random or timed are reduced to their names without digits."""
    texts = [name for name in ("out", "err") if getattr(first, name) != getattr(second, name)]
    names = {*first.files, *second.files}
    drawn = {NUMBER.sub("#", name) for name in names if first.files.get(name) != second.files.get(name)}
    by_chance = {name for name in drawn if not (_matching(first, name) and _matching(second, name))}

    def clean(seen: Observation) -> Observation:
        files = {name: file for name, file in seen.files.items() if NUMBER.sub("#", name) not in drawn}
        files |= {name: File("drawn", "") for name in drawn - by_chance if _matching(seen, name)}
        lines = {name: tuple(sorted(NUMBER.sub("#", line) for line in getattr(seen, name))) for name in texts}
        return replace(seen, files=files, **lines)  # type: ignore[arg-type]  # the two fields of lines

    return clean(first), clean(ours), sorted([*texts, *drawn])


def _matching(seen: Observation, name: str) -> list[str]:
    return [each for each in seen.files if NUMBER.sub("#", each) == name]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.harmless", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nproc-per-node", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="copied into the working folder")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for both")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("script")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if reason := why_not():
        print(f"this machine cannot hold a sandbox: {reason}", file=sys.stderr)
        return 2
    scenario = Scenario(
        given.script,
        ranks=given.nproc_per_node,
        flags=("-m",) if given.module else (),
        words=tuple(given.words),
        environment=dict(pair.split("=", 1) for pair in given.env),
        several=True,
    )
    first, second = (observe(scenario, TORCHRUN, given.folder) for _ in range(2))
    # Of a failing script the failure is compared, but not the restarts.
    ours = observe(replace(scenario, fails=first.code != 0), HEADWAY, given.folder)
    print(f"torchrun: exit code {first.code} after {first.took_s:.0f} s; headway: {ours.code} after {ours.took_s:.0f} s")
    if first.code != 0:
        print("\n".join(first.err[-20:]))
    torchrun, headway, noisy = without_noise(first, second, ours)
    if noisy:
        print(f"differ between two runs of torchrun too, compared without digits or bytes: {', '.join(noisy)}")
    found = differences(torchrun, headway)
    print("\n".join(found) if found else "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
