"""Claims on speed: the order of the runs, the condition on which a claim holds, and its report."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.claim import Claim, Command, MeasureError, Spread, compared, interleaved, judged, report, spread, within

KEYS = ["claim", "ours", "peer", "peer_name", "ratio", "goal", "holds", "conditions"]


def program(folder: Path, code: str, expected: str = "done") -> Command:
    return Command([sys.executable, "-c", f"{code}\nprint('done')"], folder, expected)


def writing(folder: Path, letter: str) -> Command:
    return program(folder, f"open('order', 'a').write('{letter}')")


def claim(seconds: float) -> Claim:
    return judged("a task", (Spread(seconds, seconds, seconds), Spread(0.5, 0.4, 0.6)), "a peer", 0.4, "here")


@pytest.mark.slow
def test_programs_alternate_after_one_uncounted_warm_up_run_each(tmp_path: Path) -> None:
    pair = interleaved(writing(tmp_path, "o"), writing(tmp_path, "p"), 3, tmp_path / "bytecode")
    assert (tmp_path / "order").read_text() == "op" * 4
    assert all(0 < spread.low <= spread.median <= spread.high for spread in pair)


def test_programs_write_bytecode_even_if_the_environment_forbids_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "imported.py").write_text("")
    command = program(tmp_path, "import imported")
    interleaved(command, command, 1, tmp_path / "bytecode")
    assert len(list((tmp_path / "bytecode").rglob("imported.*.pyc"))) == 1


@pytest.mark.parametrize(
    ("code", "expected", "error"),
    [
        ("raise SystemExit('broken')", "done", "ended with 1 and did not print `done`: broken"),
        ("pass", "3 documents", "ended with 0 and did not print `3 documents`: done"),
    ],
)
def test_program_that_fails_or_prints_the_wrong_line_is_not_measured(
    code: str, expected: str, error: str, tmp_path: Path
) -> None:
    with pytest.raises(MeasureError, match=error):
        interleaved(program(tmp_path, code, expected), writing(tmp_path, "p"), 1, tmp_path / "bytecode")


def test_missing_peer_is_reported_with_its_install_command(tmp_path: Path) -> None:
    peer = Command([tmp_path / "peer"], tmp_path, "")
    with pytest.raises(MeasureError, match=r"/peer cannot be started \(No such file or directory\); `make peers` installs"):
        interleaved(writing(tmp_path, "o"), peer, 1, tmp_path / "bytecode")


@pytest.mark.parametrize(("seconds", "holds"), [(0.4, True), (0.401, False)])
def test_a_claim_holds_up_to_its_goal(seconds: float, holds: bool) -> None:
    assert claim(seconds).holds == holds
    assert claim(seconds).ratio == seconds / 0.5


def test_claim_on_the_ratio_holds_up_to_its_goal() -> None:
    peer = spread([0.6, 0.4, 0.5])
    assert peer == Spread(0.5, 0.4, 0.6)
    claims = [compared("a task", (spread([seconds]), peer), "a peer", 0.5, "here") for seconds in (0.25, 0.26)]
    assert [(claim.ratio, claim.holds) for claim in claims] == [(0.5, True), (0.52, False)]


def test_line_shows_the_measurement_and_the_goal(capsys: pytest.CaptureFixture[str]) -> None:
    pair = (spread([0.25]), spread([0.5]))
    assert report([compared("a task", pair, "a peer", 0.5, "here"), within("a task", pair, "a peer", 5.0, "here")], []) == 0
    assert capsys.readouterr().out == (
        "holds: a task: 0.250 s (0.250 to 0.250), goal at most 0.5 times the peer's; "
        "a peer: 0.500 s (0.500 to 0.500); ratio 0.50 (here)\n"
        "holds: a task: 0.250 s (0.250 to 0.250), goal at most 5 s; "
        "a peer: 0.500 s (0.500 to 0.500); ratio 0.50 (here)\n"
    )


def test_json_report_has_one_object_per_claim_and_exits_1_if_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([claim(0.2), claim(0.5), claim(0.3)], ["--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(line) for line in lines] == [KEYS] * 3
    assert [line["holds"] for line in lines] == [True, False, True]
    assert lines[0]["peer"] == {"median": 0.5, "low": 0.4, "high": 0.6}


def test_text_report_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([claim(0.2)], []) == 0
    assert capsys.readouterr().out == (
        "holds: a task: 0.200 s of CPU (0.200 to 0.200), goal at most 0.4 s; "
        "a peer: 0.500 s of CPU (0.400 to 0.600); ratio 0.40 (here)\n"
    )


def test_unmeasurable_claim_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    def claims() -> Iterator[Claim]:
        yield claim(0.2)
        raise MeasureError("no peer")

    assert report(claims(), []) == 3
    assert capsys.readouterr().err == "benchmark: no peer\n"
