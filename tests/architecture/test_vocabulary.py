"""Tests that comments, docstrings, pages and test names use the words of docs/style.md, and where comments are."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

# As in the table "Words" of docs/style.md; only those that have no other meaning in a technical text.
AVOIDED = {
    r"whoever|somebody|nobody|anybody": "the process, the node, another user; no",
    r"anew|starts? over": "again, restarts",
    r"tells?|told|says|said|hears?|heard|speaks?": "reports, prints, sends, gets, specifies",
    r"stands|lies": "is, is in, is stored in",
    r"go(?:es)? on|went on|gone on": "continues, resumes",
    r"leaves? out|left out of": "excludes, omits",
    r"lacks?|is away": "is missing, does not have, is unavailable",
    r"signs? of life": "heartbeat",
    r"what came of": "result, outcome",
    r"one's own|of ours": "your, custom; headway's",
    r"wants": "requires, needs",
    r"beside": "next to, in parallel with, compared with, in addition to",
    r"carr(?:y|ies|ied) out": "implements, runs, applies",
    r"for ever": "forever, without a limit",
    r"is no whole": "is not a multiple of",
}
WORDS = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): instead for words, instead in AVOIDED.items()}
# A sentence without a subject that acts: `What is read is verified`. Questions and interjections in quotes are not matched.
PRONOUN = re.compile(r"(?:^|[.;:|] )(?:Who|What|Whoever)\b(?![^.;]*\?)")
ANY_WORD = re.compile(rf"\b(?:{'|'.join(AVOIDED)}|(?-i:Wh(?:o|at)))\b", re.IGNORECASE)
ANY_COMMENT = re.compile(f"#.*(?:{ANY_WORD.pattern})", re.IGNORECASE)
# In names of tests, with spaces for underscores.
NAME_AVOIDED = {
    r"^(?:what|who|whoever|whose)": "the thing or the process that the test is about",
    r"(?:is|are|was|were) no(?! longer)": "is not a",
    r"not one bit|without a word": "no; silently",
    r"away|not there": "unavailable, missing",
    r"(?:of|for) (?:its|their|ones) own|as (?:it is|they are)|by itself": "separate; unchanged; alone",
}
NAME_WORDS = WORDS | {re.compile(rf"\b(?:{words})\b"): instead for words, instead in NAME_AVOIDED.items()}
TEST_NAME = re.compile(r"^\s*(?:async )?def test_(\w+)", re.MULTILINE)
LONGEST_TRAILING = 40
ANY_TRAILING = re.compile(rf"^.*\S.*#.{{{LONGEST_TRAILING},}}", re.MULTILINE)
# They imitate users' scripts, whose authors have never seen the style guide.
USER_SCRIPTS = ROOT / "tests/harmless/scripts"
# A suppression belongs on its line, and so does its reason.
SUPPRESSION = re.compile(r"#\s*(?:noqa|type:|pragma|fmt:)")

# The style guide lists the words. The planner's and the simulator's pages repeat remarks of sources, which a program writes there.
PAGES = {"style.md": 100, "planner.md": 7, "simulate.md": 3}


class Text(NamedTuple):
    """A comment, a docstring or a line of a page, without code in backticks."""

    line: int
    kind: str
    text: str


def _is_linked(path: Path) -> bool:
    """Below `headway/` the other folders are links."""
    parts = path.relative_to(ROOT).parts
    return parts[0] == "headway" and parts[1] in {"runner", "jobspec", "templates", "infra"}


def _plain(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "``", text)


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Text]:
    """Those of modules, classes and functions, and those below a field."""
    for statement in node.body:
        if (
            isinstance(statement, ast.Expr)
            and isinstance(value := statement.value, ast.Constant)
            and isinstance(value.value, str)
        ):
            yield Text(statement.lineno, "docstring", _plain(value.value))
        elif isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(statement)


def _comments(source: str) -> Iterator[tuple[tokenize.TokenInfo, bool]]:
    """Each comment, and whether code is before it on its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token, bool(token.line[: token.start[1]].strip())


