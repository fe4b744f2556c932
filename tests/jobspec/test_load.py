"""The parser: positions of keys and values, YAML 1.2 scalars, limits for hostile texts; no input makes it raise."""

import itertools
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.cli.main import main
from headway.jobspec.document import Span
from headway.jobspec.load import MAX_BYTES, MAX_DEPTH, MAX_KEY, MAX_VALUES, load_bytes, load_file
from headway.jobspec.parse import parse
from headway.jobspec.problem import MAX_PROBLEMS, in_order, show

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


def test_missing_path_has_the_position_of_its_deepest_ancestor() -> None:
    document, _ = load_bytes("x.yaml", TEXT.encode())
    assert document.span(("top", "inner", "missing", 3)) == document.values["top", "inner"]
    assert document.span(("top", "missing")) == document.keys["top",]
    assert document.span(("top", "list", 1, "missing")) == document.keys["top", "list", 1, "name"]
    assert document.span(("missing",)) == document.keys["top",]


def test_columns_count_characters_and_lines_count_all_yaml_breaks() -> None:
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
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
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
        ("0o17", "0o17"),
        ("0b1", "0b1"),
        ("1e", "1e"),
        ("+1", 1),
        ("12.10", 12.1),
        ("1e-999", 0.0),
        ("$HOME", "$HOME"),
        ("${X:-y} `id` %(z)s {{ w }} ~/u", "${X:-y} `id` %(z)s {{ w }} ~/u"),
        ("1:30:00", "1:30:00"),
        ("22:22", "22:22"),
        ("2026-01-01", "2026-01-01"),
        ("00:30:00", "00:30:00"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("text", ["0123", "-01", "00", "007.5"])
def test_leading_zeros_are_rejected(text: str) -> None:
    assert codes(f"v: {text}\n".encode()) == ["HW110"]


@pytest.mark.parametrize("text", ["1e999", ".nan", "-.INF", "9223372036854775808", "1" * 5000])
def test_numbers_beyond_64_bits_are_rejected(text: str) -> None:
    assert codes(f"v: {text}\n".encode()) == ["HW111"]


def test_a_missing_file_and_a_folder_are_problems(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        document, problems = load_file(path)
        assert [problem.code for problem in problems] == ["HW101"]
        assert show(problems[0], document).splitlines()[1] == f"  --> {path}"


def test_size_of_a_file_is_limited() -> None:
    assert codes(b"a: 1\n" + b"#" * (MAX_BYTES - 5)) == []
    assert codes(b"a: 1\n" + b"#" * (MAX_BYTES - 4)) == ["HW103"]


@pytest.mark.parametrize("template", ["a: {}{}", "? {}{}\n: 1", "<<: {}{}"])
def test_100000_brackets_are_a_problem_and_not_a_crash(template: str) -> None:
    assert "HW104" in codes(template.format("[" * 100_000, "]" * 100_000).encode())
    assert "HW104" not in codes(template.format("[" * (MAX_DEPTH - 1), "]" * (MAX_DEPTH - 1)).encode())


def test_1000_aliases_are_rejected_and_not_followed() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 20)]
    document, problems = load_bytes("x.yaml", "\n".join(lines).encode())
    assert {problem.code for problem in problems} == {"HW106"}
    assert len(problems) == 20 + 2 * 19
    assert document.value(("a19",)) == [None, None]


@pytest.mark.slow
def test_number_of_values_is_limited() -> None:
    assert codes(b"a: [" + b"x," * (MAX_VALUES - 2) + b"]") == []
    document, problems = load_bytes("x.yaml", b"a: [" + b"x," * (MAX_VALUES - 1) + b"]")
    assert [problem.code for problem in problems] == ["HW115"]
    assert document.data is None
    assert len(document.values) == MAX_VALUES


def test_length_of_a_key_is_limited() -> None:
    assert codes(b"? " + b"k" * MAX_KEY + b"\n: 1") == []
    document, problems = load_bytes("x.yaml", b"? " + b"k" * (MAX_KEY + 1) + b"\n: 1\nb: 2")
    assert [problem.code for problem in problems] == ["HW117"]
    assert document.data == {"b": 2}


def test_first_of_many_problems_are_listed_and_the_rest_counted() -> None:
    problems = load_bytes("x.yaml", b"a:\n" + b"- 01\n" * 30_000)[1]
    assert [problem.code for problem in problems] == ["HW110"] * MAX_PROBLEMS + ["HW116"]
    assert problems[-1].message == "29900 more of this document's problems are not shown"
    assert len(load_bytes("x.yaml", b"a:\n" + b"- 01\n" * MAX_PROBLEMS)[1]) == MAX_PROBLEMS
    assert load_bytes("x.yaml", b"a:\n" + b"- 01\n" * (MAX_PROBLEMS + 1))[1][-1].message.startswith(
        "1 more of this document's problems is"
    )


