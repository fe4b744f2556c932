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


def test_a_module_runs_in_the_submission_folder_with_the_plans_values(here: Path) -> None:
    (here / "research").mkdir()
    (here / "research/train.py").write_text("import os, sys\nprint(os.getcwd(), sys.argv[1:], __package__)\n")
    file = job(here, ["research.train", "{world_size}", "{layout.dp_shard}", "a b"], module=True)
    done = headway("run", file, runs=here / "runs")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert printed(only_run(here / "runs"), rank) == f"{here} ['2', '2', 'a b'] research\n"


def test_a_failing_script_is_reported_and_its_log_has_the_traceback(here: Path) -> None:
    (here / "train.py").write_text("raise ValueError('no such layer')\n")
    done = headway("run", job(here, ["train.py"], "resilience: {restart: {budget: 0}}\n"), runs=here / "runs")
    assert done.returncode == 83
    assert "ValueError: no such layer" in done.stdout
    run = only_run(here / "runs")
    # The other rank may be ended before it gets as far.
    (failure,) = run.journal("failure")
    assert f'File "{here}/train.py", line 1, in <module>' in printed(run, failure["rank"])


def test_a_script_with_a_stop_request_may_save_and_its_run_resumes(here: Path) -> None:
    (here / "train.py").write_text(
        "import pathlib, signal, sys\n"
        "saved = pathlib.Path('saved')\n"
        "if saved.exists():\n"
        "    sys.exit(print('goes on'))\n"
        "def save(*_):\n"
        "    saved.touch()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready')\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    file = job(here, ["train.py"])
    with going("run", file, runs=here / "runs") as process:
        wait_until(lambda: any(here.glob("runs/*/handle.json")), "the run")
        run = only_run(here / "runs")
        logs = run.directory / "attempts/0/logs/0"
        wait_until(
            lambda: all((logs / f"{rank}.log").exists() and "ready" in printed(run, rank) for rank in (0, 1)), "the script"
        )
        process.terminate()
        assert process.wait() == 82
    assert (here / "saved").exists()
    resumed = headway("run", file, "--resume", run.directory.name, runs=here / "runs")
    assert resumed.returncode == 0, resumed.stderr
    assert (run.directory / "attempts/1/logs/0/1.log").read_text() == "goes on\n"
