"""`headway submit` and `headway status` of a sweep, and of a run whose runner never started, with stand-ins for Slurm's clients."""

import json
import os
from pathlib import Path

import pytest

from headway.cli.main import main

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm, options: {partition: main}}
node_groups: [{name: cpu, count: 2, cpus: 1}]
storage: [{name: runs, kind: posix, path: runs, shared: true}]
"""
SWEEP = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: lr
cluster: lab
run: [train.py, "--seed={seed}"]
sweep: {grid: {seed: [1, 2, 3]}}
"""
# A queue in a file, which lists each job as pending.
SBATCH = """\
#!/bin/sh
case $* in *--test-only*) echo 'sbatch: Job 1 to start now' >&2; exit ;; esac
[ ! -e full ] || { echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1; }
number=$(($(cat queue 2>/dev/null | wc -l) + 1))
for each; do
  case $each in --job-name=*) name=${each#*=} ;; --comment=*) place=${each#*=} ;; esac
done
echo "$number|alice|PENDING|Priority||$name|$place" >>queue
echo "$number"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the working folder, with the documents and the clients."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": "#!/bin/sh\ncat queue\n", "sacct": "#!/bin/sh\nexit 1\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    (tmp_path / "queue").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.delenv("HEADWAY_CLUSTER", raising=False)
    monkeypatch.delenv("HEADWAY_RUNS", raising=False)
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[tuple[str, str, str | None]]:
    """Return name, state and job of each run."""
    capsys.readouterr()
    assert main(["status", *words, "--json"]) == 0
    return [(run["run"], run["state"], run["scheduler_job"]) for run in json.loads(capsys.readouterr().out)]


def test_sweep_is_submitted_once_and_lists_each_of_its_points(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "sweep.yaml") == [(f"lr-seed-{seed}", "not submitted", None) for seed in (1, 2, 3)]
    assert main(["submit", "sweep.yaml"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert [name.rpartition("-")[0].rpartition("-")[0] for name in names] == ["lr-seed-1", "lr-seed-2", "lr-seed-3"]
    assert listed(capsys, "sweep.yaml") == [(name, "pending", str(number)) for number, name in enumerate(names, 1)]
    # The second time, each run has its job.
    assert main(["submit", "sweep.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == names
    assert (folder / "queue").read_text().count("\n") == 3
    assert main(["status", "sweep.yaml", "--once"]) == 0
    assert "3 pending" in capsys.readouterr().out
    # A run of another job is not listed.
    (folder / "runs/other-0123abcd-1/attempts/0").mkdir(parents=True)
    assert [name for name, _, _ in listed(capsys, "sweep.yaml")] == names


def test_sweep_with_a_rejected_run_is_completed_by_the_same_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "full").touch()
    assert main(["submit", "sweep.yaml"]) == 1
    assert "QOSMaxSubmitJobPerUserLimit" in capsys.readouterr().err
    (folder / "full").unlink()
    assert main(["submit", "sweep.yaml"]) == 0
    assert [state for _, state, _ in listed(capsys, "sweep.yaml")] == ["pending"] * 3


def test_sweep_cannot_be_resumed_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "sweep.yaml", "--resume", "lr-seed-1-01234567-1"]) == 1
    assert "is a sweep of 3 runs; `headway resume RUN` continues one of them" in capsys.readouterr().err


def test_run_whose_runner_never_started_is_listed_with_its_cause(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = folder / "runs/case-0123abcd-7/attempts/2"
    attempt.mkdir(parents=True)
    (attempt / "job").write_text("7\n")
    (folder / "queue").write_text("7|alice|RUNNING|None|n1|case|\n")
    assert listed(capsys, "--cluster", "cluster.yaml") == [("case-0123abcd-7", "starting", "7")]
    # The batch script has held the job after three such attempts.
    verdict = {"run": "case-0123abcd-7", "attempt": 2, "generation": 0, "verdict": "stop", "cause": "no runner", "exit_code": 83}
    (attempt / "verdict.json").write_text(json.dumps({"schema": "headway.verdict/1", **verdict}))
    (folder / "queue").write_text("7|alice|PENDING|job requeued in held state||case|\n")
    assert listed(capsys, "case-0123abcd-7", "--cluster", "cluster.yaml") == [("case-0123abcd-7", "held", "7")]
    (folder / "queue").write_text("")
    assert listed(capsys, "case-0123abcd-7", "--cluster", "cluster.yaml") == [("case-0123abcd-7", "stopped", None)]
    assert main(["status", "case-0123abcd-7", "--cluster", "cluster.yaml", "--once"]) == 0
    assert "no runner" in capsys.readouterr().out
