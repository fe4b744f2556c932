"""docs/records.md lists exactly the records, exit codes, journal kinds and variables that the code has."""

import ast
import dataclasses
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from headway.cli import main as command
from headway.report.records import Handle, LedgerLine
from headway.runner import contract, messages
from headway.runner.checkpoint import chain
from headway.runner.checkpoint import format as on_disk
from headway.runner.contract import RunDirectory
from headway.runner.contract.journal import JOURNAL_KINDS, Entry
from headway.runner.goodput.ledger import Account
from headway.runner.launches import Launch
from headway.runner.torchrun import bounds

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "records.md").read_text()
PRODUCT = ("headway", "infra", "jobspec", "runner", "templates")
NAME = re.compile(r"HEADWAY_[A-Z][A-Z_]*[A-Z]")
FAMILY = f"{bounds.PREFIX}*"
ATTEMPT, NUMBER, OTHER = 7, 3, 5


def _sources() -> list[Path]:
    """Return the product's files in the order of their paths; links to top-level folders are not followed."""
    found = [ROOT / "headway" / name for name in ("runs.py", "checkpoint.py")]
    found += [path for name in ("cli", "report") for path in (ROOT / "headway" / name).rglob("*.py")]
    found += [path for name in PRODUCT[1:] for path in (ROOT / name).rglob("*") if path.suffix in {".py", ".j2"}]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def _named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


SOURCES = {_named(path): path.read_text() for path in _sources()}


@cache
def tree(name: str) -> ast.Module:
    """Return the parsed module; only those that have a text which a test looks for are parsed."""
    return ast.parse(SOURCES[name])


def section(title: str) -> str:
    """Return the text below a heading, up to the next one."""
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/records.md has no section `{title}`"
    return found[1]


