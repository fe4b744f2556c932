"""`auto` in a document: where it is allowed, which checks run without it, and its replacement by values."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.jobspec.auto import find_auto, rewritten, with_values
from headway.jobspec.check.job import check_job
from headway.jobspec.document import Document, Path
from headway.jobspec.load import load_bytes
from headway.jobspec.parse import Parsed, parse, parse_job
from headway.jobspec.problem import Problem
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.layout import Layout

HEAD = "apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: case\ncluster: lab\n"
OPEN = """\
layout: auto
batch: {global: 16 sequences, micro: auto, sequence: 128}
recompute: auto
checkpoint: {tiers: [{kind: shared, every: auto}]}
resilience: {spares: auto}
"""
PLACES: tuple[Path, ...] = (
    ("layout",),
    ("batch", "micro"),
    ("recompute",),
    ("checkpoint", "tiers", 0, "every"),
    ("resilience", "spares"),
)


def read(text: str) -> Document:
    document, problems = load_bytes("job.yaml", text.encode())
    assert problems == []
    return document


def job(text: str) -> tuple[Parsed[TrainingJob], list[Problem]]:
    return parse_job(read(HEAD + text))


def test_job_with_only_auto_values_is_otherwise_complete() -> None:
    found, problems = job(OPEN)
    assert problems == []
    assert found.undecided == PLACES
    assert not found.complete
    assert not any(found.has((section,)) for section in ("layout", "batch", "recompute", "checkpoint", "resilience"))
    assert found.has(("name", "cluster", "nodes", "steps", "limits"))


def test_no_spec_contains_an_auto() -> None:
    found, _ = job(OPEN)
    assert "auto" not in json.dumps(found.spec.model_dump(mode="json"))


def test_every_field_of_a_layout_can_be_auto_separately() -> None:
    text = "layout: {" + ", ".join(f"{field}: auto" for field in Layout.model_fields) + "}\n"
    found, problems = job(text)
    assert problems == []
    assert found.undecided == tuple(("layout", field) for field in Layout.model_fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OPEN.replace("every: auto", "every: auto, kep: 3"), "`kep` is not a field of `checkpoint.tiers[0]`"),
        (OPEN.replace("sequence: 128", "sequence: 0"), "`batch.sequence` must be at least 1, found `0`"),
        (OPEN.replace(", sequence: 128", ""), "`sequence` is missing from `batch`"),
        (OPEN + "steps: many\n", "`steps` must be an integer, found `many`"),
    ],
)
def test_mistake_next_to_an_auto_is_reported_and_nothing_is_decided(text: str, message: str) -> None:
    found, problems = job(text)
    assert [problem.message for problem in problems] == [message]
    assert found.undecided == ()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("nodes: auto\n", "nodes"),
        ("batch: {global: auto, micro: 1, sequence: 128}\n", "batch.global"),
        ("optimizer: {lr: auto}\n", "optimizer.lr"),
        ("checkpoint: {keep: auto, tiers: [{kind: shared, every: 1 steps}]}\n", "checkpoint.keep"),
    ],
)
def test_auto_is_rejected_for_fields_that_are_never_decided(text: str, place: str) -> None:
    found, problems = job(text)
    assert [(problem.code, problem.message) for problem in problems] == [
        ("HW203", f"`{place}`: `auto` is not supported here; write the value itself")
    ]
    assert found.undecided == ()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("layout: [auto]\n", "HW203"),
        ("batch: {global: 1 sequences, micro: [auto], sequence: 1}\n", "HW203"),
        ("layout: Auto\n", "HW203"),
        ("seed: {auto: auto}\n", "HW203"),
        ("environment: {A: auto}\nname: auto\n", None),
    ],
)
def test_auto_is_an_ordinary_word_in_other_fields(text: str, code: str | None) -> None:
    head = HEAD.replace("name: case\n", "") if "name" in text else HEAD
    found, problems = parse_job(read(head + text))
    assert {problem.code for problem in problems} == ({code} if code else set())
    assert found.undecided == ()


def test_rules_on_an_auto_section_apply_once_it_is_decided() -> None:
    text = OPEN.replace("16 sequences", "1000 tokens")
    found, problems = job(text)
    assert [problem.code for problem in (*problems, *check_job(found))] == []
    decided, problems = parse_job(with_values(found.document, {("batch", "micro"): 1}))
    assert [problem.code for problem in (*problems, *check_job(decided))] == ["HW323"]


def test_partial_base_may_have_auto_values() -> None:
    found, problems = parse(read(HEAD + "partial: true\n" + OPEN))
    assert problems == []
    assert found is not None
    assert found.undecided == ()


def test_problem_of_a_decided_value_is_shown_at_the_auto() -> None:
    document = read(HEAD + OPEN)
    decided = with_values(document, {("layout",): {"tp": 0}, ("batch", "micro"): 0})
    assert decided.data["layout"] == {"tp": 0}
    assert document.data["layout"] == "auto"
    _, problems = parse_job(decided)
    spans = [document.span(problem.path) for problem in problems]
    lines = document.lines()
    assert [lines[span.line][span.column : span.end_column] for span in spans if span] == ["auto", "auto"]
    assert {problem.message for problem in problems} == {
        "`layout` must be at least 1, found `auto`",
        "`batch.micro` must be at least 1, found `auto`",
    }


LINE_BREAKS = st.sampled_from(["\n", "\r\n"])
COMMENTS = st.sampled_from(["", " # auto", "\t# kept:  as it is", "   # é\u2028  # the next line, to libyaml"])
GAPS = st.sampled_from(["", "\n", "# layout: auto\n", "\n  \n#\n"])
AUTOS = st.sampled_from(["auto", "'auto'", '"auto"', '"\\x61uto"'])
SPACES = st.sampled_from([" ", "  ", "\t", "      "])
INTERVALS = st.sampled_from(["1 steps", "120 steps"])
LAYOUTS = st.dictionaries(st.sampled_from(["pp", "tp", "dp_shard", "virtual_stages"]), st.integers(1, 512), min_size=1)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, str]:
    """Return a job with `auto` values in any notation, and the same with a mark in place of each of them."""
    auto = iter(draw(st.lists(AUTOS, min_size=3, max_size=3)))
    space = iter(draw(st.lists(SPACES, min_size=6, max_size=6)))
    comment = iter(draw(st.lists(COMMENTS, min_size=4, max_size=4)))
    gap = iter(draw(st.lists(GAPS, min_size=3, max_size=3)))
    indent = draw(st.sampled_from(["", "  ", "     "]))
    written = [next(auto) for _ in range(3)]
    lines = [
        HEAD + next(gap),
        f"layout:{next(space)}MARK{next(comment)}\n{next(gap)}",
        f"batch:{next(space)}{{global: 16 sequences,micro:{next(space)}MARK ,sequence: 128}}{next(comment)}\n",
        f"checkpoint:{next(comment)}\n  tiers:\n  {indent}-{next(space).replace(chr(9), ' ')}kind: shared\n",
    ]
    item = len(lines[-1].rpartition("\n")[0].rpartition("\n")[2].partition("kind")[0])
    lines.append(f"{' ' * item}every:{next(space)}MARK{next(comment)}\n{next(gap)}")
    marked = "".join(lines).replace("\n", draw(LINE_BREAKS))
    text = marked
    for each in written:
        text = text.replace("MARK", each, 1)
    return text, marked


@pytest.mark.slow
@given(documents(), LAYOUTS, st.integers(1, 64), INTERVALS)
def test_value_replaces_its_auto_and_no_other_character_changes(
    found: tuple[str, str], layout: Mapping[str, int], micro: int, every: str
) -> None:
    text, marked = found
    document = read(text)
    values: dict[Path, Any] = {
        ("layout",): layout,
        ("batch", "micro"): micro,
        ("checkpoint", "tiers", 0, "every"): every,
    }
    assert find_auto(document, TrainingJob).keys() == values.keys()
    after = rewritten(document, values)
    assert read(after).data == with_values(document, values).data
    parts = marked.split("MARK")
    assert after.startswith(parts[0])
    assert after.endswith(parts[-1])
    kept = after
    for part in parts:
        before, found_part, kept = kept.partition(part)
        assert found_part == part
        assert "\n" not in before


def test_json_document_stays_json() -> None:
    text = json.dumps({"kind": "TrainingJob", "layout": "auto", "checkpoint": {"tiers": [{"kind": "shared", "every": "auto"}]}})
    values: dict[Path, Any] = {("layout",): {"tp": 8, "schedule": "1F1B"}, ("checkpoint", "tiers", 0, "every"): "120 steps"}
    after = json.loads(rewritten(read(text), values))
    assert after["layout"] == {"tp": 8, "schedule": "1F1B"}
    assert after["checkpoint"] == {"tiers": [{"kind": "shared", "every": "120 steps"}]}
