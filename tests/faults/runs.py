"""Starts runs of `headway run` for tests, waits for them with a timeout, and reads them back."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.runner.lines import read_lines
from tests.support import LIGHT

if TYPE_CHECKING:
    from tests.support.commands import Command

LIMIT_S = 180
POLL_S = 0.02
JOB = Path(__file__).parent / "job.yaml"


@dataclass(frozen=True)
class Run:
    """A run's directory, as its files describe it."""

    directory: Path

    def journal(self, *kinds: str) -> list[dict[str, Any]]:
        """The journal's lines of these kinds, in order of generations."""
        lines = [line for path in sorted(self.directory.glob("shared/journal/*.jsonl")) for line, _ in read_lines(path)]
        return [line for line in lines if line["kind"] in kinds]

    def steps(self) -> list[int]:
        return [line["step"] for line, _ in read_lines(self.directory / "metrics.jsonl")]

    def hashes(self) -> dict[str, str]:
        """The run's final output."""
        found: dict[str, str] = self.journal("finished")[-1]["hashes"]
        return found

    @property
    def run_json(self) -> Path:
        """That of its first attempt."""
        return self.directory / "attempts/0/run.json"

    def verdict(self, attempt: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "attempts" / str(attempt) / "verdict.json").read_text())
        return found

    def checkpoints(self) -> list[Path]:
        return sorted((self.directory / "shared/checkpoints").glob("step-*"))


def headway(*words: str | Path, runs: Path, fork: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `headway WORDS` to its end, with its runs below `runs`.

    Without `fork` it is a new process, which imports everything: less than the process costs that others are forked from.
    """
    if not fork:
        argv = [sys.executable, "-m", "headway.cli.main", *map(str, words)]
        return subprocess.run(argv, env=_environment(runs), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    with going(*words, runs=runs) as command:
        out, err = command.communicate(LIMIT_S)
        return subprocess.CompletedProcess(words, command.wait(), out, err)


@contextmanager
def going(*words: str | Path, runs: Path) -> "Iterator[Command]":
    """Run `headway WORDS` in the background; end it when the block is left for any reason."""
    # It imports torch, which tests of real parts do without.
    from tests.support.commands import Command

    with Command(words, _environment(runs)) as command:
        yield command


def only_run(runs: Path) -> Run:
    (directory,) = (path.parent for path in runs.glob("*/handle.json"))
    return Run(directory)


def wait_until(ready: Callable[[], bool], what: str) -> None:
    """Poll until `ready()`. Raises TimeoutError after LIMIT_S."""
    until = time.monotonic() + LIMIT_S
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(POLL_S)


def wait_for_step(runs: Path, step: int) -> Run:
    """The only run below `runs`, once it has completed `step`."""
    wait_until(
        lambda: any(max(Run(path.parent).steps(), default=0) >= step for path in runs.glob("*/handle.json")), f"step {step}"
    )
    return only_run(runs)


def _environment(runs: Path) -> dict[str, str]:
    # Standbys import torch at the end of each run too, which takes longer than the run: a test that needs them sets it.
    return {"HEADWAY_STANDBY": "0", "PYTHONPATH": LIGHT, **os.environ, "HEADWAY_RUNS": str(runs)}


def one_rank(folder: Path, more: str = "") -> Path:
    """Write the job for one rank, followed by this text, next to its cluster; return its path."""
    (folder / "cluster.yaml").write_text((JOB.parent / "cluster.yaml").read_text().replace("procs: 2", "procs: 1"))
    (folder / "job.yaml").write_text(JOB.read_text().replace("keep: 3", "keep: 2") + more)
    return folder / "job.yaml"


def undisturbed_hashes(run_json: Path, folder: Path) -> dict[str, str]:
    """Return the final output of a job of the builtin trainer without any fault: its ranks train without saves, checks and restarts."""
    from tests.support.worlds import run_world

    ranks = json.loads(run_json.read_text())
    run_world("tests.support.ranks.undisturbed", ranks["slots"] * ranks["procs_per_slot"], run_json, folder)
    found: dict[str, str] = json.loads((folder / "hashes.json").read_text())
    return found
