"""`headway profile` rejects runs that it cannot profile, and removes its request."""

import json
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.runner.contract import ProfileRequest, RunDirectory, from_json
from tests.report import run_directory as build


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an empty folder of runs and set HEADWAY_RUNS to it."""
    monkeypatch.setenv("HEADWAY_RUNS", str(tmp_path))
    return tmp_path


def running(path: Path, trainer: str = "builtin") -> RunDirectory:
    """Create a run with some steps and without a verdict."""
    run = build.RunDirectory(path, trainer=trainer)
    run.begin()
    run.train(to_step=4)
    return RunDirectory(path)


def test_ended_run_is_rejected(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.clean_run(runs / "run")
    assert main(["profile", "run"]) == 1
    assert capsys.readouterr().err == "error: the run `run` is not running: only steps to come can be traced\n"
    assert not RunDirectory(runs / "run").profiles.exists()


def test_script_and_missing_rank_are_rejected(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running(runs / "script", trainer="script")
    assert main(["profile", "script"]) == 1
    assert "the run is one of the trainer `script`; use torch.profiler in its script" in capsys.readouterr().err
    running(runs / "run")
    assert main(["profile", "run", "--ranks", "0,2"]) == 1
    assert "there is no rank 2: the run has 2 ranks" in capsys.readouterr().err
    assert main(["profile", "nothing"]) == 1


def test_second_profile_at_a_time_is_rejected(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = running(runs / "run")
    files.profiles.mkdir()
    files.profile_request.write_text("another")
    assert main(["profile", "run"]) == 1
    assert "another profile is under way" in capsys.readouterr().err
    assert files.profile_request.read_text() == "another"


def test_wait_and_request_end_if_the_run_makes_no_step(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = running(runs / "run")
    assert main(["profile", "run", "--timeout", "0s"]) == 1
    assert "no trace of rank 0: the run has ended, does not step, or could not write" in capsys.readouterr().err
    assert list(files.profiles.iterdir()) == []


def test_reason_for_a_missing_trace_is_shown(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = running(runs / "run")

    def answer(_: float) -> None:
        request = from_json(ProfileRequest, files.profile_request.read_text())
        assert (request.steps, request.ranks) == (2, (0, 1))
        trace = request.trace(files.profiles, 0)
        trace.parent.mkdir()
        trace.write_bytes(b"not a trace")
        request.failure(files.profiles, 1).write_text("no trace of rank 1: OSError: no space left")

    monkeypatch.setattr("headway.cli.verbs.profile.time.sleep", answer)
    assert main(["profile", "run", "--steps", "2", "--ranks", "0,1"]) == 1
    found = capsys.readouterr()
    assert found.out.strip().endswith("rank-0.json.gz")
    assert "the trace cannot be read: Not a gzipped file" in found.err
    assert "no trace of rank 1: OSError: no space left" in found.err
    assert not files.profile_request.exists()


@pytest.mark.parametrize("words", [["--steps", "0"], ["--steps", "101"], ["--ranks", "0,-1"], ["--timeout", "soon"]])
def test_meaningless_options_are_usage_errors(runs: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "run", *words])
    assert ended.value.code == 2


def test_request_is_a_record(runs: Path) -> None:
    request = ProfileRequest("now", 3, (0, 8))
    assert json.loads(json.dumps(vars(request)))["schema"] == "headway.profile/1"
    assert request.trace(runs, 8) == runs / "now" / "rank-8.json.gz"
