"""The benchmark of detection watches real ranks and identifies each kind of hang that is tested live."""

import pytest

from benchmarks.detection.__main__ import PROVEN
from benchmarks.detection.live import observe

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("what", [pytest.param(what, marks=[pytest.mark.variant] * (what != "is_stopped")) for what in PROVEN])
def test_hang_of_real_ranks_is_identified(what: str) -> None:
    seen = observe(what, 20, 0.0, 60.0)
    assert seen.hang is not None
    assert seen.hang.ranks == PROVEN[what][0]
