"""Writes the language reference for people: each field of each document and kind, from the JSON Schema that editors use."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from headway.jobspec.catalog.table import rows
from headway.jobspec.check.pending import PENDING, RECORDED
from headway.jobspec.field_type import NAME, Links, field_type
from headway.jobspec.flow import flow
from headway.jobspec.markdown import code, link, table
from headway.jobspec.notation import NOTATIONS
from headway.jobspec.parse import MODELS
from headway.jobspec.schema import JsonSchema, Tables, document_schema
from headway.jobspec.suggest import joined_or

_HEAD = """\
# The language

Every field of every document. This page is generated from the models of documents and kinds, and a test keeps it up to date.
`headway schema` prints the same for editors; [Problems](problems.md) lists what `headway check` finds.

A document is a YAML file with one mapping. Fields that are not listed here are rejected, and so are values of another type: `"8"` is
not a number. Numbers are decimal, without leading zeros; `yes`, `no`, `on` and `off` are text. `null` is allowed where it is the
default, and in a document with `extends` it removes the base's value. Anchors, aliases and merge keys of YAML are not accepted: a
reviewer sees each value where it is used, and documents share values by `extends`. `auto`, where a field accepts it, leaves the value
to headway, which decides it for the cluster whenever the document is checked, planned or run; `headway pin` writes the decision into
the document.

Most sections begin with an example: fields at the top of a document. A test puts each into a whole document and checks that.

**Not yet** marks parts of the language that are not implemented yet; HW214 reports a document that uses one.
**Recorded** marks fields that only describe: they are in the plan, and change neither files nor estimates."""

_VALUES = "Names and quantities"
_NAMES = """\
A **name** is a DNS label (RFC 1123): lower-case letters, digits and hyphens, 63 characters at most, with a letter or digit at both ends.

A **quantity** is text with its unit: `80GiB`, not 80. A count is a plain number, and so is a field whose name contains its unit."""

# The text above the kinds of a choice, and before the name of each.
_CHOICES: Mapping[str, tuple[str, str]] = {
    "scheduler": ("Schedulers", "Scheduler"),
    "provider": ("Providers", "Provider"),
    "os": ("Operating systems of switches", "Operating system"),
    "trainer": ("Trainers", "Trainer"),
}
_DATA = "data."
_KINDS = "`kind` is one of these; each has different `options`."

Definitions = Mapping[str, JsonSchema]


class _Place(Struct, frozen=True):
    """The place of a definition's fields: in a document or the options of a kind, at a path of fields."""

    definition: str
    root: str
    path: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.root}: {code('.'.join(self.path))}" if self.path else self.root

    @property
    def heading(self) -> str:
        """The title without backticks: the key of its example."""
        return self.title.replace("`", "")


def reference(tables: Tables) -> str:
    """Return the page docs/spec.md."""
    definitions: Definitions = document_schema(tables)["$defs"]
    wholes = {kind: whole if (whole := f"{kind}.whole") in definitions else kind for kind in MODELS}
    documents = {kind: list(_places(_Place(whole, kind), definitions)) for kind, whole in wholes.items()}
    names = [*_CHOICES, *(f"{_DATA}{trainer}" for trainer, kinds in tables.data.items() if kinds)]
    choices = {name: list(_kinds(name, definitions)) for name in names}
    links = _links(documents, choices)
    titles = [_VALUES, *documents, *map(_title, choices)]
    parts = [_HEAD, "\n".join(f"* {link(title, title)}" for title in titles), f"## {_VALUES}", _NAMES, _quantities()]
    for places in documents.values():
        parts += [_section(place, 2, definitions, tables, links) for place in places]
    for name, places in choices.items():
        parts += [f"## {_title(name)}", _KINDS, *(_section(place, 3, definitions, tables, links) for place in places)]
    return "\n\n".join(parts) + "\n"


def headings(tables: Tables) -> list[str]:
    """Return the headings of the sections with fields or options, without their backticks."""
    definitions: Definitions = document_schema(tables)["$defs"]
    wholes = [whole if (whole := f"{kind}.whole") in definitions else kind for kind in MODELS]
    places = [place for kind, whole in zip(MODELS, wholes, strict=True) for place in _places(_Place(whole, kind), definitions)]
    choices = [*_CHOICES, *(f"{_DATA}{trainer}" for trainer, kinds in tables.data.items() if kinds)]
    return [place.heading for place in (*places, *(each for choice in choices for each in _kinds(choice, definitions)))]


