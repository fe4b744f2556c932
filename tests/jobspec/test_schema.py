"""The schema of made-up tables of kinds: options follow from the kind, and data from the trainer."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from msgspec.structs import replace
from pydantic import Field

from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.catalog.models import models
from headway.jobspec.schema import Tables, document_schema
from headway.jobspec.spec.section import Section
from headway.jobspec.units import Bytes, Seconds
from tests.jobspec.test_spec import JOB


class Nothing(Section):
    """No options."""


class Path(Section):
    """Options with a required one."""

    path: str = Field(examples=["/data"])
    """Where."""


def _number() -> type[Section]:
    class Path(Section):
        """Options of another kind, under the same name."""

        path: int = Field(1, examples=[1])
        """Which."""

    return Path


@dataclass(frozen=True)
class Made:
    options: type[Section]


TABLES = Tables(
    schedulers={"plain": Made(Nothing), "path": Made(Path)},
    providers={},
    switches={"plain": Made(Nothing)},
    trainers={"builtin": Made(Nothing), "other": Made(Nothing)},
    data={"builtin": {"python-stdlib": Made(Nothing), "files": Made(Path)}, "other": {"files": Made(_number())}},
    needs={"builtin": ("data", "steps"), "other": ()},
)
VALIDATOR = Draft202012Validator(document_schema(TABLES))


def valid(text: str, **changes: Any) -> bool:
    return VALIDATOR.is_valid({**yaml.safe_load(text), **changes})


CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: case
scheduler: {kind: plain}
node_groups: [{name: cpu, count: 1, cpus: 1}]
"""


@pytest.mark.parametrize(
    ("scheduler", "fine"),
    [
        ({"kind": "plain"}, True),
        ({"kind": "plain", "options": {}}, True),
        ({"kind": "plain", "options": {"path": "a"}}, False),
        ({"kind": "path"}, False),
        ({"kind": "path", "options": {}}, False),
        ({"kind": "path", "options": {"path": "a"}}, True),
        ({"kind": "path", "options": {"path": 1}}, False),
        ({"kind": "path", "options": None}, False),
        ({"kind": "path", "options": {"path": "a"}, "more": 1}, False),
        ({"kind": "slurm"}, False),
        ({"options": {}}, False),
        ("plain", False),
        (None, False),
    ],
)
def test_options_depend_on_the_kind(scheduler: Any, fine: bool) -> None:
    assert valid(CLUSTER, scheduler=scheduler) == fine


@pytest.mark.parametrize(
    ("job", "fine"),
    [
        ({"data": {"kind": "python-stdlib"}}, True),
        ({"data": {"kind": "files", "options": {"path": "a"}}}, True),
        ({"data": {"kind": "files", "options": {"path": 1}}}, False),
        ({"trainer": {"kind": "builtin"}, "data": {"kind": "files", "options": {"path": 1}}}, False),
        ({"trainer": {"kind": "other"}, "data": {"kind": "files", "options": {"path": 1}}}, True),
        ({"trainer": {"kind": "other"}, "data": {"kind": "files", "options": {"path": "a"}}}, False),
        ({"trainer": {"kind": "other"}, "data": {"kind": "python-stdlib"}}, False),
    ],
)
def test_kinds_of_data_depend_on_the_trainer(job: dict[str, Any], fine: bool) -> None:
    assert valid(JOB, **job) == fine


@pytest.mark.parametrize("steps", [{"steps": None}, {}])
def test_fields_that_a_trainer_requires_are_required_only_of_its_jobs(steps: dict[str, Any]) -> None:
    without = {key: value for key, value in yaml.safe_load(JOB).items() if key != "steps"} | steps
    assert not VALIDATOR.is_valid(without)
    assert not VALIDATOR.is_valid({**without, "trainer": {"kind": "builtin"}})
    assert VALIDATOR.is_valid({**without, "trainer": {"kind": "other"}, "data": {"kind": "files", "options": {"path": 1}}})


@pytest.mark.parametrize(
    ("cluster", "fine"), [("lab", True), (["lab", "other"], True), ([], False), ("Lab", False), ([1], False), (None, False)]
)
def test_a_cluster_is_a_name_or_a_list_of_names(cluster: Any, fine: bool) -> None:
    assert valid(JOB, cluster=cluster) == fine


@pytest.mark.parametrize("head", [{"kind": "Job"}, {"kind": None}, {"apiVersion": "headway/v2"}, {"apiVersion": "apps/v1"}])
def test_document_of_another_kind_or_version_is_invalid(head: dict[str, Any]) -> None:
    assert valid(CLUSTER)
    assert not valid(CLUSTER, **head)


def test_schema_of_one_kind_contains_nothing_of_another() -> None:
    definitions = {kind: set(document_schema(TABLES, kind)["$defs"]) for kind in ("Cluster", "TrainingJob")}
    assert "scheduler" in definitions["Cluster"] - definitions["TrainingJob"]
    assert {"trainer", "data.other"} <= definitions["TrainingJob"] - definitions["Cluster"]


class Quantities(Section):
    """Fields that hold quantities."""

    time: Seconds = Field(90.0, gt=0, le=3600, examples=["30s"])
    """With a default and bounds."""
    size: Bytes | None = Field(None, ge=1, examples=["1GiB"])
    """That may be left out."""
    steps: int = Field(1, ge=1, examples=[2])
    """A count."""


def test_quantity_requires_its_unit_and_its_bounds_are_a_comment() -> None:
    tables = replace(TABLES, schedulers={"quantities": Made(Quantities)})
    properties = document_schema(tables)["$defs"]["Quantities"]["properties"]
    pattern = properties["size"]["anyOf"][0].pop("pattern")
    assert re.fullmatch(pattern, "1GiB")
    assert not re.fullmatch(pattern, "1")
    assert properties["size"] == {
        "anyOf": [
            {"type": "string", "patternErrorMessage": "must be a size, for example `80GiB` or `1.5TB`"},
            {"type": "null"},
        ],
        "default": None,
        "$comment": "at least 1B",
        "description": "That may be left out.",
        "examples": ["1GiB"],
    }
    assert properties["time"]["default"] == "90s"
    assert properties["time"]["$comment"] == "more than 0s, at most 1h"
    assert properties["steps"]["default"] == 1
    assert "$comment" not in properties["steps"]


def test_keys_of_an_example_keep_their_order() -> None:
    class Ordered(Section):
        """Options with an example of two keys."""

        mapping: dict[str, int] = Field(default_factory=dict, examples=[{"name": 1, "first": 2}])
        """Which."""

    tables = replace(TABLES, schedulers={"ordered": Made(Ordered)})
    (example,) = document_schema(tables)["$defs"]["Ordered"]["properties"]["mapping"]["examples"]
    assert list(example) == ["name", "first"]


def test_editor_shows_text_instead_of_a_regular_expression() -> None:
    """Every pattern in the schema has a text instead."""
    found = [each for each in _schemas(document_schema(TABLES)) if "pattern" in each]
    assert len(found) > 50
    assert [each["pattern"] for each in found if not each.get("patternErrorMessage", "").startswith("must be ")] == []


def test_fields_of_the_catalog_offer_all_of_its_entries() -> None:
    definitions = document_schema(TABLES)["$defs"]
    assert set(definitions["NodeGroup"]["properties"]["gpu"]["examples"]) == gpus().keys()
    assert set(definitions["Model"]["properties"]["preset"]["examples"]) == models().keys()


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield each mapping in the schema."""
    if isinstance(schema, dict):
        yield schema
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _schemas(each)
