"""Tests that scripts end the same way under both launchers."""

from pathlib import Path

import pytest

from .harness import Scenario, compare, why_not
from .scenarios import ENDS, parameters

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "sandboxes can be had")]


@pytest.mark.parametrize("scenario", parameters(ENDS))
def test_a_script_observes_no_difference(scenario: Scenario, tmp_path: Path) -> None:
    compare(scenario, tmp_path / "seen")
