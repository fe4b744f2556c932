"""Reading: positions of keys and values, YAML 1.2 scalars, bounds, and that no input makes it raise."""

import itertools
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.jobspec.document import Span
from headway.jobspec.load import MAX_BYTES, MAX_DEPTH, load_bytes, load_file
from headway.jobspec.parse import parse
from headway.jobspec.problem import in_order, show

TEXT = """\
# a comment
top:
  inner: value  # another
  list:
    - one
    - {name: "two", size: 3}
last: [1, 2.5]
"""


def codes(content: bytes) -> list[str]:
    return [problem.code for problem in load_bytes("x.yaml", content)[1]]


def value(text: str) -> object:
    document, problems = load_bytes("x.yaml", f"v: {text}\n".encode())
    assert problems == []
    return document.value(("v",))


def test_every_key_and_value_has_its_position() -> None:
    document, problems = load_bytes("x.yaml", TEXT.encode())
    assert problems == []
    assert document.data == {"top": {"inner": "value", "list": ["one", {"name": "two", "size": 3}]}, "last": [1, 2.5]}
    assert document.keys["top", "inner"] == Span(2, 2, 2, 7)
    assert document.values["top", "inner"] == Span(2, 9, 2, 14)
    assert document.values["top", "list", 0] == Span(4, 6, 4, 9)
    assert document.values["top", "list", 1, "name"] == Span(5, 13, 5, 18)
    assert document.source(("top", "list", 1, "name")) == '"two"'
    assert document.values["last", 1] == Span(6, 10, 6, 13)


def test_a_path_that_is_not_there_is_found_at_its_deepest_ancestor() -> None:
    document, _ = load_bytes("x.yaml", TEXT.encode())
    assert document.span(("top", "inner", "missing", 3)) == document.values["top", "inner"]
    assert document.span(("top", "missing")) == document.keys["top",]
    assert document.span(("top", "list", 1, "missing")) == document.keys["top", "list", 1, "name"]
    assert document.span(("missing",)) == document.keys["top",]


def test_columns_count_characters_and_lines_all_of_yamls_breaks() -> None:
    document, problems = load_bytes("x.yaml", "\ufeffa: 'ä\U0001f600'\r\nb: [ü, c]\rd: 1\n".encode())
    assert problems == []
    assert document.source(("a",)) == "'ä\U0001f600'"
    assert document.values["b", 1] == Span(1, 7, 1, 8)
    assert document.source(("d",)) == "1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-7", -7),
        ("0", 0),
        ("1e3", 1000.0),
        ("-0.5", -0.5),
        (".5", 0.5),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("1:30:00", "1:30:00"),
        ("22:22", "22:22"),
        ("2026-01-01", "2026-01-01"),
        ("00:30:00", "00:30:00"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_plain_scalars_mean_what_yaml_1_2_says(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("text", ["0123", "-01", "00", "007.5"])
def test_leading_zeros_are_refused(text: str) -> None:
    assert codes(f"v: {text}\n".encode()) == ["HW110"]


@pytest.mark.parametrize("text", ["1e999", ".nan", "-.INF", "9223372036854775808", "1" * 5000])
def test_numbers_without_a_finite_value_of_64_bits_are_refused(text: str) -> None:
    assert codes(f"v: {text}\n".encode()) == ["HW111"]


def test_a_missing_file_and_a_folder_are_problems(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        document, problems = load_file(path)
        assert [problem.code for problem in problems] == ["HW101"]
        assert show(problems[0], document).splitlines()[1] == f"  --> {path}"


def test_a_file_may_have_so_many_bytes_and_no_more() -> None:
    assert codes(b"a: 1\n" + b"#" * (MAX_BYTES - 5)) == []
    assert codes(b"a: 1\n" + b"#" * (MAX_BYTES - 4)) == ["HW103"]


@pytest.mark.parametrize("template", ["a: {}{}", "? {}{}\n: 1", "<<: {}{}"])
def test_a_hundred_thousand_brackets_are_a_problem_and_no_crash(template: str) -> None:
    assert "HW104" in codes(template.format("[" * 100_000, "]" * 100_000).encode())
    assert "HW104" not in codes(template.format("[" * (MAX_DEPTH - 1), "]" * (MAX_DEPTH - 1)).encode())


def test_a_thousand_aliases_are_refused_and_not_followed() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    document, problems = load_bytes("x.yaml", "\n".join(lines).encode())
    assert {problem.code for problem in problems} == {"HW106"}
    assert len(problems) == 40 + 2 * 39
    assert document.value(("a39",)) == [None, None]


def test_problems_keep_their_order_and_repeat_nothing() -> None:
    document, problems = load_bytes("x.yaml", b"b: 01\na: 02\nb: *x\n")
    shown = in_order(problems * 2, {"x.yaml": document})
    assert [(problem.code, problem.span.line if problem.span else None) for problem in shown] == [
        ("HW110", 0),
        ("HW110", 1),
        ("HW108", 2),
        ("HW106", 2),
    ]


def test_control_characters_do_not_reach_the_terminal() -> None:
    document, _ = load_bytes("x.yaml", b'apiVersion: headway/v1alpha1\nkind: Cluster\n"\\e[31mred": 1\n')
    problems = parse(document)[1]
    text = "\n".join(show(problem, document) for problem in problems)
    assert "\x1b" not in text
    assert "\\x1b[31mred" in text


BITS = [
    "apiVersion: headway/v1alpha1\n",
    "kind: ",
    "TrainingJob",
    "Cluster",
    "\n",
    "model:",
    " {",
    "}",
    "[",
    "]",
    ",",
    ": ",
    "- ",
    "  ",
]
BITS += [
    "&a ",
    "*a",
    "!!str ",
    "<<",
    "0123",
    "1e999",
    ".nan",
    '"',
    "'",
    "|",
    ">",
    "---\n",
    "...\n",
    "\t",
    "#",
    "nodes: ",
    "1",
    "\ufeff",
    "\x00",
]
BITS += [
    "scheduler: {kind: slurm, options: ",
    "layers: ",
    "batch: ",
    "global: ",
    "null",
    "cluster: ",
    "?",
    "\x85",
    "\u2028",
    "\U0001f600",
    "%YAML",
]
anything = st.one_of(
    st.binary(max_size=200), st.text(max_size=200).map(str.encode), st.lists(st.sampled_from(BITS)).map("".join).map(str.encode)
)


@settings(max_examples=400, deadline=None)
@given(anything)
@example(b'a: "\xed\xa0\x80"')
@example(b"\xff\xfea\x00")
def test_no_input_makes_reading_raise_and_every_problem_can_be_shown(content: bytes) -> None:
    document, problems = load_bytes("x.yaml", content)
    judged = parse(document)[1]
    for problem in itertools.chain(problems, judged):
        assert show(problem, document).startswith(f"{problem.severity}[{problem.code}]: ")
    assert problems or document.data is not None
