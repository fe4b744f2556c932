"""Decisions for a script are limited to the fields in its arguments."""

import pytest

from headway.jobspec.spec.layout import Layout
from headway.templates.trainers.script.limits import limits
from headway.templates.trainers.script.options import ScriptOptions

# The remaining ranks, also for a script.
FREE = {("layout", "dp_shard")}
LAYOUT = {("layout", field) for field in Layout.model_fields} - FREE


def limited(*arguments: str) -> set[tuple[str, ...]]:
    return set(limits(ScriptOptions(argv=("train.py", *arguments))))


def test_script_without_arguments_limits_the_whole_layout_and_recompute() -> None:
    assert limited() == LAYOUT | {("recompute",)}


@pytest.mark.parametrize("field", sorted(LAYOUT))
def test_field_passed_as_an_argument_is_not_limited(field: tuple[str, ...]) -> None:
    assert LAYOUT - limited(f"--it={{{'.'.join(field)}}}") == {field}


def test_doubled_brace_passes_no_field() -> None:
    assert limited("{{layout.tp}}", "layout.pp") == limited()


def test_limits_of_unpassed_fields_are_their_defaults() -> None:
    for (_, field), (values, _) in (
        (path, limit) for path, limit in limits(ScriptOptions(argv=("a",))).items() if len(path) == 2
    ):
        default = Layout.model_fields[field].default
        assert values == (() if default is None else (default,))
