"""Tests that a run that loses processes ends in the same state as one that does not."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from .processes import companions, processes_of, worker
from .runs import JOB, LIMIT_S, Run, going, headway, only_run, wait_for_step, wait_until

pytestmark = pytest.mark.slow

LOGGED = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR)"
AGENT, COORDINATOR = "headway.runner.agent.main", "headway.runner.coordinator.main"
KEEPER, STANDBY = "headway.runner.checkpoint.keeper", "headway.runner.agent.standby"


def test_a_killed_worker_loses_at_most_one_memory_interval_and_no_bit(uninterrupted: Run, tmp_path: Path) -> None:
    job = job_of(tmp_path, "checkpoint: {tiers: [{kind: memory, every: 2 steps}, {kind: shared, every: 20 steps}], keep: 3}\n")
    done = headway("run", job, "--kill", "1@25", runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "runs")
    (failure,) = run.journal("failure")
    assert (failure["cause"], failure["rank"]) == ("killed by SIGKILL", 1)
    first, base = (claim["base"] for claim in run.journal("claim"))
    assert first is None
    assert (base["generation"], base["tier"]) == (1, "memory")
    assert failure["step"] - 4 <= base["step"] <= failure["step"], "two captures may be on their way when a worker dies"
    assert [path.name for path in run.checkpoints()] == [f"step-{step:09d}.g{g:06d}" for step, g in ((20, 1), (40, 2), (60, 2))]
    assert run.hashes() == uninterrupted.hashes()
    assert all(digest in done.stdout for digest in run.hashes().values())
    assert "in 1 failure" in done.stdout
    assert run.journal("standby", "warm") == [], "HEADWAY_STANDBY=0"
    assert (run.directory / "report.html").is_file()
    assert processes_of(run.directory) == []
    logs = {name: (run.directory / f"attempts/0/logs/{name}-0.log").read_text() for name in ("agent", "coordinator")}
    assert all(
        re.match(rf"{LOGGED} {name} node=0( generation=\d+)?: ", line) for name in logs for line in logs[name].splitlines()
    )
    assert logs["coordinator"].count(": failure ") == 1
    assert logs["agent"].count(": order to start") == 2


@pytest.mark.variant
def test_a_killed_worker_loses_at_most_one_interval_of_the_shared_tier(uninterrupted: Run, tmp_path: Path) -> None:
    done = headway("run", JOB, "--kill", "1@25", runs=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path)
    (failure,) = run.journal("failure")
    base = run.journal("claim")[1]["base"]
    assert (base["generation"], base["tier"], base["step"] % 10) == (1, "shared", 0)
    assert failure["step"] - 20 < base["step"] <= failure["step"], "one save may be on its way when a worker dies"
    assert run.hashes() == uninterrupted.hashes()


@pytest.mark.variant
def test_a_killed_keeper_loses_only_the_copies_in_its_memory(uninterrupted: Run, tmp_path: Path) -> None:
    job = job_of(tmp_path, "checkpoint: {tiers: [{kind: memory, every: 2 steps}, {kind: shared, every: 10 steps}], keep: 3}\n")
    with going("run", job, runs=tmp_path / "runs") as launcher:
        run = wait_for_step(tmp_path / "runs", 14)
        (keeper,) = companions(run.directory, KEEPER)
        keeper.kill()
        assert launcher.wait(LIMIT_S) == 0
    assert run.journal("failure") == []
    assert max(path.name for path in run.checkpoints()) == "step-000000060.g000001"
    assert run.hashes() == uninterrupted.hashes()


def alone(folder: Path, more: str = "") -> Path:
    """The job on one rank, and the text to append to it."""
    (folder / "cluster.yaml").write_text((JOB.parent / "cluster.yaml").read_text().replace("procs: 2", "procs: 1"))
    (folder / "job.yaml").write_text(JOB.read_text() + more)
    return folder / "job.yaml"


def job_of(folder: Path, checkpoint: str) -> Path:
    """The job with another checkpoint section, next to its cluster."""
    (folder / "cluster.yaml").write_text((JOB.parent / "cluster.yaml").read_text())
    text = JOB.read_text()
    (folder / "job.yaml").write_text(text[: text.index("checkpoint:")] + checkpoint)
    return folder / "job.yaml"


def test_agent_and_coordinator_restart_alone_and_a_stop_loses_no_step(
    uninterrupted: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It continues training while agent and coordinator restart, and must not reach its end.
    monkeypatch.setenv("LIGHT_STEP_S", "0.25")
    with going("run", JOB, runs=tmp_path) as launcher:
        run = wait_for_step(tmp_path, 8)
        workers = {p.pid for p in processes_of(run.directory) if "RANK" in p.environment}
        (agent,) = companions(run.directory, AGENT)
        (coordinator,) = companions(run.directory, COORDINATOR)
        agent.kill()
        wait_until(lambda: any(p.pid != agent.pid for p in companions(run.directory, AGENT)), "a new agent")
        coordinator.kill()
        wait_until(lambda: bool(run.journal("adopted")), "a coordinator that continues the generation")
        assert workers <= {p.pid for p in processes_of(run.directory)}
        wait_for_step(tmp_path, max(run.steps()) + 2)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(LIMIT_S) == 82
    assert len(run.journal("claim")) == 1
    stopped_at = max(run.steps())
    assert run.verdict()["committed_step"] == stopped_at
    monkeypatch.delenv("LIGHT_STEP_S")
    done = headway("run", JOB, "--resume", run.directory.name, runs=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.steps() == list(range(1, 61))
    assert run.journal("claim")[1]["base"]["step"] == stopped_at
    assert run.hashes() == uninterrupted.hashes()


# Trains until it has been restarted, then twenty steps more; it sleeps, so that standbys find the CPUs free.
SLEEPY = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
again, told = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1", torch.zeros(1)
while not again or not told:
    told[0] = os.path.exists(os.path.join(os.path.dirname(__file__), "end"))
    dist.all_reduce(told, dist.ReduceOp.MIN)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
print("ended", dist.get_rank(), sys.argv[1:], os.environ["RANK"], flush=True)
dist.destroy_process_group()
"""


