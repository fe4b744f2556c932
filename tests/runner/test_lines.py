"""Tests JSON lines: a torn or short line costs only itself."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from headway.runner.lines import append_line, cut_torn_line, read_lines


def records(path: Path) -> list[dict[str, int]]:
    return [record for record, _ in read_lines(path)]


def test_lines_are_read_back_and_reading_resumes_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_line(path, {"step": 1})
    ((_, end),) = read_lines(path)
    append_line(path, {"step": 2})
    assert [record for record, _ in read_lines(path, end)] == [{"step": 2}]
    assert records(tmp_path / "absent.jsonl") == []


def test_a_partial_line_does_not_count_and_is_removed_by_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    assert records(path) == [{"step": 1}]
    cut_torn_line(path)
    append_line(path, {"step": 2})
    assert records(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("garbage", ['{"ste{"step": 3}', "[1]", "\0\0"])
def test_a_line_that_is_not_a_record_is_skipped(garbage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"step": 1}}\n{garbage}\n{{"step": 4}}\n')
    assert records(path) == [{"step": 1}, {"step": 4}]


def test_a_line_cut_short_by_a_full_disk_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_line(path, {"step": 1})
    program = (
        "import resource, signal, sys; from pathlib import Path; from headway.runner.lines import append_line\n"
        f"signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit({resource.RLIMIT_FSIZE}, (20, 20))\n"
        f"try:\n    append_line(Path({str(path)!r}), {{'step': 2, 'more': 'x' * 50}})\nexcept OSError:\n    sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7
    append_line(path, {"step": 3})
    assert records(path) == [{"step": 1}, {"step": 3}]
