"""`headway logs` follows a run whose runner has not started yet, and rejects ranks that the run does not have."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.cli.main import main
from headway.cli.verbs import logs
from headway.runner.contract import RunDirectory

RUN = "case-0123abcd-1"
HANDLE = {
    "run": RUN,
    "job": "case",
    "spec_hash": "0123abcd",
    "slots": 2,
    "procs_per_slot": 2,
    "world_size": 4,
    "steps": None,
    "trainer": "script",
    "submitted_at": 1.0,
}
VERDICT = {"run": RUN, "attempt": 0, "generation": 0, "verdict": "stop", "cause": "exit code 1", "exit_code": 83}


@pytest.fixture(autouse=True)
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """Create a run whose first attempt a batch script has opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_CLUSTER", raising=False)
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path / "runs"))
    (tmp_path / "runs" / RUN / "attempts/0").mkdir(parents=True)
    return RunDirectory(tmp_path / "runs" / RUN)


def start(run: RunDirectory) -> None:
    run.handle.write_text(json.dumps({"schema": "headway.handle/1", **HANDLE}))
    log = run.root / "attempts/0/logs/1/3.log"
    log.parent.mkdir(parents=True)
    log.write_text("no data for rank 3\n")
    (run.root / "attempts/0/verdict.json").write_text(json.dumps({"schema": "headway.verdict/1", **VERDICT}))


def test_run_can_be_followed_before_its_runner_has_started(
    opened: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            start(opened)

    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=sleep))
    assert main(["logs", RUN, "-f", "--rank", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"--- {RUN}/attempts/0/logs/1/3.log",
        "no data for rank 3",
        f"run {RUN}: stopped",
    ]
    # Once more after the last line, for lines that may follow.
    assert len(waits) == 3


def test_missing_rank_is_rejected_once_the_ranks_are_known(
    opened: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=lambda _: start(opened)))
    assert main(["logs", RUN, "--rank", "-1"]) == 1
    assert main(["logs", RUN, "--rank", "4"]) == 0
    assert "there is no rank -1" in capsys.readouterr().err
    assert main(["logs", RUN, "-f", "--rank", "4"]) == 1
    assert "there is no rank 4; the run has ranks 0 to 3" in capsys.readouterr().err