def tables(title: str) -> list[list[list[str]]]:
    """Return the tables below a heading, each as its rows without head and rule."""
    found: list[list[list[str]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", section(title), re.MULTILINE):
        found.append([[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in block.splitlines()[2:]])
    return found


def names(title: str, number: int = 0) -> list[str]:
    """Return the first cells of a table, without their backticks."""
    return [row[0].strip("` ") for row in tables(title)[number]]


def code(cell: str) -> list[str]:
    """Return the texts in backticks of a cell."""
    return re.findall(r"`([^`]+)`", cell)


# --- fields -----------------------------------------------------------------------------------------------------------


def _fields(*records: Any) -> set[str]:
    return {field.name for record in records for field in dataclasses.fields(record)}


CHAIN = _fields(chain.Record, *get_args(chain.Entry)) - {"entry"} | {"schema", "kind"}
FIELDS: Mapping[str, set[str]] = {
    "run.json": _fields(contract.RunConfig),
    "handle.json": {*Handle.model_fields, "schema"},
    "launch.json": _fields(Launch),
    "verdict.json": _fields(contract.Verdict),
    "metrics.jsonl": _fields(contract.MetricsLine),
    "ledger.jsonl": {*LedgerLine.model_fields, "schema"},
    "A record of the chain": CHAIN,
    "manifest.json": _fields(on_disk.Manifest),
    "part-RANK.json": _fields(on_disk.Part),
    "Heartbeat page": set(contract.HEARTBEAT),
}


@pytest.mark.parametrize("title", FIELDS)
def test_record_lists_its_fields(title: str) -> None:
    listed = names(title)
    assert len(listed) == len(set(listed))
    assert set(listed) == FIELDS[title]


def test_ledger_lines_have_one_set_of_fields() -> None:
    assert _fields(Account) | {"attempt", "generation"} == set(LedgerLine.model_fields)


def test_ledger_lists_its_buckets() -> None:
    assert names("ledger.jsonl", 1) == list(contract.LEDGER_BUCKETS)


def test_heartbeat_sections_are_listed_in_their_order() -> None:
    (line,) = re.findall(r"^Sections, .*$", section("Heartbeat page"), re.MULTILINE)
    assert tuple(code(line)) == contract.SECTIONS


# --- schemas and files ------------------------------------------------------------------------------------------------


def _constants(module: ast.AST) -> Iterator[str]:
    return (node.value for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_schemas_match_the_code() -> None:
    schema = re.compile(r"headway\.[a-z.-]+/[0-9]+")
    modules = [name for name, text in SOURCES.items() if name.endswith(".py") and schema.search(text)]
    defined = {(text, name) for name in modules for text in _constants(tree(name)) if schema.fullmatch(text)}
    (rows,) = tables("Schemas")
    assert {(row[0].strip("`"), name) for row in rows for name in code(row[2])} == defined


def _paths() -> Iterator[str]:
    """Yield the paths of RunDirectory, relative to the run directory, for one attempt and other numbers."""
    directory = RunDirectory(Path("/run"), ATTEMPT)
    for name, member in vars(RunDirectory).items():
        if isinstance(member, property):
            found = getattr(directory, name)
        elif inspect.isfunction(member) and inspect.signature(member).return_annotation is Path:
            numbers = (NUMBER, OTHER)[: len(inspect.signature(member).parameters) - 1]
            found = member(directory, *numbers)
        else:
            continue
        if isinstance(found, Path):
            yield found.relative_to("/run").as_posix()


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a path in the table; a placeholder is any text without a slash."""
    return re.compile(re.sub(r"<[^>]+>", "[^/]+", re.escape(path)))


def test_run_directory_lists_every_file_of_the_layout() -> None:
    (rows,) = tables("Run directory")
    listed = [code(row[0])[0] for row in rows]
    patterns = [_pattern(path) for path in listed]
    folders = {part.as_posix() for path in _filled(listed) for part in Path(path).parents}
    missing = [path for path in _paths() if path not in folders and not any(each.fullmatch(path) for each in patterns)]
    assert missing == []


def _filled(listed: list[str]) -> Iterator[str]:
    return (path.replace("<k>", str(ATTEMPT)) for path in listed)


def test_layout_has_more_than_20_files() -> None:
    """The test above would pass on an empty list if RunDirectory were not found."""
    assert len(list(_paths())) > 20


@pytest.mark.parametrize("title", ["Run directory", "Files outside the run directory"])
def test_file_is_named_in_the_sources_listed_for_it(title: str) -> None:
    """For a file that RunDirectory does not have, the fixed part of its name is in a source listed as its writer or reader."""
    (rows,) = tables(title)
    for row in rows:
        path = code(row[0])[0]
        if any(_pattern(path).fullmatch(known) for known in _paths()):
            continue
        named = [SOURCES[name] for name in (*code(row[1]), *code(row[2])) if name in SOURCES]
        texts = [*named, SOURCES["runner/checkpoint/format.py"]]
        assert any(all(part in text for part in _fixed(path)) for text in texts), path


def _fixed(path: str) -> list[str]:
    """Return the fixed texts of the last component that has some."""
    components = [[part.strip("._-") for part in re.split(r"<[^>]+>", each)] for each in path.split("/")]
    return next([part for part in parts if part] for parts in reversed(components) if any(parts))


@pytest.mark.parametrize("title", ["Run directory", "Files outside the run directory"])
def test_source_listed_in_a_row_exists(title: str) -> None:
    (rows,) = tables(title)
    cited = {name for row in rows for cell in row[1:3] for name in code(cell) if re.fullmatch(r"[\w/]+\.py", name)}
    assert {name for name in cited if name not in SOURCES} == set()


# --- the journal ------------------------------------------------------------------------------------------------------


def _module_tree(module: ModuleType) -> ast.Module:
    return tree(_named(Path(inspect.getfile(module)).resolve()))


def test_journal_lists_every_kind_with_its_fields(update_golden: bool) -> None:
    rows = [
        f"| `{kind}` | `{entry.__name__}` | {_sentence(entry)} | {', '.join(_facts(entry)) or 'none'} |"
        for kind, entry in JOURNAL_KINDS.items()
    ]
    table = "\n".join(["| kind | type | when | facts |", "| --- | --- | --- | --- |", *rows]) + "\n"
    found = re.search(r"(?:^\|.*\n)+", section("Journal"), re.MULTILINE)
    assert found is not None
    if update_golden:
        (ROOT / "docs" / "records.md").write_text(PAGE.replace(found[0], table))
    else:
        assert found[0] == table


def _sentence(entry: type[Entry]) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return re.sub(r"\s+", " ", (entry.__doc__ or "").partition("\n\n")[0]).strip().removesuffix(".")


def _facts(entry: type[Entry]) -> list[str]:
    """Return the names that a line gives to the fields of its kind."""
    common = {field.name for field in dataclasses.fields(Entry)}
    own = (field.name for field in dataclasses.fields(entry) if field.name not in common)
    return [f"`{'from' if name == 'before' else name}`" for name in own]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_messages_match_both_sides_of_the_protocol() -> None:
    (rows,) = tables("Messages")
    listed: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        listed[row[1]].add(row[0].strip("`"))
    assert listed == messages.KINDS


# --- exit codes -------------------------------------------------------------------------------------------------------


def test_exit_codes_match_the_runner() -> None:
    listed = [(int(row[0]), row[1].strip("`"), row[2]) for row in tables("Exit codes")[0]]
    assert listed == [(int(each), each.name, contract.VERDICTS[each]) for each in contract.Exit]


def test_other_exit_codes_are_defined_in_the_listed_module() -> None:
    rows = tables("Exit codes")[1]
    for number, name, place, _ in rows:
        values = {
            ast.unparse(target): value
            for node in ast.walk(tree(place.strip("`")))
            if isinstance(node, ast.Assign)
            for target, value in _assigned(node)
        }
        assert values[name.strip("`")] == int(number)
    listed = {row[1].strip("`") for row in rows if row[2] == "`headway/cli/main.py`"}
    assert listed == {name for name in vars(command) if name.isupper() and isinstance(getattr(command, name), int)}


def _assigned(node: ast.Assign) -> Iterator[tuple[ast.expr, Any]]:
    """Yield targets whose values are plain numbers, also of `A, B = 1, 2`."""
    for target in node.targets:
        pairs = (
            zip(target.elts, node.value.elts, strict=False)
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            else [(target, node.value)]
        )
        yield from ((each, value.value) for each, value in pairs if isinstance(value, ast.Constant))


# --- variables --------------------------------------------------------------------------------------------------------

OF_PRODUCT = ("Set by users", "Set by launchers and batch scripts", "Set by the supervisor and the agent")


def _nodes(node: ast.AST, above: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Yield every node with the nodes around it, the outermost first."""
    yield node, above
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, (*above, node))


def variables(module: ast.AST) -> set[str]:
    """Return the HEADWAY_ variables that a module names: as a whole text, or as a text with a name that a comprehension fills in.

    A text that only mentions one, as a message does, does not count.
    """
    found: set[str] = set()
    for node, above in _nodes(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value == bounds.PREFIX:
                found.add(FAMILY)
            elif NAME.fullmatch(node.value):
                found.add(node.value)
        elif isinstance(node, ast.JoinedStr) and isinstance(begin := node.values[0], ast.Constant):
            prefix, rest = str(begin.value), node.values[1:]
            if re.fullmatch(r"HEADWAY_[A-Z_]*", prefix):
                filled = [part for part in rest if isinstance(part, ast.FormattedValue)]
                ends = "".join(str(part.value) for part in rest if isinstance(part, ast.Constant))
                assert len(filled) == 1, ast.unparse(node)
                found |= {f"{prefix}{name}{ends}" for name in _values_of(ast.unparse(filled[0].value), above)}
    return found


def _values_of(name: str, above: tuple[ast.AST, ...]) -> set[str]:
    """Return the values of a name in the innermost comprehension that binds it."""
    for node in reversed(above):
        for generator in getattr(node, "generators", ()):
            if name in {each.id for each in ast.walk(generator.target) if isinstance(each, ast.Name)}:
                return _keys(generator.iter, above)
    raise AssertionError(
        f"HEADWAY_{{{name}}}: this test cannot read what fills it in, which must be a comprehension over plain names"
    )


def _keys(source: ast.expr, above: tuple[ast.AST, ...]) -> set[str]:
    """Return the texts of a tuple, or the keys of a dict that the function has as a literal."""
    if isinstance(source, ast.Tuple):
        return set(_constants(source))
    variable = ast.unparse(source).removesuffix(".items()")
    function = next(node for node in reversed(above) if isinstance(node, ast.FunctionDef))
    literals = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable and isinstance(node.value, ast.Dict)
    ]
    assert literals, f"`{ast.unparse(source)}` is not a literal in `{function.name}`"
    return {str(key.value) for each in literals for key in each.keys if isinstance(key, ast.Constant)}


@cache
def _spelled() -> dict[str, set[str]]:
    """Return the files of the product that name each variable."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, text in ((name, text) for name, text in SOURCES.items() if "HEADWAY_" in text):
        for variable in variables(tree(name)) if name.endswith(".py") else NAME.findall(text):
            found[variable].add(name)
    return found


def _listed(title: str) -> dict[str, set[str]]:
    (rows,) = tables(title)
    return {row[0].strip("`"): set(code(row[1])) for row in rows}


@pytest.mark.slow
def test_variables_match_the_code() -> None:
    listed = [name for title in OF_PRODUCT for name in _listed(title)]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(_spelled())


@pytest.mark.parametrize("title", OF_PRODUCT)
def test_variables_are_named_in_the_files_listed_for_them(title: str) -> None:
    spelled = _spelled()
    listed = _listed(title)
    assert listed == {name: spelled[name] for name in listed}


def test_timeouts_match_the_contract() -> None:
    (row,) = (row for row in tables("Set by users")[0] if row[0] == f"`{FAMILY}`")
    assert code(row[2]) == [name.removeprefix(bounds.PREFIX) for name in bounds.defaults() if name.startswith(bounds.PREFIX)]


def test_variables_of_tests_match_makefile_and_ci() -> None:
    files = {_named(path): path.read_text() for path in (ROOT / "Makefile", *filter(Path.is_file, (ROOT / ".ci").iterdir()))}
    found: dict[str, set[str]] = defaultdict(set)
    for name, text in files.items():
        for variable in NAME.findall(text):
            found[variable].add(name)
    assert _listed("Set by tests and CI") == found


def test_no_text_mentions_an_unlisted_variable() -> None:
    known = {name for title in (*OF_PRODUCT, "Set by tests and CI") for name in _listed(title)}
    known |= bounds.defaults().keys()
    pages = {_named(path): path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    mentioned = {(word, name) for name, text in {**SOURCES, **pages}.items() for word in NAME.findall(text)}
    assert {(word, name) for word, name in mentioned if word not in known and f"{word}_" != bounds.PREFIX} == set()


def test_an_added_variable_is_found() -> None:
    added = "import os\nos.environ.get('HEADWAY_NEW')\n{f'HEADWAY_{name}_FD': 1 for name in ('ONE', 'TWO')}\n"
    assert variables(ast.parse(added)) == {"HEADWAY_NEW", "HEADWAY_ONE_FD", "HEADWAY_TWO_FD"}
    with pytest.raises(AssertionError, match="cannot read"):
        variables(ast.parse("def f(name):\n    return f'HEADWAY_{name}'\n"))
