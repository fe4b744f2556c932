"""The last line where a scheduler runs the job says the same costs as the report."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.report.summary import summarize
from headway.report.wording import bottom_line
from headway.runner.goodput.closing import closing_line

from . import run_directory as build


def test_a_run_with_failures_of_two_kinds(runs: Path) -> None:
    build.hang_and_lost_node(runs / "run")
    assert (
        closing_line(runs / "run") == "lost 9.2 s in 2 failures: 1 hang 5.0 s, 1 node lost 4.2 s (ETTR 0.472, with queue 0.413)"
    )


def test_a_run_that_nothing_happened_to(runs: Path) -> None:
    build.clean_run(runs / "run")
    assert closing_line(runs / "run") == "nothing lost: no failure (ETTR 0.889)"


def test_a_run_that_has_no_ledger_yet(runs: Path) -> None:
    build.RunDirectory(runs / "run")
    assert closing_line(runs / "run") == "nothing lost: no failure"


@pytest.mark.parametrize("made", [build.hang_and_lost_node, build.never_trained, build.two_failures_and_a_refusal])
def test_it_agrees_with_the_report(runs: Path, made: Callable[[Path], build.RunDirectory]) -> None:
    """Both find each kind's seconds on their own."""
    made(runs / "run")
    told, reported = closing_line(runs / "run"), bottom_line(summarize(runs / "run"))
    costs = re.findall(r"\d+ [a-z ]+ [\d.]+ s", told.split("failures: ")[1])
    assert costs
    assert re.findall(r"\d+ [a-z ]+ [\d.]+ s", reported.split("failures: ")[1].split("(")[0]) == costs
