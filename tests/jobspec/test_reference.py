"""docs/spec.md is up to date, has every field of the language, and is rendered from Markdown as intended."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic import BaseModel, TypeAdapter

from headway.cli.verbs.schema import TABLES
from headway.jobspec.check.pending import PENDING
from headway.jobspec.choice import Choice
from headway.jobspec.field_type import field_type
from headway.jobspec.load import load_bytes
from headway.jobspec.markdown import anchor, code, table
from headway.jobspec.parse import MODELS
from headway.jobspec.reference import reference
from headway.jobspec.schema import Table
from headway.jobspec.spec.docstrings import field_descriptions
from headway.jobspec.spec.fields import field_names
from headway.jobspec.spec.section import Name
from headway.jobspec.units import Bytes

PAGE = Path(__file__).parents[2] / "docs" / "spec.md"
TEXT = reference(TABLES)
MARKDOWN = MarkdownIt("commonmark").enable("table")
KINDS: Mapping[str, tuple[Table, ...]] = {
    "Scheduler": (TABLES.schedulers,),
    "Provider": (TABLES.providers,),
    "Operating system": (TABLES.switches,),
    "Trainer": (TABLES.trainers,),
    "Data": tuple(TABLES.data.values()),
}


def test_page_is_up_to_date(update_golden: bool) -> None:
    if update_golden:
        PAGE.write_text(TEXT)
    assert PAGE.read_text() == TEXT


def shown(token: Token) -> str:
    """Return the token's text as a reader sees it, code in backticks."""
    children = token.children or []
    return "".join(f"`{each.content}`" if each.type == "code_inline" else each.content for each in children)


