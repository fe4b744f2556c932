"""Tests the scenarios with a rank killed on the way: headway ends with the result of an uninterrupted run."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak import record

from .harness import HEADWAY, TORCHRUN, Raw, Scenario, alone, why_not
from .scenarios import SCENARIOS, parameters

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "sandboxes can be had")]

# The number of moments at which each scenario is killed; `make soak` sets more.
EXAMPLES = int(os.environ.get("HEADWAY_EXAMPLES", "1"))
# Input read from stdin is unavailable after a restart, so a millisecond decides the result there, under both.
ENDLESS = [scenario for scenario in SCENARIOS if not scenario.fails and not scenario.stdin]
# In `make test`, tests/faults/test_nodes.py compares the result of a script that saves by dcp and loses a node.
CHOSEN = [replace(scenario, variant=True) for scenario in ENDLESS]


def results(seen: Raw) -> dict[str, str]:
    """The final result of a script that saves."""
    return {name: file.content for name, file in seen.files.items() if name.startswith("work/result")}


@pytest.mark.parametrize("seed", range(EXAMPLES))
@pytest.mark.parametrize("scenario", parameters(CHOSEN))
def test_a_killed_rank_changes_no_result(scenario: Scenario, seed: int, tmp_path: Path) -> None:
    quiet = alone(scenario, tmp_path / "quiet", TORCHRUN)
    assert quiet.code == 0, quiet.err
    drawn = random.Random(f"{scenario.name} {seed}")
    kill = {"rank": drawn.randrange(scenario.ranks), "mark": drawn.randint(1, max(1, quiet.marks))}
    ours = alone(scenario, tmp_path / "headway", HEADWAY, kill)
    if scenario.saves:
        assert (ours.code, results(ours)) == (0, results(quiet)), (kill, ours.out, ours.err)
        outcome = "the result of a run without a kill"
    else:
        theirs = alone(scenario, tmp_path / "torchrun", TORCHRUN, kill)
        # A script that ended and has printed no more than without a kill had completed when its kill came.
        missed = theirs.code == 0 and theirs.marks <= quiet.marks
        assert ours.code == 0 or theirs.code != 0 or missed, (kill, ours.out, ours.err)
        under = "had ended" if missed else "ended" if theirs.code == 0 else "failed"
        outcome = f"headway {'ended' if ours.code == 0 else 'failed'}, torchrun {under}"
    record(f"killed: {scenario.name}, seed {seed}", {**kill, "killed": ours.killed, "outcome": outcome})
