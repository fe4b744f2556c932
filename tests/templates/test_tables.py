"""The literal tables name every folder of their family, and each template holds names, `for` and `if` only."""

import re
from pathlib import Path

import pytest

from headway.templates.switches import SWITCHES

TEMPLATES = Path(__file__).parents[2] / "templates"
ALLOWED = re.compile(r"(for \w+ in [\w.]+|if [\w.]+|endfor|endif)")
NAME = re.compile(r"[\w.]+( \| comment)?")


def test_no_two_kinds_of_switches_have_a_file_of_one_name() -> None:
    """A file that is read back is recognized by its name."""
    assert len({kind.file for kind in SWITCHES.values()}) == len(SWITCHES)


@pytest.mark.slow
@pytest.mark.parametrize("template", sorted(TEMPLATES.rglob("*.j2")), ids=lambda path: path.name)
def test_templates_compute_nothing(template: Path) -> None:
    text = template.read_text()
    assert all(ALLOWED.fullmatch(tag) for tag in re.findall(r"{%-? *(.*?) *-?%}", text))
    names = re.findall(r"{{ *(.*?) *}}", text)
    assert names
    assert all(NAME.fullmatch(name) for name in names)
