"""The messages for mistakes are an interface: every document here has the exact output of `headway check`."""

import re
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.jobspec.codes import CODES
from tests.support.tables import slow_after_first

HERE = Path(__file__).parent
CASES = sorted(path.name for path in HERE.glob("*.yaml"))
CODE = re.compile(r"^(?:error|warning)\[(HW\d+)\]", re.MULTILINE)
ARROW = re.compile(r"^  --> (.*)", re.MULTILINE)

# Codes that no file of this folder can have; tests/cli and tests/jobspec cover them.
ELSEWHERE = {"HW101", "HW103", "HW115", "HW116", "HW211", "HW405", "HW419", "HW420", "HW421", "HW602", "HW603", "HW604", "HW605"}


def codes_of(case: str) -> list[str]:
    path = HERE / f"{Path(case).stem}.txt"
    return CODE.findall(path.read_text()) if path.exists() else [case]


@pytest.mark.parametrize("case", slow_after_first(CASES, codes_of))
def test_output_matches_the_recorded_output(
    case: str, update_golden: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(HERE)
    code = main(["check", case])
    found = capsys.readouterr()
    expected = HERE / f"{Path(case).stem}.txt"
    if update_golden:
        expected.write_text(found.out)
    assert found.out == expected.read_text()
    assert code == ("error[" in found.out)
    assert found.err == ""


def test_every_recorded_output_has_its_document() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == {Path(case).stem for case in CASES}


def test_every_code_has_a_case() -> None:
    shown = {code for path in HERE.glob("*.txt") for code in CODE.findall(path.read_text())}
    # Problems of files in use: tests/templates/audit.
    assert shown == {code for code in CODES if not code.startswith("HW8")} - ELSEWHERE


def test_five_mistakes_are_reported_at_once_each_at_its_position() -> None:
    text = (HERE / "five-mistakes.txt").read_text()
    places = ARROW.findall(text)
    assert len(CODE.findall(text)) == len(set(CODE.findall(text))) == 5
    assert len({place.rsplit(":", 1)[0] for place in places}) == 5


def test_nothing_is_rendered_from_a_document_with_five_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(HERE / "five-mistakes.yaml"), "-o", str(tmp_path / "out")]) == 1
    assert len(CODE.findall(capsys.readouterr().err)) == 5
    assert list(tmp_path.iterdir()) == []
