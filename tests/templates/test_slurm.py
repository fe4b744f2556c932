"""The batch script: its requests to Slurm and its reaction to each verdict, with stand-ins for Slurm's commands."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.cli.documents import load_job_plan
from headway.compile import compile_documents
from headway.jobspec.problem import Problem
from headway.runner.contract import RunDirectory, Verdict, read_verdict
from headway.runner.notify import Notice
from headway.runner.rundir import open_submitted
from headway.templates.schedulers.slurm.pyxis import image_for_enroot

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler:
  kind: slurm
  options: {partition: main, account: research, qos: high, exclusive: true, setup: ["export FROM_SETUP='a b'", "true"]}
node_groups: [{name: cpu, count: 2, cpus: 4, procs: 2}]
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
batch: {global: 16 sequences, micro: 2, sequence: 128}
optimizer: {lr: 0.003}
steps: 100
checkpoint: {tiers: [{kind: shared, every: 10 steps}]}
limits: {attempt: {time: "1:30:00"}}
resilience: {grace: 12.5s}
"""

SRUN = (
    "srun --job-name=runner --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 --kill-on-bad-exit=0 --export=ALL --mpi=none"
    " --cpu-bind=none"
)

# Each command records its arguments; srun writes the verdict and the excluded nodes, like the runner.
RECORD = '#!/bin/bash\nprintf "%s\\n" "${0##*/} $*" >>"$CALLS"\n'
COMMANDS = {
    "scontrol": """case $* in
"show hostnames n8") echo n8 ;;
"show hostnames n[3,8]") printf "n3\\nn8\\n" ;;
"show hostnames"*) printf "n1\\nn2\\n" ;;
*"show job"*) echo "JobId=7 $JOB Restarts=${RESTARTS-${SLURM_RESTART_COUNT:-0}} " ;;
requeue*)
  # slurmctld is away for the first tries.
  if (($(grep -c requeue "$CALLS") <= ${AWAY:-0})); then exit 1; fi
  exit "${REQUEUE:-0}"
  ;;
ping) if (($(grep -c requeue "$CALLS") <= ${AWAY:-0})); then echo "Slurmctld(primary) at a is DOWN"; else echo "is UP"; fi ;;
esac
""",
    # The script waits for the verdict, and then for srun, in the background, where it must not keep a pipe of the test open.
    "sleep": "exec >/dev/null 2>&1\ncase $1 in 5) exec /bin/sleep 0.02 ;; 43) exec /bin/sleep 2 ;; esac\n",
    "curl": 'cat >"${CALLS%/*}/curl.config"\n',
    "srun": """echo "nodes=$HEADWAY_NODES setup=$FROM_SETUP" >>"$CALLS"
run_json=$(printf '%s\\n' "$@" | grep /run.json)
attempt=${run_json%/*}
if [[ -n $SUSPECTS ]]; then echo "$SUSPECTS" >"$attempt/exclude"; fi
if [[ -v STARTS ]]; then mkdir "$attempt/nodes" && touch "$attempt/nodes/0.json"; fi
if [[ -v VERDICT ]]; then printf '{\\n  "exit_code": %d,\\n  "step": 7\\n}\\n' "$VERDICT" >"$attempt/verdict.json"; fi
exit "$CODE"
""",
    "squeue": 'case $* in *--jobs=8*) echo RUNNING ;; *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;; esac\n',
    "python3": '[[ ! -v OPEN ]] || exit "$OPEN"\n',
}


@pytest.fixture
def script(tmp_path: Path) -> str:
    return rendered(tmp_path)


def rendered(folder: Path, more: str = "", options: str = "", runs: str = "runs of 'lab'") -> str:
    """Return the script of the job with more fields, on the cluster with more options of Slurm."""
    cluster = CLUSTER.replace("{partition: main", f"{{{options}partition: main").replace("runs of 'lab'", runs)
    (folder / "cluster.yaml").write_text(cluster)
    (folder / "job.yaml").write_text(JOB + more)
    planned = load_job_plan(folder / "job.yaml")
    assert planned is not None
    (text,) = [text for path, text in planned.files().items() if path.suffix == ".sbatch"]
    return text


def problems(folder: Path, more: str = "", options: str = "", runs: str = "runs of 'lab'") -> list[tuple[str, str]]:
    """Return codes and messages of the same job."""
    cluster = CLUSTER.replace("{partition: main", f"{{{options}partition: main").replace("runs of 'lab'", runs)
    (folder / "cluster.yaml").write_text(cluster)
    (folder / "job.yaml").write_text(JOB + more)
    return [(problem.code, problem.message) for problem in found(folder)]


def found(folder: Path) -> list[Problem]:
    """Return the problems of the folder's job."""
    return list(compile_documents([folder / "job.yaml"]).problems)


def run(script: str, folder: Path, **variables: str) -> tuple[int, list[str]]:
    """Return the script's exit code and the commands that it ran."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name, body in COMMANDS.items():
        if not (tools / name).exists():
            _stand_in(folder, name, body)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(folder / "calls")}
    environment |= {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURMD_NODENAME": "n1",
        "SUSPECTS": "",
        "CODE": "0",
        **_of_sbatch(script),
        **variables,
    }
    (folder / "job.sbatch").write_text(script)
    (folder / "calls").touch()
    result = subprocess.run(["dash", "job.sbatch"], env=environment, capture_output=True, text=True, check=False, cwd=folder)
    (folder / "printed").write_text(result.stderr)
    calls = (folder / "calls").read_text().splitlines()
    return result.returncode, [call for call in calls if call not in ("sleep 5", "sleep 43")]


def _of_sbatch(script: str) -> dict[str, str]:
    """Return the variables in which sbatch passes the values of a script's directives."""
    variables = {"nodes": "SLURM_JOB_NUM_NODES", "cpus-per-task": "SLURM_CPUS_PER_TASK"}
    asked = dict(each.removeprefix("--").split("=", 1) for each in directives(script) if "=" in each)
    return {variable: asked[name] for name, variable in variables.items()}


def test_directives_precede_all_commands_and_leave_tasks_to_srun(script: str) -> None:
    head = script.partition("set -eu\n")[0].splitlines()
    assert all(line.startswith("#") for line in head)
    directives = [line.removeprefix("#SBATCH --") for line in head if line.startswith("#SBATCH")]
    assert directives == [
        "job-name=case",
        "nodes=2",
        "cpus-per-task=4",
        "mem=0",
        "partition=main",
        "account=research",
        "qos=high",
        "exclusive",
        "time=1:30:00",
        "requeue",
        "open-mode=append",
        "output=%x-%j.out",
        "signal=TERM@43",
    ]
    assert not [each for each in directives if "gpus" in each]
    assert script.count("--ntasks-per-node") == 2


def without_hash(text: str) -> str:
    return re.sub(r"case-[0-9a-f]{8}-", "case-HASH-", text)


def test_run_opens_its_directory_and_starts_one_runner_per_node(script: str, tmp_path: Path) -> None:
    code, calls = run(script, tmp_path)
    assert code == 0
    attempt = f"{tmp_path}/runs of 'lab'/case-HASH-7/attempts/0"
    assert [without_hash(call) for call in calls] == [
        "scontrol show hostnames n[1-2]",
        "python3 -m headway.runner.rundir --help",
        f"{SRUN} --chdir={tmp_path} python3 -m headway.runner {attempt}/run.json --attempt 0 --open",
        "nodes=n1,n2 setup=a b",
    ]
    (folder,) = tmp_path.glob("runs of 'lab'/*/attempts/0")
    assert {path.name for path in folder.iterdir()} == {"submitted", "job", "hosts", "job.sbatch"}
    assert ((folder / "job").read_text(), (folder / "hosts").read_text()) == ("7\n", "n1\nn2\n")
    assert (folder / "job.sbatch").read_text() == script


