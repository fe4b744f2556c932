"""Tests the comparison of replicas while a script runs: differences are found and attributed, and permitted differences raise no alarm."""

import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.runner.boot import compare, heartbeat, limitations
from headway.runner.boot.compare import ComparisonSchedule
from headway.runner.boot.replica_report import ReplicaHolding, ReplicaReport, Sum, describe, holdings, suspected
from headway.runner.contract import Every
from headway.runner.corruption import CorruptionError
from tests.faults.runs import JOB as FAULTS
from tests.faults.runs import headway, only_run
from tests.support.ranks import replicated
from tests.support.worker import Booted, booted
from tests.support.worlds import run_world


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Booted]:
    with booted(tmp_path / "run") as found:
        yield found
    limitations._seen.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "stories"),
    [
        (2, "pair saves"),
        (3, "parameter moment never made_again"),
        (3, "gan evaluated teacher averaged one_optimizer"),
        (4, "hsdp"),
        (2, "sound sharded_optimizer alone other_alone hooked nothing frozen seconds fails in_backward"),
        (2, "waits_in_vain"),
    ],
)
def test_replicas_are_compared(ranks: int, stories: str, tmp_path: Path) -> None:
    run_world("tests.support.ranks.comparing", ranks, tmp_path, *stories.split())


# --- blame ------------------------------------------------------------------------------------------------------------


def held(kind: str, *groups: tuple[int, ...]) -> ReplicaHolding:
    return ReplicaHolding(kind, sum(map(len, groups)), groups)


@pytest.mark.parametrize(
    ("differing", "ranks"),
    [
        ([held("parameters", (0, 2, 3), (1,))], [1]),
        ([held("parameters", (0, 1, 2), (3,), (4,))], [3, 4]),
        ([held("parameters", (0,), (1,))], [0, 1]),
        ([held("parameters", (0, 3), (1, 2))], [0, 1, 2, 3]),
        ([held("parameters", (0, 3), (1,), (2,))], [0, 1, 2, 3]),
        ([held("parameters", (0,), (1,)), held("exp_avg", (0, 2, 4), (1,))], [1]),
        ([held("parameters", (0,), (2,)), held("parameters", (1,), (3,))], [0, 1, 2, 3]),
    ],
    ids=["one", "two of five", "either of two", "half", "no more than half", "clear elsewhere", "two sets"],
)
def test_the_minority_is_blamed_and_without_one_all_are_suspected(differing: list[ReplicaHolding], ranks: list[int]) -> None:
    assert suspected(differing) == ranks


def test_the_message_names_ranks_difference_and_last_equal_step() -> None:
    kinds = [held("parameters", (0, 2), (1,)), held("exp_avg", (0, 2), (1,))]
    assert describe(kinds, 30, 20) == (
        "rank 1 and ranks 0, 2 must hold the same parameters, optimizer state exp_avg but differ at step 30; ranks 0, 2 agree; "
        "all were equal at step 20"
    )
    sets = [held("parameters", (0,), (2,)), held("parameters", (1,), (3,))]
    assert describe(sets, 1, None) == (
        "ranks 0, 2 must hold the same parameters but differ at step 1; the wrong one cannot be identified; "
        "other sets of ranks differ too: ranks 0, 1, 2, 3 in total; none was compared before"
    )
    many = [held("parameters", tuple(range(1, 2048)), (0,))]
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2039 more agree" in describe(many, 30, 20)


def test_only_ranks_with_comparable_values_are_compared() -> None:
    def said(rank: int, *sums: Sum) -> ReplicaReport:
        return ReplicaReport.from_json(ReplicaReport(rank, 5, 0.1, False, sums).to_json())

    found = holdings(
        [
            said(0, Sum("momentum", 3, "m", "1"), Sum("parameters", 3, "p", "2")),
            said(1, Sum("momentum", 3, "other tensors", "7"), Sum("parameters", 3, "p", "2")),
            said(2, Sum("momentum", 3, "m", "1"), Sum("parameters", 3, "p", "3")),
        ]
    )
    assert [(each.kind, each.groups) for each in found] == [
        ("parameters", ((0, 1), (2,))),
        ("momentum", ((0, 2),)),
        ("momentum", ((1,),)),
    ]


# --- schedule ---------------------------------------------------------------------------------------------------------


def due(schedule: ComparisonSchedule, steps: int, clock: list[float], step_s: float) -> list[int]:
    """The steps, out of `steps`, at which a comparison is due on a rank whose steps take this long."""
    found = []
    for step in range(1, steps + 1):
        clock[0] += step_s
        schedule.stepped()
        if schedule.is_due():
            found.append(step)
            schedule.compared(schedule.step_s())
    return found