def _places(place: _Place, definitions: Definitions) -> Iterator[_Place]:
    """Yield the place and those of the sections in it, in reading order."""
    yield place
    for field, schema in definitions[place.definition].get("properties", {}).items():
        for inner in _referred(schema):
            if inner not in _CHOICES:
                yield from _places(_Place(inner, place.root, (*place.path, field)), definitions)


def _kinds(choice: str, definitions: Definitions) -> Iterator[_Place]:
    """Yield the places of the options of every kind."""
    word = "Data" if choice.startswith(_DATA) else _CHOICES[choice][1]
    for branch in definitions[choice]["allOf"]:
        kind = branch["if"]["properties"]["kind"]["const"]
        for options in _referred(branch["then"]["properties"]["options"]):
            yield from _places(_Place(options, f"{word} {code(kind)}"), definitions)


def _referred(schema: JsonSchema) -> list[str]:
    """Return names of the definitions that a field refers to, by itself, in its items or as an alternative."""
    own = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
    inner = [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    return [*own, *(name for each in inner for name in _referred(each))]


def _title(choice: str) -> str:
    return _CHOICES[choice][0] if choice in _CHOICES else f"Data of the trainer {code(choice.removeprefix(_DATA))}"


def _links(documents: Mapping[str, list[_Place]], choices: Mapping[str, list[_Place]]) -> Links:
    every = [place for places in (*documents.values(), *choices.values()) for place in places]
    return {
        **{place.definition: f"a {link('mapping', place.title)}" for place in every},
        **{name: f"a {link('kind', _title(name))} with its options" for name in choices},
        **{notation.name: f"{notation.article} {link(notation.name, _VALUES)}" for notation in NOTATIONS},
        NAME: f"a {link(NAME, _VALUES)}",
    }


def _quantities() -> str:
    rows = [(each.name, each.about, ", ".join(map(code, each.examples))) for each in NOTATIONS]
    return table(("quantity", "how it is written", "examples"), rows)


def _section(place: _Place, depth: int, definitions: Definitions, tables: Tables, links: Links) -> str:
    schema = definitions[place.definition]
    head = f"{'#' * (depth + bool(place.path))} {place.title}\n\n{schema['description']}"
    if (example := rows("examples").get(place.heading)) is not None:
        head += f"\n\n```yaml\n{example}```"
    required = schema.get("required", [])
    needs = tables.needs if place.title == "TrainingJob" else {}
    cells = [
        (
            code(name),
            _type(name, field, links),
            "required" if name in required else _left_out(field, [trainer for trainer in needs if name in needs[trainer]]),
            " ".join([field["description"], *_not_yet(place.root, (*place.path, name), tables)]),
            code(flow(field["examples"][0])),
        )
        for name, field in schema["properties"].items()
    ]
    return f"{head}\n\n{table(('field', 'type', 'when left out', 'meaning', 'example'), cells)}" if cells else head


def _type(name: str, field: JsonSchema, links: Links) -> str:
    """Return the type; that of data follows from the trainer."""
    data = [words for choice, words in links.items() if choice.startswith(_DATA)]
    return " or ".join(data) if name == "data" and "type" not in field else field_type(field, links)


def _not_yet(root: str, path: tuple[str, ...], tables: Tables) -> Iterator[str]:
    """Return the parts of the field that are refused, by headway and by each trainer, or that only describe."""
    for row in PENDING.get(root, ()):
        if path[: len(row.field)] == row.field:
            yield f"**Not yet**{f' ({row.values})' if row.values else ''}: {row.yet}."
    if path in (recorded := RECORDED.get(root, {})):
        yield f"**Recorded** in the plan: {recorded[path]}."
    for trainer, limited in tables.only.items() if root == "TrainingJob" else ():
        if path in limited:
            values, deed = limited[path]
            taken = f"only {joined_or([code(flow(value)) for value in values])}" if values else "none"
            yield f"{code(trainer)} takes {taken}: it {deed}."


def _left_out(field: JsonSchema, needed_by: list[str]) -> str:
    """Return the field's default; of a section, the defaults of its fields."""
    if needed_by:
        return f"required by {', '.join(map(code, needed_by))}"
    return code(flow(field.get("default", {})))
