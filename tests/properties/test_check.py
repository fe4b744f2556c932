"""`headway check` never raises, has a documented exit code for any text, and gives every problem its position."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.cli.main import main
from headway.jobspec.codes import CODES
from headway.jobspec.document import LINE_BREAK
from headway.jobspec.load import MAX_BYTES, load_bytes
from tests.jobspec.test_load import anything
from tests.support.documents import parsed_once

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Number of texts for each property; `make soak` sets more.
EXAMPLES = int(os.environ.get("HEADWAY_EXAMPLES", "40"))
SETTINGS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

STORIES = [path for path in sorted((ROOT / "examples").glob("*/*.yaml")) if path.parent.name != "rendered"]
CASES = sorted((ROOT / "tests" / "errors").glob("*.yaml"))
TEXTS = [path.read_bytes().decode("utf-8", errors="replace") for path in STORIES + CASES]
TREES = [yaml.safe_load(path.read_text()) for path in STORIES]
LINES = sorted({line for text in TEXTS for line in text.splitlines()})
KEYS = sorted({line.strip(" -{").partition(":")[0] for line in LINES if ":" in line and not line.lstrip().startswith("#")})

# A problem of the whole file has no line.
WHOLE_FILE = {"HW101", "HW103", "HW113", "HW116", "HW405"}

SCALARS = st.one_of(
    st.sampled_from(
        [None, True, False, "", "auto", "a b", "$HOME", "~/x", "../x", "0", "1Gb/s", "100 steps", "12.10", "é\x85\u2028"]
    ),
    st.sampled_from([0, -1, 1, 7, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, 1e-300, 1e300, -0.0]),
    st.text(max_size=10),
    st.sampled_from(KEYS),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(autouse=True, scope="module")
def _parse_once() -> Iterator[None]:
    with parsed_once():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with a job and its clusters, a job that extends the text, and one that names it as its cluster."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    for path in (ROOT / "examples" / "two-node-slurm").glob("*.yaml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for path in (ROOT / "examples" / "two-node-roce").glob("*cluster.yaml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    # Base files of the switches.
    shutil.copytree(ROOT / "examples" / "two-node-roce" / "base", tmp_path / "base")
    job = yaml.safe_load((ROOT / "examples" / "two-node-slurm" / "job.yaml").read_text())
    (tmp_path / "heir.yaml").write_text(yaml.safe_dump({**job, "name": "heir", "extends": "x.yaml"}))
    return tmp_path


def check(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(["check", *words])
    return code, out.getvalue()


def judge(content: bytes, path: Path) -> None:
    """Check the folder with the content in it, and verify the reported problems."""
    path.write_bytes(content)
    code, text = check(".", path.name)
    json_code, out = check(".", path.name, "--format", "json")
    problems = json.loads(out)["problems"]
    assert code == json_code == any(problem["severity"] == "error" for problem in problems)
    assert text.count("\n  --> ") >= len(problems)
    for problem in problems:
        assert problem["code"] in CODES
        _judge_place(problem, path.parent)


def _judge_place(problem: dict[str, Any], folder: Path) -> None:
    if problem["line"] is None:
        assert problem["code"] in WHOLE_FILE, problem
        return
    text = (folder / problem["file"]).read_bytes().decode("utf-8-sig", errors="replace")
    lines = LINE_BREAK.split(text)
    assert 1 <= problem["line"] <= problem["end_line"] <= len(lines)
    assert 1 <= problem["column"] <= len(lines[problem["line"] - 1]) + 1
    assert (problem["line"], problem["column"]) <= (problem["end_line"], problem["end_column"])


@SETTINGS
@given(anything)
def test_every_problem_of_any_text_has_its_position(folder: Path, content: bytes) -> None:
    judge(content, folder / "x.yaml")
    judge(b"apiVersion: headway/v1alpha1\nkind: Cluster\n" + content, folder / "x.yaml")


@st.composite
def edited_texts(draw: st.DrawFn) -> str:
    """Return a committed document with lines and characters deleted, doubled, swapped, replaced."""
    lines = draw(st.sampled_from(TEXTS)).splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(lines) - 1)))
        other = draw(st.integers(0, max(0, len(lines) - 1)))
        match draw(st.sampled_from(["delete", "double", "swap", "replace", "indent", "cut", "insert"])):
            case "delete":
                del lines[place : place + 1]
            case "double":
                lines[place:place] = lines[place : place + 2]
            case "swap" if lines:
                lines[place], lines[other] = lines[other], lines[place]
            case "replace" if lines:
                lines[place] = draw(st.sampled_from(LINES)) + "\n"
            case "indent" if lines:
                lines[place] = draw(st.sampled_from([" ", "  ", "\t", "- ", "? ", ": ", "# ", "&a ", "*a", "!x "])) + lines[place]
            case "cut" if lines:
                lines[place] = lines[place][: draw(st.integers(0, len(lines[place])))]
            case "insert":
                lines.insert(place, draw(st.text(max_size=12)))
    return "".join(lines)


@SETTINGS
@given(edited_texts())
def test_every_problem_of_an_edited_document_has_its_position(folder: Path, text: str) -> None:
    judge(text.encode(errors="replace"), folder / "x.yaml")


def paths(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value of the tree."""
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield (*above, key)
        yield from paths(tree[key], (*above, key))