def tables_below_headings(page: str) -> dict[str, dict[str, list[str]]]:
    """Return the cells of every row, by the heading above and the first cell."""
    found: dict[str, dict[str, list[str]]] = {}
    rows, within = {}, ""
    for token in MARKDOWN.parse(page):
        if token.nesting == 1:
            within = token.type
        if token.type == "tr_open":
            row: list[str] = []
        elif token.type == "inline" and within == "heading_open":
            rows = found.setdefault(shown(token), {})
        elif token.type == "inline" and within == "td_open":
            row.append(shown(token))
        elif token.type == "tr_close" and row:
            rows[row[0]] = row
    return found


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def sections(model: type[BaseModel], root: str, path: tuple[str, ...] = ()) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the heading of each section that can be reached from the model, without the options of choices."""
    yield f"{root}: `{'.'.join(path)}`" if path else root, model
    for name, info in field_names(model).items():
        for inner in models_in(info.annotation):
            if inner is not Choice:
                yield from sections(inner, root, (*path, name))


def language() -> Iterator[tuple[str, type[BaseModel]]]:
    for kind, model in MODELS.items():
        yield from sections(model, kind)
    for word, tables in KINDS.items():
        for kinds in tables:
            for name, options in kinds.items():
                yield from sections(options.options, f"{word} `{name}`")


LANGUAGE = list(language())
BY_HEADING = tables_below_headings(TEXT)


def test_every_section_has_one_heading() -> None:
    titles = [title for title, _ in LANGUAGE]
    assert len(titles) == len(set(titles))
    assert set(titles) <= set(BY_HEADING)


@pytest.mark.parametrize(("title", "model"), LANGUAGE, ids=[title for title, _ in LANGUAGE])
def test_every_field_is_listed_with_its_meaning_and_a_valid_example(title: str, model: type[BaseModel]) -> None:
    rows = BY_HEADING[title]
    fields = field_names(model)
    assert list(rows) == [f"`{name}`" for name in fields]
    for name, info in fields.items():
        _, words, left_out, meaning, example = rows[f"`{name}`"]
        assert words
        assert (left_out == "required") == info.is_required()
        assert meaning.removeprefix(field_descriptions(model)[name])[:1] in ("", " ")
        document, problems = load_bytes("case.yaml", f"{name}: {example.strip('`')}\n".encode())
        assert problems == []
        assert document.data == {name: (info.examples or [None])[0]}


REFUSED = [
    (
        "TrainingJob: `code`",
        "commit",
        "**Not yet** (with a scheduler other than `slurm`, all but `HEAD`): a run uses what is in the directory of its submission.",
    ),
    (
        "TrainingJob: `resilience.corruption`",
        "compare",
        "`builtin` takes none: it computes steps again (`replay`) and does not compare replicas.",
    ),
    ("Cluster", "health", "**Not yet**: nodes are neither checked nor excluded."),
    ("TrainingJob: `precision`", "compute", "`builtin` takes only `fp32` or `bf16`: it computes in fp32 or bf16."),
    ("TrainingJob: `model`", "experts", "`builtin` takes none: it builds no experts."),
]


@pytest.mark.parametrize(("title", "name", "words"), REFUSED)
def test_rejected_values_are_listed_after_the_meaning(title: str, name: str, words: str) -> None:
    assert BY_HEADING[title][f"`{name}`"][3].endswith(f" {words.replace('**', '')}")
    assert words in TEXT


def test_every_unsupported_field_exists_and_is_marked() -> None:
    marked = {
        (title.partition(":")[0], name)
        for title, rows in BY_HEADING.items()
        for name, row in rows.items()
        if "Not yet" in row[-2]
    }
    assert marked >= {(kind, f"`{row.field[-1]}`") for kind, rows in PENDING.items() for row in rows}


def test_unsupported_fields_of_clusters_are_reported_by_check() -> None:
    cases = Path(__file__).parents[1] / "errors"
    found = {
        re.sub(r"\[\d+\]", "", place)
        for path in cases.glob("*.txt")
        for place in re.findall(r"^(?:error|warning)\[HW214\]: `(\w+)", path.read_text(), re.MULTILINE)
    }
    assert found >= {row.field[-1] for row in PENDING["Cluster"]}


BYTES = TypeAdapter(Bytes).json_schema()
NAMES = TypeAdapter(Name).json_schema()
LINKS = {"name": "a name", "size": "a size", "Ecn": "a mapping"}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 8}, "an integer, 1 to 8"),
        ({"type": "number", "exclusiveMinimum": 0}, "a number, more than 0"),
        ({"type": "boolean"}, "`true` or `false`"),
        ({"const": "Cluster"}, "`Cluster`"),
        ({"enum": ["a", "b", "12.8"]}, '`a`, `b` or `"12.8"`'),
        ({"type": "string"}, "text"),
        ({"type": "string", "minLength": 1}, "text, not empty"),
        ({"type": "string", "pattern": "^a|b$", "maxLength": 9}, "text, of the form `^a|b$`, at most 9 characters"),
        (NAMES, "a name"),
        ({**BYTES, "$comment": "1B to 1TiB"}, "a size, 1B to 1TiB"),
        ({"$ref": "#/$defs/Ecn"}, "a mapping"),
        ({"type": "array", "items": NAMES, "minItems": 1, "maxItems": 8}, "a list (1 to 8), each a name"),
        ({"type": "array", "items": {"$ref": "#/$defs/Ecn"}}, "a list, each a mapping"),
        ({"anyOf": [NAMES, {"$ref": "#/$defs/Ecn"}]}, "a name or a mapping"),
        ({"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]}, "text, not empty, or an integer"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, "an integer"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 300}, "an integer or `null`"),
        ({"type": "object"}, "a mapping"),
        (
            {"type": "object", "patternProperties": {"^[A-Z]+$": {"type": "string"}}},
            "a mapping of keys, each text, of the form `^[A-Z]+$`, to text",
        ),
    ],
)
def test_type_is_described_in_words(schema: dict[str, Any], words: str) -> None:
    assert field_type(schema, LINKS) == words


@pytest.mark.parametrize(
    ("title", "name", "left_out"),
    [
        ("TrainingJob", "model", "required by `builtin`, `megatron`"),
        ("TrainingJob", "nodes", "`1`"),
        ("TrainingJob", "group", "`null`"),
        ("TrainingJob", "resilience", "`{}`"),
        ("TrainingJob: `resilience`", "grace", "`30s`"),
        ("Cluster: `fabrics.switches`", "speed", "`null`"),
    ],
)
def test_default_is_written_in_the_notation_of_a_document(title: str, name: str, left_out: str) -> None:
    assert BY_HEADING[title][f"`{name}`"][2] == left_out


def test_every_link_resolves_to_a_unique_heading() -> None:
    anchors = [anchor(title) for title in BY_HEADING]
    assert len(anchors) == len(set(anchors))
    inline = [child for token in MARKDOWN.parse(TEXT) for child in token.children or []]
    links = {str(child.attrGet("href")) for child in inline if child.type == "link_open"}
    inside = {link.removeprefix("#") for link in links if link.startswith("#")}
    assert inside <= set(anchors)
    assert len(inside) > len(MODELS)
    assert {link for link in links if not link.startswith("#")} == {"problems.md"}


@pytest.mark.parametrize("text", ["a|b", "a`b", "`", "``a`", "a\\|b", "[x](y)", "*a*", "<b>"])
def test_code_in_a_cell_is_shown_unchanged(text: str) -> None:
    (row,) = tables_below_headings(f"# x\n\n{table(['a', 'b'], [['1', code(text)]])}\n")["x"].values()
    assert row == ["1", f"`{text}`"]