@pytest.mark.parametrize(
    ("content", "position"),
    [
        ("a: 1\nbä: \x00", (1, 4)),
        ("a: b\x07c", (0, 4)),
        ("a: 1\r\nb: 2\x85c: \x1b[31m", (2, 3)),
        ("a: \ufffe", (0, 3)),
        ("\ufeffa: \x80", (0, 3)),
    ],
)
def test_forbidden_character_is_shown_at_its_position(content: str, position: tuple[int, int]) -> None:
    (problem,) = load_bytes("x.yaml", content.encode())[1]
    assert problem.code == "HW105"
    assert problem.span is not None
    assert problem.span[:2] == position


def test_invalid_bytes_are_shown_at_their_position() -> None:
    document, (problem,) = load_bytes("x.yaml", "a: 1\r\nbü: ".encode() + b"\xff\xfe")
    assert (problem.code, problem.span) == ("HW102", Span(1, 4, 1, 5))
    assert "2 | bü: \ufffd\ufffd" in show(problem, document)


@pytest.mark.parametrize("text", [b'a: "\\ud800"', b'a: "\\udfff"', b'a: "\\U00110000"'])
def test_escapes_of_invalid_characters_are_rejected(text: bytes) -> None:
    assert codes(text) == ["HW105"]


@pytest.mark.parametrize("text", ["%TAG !a! tag:x\n--- 1", "# head\r%TAG !a! tag:x\r--- 1", "\ufeff%TAG !a! tag:x\n---\na: 1"])
def test_tag_directives_are_rejected(text: str) -> None:
    assert codes(text.encode()) == ["HW107"]


def test_version_directive_is_accepted() -> None:
    assert load_bytes("x.yaml", b"%YAML 1.2\n---\na: 1\n")[0].data == {"a": 1}


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "folder/" * 3000])
def test_invalid_path_is_a_problem(path: str) -> None:
    assert [problem.code for problem in load_file(Path(path))[1]] == ["HW101"]


