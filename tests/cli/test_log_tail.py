"""Output of ranks from their files on the terminal: complete lines with torchrun's prefix, across restarts, filtered into files."""

from pathlib import Path

import pytest

from headway.cli.log_tail import POLL_S, SELDOM_S, LogTail, following, pause_s


def tail(logs: Path, ranks: dict[int, int], **filters: list[str]) -> LogTail:
    return LogTail(logs, logs.parent / "notes", ranks, "trainer", filters)


def write(logs: Path, attempt: int, rank: int, stream: str, text: str) -> None:
    path = logs / f"attempt_{attempt}" / str(rank) / f"{stream}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_each_line_is_printed_once_complete_and_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = tail(tmp_path, {0: 3, 1: 2})
    write(tmp_path, 0, 0, "stdout", "one\n\ntw")
    write(tmp_path, 0, 1, "stdout", "not teed\n")
    write(tmp_path, 0, 1, "stderr", "wrong\n")
    shown.show()
    assert capsys.readouterr() == ("[trainer0]:one\n[trainer0]:\n", "[trainer1]:wrong\n")
    write(tmp_path, 0, 0, "stdout", "o\nthree")
    shown.show()
    assert capsys.readouterr() == ("[trainer0]:two\n", "")
    shown.show(whole=False)
    assert capsys.readouterr() == ("[trainer0]:three\n", "")
    shown.show(whole=False)
    assert capsys.readouterr() == ("", "")


def test_restart_continues_in_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = tail(tmp_path, {0: 1})
    shown.show()
    for attempt in (0, 9, 10):
        write(tmp_path, attempt, 0, "stdout", f"{attempt}\n")
        shown.show()
    assert capsys.readouterr().out == "[trainer0]:0\n[trainer0]:9\n[trainer0]:10\n"


def test_lines_that_match_a_filter_are_also_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = tail(tmp_path, {0: 1}, stdout=["loss", "error"])
    write(tmp_path, 2, 0, "stdout", "loss 1\nother\nan error\n")
    shown.show()
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert (tmp_path / "attempt_2/filtered_stdout.log").read_text() == "[trainer0]:loss 1\n[trainer0]:an error\n"


def test_prefix_template_includes_the_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${role_name} ${rank}/${local_rank}> ")
    write(tmp_path, 0, 1, "stdout", "x\n")
    (notes := tmp_path.parent / "notes").mkdir(exist_ok=True)
    (notes / f"{tmp_path.name}-attempt_0-1").write_text("5")
    tail(tmp_path, {1: 1}).show()
    assert capsys.readouterr().out == "<trainer 5/1> x\n"


def test_last_line_without_a_newline_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with following({"run": str(tmp_path), "attempt": 0, "logs": str(tmp_path), "teed": {"0": 1}, "role": "r", "filters": {}}):
        write(tmp_path, 0, 0, "stdout", "a\nlast words")
    assert capsys.readouterr().out == "[r0]:a\n[r0]:last words\n"


def test_nothing_is_followed_without_tee(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with following({"run": str(tmp_path), "attempt": 0, "logs": str(tmp_path), "teed": {}, "role": "r", "filters": {}}):
        write(tmp_path, 0, 0, "stdout", "a\n")
    assert capsys.readouterr().out == ""


def test_idle_file_is_polled_once_a_second_and_a_growing_one_ten_times(tmp_path: Path) -> None:
    shown, looks, next_s, now_s = tail(tmp_path, {0: 1}), 0, POLL_S, 0.0
    while now_s < 60.0:
        looks, now_s = looks + 1, now_s + next_s
        next_s = pause_s(next_s, shown=shown.show())
    assert looks < 70
    assert next_s == SELDOM_S
    write(tmp_path, 0, 0, "stdout", "at last\n")
    assert pause_s(next_s, shown=shown.show()) == POLL_S
