"""The last line of a job under a scheduler has the same costs as the report."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.report.summary import summarize
from headway.report.wording import bottom_line
from headway.runner.goodput.closing import closing_line

from . import run_directory as build


def test_line_of_a_run_with_two_kinds_of_failures(runs: Path) -> None:
    build.hang_and_lost_node(runs / "run")
    assert (
        closing_line(runs / "run") == "lost 9.2 s in 2 failures: 1 hang 5.0 s, 1 node lost 4.2 s (ETTR 0.472, with queue 0.413)"
    )


def test_line_of_an_uninterrupted_run(runs: Path) -> None:
    build.clean_run(runs / "run")
    assert closing_line(runs / "run") == "nothing lost: no failure (ETTR 0.889)"


def test_line_of_a_run_without_a_ledger(runs: Path) -> None:
    build.RunDirectory(runs / "run")
    assert closing_line(runs / "run") == "nothing lost: no failure"


@pytest.mark.parametrize("made", [build.hang_and_lost_node, build.never_trained, build.two_failures_and_a_refusal])
def test_closing_line_agrees_with_the_report(runs: Path, made: Callable[[Path], build.RunDirectory]) -> None:
    """Both compute each kind's seconds independently."""
    made(runs / "run")
    closing, reported = closing_line(runs / "run"), bottom_line(summarize(runs / "run"))
    costs = re.findall(r"\d+ [a-z ]+ [\d.]+ s", closing.split("failures: ")[1])
    assert costs
    assert re.findall(r"\d+ [a-z ]+ [\d.]+ s", reported.split("failures: ")[1].split("(")[0]) == costs
