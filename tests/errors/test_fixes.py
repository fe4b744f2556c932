"""A fix is the exact text that corrects a mistake: with it in place of the problem's region, the problem is gone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.jobspec.problem import UNREADABLE
from tests.errors.test_errors import codes_of
from tests.support.tables import slow_after_first

HERE = Path(__file__).parent
CASES = sorted(path.name for path in HERE.glob("*.yaml"))


# A value of the wrong type, in the wrong form, outside the allowed ones, or without its unit.
OF_VALUES = ("HW203", "HW204", "HW205", "HW213", "HW240")


def key_of(problem: dict[str, Any]) -> tuple[str, str, str]:
    return problem["code"], str(problem["path"]), problem["message"]


def problems_of(case: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    main(["check", "--format", "json", case])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["problems"]
    return found


def fixed(text: str, problem: dict[str, Any]) -> str:
    """Return the text with the problem's fix in place of its region, which is on one line."""
    lines = text.split("\n")
    assert problem["line"] == problem["end_line"]
    line, first, end = problem["line"] - 1, problem["column"] - 1, problem["end_column"] - 1
    lines[line] = lines[line][:first] + problem["fix"] + lines[line][end:]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy all documents; every test restores the copy."""
    return shutil.copytree(HERE, tmp_path_factory.mktemp("fixes") / "errors", ignore=shutil.ignore_patterns("*.py", "*.txt"))


@pytest.mark.parametrize("case", slow_after_first(CASES, codes_of))
def test_applied_fix_removes_its_problem(
    case: str, cases: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(cases)
    found = problems_of(case, capsys)
    before = set(map(key_of, found))
    fixable = [problem for problem in found if problem["fix"] is not None]
    for problem in fixable:
        file = cases / problem["file"]
        text = file.read_text()
        file.write_text(fixed(text, problem))
        after = problems_of(case, capsys)
        file.write_text(text)
        assert key_of(problem) not in map(key_of, after)
        # The replacement is not rejected for another reason.
        refused = [each for each in after if each["path"] == problem["path"] and each["code"] in OF_VALUES]
        assert set(map(key_of, refused)) <= before
        assert not any(each["code"] in UNREADABLE for each in after if each["file"] == problem["file"])
