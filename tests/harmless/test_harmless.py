"""Every scenario, once under each launcher, without a fault."""

from pathlib import Path

import pytest

from .harness import Scenario, both, differences, why_not
from .scenarios import SCENARIOS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "sandboxes can be had")]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_script_observes_under_headway_what_it_observes_under_torchrun(scenario: Scenario, tmp_path: Path) -> None:
    of_torchrun, of_headway = both(scenario, tmp_path / "seen")
    for torchrun, headway in zip(of_torchrun, of_headway, strict=True):
        assert torchrun.code == int(scenario.fails), torchrun
        assert not (found := differences(torchrun, headway)), "\n".join(found)
