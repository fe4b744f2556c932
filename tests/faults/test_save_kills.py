"""Tests kills at random instants of saving, on each tier: the run resumes from a verified checkpoint and ends in the same state."""

import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak import record

from .kills import BETWEEN, Job, bases, kill_until_done, records_of
from .processes import processes_of
from .runs import Run, headway, only_run

# test_crash.py and test_data.py kill runs that save to memory, to a partner and to a remote store.
pytestmark = [pytest.mark.slow, pytest.mark.variant, pytest.mark.timeout(7200)]

# The steps of this folder's job.
JOB_STEPS = 60
KILLS = max(1, int(os.environ.get("HEADWAY_EXAMPLES", "300")) // 200)  # on each tier
KILLS_A_RUN = min(KILLS, 10)
# Some are repeated, so that the last kill comes well before the end.
STEPS = max(JOB_STEPS, 20 + KILLS_A_RUN * BETWEEN[1] * 2)
TIERS = {
    "memory": Job(1, {"memory": 2, "shared": 20}, STEPS),
    "peer": Job(2, {"memory": 2, "peer": 2, "shared": 20}, STEPS),
    "shared": Job(1, {"shared": 2}, STEPS),
    "remote": Job(1, {"remote": 2}, STEPS),
}


@pytest.fixture(scope="module")
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same job to its end; neither the number nor the place of its saves changes its computation."""
    if STEPS == JOB_STEPS:
        found: Run = request.getfixturevalue("uninterrupted")
        return found
    folder = tmp_path_factory.mktemp("undisturbed")
    done = headway("run", Job(1, {"shared": 20}, STEPS).write(folder), runs=folder / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(folder / "runs")


@pytest.fixture
def job(request: pytest.FixtureRequest) -> Job:
    """The job of a tier; a remote one gets a bucket."""
    found: Job = TIERS[request.param]
    return replace(found, url=request.getfixturevalue("bucket")) if "remote" in found.every else found


@pytest.mark.parametrize(("tier", "job"), [pytest.param(tier, tier, id=tier) for tier in TIERS], indirect=["job"])
def test_a_run_killed_during_a_save_resumes_from_a_verified_checkpoint(
    undisturbed: Run, tier: str, job: Job, tmp_path: Path
) -> None:
    victims, began, attempts = Counter[str](), Counter[str](), 0
    for number, first in enumerate(range(0, KILLS, KILLS_A_RUN)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = job.write(folder)
        killed = kill_until_done(path, folder / "runs", min(KILLS_A_RUN, KILLS - first), random.Random(f"{tier} {number}"))
        assert killed.run.hashes() == undisturbed.hashes()
        assert {refused["tier"] for refused in killed.run.journal("refused")} <= {"memory"}, "what was committed stays readable"
        assert processes_of(killed.run.directory) == []
        began.update(bases(records_of(killed.run)))
        victims += killed.victims
        attempts += killed.attempts
    record(f"kills while saving to {tier}", {"kills": victims, "started from": began, "attempts": attempts})
    assert victims.total() >= KILLS
    assert began.keys() <= {"the beginning", *job.every}
