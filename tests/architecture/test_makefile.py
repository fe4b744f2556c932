"""`make help` lists every target of the Makefile, and every target can be made."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import WAITING

ROOT = Path(__file__).parents[2]

if shutil.which("make") is None:
    pytest.skip("needs make (Debian: apt install make)", allow_module_level=True)


def make(*words: str) -> str:
    # Without the variables of the make that may have started these tests, such as those of make test-fast.
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "SELECTION"}
    }
    return subprocess.run(["make", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_help_names_every_target() -> None:
    (declared,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make (\S+)", make("help"), re.MULTILINE)) == set(declared.split()) - {"help"}


def test_every_target_passes_a_dry_run() -> None:
    for target in re.findall(r"^make (\S+)", make("help"), re.MULTILINE):
        make("--dry-run", target)


def test_every_test_is_in_one_lane() -> None:
    commands = re.findall(r"-m pytest -m '(.*?)' ([^>\n]*)", make("--dry-run", "test"))
    waiting = [folder for marks, words in commands for folder in words.split() if marks.startswith("slow and ")]
    folders = [path.parent for path in (ROOT / "tests/real").glob("*/__init__.py")]
    assert sorted(waiting) == sorted(["tests/faults", *(str(path.relative_to(ROOT)) for path in folders)])
    assert {Path(folder).parts[1] for folder in waiting} == WAITING
    computing = [words.split() for marks, words in commands if marks.startswith("not (slow and waits) and ")]
    taken = [word for words in computing for word in words if not word.startswith("--")]
    assert len(taken) == len(set(taken))
    assert all((ROOT / folder).is_dir() and Path(folder).parts[1] not in WAITING for folder in taken)
    # A lane ignores what another has inside its folders, and nothing that none has; the last lane names no folder and has all others.
    (last,) = [words for words in computing if words[0].startswith("--")]
    assert last == computing[-1]
    for words in computing:
        ignored = {word.removeprefix("--ignore=") for word in words if word.startswith("--")}
        inside = [f"{word}/" for word in words if not word.startswith("--")] or ["tests/"]
        assert {folder for folder in taken if folder.startswith(tuple(inside))} <= ignored <= set(taken)
