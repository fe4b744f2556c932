"""JSON lines: a torn or a short line costs itself and nothing else."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from headway.runner.lines import append_line, cut_torn_line, read_lines


def records(path: Path) -> list[dict[str, int]]:
    return [record for record, _ in read_lines(path)]


def test_lines_come_back_and_reading_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_line(path, {"step": 1})
    ((_, end),) = read_lines(path)
    append_line(path, {"step": 2})
    assert [record for record, _ in read_lines(path, end)] == [{"step": 2}]
    assert records(tmp_path / "absent.jsonl") == []


def test_half_a_line_does_not_count_and_is_cut_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    assert records(path) == [{"step": 1}]
    cut_torn_line(path)
    append_line(path, {"step": 2})
    assert records(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("garbage", ['{"ste{"step": 3}', "[1]", "\0\0"])
def test_a_line_that_is_no_record_is_passed_over(garbage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"step": 1}}\n{garbage}\n{{"step": 4}}\n')
    assert records(path) == [{"step": 1}, {"step": 4}]


def test_what_a_full_disk_took_only_in_part_is_taken_back(tmp_path: Path) -> None:
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
