"""The literal tables name every folder of their family, and each template holds names, `for` and `if` only."""

import re
from pathlib import Path

import pytest

from headway.templates.schedulers import SCHEDULERS
from headway.templates.trainers import TRAINERS

TEMPLATES = Path(__file__).parents[2] / "templates"
ALLOWED = re.compile(r"(for \w+ in [\w.]+|if [\w.]+|endfor|endif)")
NAME = re.compile(r"[\w.]+( \| comment)?")


@pytest.mark.parametrize(("family", "table"), [("schedulers", SCHEDULERS), ("trainers", TRAINERS)])
def test_table_rows_are_the_folders(family: str, table: dict[str, object]) -> None:
    folders = {path.parent.name for path in (TEMPLATES / family).glob("*/__init__.py")}
    assert set(table) == folders


@pytest.mark.parametrize("template", sorted(TEMPLATES.rglob("*.j2")), ids=lambda path: path.name)
def test_templates_compute_nothing(template: Path) -> None:
    text = template.read_text()
    assert all(ALLOWED.fullmatch(tag) for tag in re.findall(r"{%-? *(.*?) *-?%}", text))
    names = re.findall(r"{{ *(.*?) *}}", text)
    assert names
    assert all(NAME.fullmatch(name) for name in names)