JOB = "apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: a\n"
CLUSTER = "apiVersion: headway/v1alpha1\nkind: Cluster\nname: a\n"
GROUPS = f"{CLUSTER}node_groups:\n"
HOSTILE = {
    "brackets": "[" * 500_000,
    "braces": "{" * 500_000,
    "dashes": "- " * 500_000,
    "question marks": "? " * 500_000,
    "mappings in mappings": "{a: " * 250_000,
    "mappings in lists": "[{a: " * 200_000,
    "lists as keys": "? [" * 300_000,
    "a deep block": "".join(f"{' ' * depth}a:\n" for depth in range(1400)),
    "a path as deep as allowed": JOB + "x: " + "{a: " * (MAX_DEPTH - 1) + "01" + "}" * (MAX_DEPTH - 1),
    "unknown keys": JOB + "".join(f"k{index}: 1\n" for index in range(MAX_VALUES - 10)),
    "unknown keys one below the other": JOB + "".join(f"steps{index}: 1\n" for index in range(MAX_VALUES - 10)),
    "keys twice": JOB + "a: 1\n" * 150_000,
    "lists as keys, one below the other": JOB + "? [a]\n: 1\n" * 80_000,
    "short lines, each with a problem": JOB + "x:\n" + "- 01\n" * 200_000,
    "empty items": GROUPS + "- {}\n" * (MAX_VALUES - 10),
    "null items": GROUPS + "-\n" * (MAX_VALUES - 10),
    "items with unknown keys": GROUPS + "- {x: 1}\n" * (MAX_VALUES // 2 - 10),
    "items of one name": GROUPS + "- {name: a, count: 1, cpus: 1}\n" * (MAX_VALUES // 4 - 10),
    "names of clusters": JOB + "cluster: [" + ", ".join(f"a{index}" for index in range(MAX_VALUES - 10)) + "]\n",
    "hosts": GROUPS + "- {name: a, count: 2, cpus: 1, hosts: [" + "a," * (MAX_VALUES - 20) + "]}\n",
    "adapters": GROUPS + "- {name: a, count: 1, cpus: 1, nics: [" + "a," * (MAX_VALUES - 20) + "]}\n",
    "options": CLUSTER + "scheduler: {kind: slurm, options: {" + ",".join(f"k{i}: 1" for i in range(MAX_VALUES - 20)) + "}}\n",
    "a key of a megabyte": JOB + "? " + "x" * 1_000_000 + "\n: 1\n",
    "a name of a megabyte": JOB.replace("name: a", "name: " + "x" * 1_000_000),
    "a kind of a megabyte": JOB.replace("TrainingJob", "x" * 1_000_000),
    "a version of a megabyte": JOB.replace("headway/v1alpha1", "x" * 1_000_000),
    "a trainer of a megabyte": JOB + "trainer: {kind: " + "x" * 1_000_000 + "}\n",
    "a cluster's name of a megabyte": JOB + "cluster: " + "x" * 1_000_000 + "\n",
    "an integer of a megabyte": JOB + "steps: " + "9" * 1_000_000 + "\n",
    "zeros of a megabyte": JOB + "steps: " + "0" * 1_000_000 + "\n",
    "digits behind the point": JOB + "steps: 0." + "1" * 1_000_000 + "\n",
    "an exponent of a megabyte": JOB + "steps: 1e" + "9" * 1_000_000 + "\n",
    "a small exponent of a megabyte": JOB + "steps: 1e-" + "9" * 1_000_000 + "\n",
    "an anchor of a megabyte": JOB + "x: &" + "x" * 1_000_000 + " 1\n",
    "an alias of a megabyte": JOB + "x: *" + "x" * 1_000_000 + "\n",
    "a tag of a megabyte": JOB + "x: !" + "x" * 1_000_000 + " 1\n",
    "tag directives": "".join(f"%TAG !a{index}! x\n" for index in range(50_000)) + "--- a",
    "aliases": "a: &a [x]\n" + "".join(f"b{index}: [*a, *a]\n" for index in range(40_000)),
    "documents": "--- {}\n" * 140_000,
    "empty lines": JOB + "\n" * 1_000_000 + "x: 01\n",
    "problems on one line": "{" + ", ".join(f"k{index}: 01" for index in range(MAX_VALUES // 2)) + "}",
    "a text in quotes that does not end": JOB + 'x: "' + "\n" * 1_000_000,
    "control characters": JOB + "x: " + "\x07" * 1_000_000,
    "bases": JOB + "extends: [" + "a.yaml, " * (MAX_VALUES - 10) + "]\n",
    "a base's name of a megabyte": JOB + "extends: " + "x" * 1_000_000 + "\n",
}


# One text of each kind that takes long or causes much output.
_EACH_WAY = (
    "mappings in mappings",
    "a deep block",
    "unknown keys",
    "keys twice",
    "items of one name",
    "names of clusters",
    "adapters",
    "a key of a megabyte",
    "an integer of a megabyte",
    "aliases",
    "problems on one line",
    "bases",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.variant] * (name not in _EACH_WAY)) for name in HOSTILE])
def test_hostile_text_has_short_output(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    content = HOSTILE[name].encode()
    assert len(content) <= MAX_BYTES
    Path("x.yaml").write_bytes(content)
    assert main(["check", "x.yaml"]) == 1
    out = capsys.readouterr().out
    assert len(out) < 60_000
    assert 1 <= out.count("error[") <= 2 * (MAX_PROBLEMS + 2)
    assert max(map(len, out.splitlines())) <= 1_100
    document, problems = load_bytes("x.yaml", content)
    assert len(document.values) <= MAX_VALUES
    assert len(problems) <= MAX_PROBLEMS + 2


def test_unparsable_file_has_only_that_problem_and_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-job.yaml").write_text(JOB + "cluster: far\nnodes: 2\nsteps: many\n")
    Path("z-cluster.yaml").write_text(CLUSTER.replace("name: a", "name: far") + "node_groups: [\n")
    # Its own problem is the reason for the missing cluster.
    for paths in (["a-job.yaml"], ["a-job.yaml", "z-cluster.yaml"]):
        assert main(["check", *paths]) == 1
        out = capsys.readouterr().out
        shown = [line.split("]")[0] for line in out.splitlines() if line.startswith("error[")]
        assert shown[0] == "error[HW105"
        assert set(shown[1:]) == {"error[HW202", "error[HW203"}
        assert out.count("--> z-cluster.yaml") == 1


def test_problems_keep_their_order_without_duplicates() -> None:
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
    "node_groups: ",
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


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(anything)
@example(b'a: "\xed\xa0\x80"')
@example(b"\xff\xfea\x00")
def test_parser_never_raises_and_every_problem_can_be_shown(content: bytes) -> None:
    document, problems = load_bytes("x.yaml", content)
    judged = parse(document)[1]
    for problem in itertools.chain(problems, judged):
        assert show(problem, document).startswith(f"{problem.severity}[{problem.code}]: ")
    assert problems or document.data is not None
