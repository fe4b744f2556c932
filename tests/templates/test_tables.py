"""The literal tables name every folder of their family, and templates contain only names, `for` and `if`."""

import re
from pathlib import Path

import pytest

from headway.templates.switches import FILES, SWITCHES

TEMPLATES = Path(__file__).parents[2] / "templates"
ALLOWED = re.compile(r"(for \w+ in [\w.]+|if [\w.]+|endfor|endif)")
NAME = re.compile(r"[\w.]+( \| comment)?")


def test_each_file_that_is_read_back_has_a_name_of_one_switch_kind() -> None:
    names = [(file, name) for name, kind in SWITCHES.items() for file in (kind.file, *kind.readers)]
    assert sorted(FILES.items()) == sorted(names)


@pytest.mark.slow
@pytest.mark.parametrize("template", sorted(TEMPLATES.rglob("*.j2")), ids=lambda path: path.name)
def test_templates_compute_nothing(template: Path) -> None:
    text = template.read_text()
    assert all(ALLOWED.fullmatch(tag) for tag in re.findall(r"{%-? *(.*?) *-?%}", text))
    names = re.findall(r"{{ *(.*?) *}}", text)
    assert names
    assert all(NAME.fullmatch(name) for name in names)
