"""The literal tables name every folder of their family, and templates contain only names, `for` and `if`."""

import re
from pathlib import Path

import pytest

from headway.templates.switches import SWITCHES

TEMPLATES = Path(__file__).parents[2] / "templates"
ALLOWED = re.compile(r"(for \w+ in [\w.]+|if [\w.]+|endfor|endif)")
NAME = re.compile(r"[\w.]+( \| comment)?")


def test_file_names_of_switch_kinds_are_unique() -> None:
    """Files that are read back are recognized by name."""
    assert len({kind.file for kind in SWITCHES.values()}) == len(SWITCHES)


@pytest.mark.slow
@pytest.mark.parametrize("template", sorted(TEMPLATES.rglob("*.j2")), ids=lambda path: path.name)
def test_templates_compute_nothing(template: Path) -> None:
    text = template.read_text()
    assert all(ALLOWED.fullmatch(tag) for tag in re.findall(r"{%-? *(.*?) *-?%}", text))
    names = re.findall(r"{{ *(.*?) *}}", text)
    assert names
    assert all(NAME.fullmatch(name) for name in names)