def test_attempt_is_opened_with_its_configuration_and_the_full_spec(script: str, tmp_path: Path) -> None:
    run(script, tmp_path)
    (folder,) = tmp_path.glob("runs of 'lab'/*")
    directory = RunDirectory(folder)
    open_submitted(directory)
    opened = json.loads(directory.run_json.read_text())
    assert opened["data"]["options"]["paths"] == ["it's/*.txt"]
    assert (opened["run"], opened["store"]["url"]) == (folder.name, str(directory.shared))
    planned = load_job_plan(tmp_path / "job.yaml")
    assert planned is not None
    assert json.loads(directory.spec.read_text()) == planned.plan.kept_spec
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    open_submitted(directory)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_requeued_run_is_the_next_attempt_in_any_directory(script: str, tmp_path: Path) -> None:
    _, calls = run(script, tmp_path, SLURM_RESTART_COUNT="3", HEADWAY_RUNS=str(tmp_path / "else where"))
    (call,) = (without_hash(call) for call in calls if call.startswith("srun --job-name=runner"))
    assert call.endswith(f"headway.runner {tmp_path}/else where/case-HASH-7/attempts/3/run.json --attempt 3 --open")


@pytest.mark.parametrize(("restarts", "skipped"), [("0", 0), ("3", 3), ("4", 0), ("9", 1)])
def test_runner_step_has_a_number_that_no_earlier_attempt_used(script: str, restarts: str, skipped: int, tmp_path: Path) -> None:
    _, calls = run(script, tmp_path, SLURM_RESTART_COUNT=restarts)
    steps = [call.split()[1] for call in calls if call.startswith("srun ")]
    assert steps == [*["--job-name=skip"] * skipped, "--job-name=runner"]


@pytest.mark.parametrize("verdict", ["80", "81", "82"])
def test_script_does_nothing_if_slurm_has_already_requeued_the_job(script: str, verdict: str, tmp_path: Path) -> None:
    known = {"SLURM_RESTART_COUNT": "1", "CODE": "1", "VERDICT": verdict, "SUSPECTS": "n2"}
    code, calls = run(script, tmp_path, RESTARTS="2", **known)
    assert code == int(verdict)
    assert not [call for call in calls if call.startswith(("scontrol requeue", "scontrol update"))]
    assert "Slurm has already requeued job 7" in (tmp_path / "printed").read_text()


def test_script_does_not_requeue_without_the_restart_count_of_slurm(script: str, tmp_path: Path) -> None:
    code, calls = run(script, tmp_path, RESTARTS="", CODE="1", VERDICT="82")
    assert code == 82
    assert "scontrol requeue 7" not in calls
    assert calls.count("sleep 30") == 60


def earlier(folder: Path, attempt: int, **files: str) -> Path:
    """Leave an earlier attempt of the run `old` in the folder of the runs, with these files."""
    path = folder / f"runs of 'lab'/old/attempts/{attempt}"
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(f"{text}\n")
    return path


def test_run_is_resumed_by_its_name(script: str, tmp_path: Path) -> None:
    earlier(tmp_path, 4, job="6")
    _, calls = run(script, tmp_path, SLURM_RESTART_COUNT="3", HEADWAY_RUN="old")
    assert calls[-2].endswith("/runs of 'lab'/old/attempts/5/run.json --attempt 5 --open")


@pytest.mark.parametrize(
    ("job", "why"),
    [("8", "its job 8 is RUNNING; wait for its end, or cancel it: scancel 8"), ("", "there is no such run in runs of 'lab'")],
)
def test_run_of_another_job_or_missing_run_is_not_resumed(job: str, why: str, script: str, tmp_path: Path) -> None:
    if job:
        earlier(tmp_path, 0, job=job)
    code, calls = run(script, tmp_path, HEADWAY_RUN="old")
    assert code == 75
    assert (tmp_path / "printed").read_text() == f"run `old` cannot be resumed: {why}\n"
    assert not [call for call in calls if call.startswith(("srun", "scontrol requeue", "scontrol update"))]


@pytest.mark.parametrize(
    ("outcome", "code"), [(None, 0), ("job 7", 0), ("void no job of it was listed within 30 s", 75), ("job 6", 75)]
)
def test_job_records_itself_in_its_submission_and_a_late_one_is_refused(
    script: str, outcome: str | None, code: int, tmp_path: Path
) -> None:
    submission = tmp_path / "runs" / "old" / "submissions" / "1"
    submission.mkdir(parents=True)
    if outcome is not None:
        (submission / "outcome").write_text(f"{outcome}\n")
    known = {"HEADWAY_RUNS": "runs", "HEADWAY_RUN": "old", "HEADWAY_SUBMISSION": "1"}
    assert run(script, tmp_path, **known)[0] == code
    assert (submission / "outcome").read_text() == f"{outcome or 'job 7'}\n"
    assert [path.name for path in submission.iterdir()] == ["outcome"]
    if code:
        assert f"its submission 1 has no such job: {outcome}" in (tmp_path / "printed").read_text()
        assert not (tmp_path / "runs" / "old" / "attempts").exists()


