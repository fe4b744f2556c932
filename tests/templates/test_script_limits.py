"""What is decided for a script: only what its arguments hold."""

import pytest

from headway.jobspec.spec.layout import Layout
from headway.templates.trainers.script.limits import limits
from headway.templates.trainers.script.options import ScriptOptions

# What is left of the ranks, for a script too.
FREE = {("layout", "dp_shard")}
LAYOUT = {("layout", field) for field in Layout.model_fields} - FREE


def limited(*arguments: str) -> set[tuple[str, ...]]:
    return set(limits(ScriptOptions(argv=("train.py", *arguments))))


def test_a_script_that_is_told_nothing_has_all_ranks_in_one_axis_and_keeps_all_activations() -> None:
    assert limited() == LAYOUT | {("recompute",)}


@pytest.mark.parametrize("field", sorted(LAYOUT))
def test_a_field_that_an_argument_holds_is_not_limited(field: tuple[str, ...]) -> None:
    assert LAYOUT - limited(f"--it={{{'.'.join(field)}}}") == {field}


def test_a_brace_that_stands_for_itself_holds_nothing() -> None:
    assert limited("{{layout.tp}}", "layout.pp") == limited()


def test_what_counts_for_an_untold_script_is_what_the_language_means_by_leaving_it_out() -> None:
    for (_, field), (values, _) in (
        (path, limit) for path, limit in limits(ScriptOptions(argv=("a",))).items() if len(path) == 2
    ):
        default = Layout.model_fields[field].default
        assert values == (() if default is None else (default,))
