"""Follows the guide, the data page and the planner's page step by step: files, commands and the outputs that they show."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("guide.md", pytest.param("data.md", marks=pytest.mark.slow), pytest.param("planner.md", marks=pytest.mark.slow))
BLOCK = re.compile(r"^```(yaml|python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_step_of_a_page_prints_the_output_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], update_golden: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    page, said = DOCS / name, ""

    def step(block: re.Match[str]) -> str:
        nonlocal said
        language, body = block.groups()
        if language in {"yaml", "python"}:
            file = re.match(r"# (\S+\.(?:yaml|py))\n", body)
            assert file is not None, body
            (tmp_path / file[1]).write_text(body)
        elif language == "sh":
            said = "".join(_output(line, capsys) for line in body.splitlines())
        else:
            return f"```text\n{said}```"
        return block[0]

    found = BLOCK.sub(step, page.read_text())
    if update_golden:
        page.write_text(found)
    assert found == page.read_text()


def _output(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    words = shlex.split(line)
    if words[0] == "python":
        return subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=True).stdout
    assert words[0] == "headway", line
    main(words[1:])
    return capsys.readouterr().out
