"""Tests that every bound of a run can be set for `headway torchrun`, and that docs/script.md lists them all."""

import re
from pathlib import Path

import pytest

from headway.runner.contract import DEFAULT_TIMEOUTS
from headway.runner.health import timeouts as of_sections
from headway.runner.torchrun import bounds
from headway.runner.torchrun.arguments import EPILOG, parse
from headway.runner.torchrun.configure import configure

ROOT = Path(__file__).parents[3]
SCRIPT = str(ROOT / "examples/one-word/train.py")
TWO = ("--nnodes", "2", "--rdzv-backend", "c10d")


def set_to(seconds: str, name: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> float:
    monkeypatch.setenv(bounds.variable_of(name), seconds)
    return configure(parse([*words, SCRIPT])).timeouts[name].floor_s


@pytest.mark.parametrize("name", [name for name in DEFAULT_TIMEOUTS if name != "replica"])
def test_every_bound_can_be_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ((), TWO):
        assert set_to("90", name, monkeypatch, *words) == 90
        assert set_to("2.5h", name, monkeypatch, *words) == 9000
    assert configure(parse([SCRIPT])).timeouts[name].factor == DEFAULT_TIMEOUTS[name].factor


def test_a_sections_bound_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {*of_sections._NAMES.values(), "busy"} == bounds.SECTIONS
    for name in sorted(bounds.SECTIONS):
        assert set_to("off", name, monkeypatch) == set_to("inf", name, monkeypatch) == bounds.OFF_S


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("HEADWAY_TIMEOUT_COMPUTE", "soon", "HEADWAY_TIMEOUT_COMPUTE=soon: expected seconds, or a number with a unit"),
        ("HEADWAY_TIMEOUT_COMPUTE", "0", "or `off`"),
        ("HEADWAY_TIMEOUT_COMPUTE", "-5", "HEADWAY_TIMEOUT_COMPUTE=-5"),
        ("HEADWAY_TIMEOUT_COMPUTE", "", "HEADWAY_TIMEOUT_COMPUTE=: expected seconds"),
        ("HEADWAY_TIMEOUT_COMPUTE", "9" * 40, "expected seconds"),
        ("HEADWAY_TIMEOUT_JOIN", "off", "HEADWAY_TIMEOUT_JOIN=off: expected seconds"),
        ("HEADWAY_TIMEOUT_COMPUT", "5", "HEADWAY_TIMEOUT_COMPUT: there is no such timeout; there are HEADWAY_TIMEOUT_JOIN, "),
        ("HEADWAY_TIMEOUT_compute", "5", "HEADWAY_TIMEOUT_compute: there is no such timeout"),
        ("HEADWAY_GRACE", "long", "HEADWAY_GRACE=long: expected seconds"),
    ],
)
def test_meaningless_values_are_refused_by_name(variable: str, value: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=re.escape(named)):
        configure(parse([SCRIPT]))


def test_a_flag_overrides_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = (*TWO, "--rdzv-conf", "join_timeout=7,last_call_timeout=8")
    assert (set_to("70", "join", monkeypatch, *conf), set_to("80", "last_call", monkeypatch, *conf)) == (7, 8)
    assert configure(parse([*conf, SCRIPT])).timeouts["replace"].floor_s == 7, "as long as for a node that has not come yet"
    assert set_to("0", "replace", monkeypatch, *conf) == 0
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "14")
    monkeypatch.setenv("HEADWAY_GRACE", "2m")
    assert configure(parse([SCRIPT])).grace_s == 120
    assert configure(parse(["--shutdown-timeout", "7", SCRIPT])).grace_s == pytest.approx(10)


def test_the_documented_table_lists_every_bound() -> None:
    text = (ROOT / "docs/script.md").read_text()
    listed = re.findall(r"^\| `(HEADWAY_(?:TIMEOUT_\w+|GRACE))` \| (.*?) \| .+ \|$", text, re.MULTILINE)
    assert listed == list(bounds.defaults().items())
    assert all(f"{variable} ({default})" in EPILOG for variable, default in listed)
