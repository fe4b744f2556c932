"""Names of other programs lead to a field or a value of the language; forms of texts are described in words."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from headway.infra.providers import PROVIDERS
from headway.jobspec.aliases import normal, note, places, values
from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.catalog.nics import nics
from headway.jobspec.catalog.table import rows
from headway.jobspec.forms import FORMS
from headway.jobspec.parse import MODELS
from headway.jobspec.spec.fields import field_names, owner_of
from headway.templates.schedulers import SCHEDULERS
from headway.templates.switches import SWITCHES
from headway.templates.trainers import TRAINERS
from tests.support.schemas import schema_of

TABLE = rows("aliases")
PLACES = [(kind, place) for kind, fields in TABLE["fields"].items() for place in fields]


def fields_at(kind: str, section: tuple[str, ...]) -> set[str]:
    """Return the fields of the section of a document; for options, those of all kinds."""
    if "options" in section:
        at = section.index("options")
        of_data = {f"{trainer}.{kind}": each for trainer, row in TRAINERS.items() for kind, each in row.data.items()}
        tables: dict[str, Any] = {
            "scheduler": SCHEDULERS,
            "trainer": TRAINERS,
            "data": of_data,
            "provider": PROVIDERS,
            "os": SWITCHES,
        }
        owners = [owner_of(each.options, section[at + 1 :]) for each in tables[section[at - 1]].values()]
        assert any(owners), section
        return {name for each in owners if each is not None for name in field_names(each)}
    owner = owner_of(MODELS[kind], section)
    assert owner is not None, section
    return set(field_names(owner))


@pytest.mark.parametrize(("kind", "place"), PLACES, ids=lambda each: each)
def test_every_alias_leads_to_a_field_with_another_name(kind: str, place: str) -> None:
    *section, field = place.split(".")
    fields = fields_at(kind, tuple(section))
    assert field in fields
    names = TABLE["fields"][kind][place]
    assert [normal(name) for name in names] == names
    # A kind's options may have a name that another kind has as a field.
    assert not fields & set(names) or section[-1:] == ["options"]
    assert all(tuple(place.split(".")) in places(kind, name) for name in names)


def test_no_name_has_both_a_field_of_its_section_and_a_note() -> None:
    for kind, notes in TABLE["notes"].items():
        for name, text in notes.items():
            assert note(kind, name) == text
            if "." in kind:
                # The fields of a section come first.
                assert name not in fields_at(kind.partition(".")[0], tuple(kind.split(".")[1:])), name
                continue
            assert not any(len(place) == 1 for place in places(kind, name)), name


def literals(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (str(each) for each in [*schema.get("enum", ()), schema.get("const")] if each is not None)
        for each in schema.values():
            yield from literals(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from literals(each)


@pytest.mark.slow
def test_every_alias_of_a_value_leads_to_a_value_of_the_language() -> None:
    allowed = {each for schema in map(schema_of, MODELS) for each in literals(schema)}
    allowed |= {*MODELS, *SCHEDULERS, *SWITCHES, *TRAINERS, "none"}
    allowed |= {*nics(), *gpus()}
    assert set(TABLE["values"]) - allowed == set()
    for value, names in TABLE["values"].items():
        assert all(value in values(name, TABLE["values"]) for name in names)


def test_ambiguous_alias_gives_both_allowed_values() -> None:
    assert values("ethernet", ["roce", "tcp", "efa"]) == ["roce", "tcp"]
    assert values("BFloat16", ["bf16", "fp32"]) == ["bf16"]


def patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for each in schema.values():
            yield from patterns(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from patterns(each)


@pytest.mark.slow
def test_no_message_shows_a_regular_expression() -> None:
    found = {pattern for schema in map(schema_of, MODELS) for pattern in patterns(schema)}
    quantities = {pattern for pattern in found if pattern.startswith("^(?:")}
    assert found - quantities - FORMS.keys() == set()
    assert all(re.compile(pattern) for pattern in FORMS)
