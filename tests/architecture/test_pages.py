"""Every relative link of the README and of the pages in docs/ leads to a file and a heading that exist."""

import re
from pathlib import Path

import pytest

from headway.jobspec.markdown import anchor

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+).+?\1")
LINK = re.compile(r"\]\(([^):]+)\)")


def _links(page: Path) -> list[str]:
    return LINK.findall(CODE.sub("", FENCE.sub("", page.read_text())))


def _headings(file: Path) -> set[str]:
    return {anchor(title) for title in re.findall(r"^#+ (.*)$", FENCE.sub("", file.read_text()), re.MULTILINE)}


def _exists(page: Path, target: str) -> bool:
    path, _, heading = target.partition("#")
    file = page.parent / path if path else page
    return file.exists() and (not heading or heading in _headings(file))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_link_resolves_to_a_file_and_a_heading(page: Path) -> None:
    assert [target for target in _links(page) if not _exists(page, target)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_begins_with_its_title(page: Path) -> None:
    assert page.read_text().startswith("# ")


def test_readme_links_to_every_page() -> None:
    linked = {target.partition("#")[0] for target in _links(ROOT / "README.md")}
    assert {f"docs/{page.name}" for page in DOCS} - linked == set()
