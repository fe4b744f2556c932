"""Tests `headway run` of a job whose trainer is a script: it restarts and resumes automatically, in the folder of its submission."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.faults.runs import Run, going, headway, only_run, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
JOB = Path("examples/own-script/job.yaml")
HEAD = "apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: case\ncluster: two-ranks-here\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a repository with the example in it."""
    shutil.copytree(ROOT / JOB.parent, tmp_path / JOB.parent)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(run: Run, rank: int = 0) -> str:
    return (run.directory / f"attempts/0/logs/0/{rank}.log").read_text()


def job(folder: Path, argv: list[str], more: str = "", module: bool = False) -> Path:
    """A job for the example's cluster that starts this script."""
    trainer = {"kind": "script", "options": {"argv": argv, "module": module}}
    path = folder / JOB.with_name("case.yaml")
    path.write_text(f"{HEAD}trainer: {json.dumps(trainer)}\n{more}")
    return path


@pytest.mark.variant
def test_the_example_loses_a_worker_and_ends_as_if_uninterrupted(here: Path) -> None:
    undisturbed = headway("run", JOB, runs=here / "runs")
    killed = headway("run", JOB, "--kill", "1@35", runs=here / "runs")
    assert (undisturbed.returncode, killed.returncode) == (0, 0), undisturbed.stderr + killed.stderr
    one, two = (Run(handle.parent) for handle in sorted(here.glob("runs/*-[12]/handle.json")))
    assert two.verdict()["verdict"] == "completed"
    (failure,) = two.journal("failure")
    assert (failure["cause"], failure["rank"]) == ("killed by SIGKILL", 1)
    (ending,) = re.findall("finished step 60 .*", printed(one))
    # A rank that lost its peer may have reported it before it was ended.
    resumed, last = (line for line in printed(two).splitlines() if line.startswith(("resumed", "finished")))
    assert re.fullmatch("resumed from step-[3-5]0", resumed)
    assert last == ending
    saved = {path.name for path in (two.directory / "own").iterdir()}
    assert saved == {f"step-{step}" for step in range(10, 61, 10)}
    assert two.journal("committed") == []


# Saves when it is asked to stop; started again, it fails. headway imports no torch ahead of a script that sets variables.
TRAIN = """
import os, pathlib, signal, sys
os.environ["SET"] = "1"
print(os.getcwd(), sys.argv[1:], __package__, flush=True)
saved = pathlib.Path("saved")
if saved.exists():
    raise ValueError("no such layer")
def save(*_):
    saved.touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_module_starts_as_planned_saves_at_a_stop_and_reports_failure(here: Path) -> None:
    (here / "research").mkdir()
    (here / "research/train.py").write_text(TRAIN)
    argv = ["research.train", "{world_size}", "{layout.dp_shard}", "a b"]
    file = job(here, argv, "resilience: {restart: {budget: 0}}\n", module=True)
    with going("run", file, runs=here / "runs") as process:
        wait_until(lambda: any(here.glob("runs/*/handle.json")), "the run")
        run = only_run(here / "runs")
        logs = run.directory / "attempts/0/logs/0"
        wait_until(
            lambda: all((logs / f"{rank}.log").exists() and "ready" in printed(run, rank) for rank in (0, 1)), "the script"
        )
        process.terminate()
        assert process.wait() == 82
    for rank in (0, 1):
        assert printed(run, rank) == f"{here} ['2', '2', 'a b'] research\nready\n"
    assert (here / "saved").exists()
    resumed = headway("run", file, "--resume", run.directory.name, runs=here / "runs")
    assert resumed.returncode == 83
    assert "ValueError: no such layer" in resumed.stdout
    # The other rank may be ended before it gets as far.
    (failure,) = run.journal("failure")
    log = (run.directory / f"attempts/1/logs/0/{failure['rank']}.log").read_text()
    assert f'File "{here}/research/train.py", line ' in log
    assert "in <module>" in log