@pytest.mark.parametrize(
    ("code", "verdict", "suspects", "ends", "does"),
    [
        ("0", "", "", 0, []),
        ("1", "", "", 81, ["requeue 7"]),
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
def test_verdict_decides_on_requeue_and_excluded_nodes(
    script: str, tmp_path: Path, *, code: str, verdict: str, suspects: str, ends: int, does: list[str]
) -> None:
    ended, calls = run(script, tmp_path, CODE=code, SUSPECTS=suspects, **({"VERDICT": verdict} if verdict else {}))
    assert ended == ends
    done = [call.removeprefix("scontrol ") for call in calls if call.startswith("scontrol ") and "show" not in call]
    assert done == does


@pytest.mark.parametrize("verdict", ["80", "81"])
def test_rejected_requeue_keeps_the_verdict_as_exit_code(script: str, tmp_path: Path, verdict: str) -> None:
    code, calls = run(script, tmp_path, CODE="1", VERDICT=verdict, SUSPECTS="n2", REQUEUE="1")
    assert code == int(verdict)
    assert not [call for call in calls if "excnodelist" in call]


@pytest.mark.parametrize(
    ("restarts", "job", "does"),
    [
        ("0", "Comment= ExcNodeList=(null)", ["requeue 7", "update jobid=7 excnodelist=n1", "comment=headway:not-opened:0:n1"]),
        ("4", "ExcNodeList=n8", ["requeue 7", "update jobid=7 excnodelist=n1,n8", "comment=headway:not-opened:4:n1"]),
        (
            "2",
            "ExcNodeList=n[3,8] Comment=headway:not-opened:1:n3",
            ["requeue 7", "update jobid=7 excnodelist=n1,n8", "comment=headway:not-opened:2:n3,n1"],
        ),
        # An attempt that was opened is between them.
        (
            "5",
            "Comment=headway:not-opened:3:n2,n3",
            ["requeue 7", "update jobid=7 excnodelist=n1", "comment=headway:not-opened:5:n1"],
        ),
        ("3", "Comment=headway:not-opened:2:n2,n3", ["requeuehold 7"]),
    ],
)
@pytest.mark.parametrize("fault", ["setup", "open"])
def test_host_that_cannot_open_the_attempt_is_excluded_the_third_holds(
    fault: str, restarts: str, job: str, does: list[str], tmp_path: Path
) -> None:
    script = (
        rendered(tmp_path).replace("export FROM_SETUP", "false; export FROM_SETUP") if fault == "setup" else rendered(tmp_path)
    )
    code, calls = run(script, tmp_path, SLURM_RESTART_COUNT=restarts, JOB=job, **({"OPEN": "1"} if fault == "open" else {}))
    assert code == 1
    done = [call.removeprefix("scontrol ") for call in calls if call.startswith("scontrol ") and "show" not in call]
    assert [call.removeprefix("update jobid=7 ") if "comment" in call else call for call in done] == does


@pytest.mark.parametrize("runs", ["runs", "{}/runs"])
def test_comment_with_the_count_of_attempts_keeps_the_submission(runs: str, tmp_path: Path) -> None:
    script = rendered(tmp_path).replace("export FROM_SETUP", "false; export FROM_SETUP")
    place = f"{tmp_path}/runs/old/submissions/1"
    known = {
        "HEADWAY_RUNS": runs.format(tmp_path),
        "HEADWAY_RUN": "old",
        "HEADWAY_SUBMISSION": "1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    run(script, tmp_path, SLURM_RESTART_COUNT="0", JOB=f"Comment={place}", **known)
    _, calls = run(script, tmp_path, SLURM_RESTART_COUNT="1", JOB=f"Comment={place} headway:not-opened:0:n3", **known)
    comments = [call.partition("comment=")[2] for call in calls if "comment=" in call]
    assert comments == [f"{place} headway:not-opened:0:n1", f"{place} headway:not-opened:1:n3,n1"]


@pytest.mark.parametrize("taken", [True, False])
def test_attempt_of_another_script_or_a_signal_excludes_no_host(script: str, taken: bool, tmp_path: Path) -> None:
    if taken:
        stem = re.findall(r"run=(case-[0-9a-f]{8})-", script)[0]
        (tmp_path / f"runs of 'lab'/{stem}-7/attempts/0").mkdir(parents=True)
    ended, calls = run(script, tmp_path, **({} if taken else {"OPEN": "143"}))
    assert ended == (75 if taken else 143)
    assert not [call for call in calls if "requeue" in call or "update" in call]


def test_three_attempts_that_do_not_start_hold_the_job_with_a_verdict(tmp_path: Path) -> None:
    # As in a run whose first attempt started.
    script = with_resilience(tmp_path, "notify: {webhook_env: RUN_WEBHOOK}", nodes=2)
    (earlier(tmp_path, 0) / "nodes").mkdir()
    (tmp_path / "runs of 'lab'/old/attempts/0/nodes/1.json").touch()
    ends = []
    for attempt in (1, 2, 3):
        shutil.rmtree(tmp_path / "tools", ignore_errors=True)
        (tmp_path / "calls").unlink(missing_ok=True)
        code, calls = run(script, tmp_path, HEADWAY_RUN="old", CODE="1", RUN_WEBHOOK="https://alerts.example.com/7")
        ends.append((code, [call.removeprefix("scontrol ") for call in calls if call.startswith("scontrol re")]))
        assert RunDirectory(tmp_path / "runs of 'lab'/old", attempt).attempt_directory.is_dir()
    assert ends == [(81, ["requeue 7"]), (81, ["requeue 7"]), (83, ["requeuehold 7"])]
    verdict = read_verdict(RunDirectory(tmp_path / "runs of 'lab'/old", 3))
    cause = "3 attempts in a row ended before the runner of any node had started, the last with exit code 1"
    assert verdict == Verdict("old", 3, 0, "stop", cause, 83)
    # One notice; its address is not on a command line.
    (notice,) = (call for call in calls if call.startswith("curl "))
    body = json.loads(notice.partition(" --data ")[2])
    assert Notice(**body) == Notice(**{**body, "cause": cause, "attempt": 3, "run": "old", "kind": "stop"})
    assert "alerts" not in notice
    assert (tmp_path / "curl.config").read_text() == 'url = "https://alerts.example.com/7"\n'


FRUITLESS = "5 attempts in a row started and ended without progress"
RETRY = '{\n  "exit_code": 81\n}'


def lost(folder: Path, attempt: int, *, job: str = "7", started: bool = True, **files: str) -> None:
    """Leave an earlier attempt of the run `old` that ended without a verdict."""
    path = earlier(folder, attempt, job=job, **files)
    (path / "nodes").mkdir()
    if started:
        (path / "nodes/1.json").touch()


def held(folder: Path, script: str, **variables: str) -> tuple[bool, str | None, bool]:
    """Return whether the next attempt of the run `old` holds the job, the cause in its verdict, and whether it started the runner."""
    code, calls = run(script, folder, HEADWAY_RUN="old", RUN_WEBHOOK="https://alerts.example.com/7", **variables)
    holds = "scontrol requeuehold 7" in calls
    newest = max(int(path.name) for path in folder.glob("runs of 'lab'/old/attempts/*"))
    verdict = read_verdict(RunDirectory(folder / "runs of 'lab'/old", newest))
    assert (code == 83, sum(call.startswith("curl ") for call in calls)) == (holds, int(holds))
    return holds, verdict.cause if verdict else None, any(call.startswith("srun --job-name=runner") for call in calls)


@pytest.fixture
def notifying(tmp_path: Path) -> str:
    return with_resilience(tmp_path, "notify: {webhook_env: RUN_WEBHOOK}", nodes=2)


def test_fifth_attempt_without_a_verdict_holds_the_job_until_released(notifying: str, tmp_path: Path) -> None:
    for attempt in range(4):
        lost(tmp_path, attempt)
    dies = {"CODE": "137", "STARTS": "", "HEADWAY_RUN": "old"}
    assert held(tmp_path, notifying, CODE="137", STARTS="") == (True, f"{FRUITLESS}, the last with exit code 137", True)
    (tmp_path / "calls").unlink()
    # After a release, the verdict of the hold resets the count.
    code, calls = run(notifying, tmp_path, **dies)
    assert (code, "scontrol requeue 7" in calls) == (81, True)


def test_job_requeued_after_five_such_attempts_is_held_before_it_starts(notifying: str, tmp_path: Path) -> None:
    for attempt in range(5):
        lost(tmp_path, attempt)
    assert held(tmp_path, notifying) == (True, FRUITLESS, False)


def test_attempts_that_never_started_neither_count_nor_reset_the_count(notifying: str, tmp_path: Path) -> None:
    for attempt in range(7):
        lost(tmp_path, attempt, started=attempt not in (2, 6))
    assert held(tmp_path, notifying) == (True, FRUITLESS, False)


def test_retry_verdicts_count_unless_they_exclude_another_host(notifying: str, tmp_path: Path) -> None:
    for attempt in range(5):
        lost(tmp_path, attempt)
        if attempt != 2:
            folder = tmp_path / f"runs of 'lab'/old/attempts/{attempt}"
            (folder / "exclude").write_text("n9\n")
            (folder / "verdict.json").write_text(RETRY)
    assert held(tmp_path, notifying, CODE="137", STARTS="") == (True, f"{FRUITLESS}, the last with exit code 137", True)


@pytest.mark.parametrize(
    "fourth",
    [
        {"excused": "step 10 is committed"},
        {"verdict.json": RETRY.replace("81", "82")},
        {"verdict.json": RETRY, "exclude": "n9"},
        # An attempt of the run's earlier job: its owner has submitted the run again.
        {"job": "6"},
        {"started": False},
    ],
)
@pytest.mark.parametrize("starts", [True, False])
def test_run_with_progress_or_a_known_reason_is_not_held(
    fourth: dict[str, Any], starts: bool, notifying: str, tmp_path: Path
) -> None:
    for attempt in range(5 - starts):
        lost(tmp_path, attempt, **(fourth if attempt == 3 else {}))
    ends = {"CODE": "137", "STARTS": ""} if starts else {}
    assert held(tmp_path, notifying, **ends) == (False, None, True)


def test_preemption_of_the_fifth_attempt_does_not_hold_the_job(notifying: str, tmp_path: Path) -> None:
    for attempt in range(4):
        lost(tmp_path, attempt)
    assert held(tmp_path, notifying, CODE="82", STARTS="")[0] is False


def test_hosts_excluded_by_an_earlier_verdict_stay_excluded(script: str, tmp_path: Path) -> None:
    earlier(tmp_path, 0, exclude="n8")
    earlier(tmp_path, 1, exclude="n3,n8")
    (earlier(tmp_path, 2) / "nodes").mkdir()
    (tmp_path / "runs of 'lab'/old/attempts/2/nodes/0.json").touch()
    _, calls = run(script, tmp_path, HEADWAY_RUN="old", CODE="137")
    assert calls[-1] == "scontrol update jobid=7 excnodelist=n3,n8"


def test_verdict_waits_for_a_restarting_slurmctld(script: str, tmp_path: Path) -> None:
    code, calls = run(script, tmp_path, CODE="1", VERDICT="81", SUSPECTS="n2", AWAY="2")
    assert code == 81
    done = [call for call in calls if call.startswith(("scontrol", "sleep")) and "show" not in call]
    missed = ["scontrol requeue 7", "scontrol ping", "sleep 30"]
    assert done == [*missed, *missed, "scontrol requeue 7", "scontrol update jobid=7 excnodelist=n2"]


@pytest.mark.slow
def test_verdict_does_not_wait_for_slurmctld_forever(script: str, tmp_path: Path) -> None:
    code, calls = run(script, tmp_path, CODE="82", VERDICT="82", AWAY="1000")
    assert code == 82
    assert calls.count("scontrol requeue 7") == 60


# --- sbatch options of a cluster --------------------------------------------------------------------------------------

RACKS = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: racks
scheduler: {kind: slurm, options: OPTIONS}
node_groups: [{name: gpu, count: 36, cpus: 144, arch: aarch64, gpu: GB200-186, gpus: 4, nvlink_domain: 72, imex: true, nics: [mlx5_0]}]
fabrics: [{name: rails, role: scale-out, transport: infiniband}]
storage: [{name: runs, kind: posix, path: /scratch/runs, shared: true}]
"""
RACK_JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: racks
nodes: NODES
trainer: {kind: script, options: {argv: [train.py]}}
layout: LAYOUT
"""


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_cluster_adds_sbatch_options_by_fields_and_directives(tmp_path: Path) -> None:
    options = """constraint: "nvme&ib", reservation: training, exclude: "n[3-4],n9", directives: [--mail-type=FAIL, '--comment="a b"'], """
    added = [each for each in directives(rendered(tmp_path, options=options)) if each not in directives(rendered(tmp_path))]
    assert added == [
        "--constraint='nvme&ib'",
        "--reservation=training",
        "--exclude='n[3-4],n9'",
        "--mail-type=FAIL",
        '--comment="a b"',
    ]


def test_retry_elsewhere_still_excludes_the_nodes_of_the_cluster_file(tmp_path: Path) -> None:
    script = rendered(tmp_path, options='exclude: "n[3-4]", ')
    _, calls = run(script, tmp_path, CODE="1", VERDICT="81", SUSPECTS="n2")
    assert calls[-1] == "scontrol update jobid=7 excnodelist=n[3-4],n2"


@pytest.mark.parametrize(
    ("directive", "own"),
    [
        ("--nodes=3", "nodes"),
        ("--ntasks=3", "ntasks"),
        ("--tim=1", "time"),
        ("--no-requeue", "no-requeue"),
        ("--mem=0", "mem"),
    ],
)
def test_option_that_the_batch_script_sets_is_rejected(directive: str, own: str, tmp_path: Path) -> None:
    assert problems(tmp_path, options=f"directives: [{directive}], ") == [
        ("HW210", f"`--{own}` is set by the batch script itself, and Slurm would use the last of two")
    ]


@pytest.mark.parametrize(
    ("directive", "why"),
    [
        ("--array=1-3", "`--array` is not supported: every task of an array would train the same spec"),
        ("--export=NONE", "`--export` is not supported: the ranks need the variables of the batch script"),
    ],
)
def test_option_that_would_break_the_run_is_rejected_with_the_reason(directive: str, why: str, tmp_path: Path) -> None:
    assert problems(tmp_path, options=f"directives: [{directive}], ") == [("HW210", why)]


REQUEST = "scheduler: {slurm: {%s}}\n"


def test_request_of_a_job_replaces_or_extends_the_values_of_the_cluster(tmp_path: Path) -> None:
    asked = (
        "partition: debug, qos: low, nice: 100, constraint: a100, dependency: singleton, exclude: n9, "
        "sbatch: [--switches=1], srun: [--cpu-bind=cores]"
    )
    script = rendered(tmp_path, REQUEST % asked, options='exclude: "n[3-4]", directives: [--mail-type=FAIL], memory: 7GiB, ')
    found = directives(script)
    expected = [
        "--mem=7168M",
        "--partition=debug",
        "--account=research",
        "--qos=low",
        "--constraint=a100",
        "--exclude='n[3-4],n9'",
        "--nice=100",
        "--dependency=singleton",
        "--mail-type=FAIL",
        "--switches=1",
    ]
    assert [each for each in found if each in expected] == expected
    _, calls = run(script, tmp_path, CODE="1", VERDICT="81", SUSPECTS="n2")
    assert f"{SRUN} --chdir={tmp_path} --cpu-bind=cores python3 -m headway.runner" in calls[2]
    assert calls[-1] == "scontrol update jobid=7 excnodelist=n[3-4],n9,n2"


@pytest.mark.parametrize(
    ("asked", "messages"),
    [
        ("partition: debug", []),
        ('partition: "debug,main"', []),
        ("partition: gpu", ["`lab` does not let jobs set `partition` to `gpu`"]),
        ("qos: anything", []),
        ("account: mine", ["`lab` does not let jobs set `account` (`allow` of its scheduler)"]),
        ("nice: 5", ["`lab` does not let jobs set `nice` (`allow` of its scheduler)"]),
        ("sbatch: [--switches=1, --comment=a]", ["`lab` does not let jobs set `sbatch` to `comment`"]),
    ],
)
def test_job_may_set_only_what_the_cluster_allows(asked: str, messages: list[str], tmp_path: Path) -> None:
    allow = "allow: {partition: [main, debug], qos: any, sbatch: [switches]}, "
    assert problems(tmp_path, REQUEST % asked, allow) == [("HW432", message) for message in messages]


def test_job_cannot_override_options_set_by_the_script(tmp_path: Path) -> None:
    reported = problems(tmp_path, REQUEST % "sbatch: [--qos=a], srun: [--ntasks=3, --export=NONE]")
    assert [code for code, _ in reported] == ["HW210"] * 3


def test_job_excludes_the_named_nodes_of_other_groups(tmp_path: Path) -> None:
    groups = "node_groups: [" + ", ".join(f"{{name: {name}, count: 2, cpus: 4, procs: 2}}" for name in ("a", "b", "c")) + "]"
    text = CLUSTER.replace("node_groups: [{name: cpu, count: 2, cpus: 4, procs: 2}]", groups)
    names = 'exclude: n9, node_names: {a: "n[1-2]", b: "n[3-4]"}, '
    (tmp_path / "cluster.yaml").write_text(text.replace("{partition", f"{{{names}partition"))
    (tmp_path / "job.yaml").write_text(JOB + "group: b\nscheduler: {slurm: {exclude: n4}}\n")
    assert "--exclude='n9,n4,n[1-2]'" in directives(script_of(tmp_path))


def test_memory_adapters_and_amd_devices_are_in_the_container(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("global: 16", "global: 32") + IMAGE)
    nodes = "node_groups: [{name: gpu, count: 2, cpus: 96, threads_per_core: 2, gpu: MI300X-192, gpus: 8, nics: [mlx5_0]}]"
    fabric = "fabrics: [{name: rails, role: scale-out, transport: infiniband}]"
    text = CLUSTER.replace("node_groups: [{name: cpu, count: 2, cpus: 4, procs: 2}]", f"{nodes}\n{fabric}")
    (tmp_path / "cluster.yaml").write_text(
        text.replace("{partition", f"{{{PYXIS}partition").replace("runs of 'lab'", "/scratch/runs")
    )
    script = script_of(tmp_path)
    assert "--cpus-per-task=192" in directives(script)
    assert ",/dev/kfd:/dev/kfd,/dev/dri:/dev/dri " in script
    assert "export MELLANOX_VISIBLE_DEVICES=${MELLANOX_VISIBLE_DEVICES:-all}" in script
    assert re.search(r"--container-env=\S+,MELLANOX_VISIBLE_DEVICES ", script)


def test_grace_beyond_the_kill_wait_of_slurm_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB.replace("12.5s", "90s"))
    assert [problem.code for problem in found(tmp_path)] == ["HW430"]
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("{partition", "{kill_wait: 2m, partition"))
    assert found(tmp_path) == []


@pytest.mark.parametrize("directive", ["--mem-bind=local", "--time-min=10", "--gres-flags=enforce-binding", "--no-kill"])
def test_option_that_only_resembles_one_of_the_script_is_accepted(directive: str, tmp_path: Path) -> None:
    assert problems(tmp_path, options=f"directives: [{directive}], ") == []


@pytest.mark.parametrize(
    ("nodes", "layout", "segment"),
    [
        (32, "{tp: 8, pp: 4}", 2),
        (32, "{tp: 4, pp: 4}", None),
        (36, "{tp: 12}", 3),
        (36, "{tp: 8, ep: 24}", 6),
        (36, "{ep: 144}", None),
    ],
)
def test_groups_of_ranks_over_nodes_become_segments_of_blocks(
    nodes: int, layout: str, segment: int | None, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(RACK_JOB.replace("NODES", str(nodes)).replace("LAYOUT", layout))
    (tmp_path / "cluster.yaml").write_text(RACKS.replace("OPTIONS", "{topology: block}"))
    planned = load_job_plan(tmp_path / "job.yaml")
    assert planned is not None
    script = next(text for path, text in planned.files().items() if path.suffix == ".sbatch")
    segments = [each for each in directives(script) if "segment" in each]
    assert segments == ([] if segment is None else [f"--segment={segment}"])
    (tmp_path / "cluster.yaml").write_text(RACKS.replace("OPTIONS", "{}"))
    reported = [problem.code for problem in found(tmp_path) if problem.code == "HW425"]
    assert reported == ([] if segment is None else ["HW425"])


TREE = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm, options: OPTIONS}
node_groups: [{name: gpu, count: 60, cpus: 96, gpu: H100-SXM-80, gpus: 8, nic: ConnectX-7, nic_speed: 400Gb/s,
  nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]}]