def workers_of(directory: Path) -> set[int]:
    """The PIDs of the run's workers."""
    return {p.pid for p in processes_of(directory) if "RANK" in p.environment and p.module == "headway.runner.boot"}


def test_a_killed_worker_and_its_peer_are_replaced_by_warm_standbys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STANDBY", "1")
    (tmp_path / "train.py").write_text(SLEEPY)
    command = (
        "torchrun",
        "--nproc-per-node",
        "2",
        "--redirects",
        "3",
        "--log-dir",
        tmp_path / "logs",
        tmp_path / "train.py",
        "x y",
    )
    with going(*command, runs=tmp_path / "runs") as launcher:
        wait_until(lambda: bool(notes(tmp_path, "standby")), "two standbys that have imported everything")
        run = only_run(tmp_path / "runs")
        parked = {p.pid for p in companions(run.directory, STANDBY)}
        worker(run.directory, rank=1).kill()
        wait_until(lambda: workers_of(run.directory) == parked, "the standbys in the workers' place")
        (tmp_path / "end").touch()
        assert launcher.wait(LIMIT_S) == 0
    assert notes(tmp_path, "warm")[0]["ranks"] == [0, 1]
    printed = sorted(path.read_text() for path in (tmp_path / "logs").glob("*/attempt_1/*/stdout.log"))
    assert printed == ["ended 0 ['x y'] 0\n", "ended 1 ['x y'] 1\n"]
    assert processes_of(run.directory) == []


