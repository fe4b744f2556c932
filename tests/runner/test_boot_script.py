"""A script run as `python` runs it, and what comes before its first line."""

import signal
import sys
import threading
from pathlib import Path

import pytest

from headway.runner.boot.script import TooLongError, at_most, run_script


def test_a_script_knows_its_file_by_an_absolute_path_and_its_arguments_as_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("argv", sys.argv), ("path", [*sys.path])):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of").mkdir()
    (tmp_path / "of/train.py").write_text(
        "import sys\nfound = __file__, sys.argv, sys.path[0], (lambda: 0).__code__.co_filename\n"
    )
    run_script(["of/train.py", "--lr=1"])
    file = str(tmp_path / "of/train.py")
    assert sys.modules["__main__"].found == (file, ["of/train.py", "--lr=1"], str(tmp_path / "of"), file)


def test_what_takes_too_long_is_left_and_the_scripts_own_alarm_is_untouched() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TooLongError), at_most(0.001):
        threading.Event().wait()
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (before, (0.0, 0.0))