fabrics:
  - {name: rails, role: scale-out, transport: infiniband, shape: rail-optimizedSWITCHES}
storage: [{name: runs, kind: posix, path: /runs, shared: true}]
"""
PLANNED = ", switches: {model: QM9700, os: [{kind: opensm}]}"


@pytest.mark.parametrize(
    ("options", "switches", "nodes", "layout", "asked", "warned"),
    [
        # Leaves of 64 ports have 32 nodes: 60 nodes are on two sets of leaves.
        ("topology: tree", PLANNED, 32, "{tp: 8}", "1", []),
        ("topology: tree, leaf_nodes: 16, switch_wait: 12h", "", 32, "{tp: 8}", "2@12:00:00", []),
        ("topology: tree, leaf_nodes: 16", "", 33, "{tp: 8}", "3", []),
        ("topology: tree, leaf_nodes: 16", "", 16, "{ep: 16}", "1", []),
        ("topology: tree, leaf_nodes: 16", "", 32, "{ep: 16}", "2", []),
        ("topology: tree, leaf_nodes: 16", "", 24, "{ep: 16}", "2", ["HW425"]),
        ("topology: tree, leaf_nodes: 15", "", 30, "{ep: 16}", "2", ["HW425"]),
        # All leaf switches, one node, the cluster's own option, no known switches, no topology.
        ("topology: tree, leaf_nodes: 16", "", 60, "{tp: 8}", None, []),
        ("topology: tree, leaf_nodes: 16", "", 1, "{tp: 8}", None, []),
        ("topology: tree, leaf_nodes: 16, directives: [--switches=3@1]", "", 16, "{tp: 8}", "3@1", []),
        ("topology: tree", "", 16, "{tp: 8}", None, ["HW425"]),
        ("", PLANNED, 32, "{tp: 8}", None, []),
    ],
)
def test_job_requests_the_fewest_leaf_switches_that_fit_it(
    *, options: str, switches: str, nodes: int, layout: str, asked: str | None, warned: list[str], tmp_path: Path
) -> None:
    (tmp_path / "cluster.yaml").write_text(TREE.replace("OPTIONS", f"{{{options}}}").replace("SWITCHES", switches))
    (tmp_path / "job.yaml").write_text(
        f"apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: case\ncluster: lab\nnodes: {nodes}\nlayout: {layout}\n"
        "trainer: {kind: script, options: {argv: [train.py, '{layout.tp}', '{layout.ep}']}}\n"
    )
    planned = load_job_plan(tmp_path / "job.yaml")
    assert planned is not None
    script = next(text for path, text in planned.files().items() if path.suffix == ".sbatch")
    assert [each for each in directives(script) if "switches" in each] == ([] if asked is None else [f"--switches={asked}"])
    assert [problem.code for problem in found(tmp_path) if problem.code == "HW425"] == warned


# --- containers, mounts, variables ------------------------------------------------------------------------------------

DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGE = f"code: {{image: 'registry.example.com/team/train:1@{DIGEST}'}}\n"
PYXIS = "containers: pyxis, "


def test_job_without_an_image_has_no_container(tmp_path: Path) -> None:
    assert "--container" not in rendered(tmp_path, options=PYXIS)
    assert rendered(tmp_path, options=PYXIS) == rendered(tmp_path)


def test_container_has_image_digest_run_mounts_and_all_variables(tmp_path: Path) -> None:
    mounts = "mounts: [{source: /data/corpus}, {source: /cache, target: /root/.cache, read_only: false}]\n"
    script = rendered(tmp_path, f"{IMAGE}{mounts}environment: {{HF_HOME: /data/hf}}\n", PYXIS, "/scratch/runs")
    _, calls = run(script, tmp_path, HEADWAY_RUNS="runs")
    folder = f"{tmp_path}/runs/case-HASH-7"
    assert without_hash(calls[1]) == (
        f"{SRUN} --container-image=registry.example.com#team/train:{DIGEST} --no-container-mount-home"
        f" --container-workdir={tmp_path} --container-mounts={tmp_path}:{tmp_path}"
        f",{folder}:{folder},{tmp_path}/runs/suspects:{tmp_path}/runs/suspects,/data/corpus:/data/corpus:ro,/cache:/root/.cache"
        " --container-env=HEADWAY_NODES,OMP_NUM_THREADS,PYTHONUNBUFFERED,HF_HOME"
        f" python3 -m headway.runner {folder}/attempts/0/run.json --attempt 0 --open"
    )


@pytest.mark.parametrize(
    ("image", "enroot"),
    [
        (f"registry.example.com:5000/train@{DIGEST}", f"registry.example.com:5000#train:{DIGEST}"),
        (f"registry.example.com/a/b/train:2@{DIGEST}", f"registry.example.com#a/b/train:{DIGEST}"),
        ("registry.example.com/train:2", "registry.example.com#train:2"),
        ("localhost/train", "localhost#train:latest"),
        (f"team/train@{DIGEST}", f"registry-1.docker.io#team/train:{DIGEST}"),
        ("docker.io/team/train:2", "registry-1.docker.io#team/train:2"),
        ("ubuntu", "registry-1.docker.io#library/ubuntu:latest"),
        ("/images/train.sqsh", "/images/train.sqsh"),
        ("/images/train", "/images/train"),
        ("images/train.sqsh", "images/train.sqsh"),
        ("nvcr.io#nvidia/pytorch:25.06-py3", "nvcr.io#nvidia/pytorch:25.06-py3"),
    ],
)
def test_image_name_is_valid_for_enroot_3_and_4(image: str, enroot: str) -> None:
    assert image_for_enroot(image) == enroot
    # The form of NVIDIA/enroot src/docker.sh, release 3: no user, so that no part of a digest is taken for the image.
    if "#" in enroot:
        form = r"([^#@]+)#([a-z0-9/._-]+):([A-Za-z0-9._:-]+)"
        assert re.fullmatch(form, enroot)


@pytest.mark.parametrize(
    ("image", "word"),
    [("/images/train.sqsh", "/images/train.sqsh"), ("images/train.sqsh", "{}/images/train.sqsh"), ("./a", "{}/./a")],
)
def test_image_file_is_relative_to_the_folder_of_the_submission(image: str, word: str, tmp_path: Path) -> None:
    _, calls = run(rendered(tmp_path, f"code: {{image: {image}}}\n", PYXIS, "/scratch/runs"), tmp_path, HEADWAY_RUNS="runs")
    assert f"--container-image={word.format(tmp_path)}" in calls[1].split()


@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        ("{source: /}", "a mount at `/` would hide `/scratch/runs`, which every container on `lab` has"),
        (
            "{source: /new, target: /scratch}",
            "a mount at `/scratch` would hide `/scratch/runs`, which every container on `lab` has",
        ),
        ("{source: /scratch}", "a mount at `/scratch` would hide `/scratch/runs`, which every container on `lab` has"),
        ("{source: /scratch/, read_only: false, target: /scratch}", None),
        ("{source: /scratch/runs/old, target: /old}", None),
        ("{source: /proc}", "a mount at `/proc` would hide `/proc`, which every container on `lab` has"),
        ("{source: /sys}", "a mount at `/sys` would hide `/sys`, which every container on `lab` has"),
        ("{source: /a, target: /proc/fs}", "`/proc/fs` is in `/proc`, where containers allow no mount"),
        ("{source: /dev}", "a mount at `/dev` would hide `/dev`, which every container on `lab` has"),
        ("{source: /dev/infiniband}", None),
        ("{source: /a/../b, target: /b}", "`/a/../b` has a `..`, which is not allowed in a mount"),
        ("{source: /a, target: /b/..}", "`/b/..` has a `..`, which is not allowed in a mount"),
        ("{source: /a..b}", None),
    ],
)
def test_mount_over_a_path_that_the_container_needs_is_rejected(mount: str, expected: str | None, tmp_path: Path) -> None:
    reported = problems(tmp_path, f"{IMAGE}mounts: [{mount}]\n", PYXIS, "/scratch/runs")
    assert reported == ([] if expected is None else [("HW423", expected)])


def test_mount_without_a_container_cannot_be_read_only(tmp_path: Path) -> None:
    assert problems(tmp_path, "mounts: [{source: /data}, {source: /cache, read_only: false}]\n") == [
        ("HW426", "`/data` cannot be made read-only: the job runs without a container on `lab`")
    ]


def test_apptainer_image_is_rejected(tmp_path: Path) -> None:
    assert problems(tmp_path, "code: {image: /images/train.sif}\n", PYXIS, "/scratch/runs") == [
        ("HW422", "`/images/train.sif` is an Apptainer image, but pyxis starts enroot images (`.sqsh`) and images of registries")
    ]


APPTAINER = "containers: apptainer, "
SIF = "code: {image: /images/train.sif}\n"


def test_apptainer_gets_mounts_as_options_and_variables_by_environment(tmp_path: Path) -> None:
    mounts = "mounts: [{source: /data/corpus}, {source: /cache, target: /root/.cache, read_only: false}]\n"
    more = "secrets: [TOKEN]\nenvironment: {HF_HOME: /data/hf}\nscheduler: {slurm: {apptainer: [--fakeroot]}}\n"
    options = f"{APPTAINER}apptainer: ['--overlay=/local/a b.img:ro'], "
    script = rendered(tmp_path, f"{SIF}{mounts}{more}", options, "/scratch/runs")
    shown = 'printenv | grep ^APPTAINERENV_ >>"$CALLS"\n'
    _, calls = run(
        script.replace("status=0\n", f"status=0\n{shown}", 1), tmp_path, HEADWAY_RUNS="runs", TOKEN="a b", HOME="/nowhere"
    )
    folder = f"{tmp_path}/runs/case-HASH-7"
    (runner,) = (call for call in calls if call.startswith("srun"))
    assert without_hash(runner) == (
        f"{SRUN} apptainer exec --no-mount home,cwd --home {folder}/home --pwd {tmp_path} --no-eval --bind {tmp_path}:{tmp_path}"
        f",{folder}:{folder},{tmp_path}/runs/suspects:{tmp_path}/runs/suspects,/data/corpus:/data/corpus:ro,/cache:/root/.cache"
        f" --overlay=/local/a b.img:ro --fakeroot /images/train.sif"
        f" python3 -m headway.runner {folder}/attempts/0/run.json --attempt 0 --open"
    )
    assert {call for call in calls if call.startswith("APPTAINERENV_")} == {
        "APPTAINERENV_HEADWAY_NODES=n1,n2",
        "APPTAINERENV_HF_HOME=/data/hf",
        "APPTAINERENV_OMP_NUM_THREADS=2",
        "APPTAINERENV_PYTHONUNBUFFERED=1",
        "APPTAINERENV_TOKEN=a b",
    }
    assert (next((tmp_path / "runs").glob("case-*")) / "home").is_dir()


@pytest.mark.parametrize(("gpu", "option"), [("H100-SXM-80", "--nv"), ("MI300X-192", "--rocm")])
def test_apptainer_exposes_the_gpus_and_the_adapters(gpu: str, option: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("global: 16", "global: 32") + SIF)
    nodes = f"node_groups: [{{name: gpu, count: 2, cpus: 96, gpu: {gpu}, gpus: 8, nics: [mlx5_0]}}]"
    fabric = "fabrics: [{name: rails, role: scale-out, transport: infiniband}]"
    text = CLUSTER.replace("node_groups: [{name: cpu, count: 2, cpus: 4, procs: 2}]", f"{nodes}\n{fabric}")
    text = text.replace("{partition", f"{{{APPTAINER}partition").replace("runs of 'lab'", "/scratch/runs")
    (tmp_path / "cluster.yaml").write_text(text)
    script = script_of(tmp_path)
    assert f"    {option} \\\n    /images/train.sif \\\n" in script
    assert "if [ -d /dev/infiniband ]; then adapters=,/dev/infiniband; fi" in script
    assert '$suspects$adapters" \\\n' in script
    assert "MELLANOX" not in script


def test_apptainer_pulls_or_copies_an_image_once_per_node(tmp_path: Path) -> None:
    options = f"{APPTAINER}image_cache: {tmp_path}/images, "
    digest = DIGEST.removeprefix("sha256:")
    (tmp_path / "tools").mkdir()
    _stand_in(tmp_path, "apptainer", ': >"$3"')
    _stand_in(tmp_path, "srun", 'case $* in *job-name=stage*) SLURMD_NODENAME=n1 "${@: -4}" ;; esac')
    _, calls = run(rendered(tmp_path, IMAGE, options, "/scratch/runs"), tmp_path, HEADWAY_RUNS="runs")
    file = f"{tmp_path}/images/headway-{digest}.sif"
    pulls = [call for call in calls if call.startswith("apptainer ")]
    assert pulls == [f"apptainer pull --disable-cache {file}.new docker://registry.example.com/team/train@{DIGEST}"]
    assert f" --no-eval --bind {tmp_path}" in calls[-1]
    assert f" {file} python3 " in calls[-1]
    # A file is identified by its time, size and inode number.
    (tmp_path / "train.sif").write_text("an image")
    found = (tmp_path / "train.sif").stat()
    again(tmp_path)
    (tmp_path / "tools").mkdir()
    _stand_in(tmp_path, "srun", 'case $* in *job-name=stage*) SLURMD_NODENAME=n1 "${@: -4}" ;; esac')
    _, calls = run(rendered(tmp_path, "code: {image: train.sif}\n", options, "/scratch/runs"), tmp_path, HEADWAY_RUNS="runs")
    copy = tmp_path / f"images/headway-{int(found.st_mtime)}-{found.st_size}-{found.st_ino}.sif"
    assert copy.read_text() == "an image"
    assert f" {copy} python3 " in calls[-1]


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        ("/images/train.sqsh", "", "`/images/train.sqsh` is an enroot image, whose variables Apptainer does not set"),
        (f"registry.example.com/train@{DIGEST}", "", "each node of `lab` would pull the image at each attempt"),
        (f"registry.example.com/train@{DIGEST}", "image_cache: /local/images, ", None),
        (f"nvcr.io#nvidia/pytorch@{DIGEST}", "image_cache: /local/images, ", None),
        ("/images/train.sif", "", None),
        ("./root", "image_cache: /local/images, ", None),
    ],
)
def test_image_that_apptainer_cannot_start_properly_is_rejected(
    image: str, options: str, message: str | None, tmp_path: Path
) -> None:
    found = problems(tmp_path, f"code: {{image: '{image}'}}\n", APPTAINER + options, "/scratch/runs")
    assert [code for code, _ in found] == ([] if message is None else ["HW422"])
    assert message is None or found[0][1].startswith(message)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("environment: {HOME: /data}\n", "HW418"),
        ("environment: {GID: '7'}\n", "HW418"),
        ("environment: {APPTAINER_BIND: /data}\n", "HW418"),
        ("secrets: [APPTAINER_DOCKER_PASSWORD]\n", "HW418"),
        ("mounts: [{source: '/data/a,b', target: /data}]\n", "HW423"),
        ("mounts: [{source: '/data/a b', target: /data}]\n", None),
        ("scheduler: {slurm: {apptainer: [--cleanenv]}}\n", "HW210"),
        ("scheduler: {slurm: {apptainer: [--containall]}}\n", "HW210"),
        ("scheduler: {slurm: {apptainer: ['--bind=/a:/b']}}\n", "HW210"),
        ("scheduler: {slurm: {apptainer: [--nvccli, --no-mount=bind-paths]}}\n", None),
    ],
)
def test_setting_that_apptainer_does_not_support_is_rejected_at_its_field(more: str, code: str | None, tmp_path: Path) -> None:
    assert [each for each, _ in problems(tmp_path, SIF + more, APPTAINER, "/scratch/runs")] == ([] if code is None else [code])


@pytest.mark.parametrize(
    ("more", "options", "codes"),
    [
        (IMAGE + "scheduler: {slurm: {apptainer: [--fakeroot]}}\n", PYXIS, ["HW210"]),
        ("scheduler: {slurm: {apptainer: [--fakeroot]}}\n", APPTAINER, ["HW210"]),
        (IMAGE, f"{PYXIS}apptainer: [--fakeroot], ", ["HW210"]),
        (SIF + "scheduler: {slurm: {apptainer: [--fakeroot]}}\n", f"{APPTAINER}allow: {{apptainer: overlay}}, ", ["HW432"]),
        (SIF + "scheduler: {slurm: {apptainer: [--fakeroot]}}\n", f"{APPTAINER}allow: {{apptainer: fakeroot}}, ", []),
    ],
)
def test_apptainer_options_require_its_container_and_the_owners_permission(
    more: str, options: str, codes: list[str], tmp_path: Path
) -> None:
    assert [code for code, _ in problems(tmp_path, more, options, "/scratch/runs")] == codes


@pytest.mark.parametrize("value", ["a b", 'say "it\'s" $HOME `id` \\ !', "$(id)", "= #x; & |", ""])
def test_variable_of_the_job_reaches_the_ranks_unchanged(value: str, tmp_path: Path) -> None:
    script = rendered(tmp_path, f"environment: {{OF_THE_JOB: {json.dumps(value)}}}\n")
    shown = 'printf "%s\\n" "of the job=$OF_THE_JOB" >>"$CALLS"\n'
    _, calls = run(script.replace("status=0\n", f"status=0\n{shown}", 1), tmp_path)
    assert f"of the job={value}" in calls


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="apt-get install shellcheck")
@pytest.mark.parametrize("options", [PYXIS, f"{APPTAINER}image_cache: /local, "])
def test_script_with_a_container_passes_shellcheck(options: str, tmp_path: Path) -> None:
    script = rendered(tmp_path, f"{IMAGE}mounts: [{{source: /data/corpus}}]\n", options, "/scratch/runs")
    command = ["shellcheck", "--shell=sh", "--severity=style", "-"]
    assert subprocess.run(command, input=script, capture_output=True, text=True, check=False).stdout == ""


# --- the bundle, the image's file, the code ---------------------------------------------------------------------------

BUNDLE = "bundle: /shared/headway/headway-0.1.0-0123456789ab, "


def test_bundle_is_mounted_and_the_runner_starts_from_it(tmp_path: Path) -> None:
    script = rendered(tmp_path, IMAGE, PYXIS + BUNDLE, "/scratch/runs")
    _, calls = run(script, tmp_path, HEADWAY_RUNS="runs")
    folder = "/shared/headway/headway-0.1.0-0123456789ab"
    assert f" --container-mounts={folder}:{folder}:ro,{tmp_path}:{tmp_path}," in calls[1]
    assert f" python3 {folder}/headway/runner/start.py headway.runner {tmp_path}/runs/" in calls[1]
    assert not [call for call in calls if call.startswith("python3")], "there is no Python on hosts"


def test_image_with_a_digest_is_imported_once_on_each_node(tmp_path: Path) -> None:
    script = rendered(tmp_path, IMAGE, PYXIS + "image_cache: /local/images, ", "/scratch/runs")
    _, calls = run(script, tmp_path, HEADWAY_RUNS="runs")
    stage, runner = (call for call in calls if call.startswith("srun "))
    assert stage.startswith("srun --job-name=stage --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=0 --time=60 --export=ALL")
    file = f"/local/images/headway-{DIGEST.removeprefix('sha256:')}.sqsh"
    assert stage.endswith(f"/attempts/0/job.sbatch import_image {file}")
    assert f" --container-image={file} " in runner
    in_place = rendered(tmp_path, "code: {image: /images/train.sqsh}\n", PYXIS + "image_cache: /local/images, ", "/scratch/runs")
    assert "import_image" not in in_place


# One or both of two nodes cannot import the image.
@pytest.mark.parametrize(("failing", "excluded"), [(["n2"], ["update jobid=7 excnodelist=n2"]), (["n1", "n2"], [])])
def test_node_that_cannot_import_the_image_is_excluded_unless_none_can(
    failing: list[str], excluded: list[str], tmp_path: Path
) -> None:
    script = rendered(tmp_path, IMAGE, f"{PYXIS}image_cache: {tmp_path}/images, ", "/scratch/runs")
    (tmp_path / "tools").mkdir()
    _stand_in(tmp_path, "enroot", f'case " {" ".join(failing)} " in *" $SLURMD_NODENAME "*) exit 1 ;; esac; : >"$3"')
    # Each node has a disk.
    nodes = 'for SLURMD_NODENAME in n1 n2; do export SLURMD_NODENAME; rm -rf images; "${@: -4}"; done'
    _stand_in(tmp_path, "srun", f"case $* in *job-name=stage*) {nodes} ;; *) exit 9 ;; esac")
    code, calls = run(script, tmp_path, HEADWAY_RUNS="runs")
    assert code == 81
    done = [call.removeprefix("scontrol ") for call in calls if call.startswith(("scontrol requeue", "scontrol update"))]
    assert done == ["requeue 7", *excluded]
    assert not [call for call in calls if call.startswith("srun --job-name=runner")]


def _stand_in(folder: Path, name: str, body: str) -> None:
    (folder / "tools" / name).write_text(f"{RECORD}{body}\n")
    (folder / "tools" / name).chmod(0o755)


def archive(folder: Path, name: str, **files: str) -> str:
    """Write an archive of code like `headway snapshot`, with these files in `sub`."""
    (folder / name / "sub").mkdir(parents=True)
    for file, text in files.items():
        (folder / name / "sub" / file).write_text(text)
    subprocess.run(["tar", "-cf", folder / f"{name}.tar", "-C", folder / name, "sub"], check=True)
    return f"{folder}/{name}.tar#sub"


def test_each_attempt_starts_with_the_files_of_the_snapshot(tmp_path: Path) -> None:
    script = rendered(tmp_path)
    first = archive(tmp_path, "a" * 40, train="reviewed", old="goes")
    earlier(tmp_path, 0, job="6")
    _, calls = run(script, tmp_path, HEADWAY_RUN="old", HEADWAY_CODE=first)
    code = tmp_path / "runs of 'lab'/old/code/sub"
    assert [f" --chdir={code} " in call for call in calls if call.startswith("srun")] == [True]
    # The ranks edit a file and write others next to the code; without a variable, as in a job that resumes the run.
    (code / "train").write_text("edited")
    (code / "written").touch()
    again(tmp_path)
    run(script, tmp_path, HEADWAY_RUN="old")
    assert {path.name: path.read_text() for path in code.iterdir()} == {"train": "reviewed", "old": "goes", "written": ""}
    # Another commit.
    again(tmp_path)
    run(script, tmp_path, HEADWAY_RUN="old", HEADWAY_CODE=archive(tmp_path, "b" * 40, train="newer"))
    assert {path.name: path.read_text() for path in code.iterdir()} == {"train": "newer", "written": ""}
    kept = [(tmp_path / f"runs of 'lab'/old/attempts/{attempt}/code").read_text() for attempt in (1, 2, 3)]
    assert kept == [f"{first}\n", f"{first}\n", f"{tmp_path}/{'b' * 40}.tar#sub\n"]


def again(folder: Path) -> None:
    """Reset the recorded calls, but keep the files of the script's last run."""
    shutil.rmtree(folder / "tools")
    (folder / "calls").unlink()


