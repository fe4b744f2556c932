"""Files and functions named on the pages for newcomers exist, and each package introduces itself."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = {"headway", "infra", "jobspec", "runner", "templates", "tests", "docs", "examples", "benchmarks", ".ci"}
PAGES = ("docs/architecture.md", "docs/records.md", "docs/glossary.md", "CONTRIBUTING.md")
PACKAGES = sorted(
    path.relative_to(ROOT)
    for top in (
        "headway",
        "headway/cli",
        "headway/cli/verbs",
        "headway/cli/views",
        "headway/compile",
        "headway/report",
        "infra",
        "jobspec",
        "runner",
        "templates",
    )
    for path in ((ROOT / top).glob("__init__.py") if top.startswith("headway") else (ROOT / top).rglob("__init__.py"))
)
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
METHOD = re.compile(r"`([A-Z]\w+\.(?!md`)[a-z_]\w*)`")
DEFINED = re.compile(r"`([\w/]+\.py)` \(((?:`[\w.]+`(?:, )?)+)\)")


def _text(page: str) -> str:
    return (ROOT / page).read_text()


@cache
def _definitions(file: str) -> set[str]:
    """Return functions, classes, methods and constants of a module; a method with its class."""
    found: set[str] = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        if isinstance(node, ast.Assign):
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


@cache
def _methods() -> frozenset[str]:
    """Return methods and fields of the classes that a page names, each with its class."""
    named = {name.partition(".")[0] for page in PAGES for name in METHOD.findall(_text(page))}
    defines = re.compile(rf"^class (?:{'|'.join(named)})\b", re.MULTILINE)
    found: set[str] = set()
    for top in ("headway", "infra", "jobspec", "runner", "templates"):
        for text in (path.read_text() for path in (ROOT / top).rglob("*.py")):
            for node in ast.parse(text).body if defines.search(text) else ():
                if isinstance(node, ast.ClassDef):
                    found |= {f"{node.name}.{name}" for each in node.body if (name := _name(each))}
    return frozenset(found)


def _name(statement: ast.stmt) -> str | None:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


@pytest.mark.parametrize("page", PAGES)
def test_file_named_on_a_page_exists(page: str) -> None:
    named = {path for path in FILE.findall(_text(page)) if path.split("/")[0] in TOP}
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", PAGES)
def test_definition_named_on_a_page_is_in_its_file(page: str) -> None:
    named = {(file, name) for file, names in DEFINED.findall(_text(page)) for name in re.findall(r"`([^`]+)`", names)}
    assert {(file, name) for file, name in named if name not in _definitions(file)} == set()


@pytest.mark.parametrize("page", PAGES)
def test_method_named_on_a_page_is_defined(page: str) -> None:
    assert set(METHOD.findall(_text(page))) <= _methods()


def test_ways_through_the_code_name_functions() -> None:
    assert len(DEFINED.findall(_text("docs/architecture.md"))) > 40


def test_links_of_contributing_resolve() -> None:
    """Those of docs/ are tested in test_pages.py."""
    targets = set(re.findall(r"\]\(([^):#]+)\)", _text("CONTRIBUTING.md")))
    assert {target for target in targets if not (ROOT / target).exists()} == set()


def test_glossary_names_the_file_of_every_word() -> None:
    entries = re.findall(r"^\* \*\*(.+?)\*\*(.*)$", _text("docs/glossary.md"), re.MULTILINE)
    assert [word for word, text in entries if not DEFINED.search(text)] == []
    assert [word for word, _ in entries] == sorted((word for word, _ in entries), key=str.casefold)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.parent.as_posix())
def test_package_introduces_itself(package: Path) -> None:
    text = ast.get_docstring(ast.parse((ROOT / package).read_text())) or ""
    assert text.count("\n") >= 2, f"{package}: say what enters, what leaves and where to start reading"
    assert re.search(r"^(Start reading|To add)", text, re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.parent))
def test_file_named_by_a_package_exists(package: Path) -> None:
    text = ast.get_docstring(ast.parse((ROOT / package).read_text())) or ""
    named = re.findall(r"`([\w/]+\.py)`", text)
    top = ROOT / package.parts[0]
    assert [name for name in named if not (ROOT / name).exists() and not any(top.rglob(name))] == []


def test_all_top_packages_are_covered() -> None:
    assert {path.parts[0] for path in PACKAGES} == {"headway", "infra", "jobspec", "runner", "templates"}
