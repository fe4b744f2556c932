"""Tests that every axis of the mesh, and pairs of them, train as one process does: the same losses, also from another layout's save."""

from typing import Any

import pytest

from tests.soak import record
from tests.support.corpora import documents, write_corpus
from tests.support.ranks import parallel
from tests.support.ranks.parallel import ALONE, LAYOUTS, SAVED_AT, STEPS, Found
from tests.support.worlds import run_world

# `make soak` runs all layouts, which takes longer than a test usually may.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

# Layouts add the same numbers in other orders. The largest difference was measured as 1.6e-7 of a loss, one step of
# float32.
TOLERANCE = 1e-6
# bfloat16 has 8 bits; measured: 1.5e-3 of a loss, and 7e-2 of a gradient's norm where parameters move far, in pipelines.
ROUNDED_TOLERANCE = 5e-3
ROUNDED_NORM_TOLERANCE = 0.15


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """The results of each layout's ranks."""
    root = tmp_path_factory.mktemp("parallel")
    (root / "text").write_text("the quick brown fox jumps over the lazy dog; " * 50)
    write_corpus(root / "short", [documents(seed, 40, 9) for seed in range(2)])
    write_corpus(root / "long", [documents(seed, 12, 60) for seed in range(2, 4)])
    run_world("tests.support.ranks.parallel", 4, root, limit_s=1800)
    return parallel.results(root)


def relative(found: list[float], expected: list[float]) -> float:
    """The largest difference of two curves, relative to the value."""
    assert len(found) == len(expected)
    return max(abs(a - b) / b for a, b in zip(found, expected, strict=True))


def oracle(name: str) -> str:
    """The layout of one process that trains on the same data."""
    return parallel.ALONE_WITH_DOCUMENTS if parallel.LAYOUTS[name].has_documents else ALONE


def tolerance(name: str) -> float:
    return ROUNDED_TOLERANCE if name in parallel.ROUNDED | parallel.MORE_ROUNDED else TOLERANCE


def norm_tolerance(name: str) -> float:
    return 5 * TOLERANCE if tolerance(name) == TOLERANCE else ROUNDED_NORM_TOLERANCE


def test_the_single_process_learns_and_clips(found: dict[str, Found]) -> None:
    alone = found[ALONE]
    assert len(alone.losses) == STEPS
    assert alone.losses[-1] < alone.losses[0] - 0.5
    assert min(alone.norms) < 1.8 < max(alone.norms), "the oracle shows both a clipped and an unclipped gradient"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_losses_and_gradient_norms_of_one_process(found: dict[str, Found], name: str) -> None:
    alone = found[oracle(name)]
    assert relative(found[name].losses, alone.losses) <= tolerance(name)
    assert relative(found[name].norms, alone.norms) <= norm_tolerance(name)
    assert (found[name].losses == alone.losses) <= (name not in parallel.ROUNDED), "bf16 changes nothing"
    assert found[name].samples == alone.samples, "each sample counts once, however many ranks work on it"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_restart_under_the_same_layout_changes_no_bit(found: dict[str, Found], name: str) -> None:
    assert found[name].restarted == found[name].ended


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_resumes_from_the_save_of_another(found: dict[str, Found], name: str) -> None:
    assert relative(found[name].elsewhere, found[oracle(name)].losses[SAVED_AT:]) <= tolerance(name), found[name].source


def test_the_differences_are_recorded(found: dict[str, Found]) -> None:
    table: dict[str, Any] = {name: relative(each.losses, found[oracle(name)].losses) for name, each in found.items()}
    record("parallel", {"tolerance": TOLERANCE, "largest difference of the loss from one process": table})
    assert table[ALONE] == 0.0
