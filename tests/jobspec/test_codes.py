"""The table and the documentation list exactly the codes that the sources emit."""

import re
from pathlib import Path

from headway.jobspec.codes import CODES
from headway.jobspec.explain import explanations

ROOT = Path(__file__).parents[2]
FOLDERS = ("jobspec", "templates", "headway/planner", "headway/compile", "headway/cli")
SOURCES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
EMITTED = re.compile(r'(?:[Pp]roblem|Fault|Finding)\(\s*"(HW\d+)"')


def test_emitted_codes_match_the_table() -> None:
    emitted = {code for path in SOURCES if path.name != "codes.py" for code in EMITTED.findall(path.read_text())}
    assert emitted == set(CODES)


def test_documentation_explains_every_code_in_order(update_golden: bool) -> None:
    page = ROOT / "docs" / "problems.md"
    rows = [f"| [{code}](#{code.lower()}) | {meaning} |" for code, meaning in CODES.items()]
    sections = [f"## {code}\n\n{found.title} ({found.status})\n\n{found.markdown()}" for code, found in explanations().items()]
    text = "\n\n".join([HEAD, "\n".join(["| code | meaning |", "| --- | --- |", *rows]), *sections]) + "\n"
    if update_golden:
        page.write_text(text)
    assert page.read_text() == text
    assert list(CODES) == sorted(CODES) == list(explanations())


HEAD = """# Problems

The problems that `headway check` reports. 1xx: the text of a document; 2xx: one document; 3xx: layout; 4xx: a job against its cluster;
5xx: fabrics; 6xx: NCCL; 7xx: checkpoints and storage; 8xx: files in force, by themselves. The last are those of `headway audit`.
`headway explain CODE` prints the explanation of one."""
