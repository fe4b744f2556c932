"""The summary at the end of a run is readable in a pipe, without colour and on a narrow terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from headway.report.summary import summarize
from headway.report.terminal import print_summary

from . import run_directory as build
from .run_directory import RunDirectory


def printed(run: Path, width: int = 120, encoding: str = "utf-8", terminal: bool = False) -> str:
    bytes_ = io.BytesIO()
    file = io.TextIOWrapper(bytes_, encoding=encoding, newline="")
    print_summary(summarize(run), Console(file=file, width=width, force_terminal=terminal, highlight=False))
    file.flush()
    return bytes_.getvalue().decode(encoding)


def test_failure_has_one_line_with_its_cost(runs: Path) -> None:
    build.one_failure(runs / "run")
    lines = [line.strip() for line in printed(runs / "run").splitlines()]
    assert lines[0] == "run  completed (exit code 0)"
    assert "" not in lines
    assert (
        "failures     killed by SIGKILL, rank 1 on localhost at step 27: back to step 20, 7 steps lost, recovered in 3.0 s"
        in lines
    )
    assert "goodput      69.0 % of 29.0 s" in lines
    assert lines[-1] == "lost 6.5 s in 1 failure: 1 crash 6.5 s (killed by SIGKILL, rank 1; ETTR 0.690)"


def test_rejected_checkpoints_and_hashes_are_listed(runs: Path) -> None:
    build.two_failures_and_a_refusal(runs / "run")
    text = printed(runs / "run")
    assert "step-000000030.g000002/data-0-0.bin: chunk 3 of `layers.0.attention.wq`: xxh3_128 differs" in text
    assert "parameters  000000000000000000000000000a11ce" in text


def test_run_without_a_failure_reports_no_loss(runs: Path) -> None:
    build.clean_run(runs / "run")
    assert printed(runs / "run").splitlines()[-1] == "nothing lost: no failure (ETTR 0.889)"


def test_final_failure_and_restarts_without_steps_are_reported(runs: Path) -> None:
    build.never_trained(runs / "run")
    text = printed(runs / "run", width=200)
    assert text.startswith("run  stop: the user's error, or no progress (exit code 83)\n")
    assert "exited with code 1, rank 0 on localhost after 0 steps since its start: restarted as generation 2" in text
    assert "exited with code 1, rank 0 on localhost after 0 steps since its start: not resumed" in text
    assert text.splitlines()[-1].endswith(
        "; lost at least 4.5 s in 3 failures: 3 crash 4.5 s (exited with code 1, rank 0; ETTR 0.000)"
    )
    assert text.splitlines()[-1].startswith("stop: the user's error, or no progress (exit code 83)")


def test_steps_of_a_script_count_from_its_start(runs: Path) -> None:
    run = RunDirectory(runs / "run", planned=60, trainer="script")
    run.begin(load=False)
    run.step = 35
    run.fail("killed by SIGKILL", rank=1, back_to=0)
    run.begin(load=False)
    run.end("completed", 0, "all ranks finished")
    lines = [line.strip() for line in printed(runs / "run").splitlines()]
    assert "loss      none recorded; 60 steps planned" in lines
    assert "output    attempts/0/logs/SLOT/RANK.log" in lines
    assert "failures  killed by SIGKILL, rank 1 on localhost after 35 steps since its start: restarted as generation 2" in lines


def test_steps_count_from_the_start_of_a_script_that_saves_with_headway(runs: Path) -> None:
    run = RunDirectory(runs / "run", planned=60, trainer="script")
    run.begin()
    run.step = 31
    run.fail("killed by SIGKILL", rank=1, back_to=28)
    run.begin(base=(28, 1))
    run.step = 21
    run.fail("killed by SIGKILL", rank=0, back_to=21)
    run.begin(base=(44, 2))
    run.end("completed", 0, "all ranks finished")
    text = " ".join(printed(runs / "run").split())
    assert "rank 1 on localhost after 31 steps since its start: back to step 28, no step recorded since" in text
    assert "rank 0 on localhost after 21 steps since its start: back to step 44, no step recorded since" in text
    assert "steps lost" not in text


def test_running_run_is_not_reported_as_ended(runs: Path) -> None:
    build.still_running(runs / "run")
    text = printed(runs / "run")
    assert "no verdict yet: still running, or its runner is gone" in text
    assert "51.3 % of 9.8 s recorded so far" in text
    assert "hashes" not in text


def test_no_line_is_wider_than_the_terminal(runs: Path) -> None:
    build.two_failures_and_a_refusal(runs / "run")
    assert max(len(line) for line in printed(runs / "run", width=40).splitlines()) <= 40


def test_escape_codes_are_printed_only_to_a_terminal(runs: Path) -> None:
    build.one_failure(runs / "run")
    assert "\x1b" not in printed(runs / "run")
    assert "\x1b" in printed(runs / "run", terminal=True)


def test_output_is_ascii_for_an_ascii_pipe(runs: Path) -> None:
    build.two_failures_and_a_refusal(runs / "run")
    assert printed(runs / "run", encoding="ascii").isascii()


def test_control_characters_in_records_are_escaped(runs: Path) -> None:
    run = RunDirectory(runs / "run")
    run.begin()
    run.fail("\x1b]0;owned\x07[red]\nexit", host="\x9b31m")
    text = printed(runs / "run")
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    assert "\\x1b]0;owned\\x07[red]\\nexit" in text


def test_long_list_of_failures_shows_the_newest_and_counts_the_rest(runs: Path) -> None:
    run = RunDirectory(runs / "run")
    for rank in range(14):
        run.begin()
        run.train(3)
        run.fail(rank=rank)
    text = printed(runs / "run")
    assert "4 earlier ones are in the HTML report" in text
    assert [rank for rank in range(14) if f"rank {rank} on" in text] == list(range(4, 14))


def test_many_different_failures_are_summarized_by_cause(runs: Path) -> None:
    run = RunDirectory(runs / "run")
    for number, cause in enumerate(["killed by SIGKILL"] * 3 + ["no heartbeat for 30 s"] * 2 + ["x" * 100, "exited with code 1"]):
        run.begin()
        run.train(3)
        run.fail(cause, rank=number)
    causes = " ".join(printed(runs / "run", width=400).splitlines()[-1].split())
    causes = causes.split("(")[1]
    assert (
        causes == f"killed by SIGKILL: 3 times; no heartbeat for 30 s: 2 times; {'x' * 77}...: 1 time; 1 other cause; ETTR 0.000)"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_run_that_has_not_started_has_a_summary(runs: Path, encoding: str) -> None:
    RunDirectory(runs / "run")
    text = printed(runs / "run", encoding=encoding)
    assert "run  not started: no generation has claimed the run" in text
    assert "none recorded; 0 of 40 steps" in text


def test_events_and_idle_spares_have_their_rows(runs: Path) -> None:
    build.hang_and_lost_node(runs / "run")
    text = " ".join(printed(runs / "run", width=160).split())
    assert "events rank 1 hung in compute for 3.0 s: its process is stopped (state T)" in text
    assert "n2 (node 1) was lost: its connection ended slot 1 runs on n3 (node 2), in place of node 1" in text
    assert "; spares were idle for 17.2 s, 26.3 % of all nodes' time" in text
    assert text.endswith(
        "lost 9.2 s in 2 failures: 1 hang 5.0 s, 1 node lost 4.2 s (no heartbeat for 3.0 s in compute, rank 1;"
        " node lost: its connection ended, rank 2; ETTR 0.472, with queue 0.413)"
    )
