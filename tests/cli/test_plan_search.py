"""`headway plan --search` and `--scaling` print a row for every ranked layout, and the reason for every excluded number."""

import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from headway.cli.views.estimates import layout_words
from headway.cli.views.plan_scaling import print_scaling, scaling_json
from headway.cli.views.plan_search import print_search, search_json
from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.json_text import json_text
from headway.jobspec.resolve.model import resolve_model
from headway.jobspec.spec.model import Model
from headway.planner.estimate import Estimate
from headway.planner.scaling import scaling
from headway.planner.search.search import Allowed, Request, SearchResult, search
from headway.planner.training import Network

MODEL = Model(preset="llama-3.1-8b")
NODE = Network(8, 8, 450e9, 50e9, 8, "infiniband")


def request_of(**allowed: tuple[int, ...]) -> Request:
    """Return a request for Llama 3.1 8B on 32 GPUs."""
    sizes = resolve_model(MODEL, Path())
    return Request(sizes, gpus()["H100-SXM-80"], NODE, 32, 64, 8192, "torchtitan", allowed=Allowed(**allowed), top=4)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search(request_of(pp=(1, 2)))


def printed(width: int = 130) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=width, highlight=False), text


def test_every_ranked_layout_is_a_row_that_fits_the_width_of_a_pipe(found: SearchResult) -> None:
    console, text = printed()
    print_search(console, found)
    lines = text.getvalue().splitlines()
    assert lines[1] == "layouts of 32 GPUs, 64 sequences of 8,192 tokens a step"
    rows = [line.split() for line in lines[4:8]]
    assert [row[0].rstrip("*") for row in rows] == ["1", "2", "3", "4"]
    assert [row[0].endswith("*") for row in rows] == [each in found.pareto for each in found.ranked]
    assert [f"{each.tokens_s:,.0f}" in row for each, row in zip(found.ranked, rows, strict=True)] == [True] * 4
    assert max(map(len, lines)) <= 130


def test_the_numbers_of_layouts_and_their_reasons_are_printed(found: SearchResult) -> None:
    console, text = printed()
    print_search(console, found)
    lines = [line.strip() for line in text.getvalue().splitlines()]
    counts = found.counts
    assert (
        f"{counts.legal:,} layouts are legal: {counts.scored:,} scored, {counts.unfit:,} without room in memory, "
        f"{counts.slow:,} too slow by their bounds"
    ) in lines
    for rejection in found.rejections:
        assert any(line.endswith(rejection.reason) for line in lines)
    assert "2 choices  tp 16 leaves the NVLink domain of 8 GPUs" in lines


def test_narrow_terminal_gets_fewer_columns_without_truncated_values(found: SearchResult) -> None:
    console, text = printed(60)
    print_search(console, found)
    lines = text.getvalue().splitlines()
    assert lines[8].startswith("  too narrow for `schedule`, `recompute`")
    assert [f"{each.tokens_s:,.0f}" in row for each, row in zip(found.ranked, lines[4:8], strict=True)] == [True] * 4
    assert "…" not in text.getvalue()
    assert max(map(len, lines[:8])) <= 60


def test_layout_of_the_job_is_marked_or_compared_with_the_first_row(found: SearchResult) -> None:
    def line(own: Estimate) -> str:
        console, text = printed(200)
        print_search(console, found, own)
        return next(line for line in text.getvalue().splitlines() if "the job's layout" in line)

    assert line(found.ranked[1]).endswith(", is number 2")
    slower = replace(found.ranked[0], training=replace(found.ranked[0].training, accumulation=977))
    slower = replace(slower, step=replace(slower.step, seconds=2 * slower.step.seconds))
    assert "100% longer than number 1" in line(slower)


