"""The guide's files and commands, step by step as a reader follows them, with exactly the outputs that it shows."""

import re
import shlex
from pathlib import Path

import pytest

from headway.cli.main import main

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
BLOCK = re.compile(r"^```(yaml|python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_step_of_the_guide_says_what_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], update_golden: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    said = ""

    def step(block: re.Match[str]) -> str:
        nonlocal said
        language, body = block.groups()
        if language in {"yaml", "python"}:
            name = re.match(r"# (\S+\.(?:yaml|py))\n", body)
            assert name is not None, body
            (tmp_path / name[1]).write_text(body)
        elif language == "sh":
            said = "".join(_output(line, capsys) for line in body.splitlines())
        else:
            return f"```text\n{said}```"
        return block[0]

    found = BLOCK.sub(step, GUIDE.read_text())
    if update_golden:
        GUIDE.write_text(found)
    assert found == GUIDE.read_text()


def _output(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    words = shlex.split(line)
    assert words[0] == "headway", line
    main(words[1:])
    return capsys.readouterr().out
