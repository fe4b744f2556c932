"""docs/planner.md has the current constants and scores in its tables, and the README has the same figures."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.planner.peers import PYTHON
from benchmarks.planner.rows import PUBLISHED
from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.markdown import table
from headway.jobspec.resolve.model import resolve_model
from headway.jobspec.spec.model import Model
from headway.planner.speed.calibrate import calibrate
from headway.planner.speed.step import step_time
from headway.planner.training import Degrees, Network, Training

from .planner_constants import constants_markdown
from .planner_scores import headline, peers_markdown, scores_markdown, sources_markdown, transfer_markdown

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "planner.md"
README = ROOT / "README.md"
FIGURE = re.compile(r"\d[\d.,]*%?")


def calibration() -> str:
    """Return the table of how one measured step changes estimates."""
    job = Training(
        model=resolve_model(Model(preset="llama-3.1-8b"), PAGE),
        gpu=gpus()["H100-SXM-80"],
        network=Network(8, 8, 450e9, 50e9, 8, "infiniband"),
        degrees=Degrees(dp_shard=64),
        micro=2,
        accumulation=4,
        sequence=8192,
        framework="torchtitan",
    )
    near = replace(job, micro=1, accumulation=8)
    far = replace(job, degrees=Degrees(pp=4, dp_shard=32, cp=2, tp=4), sequence=131072, recompute="full")
    rows = []
    for times in (1.05, 1.2, 1.5, 2.0):
        known = calibrate([(job, times * step_time(job).seconds)])
        rows.append((f"{times:g}", *(f"x {known.factor(other):.2f}" for other in (job, near, far))))
    return table(
        ("measured / estimated", "estimate of that job", "of one with half the microbatch", "of one that is nothing like it"),
        rows,
    )


WRITTEN: Mapping[str, Callable[[], str]] = {"constants": constants_markdown, "calibration": calibration}
MEASURED: Mapping[str, Callable[[], str]] = {
    "scores": scores_markdown,
    "sources": sources_markdown,
    "transfer": transfer_markdown,
    # The comparison with llm-analysis needs `make peers`, which no test requires.
    **({"peers": peers_markdown} if PYTHON.is_file() else {}),
}


@pytest.fixture
def rows() -> None:
    if not PUBLISHED.is_file():
        pytest.skip(f"{PUBLISHED} is not there")


@pytest.mark.parametrize("name", WRITTEN)
def test_page_lists_the_constants_of_the_planner(name: str, update_golden: bool) -> None:
    compare(PAGE, name, WRITTEN[name](), update_golden)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.usefixtures("rows")
def test_page_lists_the_scores_of_the_benchmark(name: str, update_golden: bool) -> None:
    compare(PAGE, name, MEASURED[name](), update_golden)


@pytest.mark.slow
@pytest.mark.usefixtures("rows")
def test_page_states_the_measured_accuracy_of_the_planner(update_golden: bool) -> None:
    compare(PAGE, "headline", headline(), update_golden)


def test_readme_repeats_the_figures_of_the_page() -> None:
    (row,) = re.findall(r"^\| planner \| (.*?):", README.read_text(), re.MULTILINE)
    (shown,) = re.findall(r"<!-- begin headline -->\n(.*?)<!-- end headline -->", PAGE.read_text(), re.DOTALL)
    assert len(FIGURE.findall(row)) == 5
    assert set(FIGURE.findall(row)) <= set(FIGURE.findall(shown))


def compare(file: Path, name: str, wanted: str, update: bool) -> None:
    """Compare the text between the marks of that name in a file with the expected text; with `update`, write it."""
    marks = re.compile(rf"(?<=<!-- begin {name} -->\n)(.*?)(?=<!-- end {name} -->)", re.DOTALL)
    text = file.read_text()
    assert len(marks.findall(text)) == 1, f"{file.name} has no place for {name}"
    found = marks.sub(lambda _: f"{wanted}\n", text)
    if update:
        file.write_text(found)
    assert found == file.read_text()