def test_counts_of_one_are_printed_in_the_singular() -> None:
    console, text = printed()
    print_search(
        console, search(replace(request_of(), gpus=1, sequences=1, model=resolve_model(Model(preset="llama-3.2-1b"), Path())))
    )
    lines = text.getvalue().splitlines()
    assert lines[1] == "layouts of 1 GPU, 1 sequence of 8,192 tokens a step"
    assert not [line for line in lines if line.strip().startswith(("1 layouts", "1 choices"))]


def test_columns_with_equal_values_are_omitted() -> None:
    console, text = printed()
    print_search(console, search(request_of(pp=(1,), cp=(1,))))
    header = text.getvalue().splitlines()[2].split()
    assert header == ["tp", "dp", "micro", "recompute", "step", "tokens/s", "MFU", "free"]


def test_search_without_a_layout_is_reported_with_reasons() -> None:
    console, text = printed()
    print_search(console, search(request_of(tp=(3,))))
    lines = text.getvalue().splitlines()
    assert lines[2:4] == ["  none can be used", ""]
    assert lines[4].startswith("0 layouts are legal")
    assert "1 choice  tp 3 does not divide 32 ranks" in lines[5]


def test_json_result_has_each_layout_in_the_notation_of_a_job(found: SearchResult) -> None:
    data = json.loads(json_text(search_json(found)))
    assert len(data["ranked"]) == 4
    first, best = data["ranked"][0], found.ranked[0]
    degrees = best.training.degrees
    assert first["layout"] == {
        "pp": degrees.pp,
        "dp_replicate": degrees.dp_replicate,
        "dp_shard": degrees.dp_shard,
        # torchtitan has no option that sets it.
        "sharding": None,
        "cp": degrees.cp,
        "tp": degrees.tp,
        "ep": 1,
        "sequence_parallel": degrees.sequence_parallel,
        "schedule": None if degrees.pp == 1 else degrees.schedule,
        "virtual_stages": degrees.chunks,
    }
    assert (first["micro"], first["recompute"]) == (best.training.micro, best.training.recompute)
    assert first["estimate"]["step_s"] == best.step.seconds
    assert data["counts"]["legal"] == found.counts.legal
    assert sum(each["layouts"] for each in data["rejections"]) == found.counts.legal - found.counts.scored


def test_scaling_prints_a_row_with_a_bar_per_gpu_count_and_a_summary() -> None:
    request = request_of(pp=(1,), cp=(1,))
    scalings = [scaling(request, (32, 64, 512), growth) for growth in ("strong", "weak")]
    console, text = printed()
    print_scaling(console, scalings)
    lines = text.getvalue().splitlines()
    assert "strong scaling: the global batch stays the same" in lines
    assert "weak scaling: the global batch grows with the GPUs" in lines
    rows = [line for line in lines if line.lstrip().startswith(("32 ", "64 ", "512 "))]
    assert len(rows) == 6
    assert rows[0].count("█") == 16
    assert [layout_words(point.best) in row for point, row in zip(scalings[0].points, rows, strict=False) if point.best] == [
        True
    ] * 3
    assert [line for line in lines if "GPUs pay" in line or "do not pay" in line] == [each.words for each in scalings]
    assert max(map(len, lines)) <= 130
    narrow, text = printed(60)
    print_scaling(narrow, scalings)
    assert [layout_words(point.best) in text.getvalue() for point in scalings[0].points if point.best] == [True] * 3
    assert "…" not in text.getvalue()
    data = json.loads(json_text(scaling_json(scalings)))
    assert [point["gpus"] for point in data["weak"]["points"]] == [32, 64, 512]
    assert data["strong"]["words"] == scalings[0].words


def test_gpu_counts_without_a_layout_are_marked() -> None:
    request = replace(request_of(pp=(1,), cp=(1,), tp=(1,)), sequences=32)
    console, text = printed()
    print_scaling(console, [scaling(request, (32, 64), "strong")])
    assert any(line.split()[:2] == ["64", "32"] and line.rstrip().endswith("none fits") for line in text.getvalue().splitlines())