def test_steps_are_counted_from_the_first_at_which_others_are_compared() -> None:
    clock = [0.0]
    assert due(ComparisonSchedule(Every(steps=10), lambda: clock[0]), 35, clock, 1.0) == [1, 10, 20, 30]
    assert due(ComparisonSchedule(Every(steps=1), lambda: clock[0]), 3, clock, 1.0) == [1, 2, 3]


def test_an_interval_in_seconds_becomes_steps_by_the_step_time() -> None:
    clock = [0.0]
    assert due(ComparisonSchedule(Every(seconds=10.0), lambda: clock[0]), 60, clock, 0.5) == [1, 2, 4, 8, 16, 32, 52]
    assert due(ComparisonSchedule(Every(seconds=10.0), lambda: clock[0]), 6, clock, 30.0) == [1, 2, 3, 4, 5, 6]


# --- the hook ---------------------------------------------------------------------------------------------------------


def counting(boot: Booted, every: Every) -> tuple[heartbeat.StepCounter, torch.optim.Optimizer]:
    current = heartbeat.current()
    assert current is not None
    counter, optimizer = heartbeat.StepCounter(current), torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    counter.then = compare.Comparison(boot.worker, every)
    optimizer.register_step_post_hook(counter)
    return counter, optimizer


def test_a_single_rank_reports_once_that_nothing_is_compared(boot: Booted) -> None:
    _, optimizer = counting(boot, Every(steps=1))
    for _ in range(3):
        optimizer.step()
    assert list(limitations._seen) == ["compare: no two ranks hold the same parameters, so nothing is compared"]
    assert boot.said() == []


def test_an_error_in_the_check_stops_no_step_and_disables_the_check(boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def breaks(*_: Any) -> None:
        tried.append(1)
        raise RuntimeError("no group")

    monkeypatch.setattr(compare.Comparison, "_compare", breaks)
    _, optimizer = counting(boot, Every(steps=1))
    for _ in range(3):
        optimizer.step()
    assert (boot.worker.step, tried) == (3, [1])
    assert list(limitations._seen) == ["compare: replicas are not compared after step 1: RuntimeError: no group"]


@pytest.mark.slow
def test_a_mismatch_ends_a_compiled_step(boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat.StepCounter, "__call__", heartbeat.StepCounter.__call__)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    heartbeat.see_dynamo(torch._dynamo)
    _, optimizer = counting(boot, Every(steps=2))
    monkeypatch.setattr(compare.Comparison, "_compare", lambda self: CorruptionError("found") if boot.worker.step == 2 else None)
    step = torch.compile(optimizer.step, backend="eager")
    step()
    with pytest.raises(CorruptionError, match="found"):
        step()


# --- a whole run ------------------------------------------------------------------------------------------------------

JOB = """
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: this-machine
nodes: 3
trainer: {kind: script, options: {argv: [train.py, faulty]}}
resilience: {spares: 1, corruption: {compare: 4 steps}}
"""


@pytest.mark.slow
def test_a_run_excludes_a_broken_node_and_ends_as_if_fault_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sound", "faulty"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "sound")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with monkeypatch.context() as patch:
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("MASTER_PORT", str(port))
        run_world("tests.support.ranks.replicated", 3, "sound")

    monkeypatch.chdir(tmp_path / "faulty")
    shutil.copy(replicated.__file__, "train.py")
    Path("job.yaml").write_text(JOB)
    cluster = (FAULTS.parent / "cluster.yaml").read_text()
    Path("cluster.yaml").write_text(
        cluster.replace("count: 1", "count: 4").replace("cpus: 2", "cpus: 1").replace("procs: 2", "procs: 1")
    )
    done = headway("run", "job.yaml", runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "runs")
    (failure,) = run.journal("failure")
    assert failure["cause"] == (
        "rank 1 and ranks 0, 2 must hold the same parameters but differ at step 12; ranks 0, 2 agree; all were equal at step 8"
    )
    assert [start["nodes"][1]["node"] for start in run.journal("start")] == [1, 3], "the spare has its slot"
    refused = {Path(note["path"]).name for note in run.journal("refused file")}
    assert refused == {"step-9.pt", "step-10.pt", "step-11.pt"}
    printed = (run.directory / "attempts/0/logs/0/0.log").read_text()
    assert re.findall("from ([0-9]+) (.*)", printed) == [("8", Path("ending").read_text())]
    assert Path("ending").read_text() == (tmp_path / "sound/ending").read_text()