@st.composite
def changed_trees(draw: st.DrawFn) -> Any:
    """Return a committed example with values replaced, fields renamed, moved, deleted, doubled, added."""
    tree = json.loads(json.dumps(draw(st.sampled_from(TREES))))
    for _ in range(draw(st.integers(1, 3))):
        places = list(paths(tree))
        if not places:
            return tree
        *above, key = draw(st.sampled_from(places))
        owner = tree
        for segment in above:
            owner = owner[segment]
        match draw(st.sampled_from(["replace", "delete", "rename", "add", "move", "double"])):
            case "replace":
                owner[key] = draw(VALUES)
            case "delete":
                del owner[key]
            case "rename" if isinstance(owner, dict):
                owner[draw(st.sampled_from(KEYS) | st.just(f"{key}s"))] = owner.pop(key)
            case "add" if isinstance(owner, dict):
                owner[draw(st.sampled_from(KEYS))] = draw(VALUES)
            case "move":
                tree[draw(st.sampled_from(KEYS))] = owner[key]
            case "double" if isinstance(owner, list):
                owner += [owner[key]] * draw(st.integers(1, 3))
    return tree


@SETTINGS
@given(changed_trees(), st.booleans())
@example({"apiVersion": "headway/v1alpha1", "kind": "TrainingJob", "name": "x", "extends": "heir.yaml"}, True)
@example({"apiVersion": "headway/v1alpha1", "kind": "TrainingJob", "name": "x", "extends": ["x.yaml"]}, True)
def test_every_problem_of_a_changed_example_has_its_position(folder: Path, tree: Any, flow: bool) -> None:
    text = json.dumps(tree) if flow else yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
    judge(text.encode(errors="replace"), folder / "x.yaml")


@SETTINGS
@given(changed_trees())
def test_json_loads_as_the_data_that_it_was_made_from(tree: Any) -> None:
    document, problems = load_bytes("x.yaml", json.dumps(tree).encode())
    if not problems:
        assert document.data == tree


def test_nested_brackets_do_not_crash_the_process(tmp_path: Path) -> None:
    texts = ["[" * 500_000, "{" * 500_000, "- " * 500_000, "? " * 500_000, "[{a: " * 200_000, "!!x " * 250_000]
    for number, text in enumerate(texts):
        assert len(text) <= MAX_BYTES
        (tmp_path / f"{number}.yaml").write_text(text)
    names = [f"{number}.yaml" for number in range(len(texts))]
    command = [sys.executable, "-m", "headway.cli.main", "check", *names]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert {*re.findall(r"^error\[HW10\d\].*\n  --> (\d\.yaml):", done.stdout, re.MULTILINE)} == {*names}


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "d/" * 3000, "\udcff", "absent.yaml", "x.yaml/below", "."])
def test_path_that_is_not_a_file_is_a_problem(path: str, folder: Path) -> None:
    code, text = check(path, "--format", "json")
    # A folder exists; a missing path is a usage error.
    expected = (1, ["HW114"]) if path == "." else (2, ["HW101"])
    assert (code, [problem["code"] for problem in json.loads(text)["problems"]]) == expected
