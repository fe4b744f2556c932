"""`make help` lists every target of the Makefile, and every target can be made."""

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
    return subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_help_names_every_target() -> None:
    (declared,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make (\S+)", make("help"), re.MULTILINE)) == set(declared.split()) - {"help"}


def test_every_target_passes_a_dry_run() -> None:
    for target in re.findall(r"^make (\S+)", make("help"), re.MULTILINE):
        make("--dry-run", target)


def test_every_test_is_in_one_lane() -> None:
    text = (ROOT / "Makefile").read_text()
    waiting = " ".join(re.findall(r"call lane_of,(.*)\)$", text, re.MULTILINE)).split()
    folders = [path.parent for path in (ROOT / "tests/real").glob("*/__init__.py")]
    assert sorted(waiting) == sorted(["tests/faults", *(str(path.relative_to(ROOT)) for path in folders)])
    assert {Path(folder).parts[1] for folder in waiting} == WAITING
    # Two lanes share the others: one takes the folders that the other ignores.
    assert re.findall(r"-m '(.*) and \$\(ONCE\)'", text) == ["slow", "not (slow and waits)"]
    assert re.findall(r"\$\(computing\) (?:-\S+ \S+ )*(\$\([^)]*\))", text) == ["$(RANKS)", "$(RANKS:%=--ignore=%)"]
    (ranks,) = re.findall(r"^RANKS := (.*)$", text, re.MULTILINE)
    assert all((ROOT / folder).is_dir() and Path(folder).parts[1] not in WAITING for folder in ranks.split())
