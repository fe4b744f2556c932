"""The README's commands run, and what it shows of the examples stands in them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import VERBS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("command", [line for block in _blocks("sh") for line in block.splitlines()])
def test_a_command_of_the_readme_ends_well(command: str, tmp_path: Path) -> None:
    here = command.replace(".venv/bin/headway", f"{sys.executable} -m headway.cli.main").replace("runs/", f"{tmp_path}/")
    environment = {**os.environ, "HEADWAY_RUNS": str(tmp_path)}
    done = subprocess.run(here.split(), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", re.findall(r"\]\(([^):]+)\)", README))
def test_a_link_of_the_readme_leads_somewhere(path: str) -> None:
    headings = {f"#{title.lower().replace(' ', '-')}" for title in re.findall(r"^## (.*)", README, re.MULTILINE)}
    assert path in headings if path.startswith("#") else (ROOT / path).exists()


@pytest.mark.parametrize("path", re.findall(r"examples/[\w./-]+[\w]", README))
def test_a_path_of_the_readme_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_folders_of_the_readme_are_those_at_the_top() -> None:
    named = set(re.findall(r"^\| `([a-z]+)/` \|", README, re.MULTILINE))
    assert named == {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "runs"}


def test_verbs_of_the_readme_are_verbs() -> None:
    named = re.findall(r"headway ([a-z]+) ", "\n".join(_blocks("sh") + _blocks("console")) + "headway report RUN")
    assert set(named) - set(VERBS) == set()
