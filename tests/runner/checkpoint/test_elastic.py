"""Tests that a state saved under one layout is the same, bit for bit, under another, and that training continues nearly the same."""

from typing import Any

import pytest

from tests.soak import record
from tests.support.ranks import elastic
from tests.support.ranks.elastic import LAYOUTS, MORE, SAVED_AT, SIZES
from tests.support.worlds import run_world

pytestmark = pytest.mark.slow

# Other layouts add the same numbers in another order. The largest difference over the table was measured as 2e-7 of the loss, which is
# two steps of float32.
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each layout's own run, and its result from each other layout's checkpoint."""
    root = tmp_path_factory.mktemp("elastic")
    run_world("tests.support.ranks.elastic", max(SIZES), root)
    return elastic.results(root)


def relative(found: list[float], expected: list[float]) -> float:
    """The largest difference of two curves, relative to the value."""
    assert len(found) == len(expected) == MORE
    return max(abs(a - b) / b for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_state_is_restored_bit_for_bit_under_any_layout(results: dict[str, Any], layout: str, source: str) -> None:
    saved, found = results["runs"][source]["saved"], results["resumed"][layout][source]
    assert found["step"] == SAVED_AT
    assert found["loaded"] == saved
    assert len(saved) == 4 * (2 + 4 * 4), "four tensors for each of 18 parameters"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_continues_bit_for_bit_under_the_same_layout(results: dict[str, Any], layout: str) -> None:
    run, again = results["runs"][layout], results["exactly"][layout]
    assert again == run
    assert run["losses"] != results["resumed"][layout][layout]["losses"], "dropout has no effect, so the generators prove nothing"


def test_training_continues_along_the_same_curve_under_another_layout(results: dict[str, Any]) -> None:
    table = {
        source: {
            layout: relative(results["resumed"][layout][source]["losses"], results["resumed"][source][source]["losses"])
            for layout in LAYOUTS
        }
        for source in LAYOUTS
    }
    record("elastic", {"tolerance": TOLERANCE, "largest difference of the loss, saved under -> loaded under": table})
    assert {source: row[source] for source, row in table.items()} == dict.fromkeys(LAYOUTS, 0.0)
    assert max(max(row.values()) for row in table.values()) <= TOLERANCE
