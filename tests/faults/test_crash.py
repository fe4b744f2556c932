"""Tests that a run that loses processes ends in the same state as one that does not."""

import gzip
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from headway.runner.contract import RunDirectory

from .kills import AGENT, COORDINATOR, KEEPER, Job, parent
from .processes import companions, processes_of, supervisor, worker
from .runs import (
    JOB,
    LIMIT_S,
    Run,
    going,
    headway,
    one_rank,
    only_run,
    undisturbed_hashes,
    wait_for_step,
    wait_until,
)

pytestmark = pytest.mark.slow

LOGGED = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR)"
STANDBY = "headway.runner.agent.standby"


def test_a_killed_worker_and_lost_memory_cost_one_interval_and_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is killed, and later on its node the keeper and the worker, so that only the other node has its captures."""
    monkeypatch.setenv("LIGHT_STEP_S", "0.1")
    job = Job(2, {"memory": 2, "peer": 2, "shared": 20}, 60).write(tmp_path)
    with going("run", job, "--kill", "1@25", runs=tmp_path / "runs") as launcher:
        run = wait_for_step(tmp_path / "runs", 47)
        node = supervisor(run.directory, 1).pid
        (keeper,) = (each for each in companions(run.directory, KEEPER) if parent(each.pid) == node)
        of_rank = worker(run.directory, rank=1)
        # Stopped before: by then the other node has this rank's copies of the two newest steps that the other rank keeps.
        os.kill(of_rank.pid, signal.SIGSTOP)
        time.sleep(1)
        keeper.kill()
        of_rank.kill()
        out, err = launcher.communicate(LIMIT_S)
    assert launcher.returncode == 0, out + err
    failures = run.journal("failure")
    assert [(failure["cause"], failure["rank"]) for failure in failures] == [("killed by SIGKILL", 1)] * 2
    first, of_own, of_partner = (claim["base"] for claim in run.journal("claim"))
    assert first is None
    assert (of_own["generation"], of_own["tier"]) == (1, "memory")
    assert failures[0]["step"] - 4 <= of_own["step"] <= failures[0]["step"], "two captures may be on their way when a worker dies"
    assert (of_partner["generation"], of_partner["tier"]) == (2, "memory")
    assert of_partner["step"] > 40, "the newest checkpoint on disk"
    assert [path.name for path in run.checkpoints()] == [f"step-{step:09d}.g{g:06d}" for step, g in ((20, 1), (40, 2), (60, 3))]
    assert run.hashes() == undisturbed_hashes(run.run_json, tmp_path / "undisturbed")
    assert all(digest in out for digest in run.hashes().values())
    assert "in 2 failures" in out
    assert run.journal("standby", "warm") == [], "HEADWAY_STANDBY=0"
    assert (run.directory / "report.html").is_file()
    assert processes_of(run.directory) == []
    logs = {name: (run.directory / f"attempts/0/logs/{name}-0.log").read_text() for name in ("agent", "coordinator")}
    assert all(
        re.match(rf"{LOGGED} {name} node=0( generation=\d+)?: ", line) for name in logs for line in logs[name].splitlines()
    )
    assert logs["coordinator"].count(": failure ") == 2
    assert logs["agent"].count(": order to start") == 3


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


def job_of(folder: Path, checkpoint: str) -> Path:
    """The job with another checkpoint section, next to its cluster."""
    (folder / "cluster.yaml").write_text((JOB.parent / "cluster.yaml").read_text())
    text = JOB.read_text()
    (folder / "job.yaml").write_text(text[: text.index("checkpoint:")] + checkpoint)
    return folder / "job.yaml"


def test_a_run_keeps_each_step_through_restarts_stops_and_its_limit(
    single: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is profiled, loses its agent and its coordinator, and is stopped; then it loses its launcher, reaches its limit, and completes."""
    runs = tmp_path / "runs"
    # It continues training in the meantime, and must not reach its end.
    monkeypatch.setenv("LIGHT_STEP_S", "1")
    with going("run", one_rank(tmp_path), runs=runs) as launcher:
        run = wait_for_step(runs, 2)
        trace_of_two_steps(run, runs)
        restart_agent_and_coordinator(run)
        wait_for_step(runs, max(run.steps()) + 1)
        launcher.terminate()
        assert launcher.wait(LIMIT_S) == 82
    assert len(run.journal("claim")) == 1
    assert run.verdict()["committed_step"] == max(run.steps())

    monkeypatch.delenv("LIGHT_STEP_S")
    resume = ("run", tmp_path / "job.yaml", "--resume", run.directory.name)
    with going(*resume, runs=runs) as launcher:
        wait_for_step(runs, max(run.steps()) + 2)
        launcher.kill()
        wait_until(lambda: not processes_of(run.directory), "the end of all processes of the run")
    assert run.verdict(1)["verdict"] == "preempted"
    assert run.verdict(1)["committed_step"] == max(run.steps())

    reached = run.steps()
    one_rank(tmp_path, LIMIT.format("1s"))
    assert headway(*resume, runs=runs).returncode == 83
    assert run.verdict(2)["cause"] == "the run has reached its limit: 1s of all attempts together (limits.run.time)"
    assert run.steps() == reached, "the attempts before have used all of it"

    one_rank(tmp_path, LIMIT.format("1d"))
    done = headway(*resume, runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.steps() == list(range(1, 61))
    stops = [run.verdict(attempt)["committed_step"] for attempt in (0, 1)]
    assert [claim["base"]["step"] for claim in run.journal("claim")[1:]] == stops
    assert run.hashes() == single.hashes()


# For all attempts together.
LIMIT = "limits: {{run: {{time: {}}}}}\n"


def trace_of_two_steps(run: Run, runs: Path) -> None:
    """Request a trace of two steps, and assert that it is one."""
    done = headway("profile", run.directory, "--steps", "2", "--ranks", "0", runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    (trace,) = map(Path, done.stdout.splitlines())
    assert trace.name == "rank-0.json.gz"
    with gzip.open(trace, "rt") as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"] if event.get("cat") == "user_annotation"]
    assert names.count("Optimizer.step#AdamW.step") == 2
    assert not RunDirectory(run.directory).profile_request.exists()


def restart_agent_and_coordinator(run: Run) -> None:
    """Kill both, and assert that others take their places next to the same workers."""
    workers = {p.pid for p in processes_of(run.directory) if "RANK" in p.environment}
    (agent,) = companions(run.directory, AGENT)
    (coordinator,) = companions(run.directory, COORDINATOR)
    agent.kill()
    wait_until(lambda: any(p.pid != agent.pid for p in companions(run.directory, AGENT)), "a new agent")
    coordinator.kill()
    wait_until(lambda: bool(run.journal("adopted")), "a coordinator that continues the generation")
    assert workers <= {p.pid for p in processes_of(run.directory)}


# Trains until it has been restarted and a file is there; it sleeps, so that a standby finds the CPUs free.
SLEEPY = """
import os, sys, time
imported = "torch" in sys.modules
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
again = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
while not again or not os.path.exists(os.path.join(os.path.dirname(__file__), "end")):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
print("ended", os.environ["RANK"], sys.argv[1:], imported, flush=True)
"""


def workers_of(directory: Path) -> set[int]:
    """The PIDs of the run's workers."""
    return {p.pid for p in processes_of(directory) if "RANK" in p.environment and p.module == "headway.runner.boot"}


def test_a_killed_worker_is_replaced_by_a_warm_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STANDBY", "1")
    (tmp_path / "train.py").write_text(SLEEPY)
    flags = ("--redirects", "3", "--log-dir", tmp_path / "logs")
    with going("torchrun", *flags, tmp_path / "train.py", "x y", runs=tmp_path / "runs") as launcher:
        wait_until(lambda: bool(notes(tmp_path, "standby")), "a standby that has imported everything")
        run = only_run(tmp_path / "runs")
        parked = {p.pid for p in companions(run.directory, STANDBY)}
        worker(run.directory, rank=0).kill()
        wait_until(lambda: workers_of(run.directory) == parked, "the standby in the worker's place")
        (tmp_path / "end").touch()
        assert launcher.wait(LIMIT_S) == 0
    assert notes(tmp_path, "warm")[0]["ranks"] == [0]
    (printed,) = (tmp_path / "logs").glob("*/attempt_1/*/stdout.log")
    assert printed.read_text() == "ended 0 ['x y'] True\n"
    assert processes_of(run.directory) == []


def notes(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The agents' notes in the journal of the only run below `folder`, once there is one."""
    return [line for path in folder.glob("runs/*/handle.json") for line in Run(path.parent).journal(kind)]


# It ends only by SIGKILL.
STUBBORN = "trap '' TERM INT HUP QUIT; while :; do sleep 0.1; done"


def test_no_process_of_a_run_outlives_its_supervisor(tmp_path: Path) -> None:
    words = ("torchrun", "--nproc-per-node", "2", "--no-python", "sh", "-c", STUBBORN)
    with going(*words, runs=tmp_path / "runs") as launcher:
        wait_until(lambda: bool(notes(tmp_path, "start")), "the start of its workers")
        run = only_run(tmp_path / "runs")
        wait_until(lambda: sum("RANK" in p.environment for p in processes_of(run.directory)) >= 2, "both workers")
        (of_node,) = companions(run.directory, "headway.runner")
        of_node.kill()
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
    with going("run", one_rank(tmp_path), runs=tmp_path / "runs") as launcher:
        run = wait_for_step(tmp_path / "runs", 3)
        os.kill(worker(run.directory, rank=0).pid, signal.SIGSTOP)
        launcher.send_signal(signal.SIGINT)
        wait_until(lambda: bool(run.journal("preempted")), "the first interrupt")
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(LIMIT_S) == 81, "no verdict was reached"
        wait_until(lambda: not processes_of(run.directory), "the end of all processes of the run")


# test_data.py stops a run by data that a rank cannot use.
@pytest.mark.variant
def test_missing_data_stops_the_run_at_once_and_is_named(tmp_path: Path) -> None:
    job = one_rank(tmp_path)
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
