"""docs/trainers.md has the current tables; `pytest tests/trainers/test_page.py --update-golden` writes them."""

from pathlib import Path

from headway.templates.trainers.table import FIELDS

from .test_tables import TABLES

PAGE = Path(__file__).parents[2] / "docs/trainers.md"
HEADING = "## Fields and keys\n"


def rows() -> str:
    """Return a section for each framework: its version, and a row for each field."""
    parts = []
    for kind, table in TABLES.items():
        lines = [f"### `{kind}`", "", f"{table.version}.", "", "| field | key |", "| --- | --- |"]
        left = set(table.left) | {name for name in (row.fields[0] for row in table.rows) if "." not in name}
        whole = [name for name in left if not any(name == each for each in FIELDS)]
        for name in [*whole, *FIELDS]:
            row = table.row_of(name)
            assert row is not None
            if name in whole or not any(name.startswith(f"{each}.") for each in whole):
                lines.append(f"| `{name}` | {row.words(name)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def test_page_has_the_tables(update_golden: bool) -> None:
    head = PAGE.read_text().partition(HEADING)[0] + HEADING + "\n"
    if update_golden:
        PAGE.write_text(head + rows())
    assert PAGE.read_text() == head + rows()