@cache
def _sources() -> tuple[tuple[Path, str], ...]:
    tops = ("runner", "jobspec", "templates", "infra", "benchmarks", "headway", "tests")
    paths = (path for top in tops for path in sorted((ROOT / top).rglob("*.py")))
    return tuple((path, path.read_text()) for path in paths if not _is_linked(path) and USER_SCRIPTS not in path.parents)


def _avoided(text: Text) -> Iterator[str]:
    if not ANY_WORD.search(text.text):
        return
    for pattern, instead in WORDS.items():
        for found in pattern.finditer(text.text):
            line = text.line + text.text.count("\n", 0, found.start())
            yield f"{line}: `{found[0]}` in a {text.kind}: write {instead}"
    if text.kind == "docstring":
        flat = text.text.replace("\n\n", " | ").replace("\n", " ")
        for found in PRONOUN.finditer(" ".join(flat.split())):
            yield f"{text.line}: a sentence begins with `{found[0].split()[-1]}`: begin with the thing that it is about"


def _findings() -> Iterator[str]:
    for path, source in _sources():
        # Most files have none of the words after a number sign, so their tokens need not be read; some have none anywhere.
        tokens = _comments(source) if ANY_COMMENT.search(source) else ()
        if ANY_WORD.search(source):
            comments = (Text(token.start[0], "comment", _plain(token.string)) for token, _ in tokens)
            for text in (*comments, *_docstrings(ast.parse(source))):
                for message in _avoided(text):
                    yield f"{path.relative_to(ROOT)}:{message}"


def _trailing() -> Iterator[str]:
    for path, source in _sources():
        if ANY_TRAILING.search(source):
            for token, is_behind_code in _comments(source):
                if is_behind_code and not SUPPRESSION.match(token.string) and len(token.string) > LONGEST_TRAILING:
                    yield f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"


@pytest.mark.slow
def test_comments_and_docstrings_use_the_words_of_the_style_guide() -> None:
    found = list(_findings())
    assert not found, "docs/style.md, Words:\n" + "\n".join(found)


@pytest.mark.slow
def test_long_comments_are_above_their_statement() -> None:
    found = list(_trailing())
    assert not found, "docs/style.md, Comments:\n" + "\n".join(found)


def _avoided_in_name(name: str) -> Iterator[str]:
    for pattern, instead in NAME_WORDS.items():
        if found := pattern.search(name.replace("_", " ")):
            yield f"`{found[0]}` in test_{name}: write {instead}"


def _names() -> Iterator[str]:
    for path, source in _sources():
        for name in TEST_NAME.finditer(source if path.is_relative_to(ROOT / "tests") else ""):
            for message in _avoided_in_name(name[1]):
                line = source.count("\n", 0, name.start(1)) + 1
                yield f"{path.relative_to(ROOT)}:{line}: {message}"


def test_names_of_tests_use_the_words_of_the_style_guide() -> None:
    found = list(_names())
    assert not found, "docs/style.md, Words and Names:\n" + "\n".join(found)


def _pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", _pages(), ids=lambda path: path.name)
def test_page_uses_the_words_of_the_style_guide(page: Path) -> None:
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.DOTALL)
    found = [f"{page.name}:{message}" for message in _avoided(Text(1, "page", _plain(text)))]
    assert len(found) <= PAGES.get(page.name, 0), "docs/style.md, Words:\n" + "\n".join(found)


def test_every_avoided_word_is_found() -> None:
    samples = ("whoever reads it", "it is told so", "it stands there", "a sign of life", "beside it", "it is no whole number")
    assert all(list(_avoided(Text(1, "comment", sample))) for sample in samples)
    assert [*_avoided(Text(1, "docstring", "What is read is verified."))]
    assert not [*_avoided(Text(1, "docstring", _plain("Return what is read; `says` is a field.")))]
    names = (
        "what_is_read_is_verified",
        "text_that_is_no_json_is_refused",
        "why_there_is_no_answer_is_said",
        "a_server_that_is_away",
    )
    assert all(list(_avoided_in_name(name)) for name in names)
    assert not [*_avoided_in_name("a_step_that_is_no_longer_valid_is_refused")]