def test_container_has_the_snapshot_and_not_the_submission_folder(tmp_path: Path) -> None:
    script = rendered(tmp_path, IMAGE, PYXIS, "/scratch/runs")
    _, calls = run(script, tmp_path, HEADWAY_RUNS="runs", HEADWAY_CODE=archive(tmp_path, "a" * 40, train=""))
    folder = f"{tmp_path}/runs/case-HASH-7"
    assert f" --container-workdir={folder}/code/sub --container-mounts={folder}:{folder}," in without_hash(calls[1])


@pytest.mark.parametrize(("given", "code"), [("b" * 40, 75), ("", 75), ("a" * 40, 0)])
def test_pinned_commit_runs_only_from_its_snapshot(given: str, code: int, tmp_path: Path) -> None:
    script = rendered(tmp_path, f"code: {{commit: {'a' * 40}}}\n")
    variables = {"HEADWAY_CODE": archive(tmp_path, given, train="")} if given else {}
    ended, calls = run(script, tmp_path, **variables)
    assert ended == code
    assert bool([call for call in calls if call.startswith("srun")]) == (code == 0)
    assert (f"this job runs commit {'a' * 40}" in (tmp_path / "printed").read_text()) == (code != 0)


def test_setup_that_is_not_posix_shell_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace('"true"]', '"source /opt/headway/bin/activate"]'))
    (tmp_path / "job.yaml").write_text(JOB)
    assert [(problem.code, problem.path[-1]) for problem in found(tmp_path)] == [("HW210", 1)]


