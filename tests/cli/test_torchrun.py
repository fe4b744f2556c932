"""`headway torchrun` without the runner's libraries; tests/faults has what it does with them."""

import sys

import pytest

from headway.cli.main import main


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        (("torch",), "torch"),
        (("xxhash",), "xxhash"),
        (("torch", "xxhash"), "torch and xxhash"),
        (("torch", "xxhash", "msgspec"), "torch and xxhash and msgspec"),
    ],
)
def test_libraries_that_are_not_there_are_named_and_how_to_get_them(
    absent: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in absent:
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["torchrun", "--nproc-per-node", "2", "train.py"]) == 3
    assert capsys.readouterr() == ("", f"error: the runner needs {words}; install headway with its extra `runner`\n")