def notes(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The agents' notes in the journal of the only run below `folder`, once there is one."""
    return [line for path in folder.glob("runs/*/handle.json") for line in Run(path.parent).journal(kind)]


def test_no_process_of_a_run_outlives_its_supervisor(tmp_path: Path) -> None:
    with going("run", alone(tmp_path), runs=tmp_path / "runs") as launcher:
        run = wait_for_step(tmp_path / "runs", 3)
        (supervisor,) = companions(run.directory, "headway.runner")
        supervisor.kill()
        wait_until(lambda: not processes_of(run.directory), "the end of all processes of the run")
        assert launcher.wait(LIMIT_S) != 0


@pytest.mark.variant
def test_one_job_started_twice_at_once_is_two_runs(tmp_path: Path) -> None:
    job, folder = job_of(tmp_path, "checkpoint: {tiers: [{kind: shared, every: 5 steps}], keep: 2}\n"), tmp_path / "runs"
    job.write_text(job.read_text().replace("steps: 60\n", "steps: 5\n"))
    with going("run", job, runs=folder) as one, going("run", job, runs=folder) as other:
        assert (one.wait(LIMIT_S), other.wait(LIMIT_S)) == (0, 0)
    runs = [Run(path.parent) for path in folder.glob("*/handle.json")]
    assert [run.steps() for run in runs] == [[1, 2, 3, 4, 5]] * 2
    assert len(runs) == 2
    assert runs[0].hashes() == runs[1].hashes()


def test_a_second_interrupt_ends_a_run_that_cannot_save(tmp_path: Path) -> None:
    with going("run", alone(tmp_path), runs=tmp_path / "runs") as launcher:
        run = wait_for_step(tmp_path / "runs", 3)
        os.kill(worker(run.directory, rank=0).pid, signal.SIGSTOP)
        launcher.send_signal(signal.SIGINT)
        wait_until(lambda: bool(run.journal("preempted")), "the first interrupt")
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(LIMIT_S) == 81, "no verdict was reached"
        wait_until(lambda: not processes_of(run.directory), "the end of all processes of the run")


def test_a_run_stops_and_saves_when_its_launcher_is_killed(tmp_path: Path) -> None:
    with going("run", alone(tmp_path), runs=tmp_path / "runs") as launcher:
        run = wait_for_step(tmp_path / "runs", 3)
        launcher.kill()
        wait_until(lambda: not processes_of(run.directory), "the end of all processes of the run")
    assert run.verdict()["verdict"] == "preempted"
    assert run.verdict()["committed_step"] == max(run.steps())


def test_missing_data_stops_the_run_at_once_and_is_named(tmp_path: Path) -> None:
    job = alone(tmp_path)
    # Next to the job, where `headway check` finds it, and not where the ranks start.
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("text")
    job.write_text(JOB.read_text().replace("python-stdlib", "files").replace("limit: 1MB", "paths: [corpus/*.txt]"))
    done = headway("run", job, runs=tmp_path / "runs")
    assert done.returncode == 83, done.stdout + done.stderr
    run = only_run(tmp_path / "runs")
    assert len(run.journal("start")) == 1
    assert "`corpus/*.txt` matches no file" in run.verdict()["cause"]
    assert "`corpus/*.txt` matches no file" in done.stdout


def test_a_run_stops_at_its_limit_and_resumes_once_the_limit_is_raised(tmp_path: Path) -> None:
    job, runs = limited(tmp_path, "1s"), tmp_path / "runs"
    assert headway("run", job, runs=runs).returncode == 83
    run = only_run(runs)
    assert run.verdict()["cause"] == "the run has reached its limit: 1s of all attempts together (limits.run.time)"
    assert run.verdict()["committed_step"] == (max(run.steps()) if run.steps() else None)
    reached = run.steps()
    assert headway("run", job, "--resume", run.directory.name, runs=runs).returncode == 83
    assert run.steps() == reached, "the first attempt has used all of it"
    done = headway("run", limited(tmp_path, "1d"), "--resume", run.directory.name, runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.steps() == list(range(1, 61))


def limited(folder: Path, longest: str) -> Path:
    """The job with a limit for all its attempts."""
    return alone(folder, f"limits: {{run: {{time: {longest}}}}}\n")
