"""Commands of the README and of the pages that continue it succeed, and the README stays short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import VERBS
from tests.support import LIGHT

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
# Commands of the guide, of the planner's page and of the page for editors have separate tests.
NAMES = ("README.md", *(f"docs/{name}.md" for name in ("quickstart", "slurm", "kubernetes", "fabric", "hosts")))
PAGES = {name: (ROOT / name).read_text() for name in NAMES}
README_BYTES = 6000


def _blocks(language: str) -> list[str]:
    return [block for text in PAGES.values() for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


# A command that two pages show runs once.
COMMANDS = list(dict.fromkeys(line for block in _blocks("sh") for line in block.splitlines()))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_a_page_exits_with_0(command: str, tmp_path: Path) -> None:
    here = command.replace(".venv/bin/headway", f"{sys.executable} -m headway.cli.main").replace("runs/", f"{tmp_path}/")
    environment = {"HEADWAY_STANDBY": "0", "PYTHONPATH": LIGHT, **os.environ, "HEADWAY_RUNS": str(tmp_path)}
    done = subprocess.run(here.split(), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_begins_with_headway() -> None:
    assert [command for command in COMMANDS if not command.startswith(".venv/bin/headway ")] == []
    assert {command.split()[1] for command in COMMANDS} >= {"torchrun", "check", "plan", "render", "schema", "audit"}


@pytest.mark.parametrize("page", PAGES)
def test_path_in_examples_exists(page: str) -> None:
    paths = re.findall(r"examples/[\w./-]+[\w]", PAGES[page])
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_folders_of_the_quickstart_exist_at_the_top_level() -> None:
    named = set(re.findall(r"^\| `([a-z]+)/` \|", PAGES["docs/quickstart.md"], re.MULTILINE))
    assert named == {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "runs"}


def test_verbs_in_commands_exist() -> None:
    named = re.findall(r"headway ([a-z]+) ", "\n".join(_blocks("sh") + _blocks("console")))
    assert set(named) - set(VERBS) == set()


def test_readme_is_at_most_a_screen_and_a_half() -> None:
    assert len(README.encode()) <= README_BYTES


def test_readme_shows_the_output_of_the_quickstart() -> None:
    (shown,) = re.findall(r"```text\n(quickstart-.*?)```", README, re.DOTALL)
    assert set(shown.splitlines()) <= set(PAGES["docs/quickstart.md"].splitlines())
