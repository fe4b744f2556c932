"""The specs: each field is documented, defaults match the runner, partial specs keep their valid sections."""

import dataclasses
from collections.abc import Iterator
from typing import get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from headway.jobspec.load import load_bytes
from headway.jobspec.parse import MODELS, Parsed, parse
from headway.jobspec.problem import Severity, show
from headway.jobspec.spec import resilience
from headway.jobspec.spec.docstrings import field_descriptions
from headway.jobspec.spec.fields import field_names
from headway.jobspec.spec.job import TrainingJob
from headway.runner import contract
from headway.templates.schedulers import SCHEDULERS
from headway.templates.trainers import TRAINERS

JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: lab
nodes: 2
model: {vocab_size: 256, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn_hidden: 176}
data: {kind: python-stdlib}
batch: {global: 16 sequences, micro: 2, sequence: 128}
optimizer: {lr: 0.003}
steps: 100
checkpoint: {tiers: [{kind: shared, every: 10 steps}]}
"""


def parsed(text: str) -> tuple[Parsed[TrainingJob], list[str]]:
    document, problems = load_bytes("job.yaml", text.encode())
    assert problems == []
    found, judged = parse(document)
    assert found is not None
    assert isinstance(found.spec, TrainingJob)
    return found, [problem.code for problem in judged]


def models() -> list[type[BaseModel]]:
    options = [kind.options for kind in (*SCHEDULERS.values(), *TRAINERS.values())]
    data = [kind.options for trainer in TRAINERS.values() for kind in trainer.data.values()]
    found: list[type[BaseModel]] = []
    for top in (*MODELS.values(), *options, *data):
        found += [section for section in _below(top) if section not in found]
    return found


def _below(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield section
    for info in section.model_fields.values():
        for inner in (info.annotation, *get_args(info.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _below(inner)


@pytest.mark.parametrize("section", models(), ids=lambda section: section.__name__)
def test_every_field_is_described_and_has_an_example(section: type[BaseModel]) -> None:
    assert section.__doc__
    for name, info in field_names(section).items():
        assert field_descriptions(section)[name].endswith("."), name
        assert info.examples, name


@pytest.mark.parametrize("section", models(), ids=lambda section: section.__name__)
def test_examples_of_plain_fields_are_valid(section: type[BaseModel]) -> None:
    for info in section.model_fields.values():
        for example in info.examples or []:
            if not isinstance(example, dict | list):
                TypeAdapter(info.rebuild_annotation()).validate_python(example)


@pytest.mark.parametrize(
    ("section", "record"),
    [
        (resilience.Restart, contract.Restart),
    ],
)
def test_fields_and_defaults_match_the_runner(section: type[BaseModel], record: type) -> None:
    fields = {field.name: field for field in dataclasses.fields(record)}
    assert set(section.model_fields) == set(fields)
    for name, info in section.model_fields.items():
        if not info.is_required():
            assert info.default == fields[name].default, name


def test_list_of_one_cluster_equals_its_name() -> None:
    assert parsed(JOB)[0].spec.cluster == ("lab",)
    assert parsed(JOB.replace("cluster: lab", "cluster: [lab, other]"))[0].spec.cluster == ("lab", "other")


def test_a_spec_is_frozen() -> None:
    spec = parsed(JOB)[0].spec
    with pytest.raises(ValueError, match="frozen"):
        spec.nodes = 3  # type: ignore[misc]


def test_valid_sections_are_kept_despite_mistakes_in_others() -> None:
    text = JOB.replace("nodes: 2", "nodes: two").replace("kv_heads: 2", "kv_heads: 2, colour: red")
    found, codes = parsed(text)
    assert sorted(codes) == ["HW201", "HW203"]
    assert not found.complete
    assert not found.has(("nodes",))
    assert found.has(("model", "batch", "layout"))
    assert found.spec.model is not None
    assert found.spec.model.kv_heads == 2
    assert found.spec.batch is not None
    assert found.spec.batch.global_batch.sequences == 16


VALID = yaml.safe_load(JOB)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(VALID)[2:]),
    VALUES,
    st.dictionaries(st.sampled_from(list(TrainingJob.model_fields)), VALUES, max_size=3),
)
def test_no_value_of_any_field_makes_the_check_raise(field: str, value: object, more: dict[str, object]) -> None:
    data = {**VALID, **more, field: value, "apiVersion": "headway/v1alpha1", "kind": "TrainingJob"}
    document, problems = load_bytes("job.yaml", yaml.dump(data, Dumper=yaml.CSafeDumper, allow_unicode=False).encode())
    found, judged = parse(document)
    assert found is not None
    assert found.complete == (judged == [])
    for problem in (*problems, *judged):
        assert problem.severity is Severity.ERROR
        assert show(problem, document).startswith("error[HW")
