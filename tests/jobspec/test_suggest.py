"""Hints for a misspelt name: names that start with it come before similar ones."""

import pytest

from headway.jobspec.suggest import did_you_mean

GPUS = ("A100-SXM-40", "A100-SXM-80", "GH200-96", "H200-SXM-141")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("H200", "did you mean `H200-SXM-141`?"),
        ("a100", "write `A100-SXM-40` or `A100-SXM-80`"),
        ("GH20-96", "did you mean `GH200-96`?"),
        ("T4", "known GPUs: `A100-SXM-40`, `A100-SXM-80`, `GH200-96`, `H200-SXM-141`"),
        ("", "known GPUs: `A100-SXM-40`, `A100-SXM-80`, `GH200-96`, `H200-SXM-141`"),
    ],
)
def test_names_that_start_with_the_given_text_come_first(name: str, hint: str) -> None:
    assert did_you_mean(name, GPUS, "GPUs").text == hint


def test_there_may_be_none_to_name() -> None:
    assert did_you_mean("rails", [], "fabrics").text == "no fabrics are defined"
