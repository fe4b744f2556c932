"""docs/audit.md lists every rule with its consequence for a run."""

from pathlib import Path

from headway.jobspec.codes import CODES
from headway.jobspec.explain import explanations

PAGE = Path(__file__).parents[3] / "docs" / "audit.md"
HEAD = "| code | found | what it does to a run |\n| --- | --- | --- |\n"


def test_page_lists_every_rule(update_golden: bool) -> None:
    """`--update-golden` rewrites the table."""
    found = explanations()
    rows = [
        f"| [{code}](problems.md#{code.lower()}) | {found[code].title.removesuffix('.')} | {found[code].why.strip()} |"
        for code in CODES
        if code.startswith("HW8")
    ]
    text = PAGE.read_text()
    start = text.find(HEAD)
    expected = f"{text[:start] if start >= 0 else text + chr(10)}{HEAD}" + "\n".join(rows) + "\n"
    if update_golden:
        PAGE.write_text(expected)
    assert PAGE.read_text() == expected
    assert len(rows) >= 35
