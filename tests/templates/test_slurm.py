"""The batch script: what it asks Slurm for, and what it does with each verdict, run against a stand-in of Slurm's commands."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from headway.cli.documents import load_job_plan

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler:
  kind: slurm
  options: {partition: main, account: research, qos: high, exclusive: true, setup: ["export FROM_SETUP='a b'", "true"]}
nodes: [{group: cpu, count: 2, cpus: 4, procs: 2}]
storage: [{name: runs, kind: posix, path: "runs of 'lab'", shared: true}]
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: lab
nodes: 2
model: {vocab_size: 256, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn_hidden: 176}
data: {kind: files, options: {paths: ["it's/*.txt"]}}
batch: {global: 16, micro: 2, sequence: 128}
optimizer: {lr: 0.003}
steps: 100
checkpoint: {tiers: [{kind: disk, every_steps: 10}]}
time_limit: 01:30:00
grace_s: 12.5
"""

SRUN = "srun --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 --kill-on-bad-exit=0"

# Each command writes down how it was called; python3 answers as headway.runner.rundir does.
RECORD = '#!/bin/bash\nprintf "%s\\n" "${0##*/} $*" >>"$CALLS"\n'
COMMANDS = {
    "scontrol": 'if [[ $1 = show ]]; then printf "n1\\nn2\\n"; fi\nif [[ $1 = requeue ]]; then exit "${REQUEUE:-0}"; fi\n',
    "srun": 'echo "nodes=$HEADWAY_NODES setup=$FROM_SETUP" >>"$CALLS"\nexit "$CODE"\n',
    "python3": """case $3 in
open) cat >"$STDIN"; printf '%s\\n' "$4/run.json" ;;
exit-code) echo "${VERDICT:-$6}" ;;
suspects) echo "$SUSPECTS" ;;
esac
""",
}


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB)
    planned = load_job_plan(tmp_path / "job.yaml")
    assert planned is not None
    (text,) = [text for path, text in planned.files().items() if path.suffix == ".sbatch"]
    return text


def run(script: str, folder: Path, **variables: str) -> tuple[int, list[str]]:
    """The script's exit code and the commands that it ran."""
    tools = folder / "tools"
    tools.mkdir()
    for name, body in COMMANDS.items():
        (tools / name).write_text(RECORD + body)
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(folder / "calls"), "STDIN": str(folder / "stdin")}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SUSPECTS": "", "CODE": "0", **variables}
    result = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    return result.returncode, (folder / "calls").read_text().splitlines()


def test_directives_stand_before_any_command_and_leave_tasks_to_srun(script: str) -> None:
    head = script.partition("set -euo pipefail")[0].splitlines()
    assert all(line.startswith("#") for line in head)
    directives = [line.removeprefix("#SBATCH --") for line in head if line.startswith("#SBATCH")]
    assert directives == [
        "job-name=case",
        "nodes=2",
        "cpus-per-task=4",
        "partition=main",
        "account=research",
        "qos=high",
        "exclusive",
        "time=01:30:00",
        "requeue",
        "open-mode=append",
        "output=%x-%j.out",
        "signal=TERM@43",
    ]
    assert "gpus" not in script
    assert script.count("--ntasks-per-node") == 2


def test_a_run_opens_its_directory_in_the_storage_and_starts_one_runner_a_node(script: str, tmp_path: Path) -> None:
    code, calls = run(script, tmp_path)
    assert code == 0
    assert [re.sub(r"case-[0-9a-f]{8}-", "case-HASH-", call) for call in calls] == [
        "scontrol show hostnames n[1-2]",
        "python3 -m headway.runner.rundir open runs of 'lab' case-HASH-7 --attempt 0",
        f"{SRUN} python3 -m headway.runner runs of 'lab'/run.json --attempt 0",
        "nodes=n1,n2 setup=a b",
        "python3 -m headway.runner.rundir exit-code runs of 'lab'/run.json --or 0",
    ]
    assert "it's/*.txt" in (tmp_path / "stdin").read_text()


def test_a_requeued_run_is_the_next_attempt_and_may_lie_elsewhere(script: str, tmp_path: Path) -> None:
    _, calls = run(script, tmp_path, SLURM_RESTART_COUNT="3", HEADWAY_RUNS="/else where")
    assert calls[1].startswith("python3 -m headway.runner.rundir open /else where case-")
    assert calls[1].endswith("-7 --attempt 3")
    assert calls[2].endswith("python3 -m headway.runner /else where/run.json --attempt 3")


@pytest.mark.parametrize(
    ("code", "verdict", "suspects", "ends", "does"),
    [
        ("0", "", "", 0, []),
        ("1", "", "", 1, []),
        ("1", "0", "", 0, []),
        ("0", "83", "", 83, []),
        ("84", "", "", 84, []),
        ("85", "", "", 85, []),
        ("137", "80", "", 80, ["requeue 7"]),
        ("82", "", "", 82, ["requeue 7"]),
        ("81", "", "", 81, ["requeue 7"]),
        ("1", "81", "n2", 81, ["requeue 7", "update jobid=7 excnodelist=n2"]),
    ],
)
def test_the_verdict_decides_what_slurm_is_told(
    script: str, tmp_path: Path, *, code: str, verdict: str, suspects: str, ends: int, does: list[str]
) -> None:
    ended, calls = run(script, tmp_path, CODE=code, SUSPECTS=suspects, **({"VERDICT": verdict} if verdict else {}))
    assert ended == ends
    assert [call.removeprefix("scontrol ") for call in calls if call.startswith("scontrol ")][1:] == does


@pytest.mark.parametrize("verdict", ["80", "81"])
def test_a_refused_requeue_keeps_the_verdict_as_exit_code(script: str, tmp_path: Path, verdict: str) -> None:
    code, calls = run(script, tmp_path, CODE="1", VERDICT=verdict, SUSPECTS="n2", REQUEUE="1")
    assert code == int(verdict)
    assert not [call for call in calls if "excnodelist" in call]