# --- spares and webhooks ----------------------------------------------------------------------------------------------


def with_resilience(folder: Path, more: str, nodes: int) -> str:
    """Return the script of the job on this number of the cluster's two nodes, with more settings for failures."""
    (folder / "cluster.yaml").write_text(CLUSTER)
    job = JOB.replace("nodes: 2", f"nodes: {nodes}").replace("{grace: 12.5s}", f"{{grace: 12.5s, {more}}}")
    (folder / "job.yaml").write_text(job)
    return script_of(folder)


def in_blocks(folder: Path, more: str = "") -> None:
    """Write a job whose groups of ranks fill two nodes, on racks that are blocks in Slurm."""
    text = RACK_JOB.replace("NODES", "32").replace("LAYOUT", "{tp: 8, pp: 4}")
    (folder / "job.yaml").write_text(text + more)
    (folder / "cluster.yaml").write_text(RACKS.replace("OPTIONS", "{topology: block}"))


def script_of(folder: Path) -> str:
    planned = load_job_plan(folder / "job.yaml")
    assert planned is not None
    (text,) = [text for path, text in planned.files().items() if path.suffix == ".sbatch"]
    return text


def test_spare_adds_a_node_and_a_task_and_a_lost_node_ends_nothing(tmp_path: Path) -> None:
    script = with_resilience(tmp_path, "spares: 1", nodes=1)
    assert [each for each in directives(script) if each in ("--nodes=2", "--no-kill")] == ["--nodes=2", "--no-kill"]
    _, calls = run(script, tmp_path)
    assert [call for call in calls if call.startswith(f"{SRUN} --no-kill --wait=0 --chdir={tmp_path} python3 -m headway.runner ")]


