"""The repository has the shape of its design: its top-level folders, and tables that list every folder of kinds."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import VERBS
from headway.infra.providers import PROVIDERS
from headway.templates.schedulers import SCHEDULERS
from headway.templates.switches import SWITCHES
from headway.templates.trainers import TRAINERS

ROOT = Path(__file__).parents[2]
TOP = {"jobspec", "templates", "infra", "runner", "headway", "examples", "tests", "benchmarks", "docs"}


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def test_top_level_has_exactly_the_folders_of_the_design() -> None:
    folders = {path.split("/")[0] for path in _tracked() if "/" in path}
    assert {name for name in folders if not name.startswith(".")} == TOP


@pytest.mark.parametrize("name", ["jobspec", "templates", "infra", "runner"])
def test_top_level_folders_are_importable_only_below_headway(name: str) -> None:
    code = f"import headway.{name}\ntry:\n    import {name}\nexcept ImportError:\n    raise SystemExit(0)\nraise SystemExit(1)"
    assert subprocess.run([sys.executable, "-c", code], cwd="/", check=False).returncode == 0


@pytest.mark.parametrize(
    ("family", "table"),
    [
        ("templates/schedulers", SCHEDULERS),
        ("templates/trainers", TRAINERS),
        ("templates/switches", SWITCHES),
        ("infra/providers", PROVIDERS),
    ],
)
def test_table_of_kinds_lists_every_folder_next_to_it(family: str, table: dict[str, object]) -> None:
    folders = {path.parent.name for path in (ROOT / family).glob("*/__init__.py")}
    assert folders == set(table)


# Methods by which a text is recognised, and functions that search in one.
READERS = {"startswith", "endswith", "find", "index", "count", "partition", "rpartition", "split", "removeprefix", "removesuffix"}
SEARCHES = {"match", "search", "fullmatch", "sub", "findall", "finditer"}
ANY_MESSAGE = re.compile(r"\.(?:message|hint)\b")


def _reads_a_message(node: ast.AST) -> bool:
    """Return whether the expression decides by the text of a problem's message or hint."""

    def is_text(each: ast.AST) -> bool:
        return any(isinstance(part, ast.Attribute) and part.attr in ("message", "hint") for part in ast.walk(each))

    if isinstance(node, ast.Compare):
        return any(isinstance(op, ast.In | ast.NotIn) for op in node.ops) and any(map(is_text, node.comparators))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        searched = node.func.attr in SEARCHES and any(map(is_text, node.args))
        return searched or (node.func.attr in READERS and is_text(node.func.value))
    return False


@pytest.mark.parametrize("folder", ["jobspec", "templates", "headway/compile", "headway/sbatch", "headway/planner"])
def test_no_rule_recognizes_a_problem_by_its_message(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if ANY_MESSAGE.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if _reads_a_message(node)
    ]
    assert found == []


def test_records_are_structs_except_in_the_runner() -> None:
    folders = ("headway/cli", "headway/compile", "headway/corpus", "headway/planner", "headway/report", "headway/sbatch")
    paths = [path for folder in (*folders, "jobspec", "templates", "infra") for path in (ROOT / folder).rglob("*.py")]
    found = [path.relative_to(ROOT).as_posix() for path in paths if "@dataclass" in path.read_text()]
    assert found == ["jobspec/units.py"]


def test_table_of_verbs_lists_every_module_of_verbs() -> None:
    modules = {path.stem for path in (ROOT / "headway" / "cli" / "verbs").glob("*.py")}
    assert modules - {"__init__"} == {verb.replace("-", "_") for verb in VERBS}
