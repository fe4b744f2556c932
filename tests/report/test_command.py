"""`headway report RUN` writes a page, prints a summary and returns its exit code."""

import argparse
import re
from pathlib import Path

import pytest

from headway.cli.verbs import report
from headway.runner import contract
from headway.runner.rundir import create_handle_of_loop
from tests.planner.test_flops import CLUSTER, JOB

from . import run_directory as build
from .run_directory import RunDirectory


def headway_report(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    report.configure(parser)
    return report.run(parser.parse_args(argv))


def test_run_below_headway_runs_gets_a_page_and_a_summary(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.one_failure(runs / "run")
    assert headway_report("run") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "lost 6.5 s in 1 failure: 1 crash 6.5 s (killed by SIGKILL, rank 1; ETTR 0.690)"
    assert err == f"report: {runs / 'run' / 'report.html'}\n"
    assert (runs / "run" / "report.html").read_text(encoding="utf-8").endswith("</html>\n")


def test_custom_loop_that_saves_with_the_library_has_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").mkdir()
    create_handle_of_loop(contract.RunDirectory(tmp_path / "loop", 0), world_size=4)
    assert headway_report(str(tmp_path / "loop")) == 0
    assert "4 ranks (1 slot x 4)" in capsys.readouterr().out


def test_name_is_looked_up_in_runs_if_headway_runs_is_unset(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build.clean_run(runs / "run")
    monkeypatch.delenv("HEADWAY_RUNS")
    monkeypatch.chdir(runs.parent)
    assert headway_report("run") == 0
    assert capsys.readouterr().err == f"report: {Path('runs/run/report.html')}\n"


def test_name_is_looked_up_in_the_directory_of_torchrun_last(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    build.clean_run(tmp_path / "state" / "headway" / "runs" / "run")
    monkeypatch.delenv("HEADWAY_RUNS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(runs)
    assert headway_report("run") == 0
    assert capsys.readouterr().err == f"report: {tmp_path / 'state/headway/runs/run/report.html'}\n"


def test_page_is_written_to_the_given_path(runs: Path, tmp_path: Path) -> None:
    build.clean_run(runs / "run")
    assert headway_report(str(runs / "run"), "-o", str(tmp_path / "page.html")) == 0
    assert (tmp_path / "page.html").is_file()
    assert not (runs / "run" / "report.html").exists()


def test_second_report_writes_an_identical_page(runs: Path) -> None:
    build.clean_run(runs / "run")
    page = runs / "run" / "report.html"
    assert headway_report("run") == 0
    first = page.read_bytes()
    assert headway_report("run") == 0
    assert page.read_bytes() == first


@pytest.mark.parametrize("name", ["nowhere", "", "\x00", "empty"])
def test_path_that_is_not_a_run_prints_one_error_line_and_exits_1(
    runs: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "empty").mkdir()
    monkeypatch.chdir(runs)
    assert headway_report(name) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert list(runs.rglob("*.html")) == []


def test_damaged_run_prints_one_error_line_and_exits_1(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.clean_run(runs / "run")
    (runs / "run" / "ledger.jsonl").write_text("not a ledger\n", encoding="utf-8")
    assert headway_report("run") == 1
    assert capsys.readouterr().err.startswith(f"error: {runs / 'run' / 'ledger.jsonl'}:1: not JSON: ")


@pytest.mark.parametrize("output", ["absent/page.html", "run", ""])
def test_unwritable_page_prints_one_error_line_and_exits_3(
    runs: Path, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build.clean_run(runs / "run")
    monkeypatch.chdir(runs)
    assert headway_report("run", "-o", output) == 3
    assert "cannot be written" in capsys.readouterr().err
    assert [path.name for path in runs.iterdir()] == ["run"]


def test_running_run_can_be_reported(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(runs / "run")
    run.begin()
    run.train(3)
    with (runs / "run" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"wall": 176')
    assert headway_report("run") == 0
    assert "no verdict yet" in capsys.readouterr().out


def test_planned_step_time_is_shown_next_to_the_measured_one(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build.clean_run(runs / "run")
    (tmp_path / "lab.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB.replace(", more", ""))
    assert headway_report("run", "--job", str(tmp_path / "job.yaml")) == 0
    block = capsys.readouterr().out
    shown = " ".join(block.split())
    assert "speed 0.50 s a step (median), 8,192 tokens/s memory" in shown
    assert re.search(
        r"planned: [0-9.]+ s a step, 9 of 10 such runs [0-9.]+ s to [0-9.]+ s, [0-9.]+ GB in tensors on a GPU ", shown
    )
    assert "planned: " in (runs / "run" / "report.html").read_text(encoding="utf-8")


def test_job_without_gpus_has_no_planned_step_time(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.clean_run(runs / "run")
    job = Path(__file__).parents[2] / "examples/quickstart/job.yaml"
    assert headway_report("run", "--job", str(job)) == 1
    assert "the planner only models GPUs" in capsys.readouterr().err