@pytest.mark.parametrize(("more", "stays"), [("timeouts: {replace: 5m}", True), ("timeouts: {replace: 0s}", False)])
def test_allocation_survives_a_lost_node_if_the_run_waits_for_another(more: str, stays: bool, tmp_path: Path) -> None:
    script = with_resilience(tmp_path, more, nodes=2)
    assert ("--no-kill" in directives(script), "--no-kill --wait=0" in script) == (stays, stays)


@pytest.mark.parametrize(("variables", "is_reported"), [({}, True), ({"RUN_WEBHOOK": "https://alerts.example.com/7"}, False)])
def test_missing_webhook_address_is_reported_in_the_output_of_the_job(
    variables: dict[str, str], is_reported: bool, tmp_path: Path
) -> None:
    script = with_resilience(tmp_path, "notify: {webhook_env: RUN_WEBHOOK}", nodes=2)
    code, _ = run(script, tmp_path, **variables)
    assert code == 0
    message = "RUN_WEBHOOK is not set: nobody will be told of failures\n"
    assert (message in (tmp_path / "printed").read_text()) == is_reported


def test_webhook_address_of_the_job_overrides_that_of_the_image(tmp_path: Path) -> None:
    more = f"code: {{image: registry.example.com/train@{DIGEST}}}\n"
    assert "RUN_WEBHOOK" not in rendered(tmp_path, more, "containers: pyxis, ", runs="/runs")
    notify = "12.5s, notify: {webhook_env: RUN_WEBHOOK}"
    (tmp_path / "job.yaml").write_text((tmp_path / "job.yaml").read_text().replace("12.5s", notify))
    assert "--container-env=HEADWAY_NODES,RUN_WEBHOOK," in script_of(tmp_path)


@pytest.mark.parametrize(("spares", "codes"), [(0, []), (2, []), (3, ["HW428"]), (4, [])])
def test_nodes_and_spares_must_be_full_segments(spares: int, codes: list[str], tmp_path: Path) -> None:
    in_blocks(tmp_path, f"resilience: {{spares: {spares}}}\n")
    assert [problem.code for problem in found(tmp_path) if problem.code.startswith("HW4")] == codes


@pytest.mark.parametrize(
    ("address", "pattern", "domain"),
    [
        ("b8.n1", "block.node", "b8"),
        ("b8.n1.example.com", "block.node", "b8"),
        ("s0.s1.n1", "switch.switch.node", ""),
        ("n1", "node", ""),
    ],
)
def test_node_in_a_block_knows_its_domain(address: str, pattern: str, domain: str, tmp_path: Path) -> None:
    in_blocks(tmp_path)
    script = script_of(tmp_path)
    assert '    sh -c "$in_block" sh \\\n    python3 -m headway.runner ' in script
    (line,) = [line.strip() for line in script.splitlines() if line.startswith("  in_block=")]
    command = f"{line}\nsh -c \"$in_block\" sh sh -c 'echo \"$HEADWAY_DOMAIN $1\"' sh 'a b'"
    variables = {"PATH": os.environ["PATH"], "SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    done = subprocess.run(["dash", "-euc", command], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == f"{domain} a b\n"
