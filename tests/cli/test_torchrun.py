"""`headway torchrun` without torch; tests/faults has what it does with it."""

import sys

import pytest

from headway.cli.main import main


def test_a_torch_that_is_not_there_is_named_and_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["torchrun", "--nproc-per-node", "2", "train.py"]) == 3
    how = "use an image that has it, or run `pip install 'headway[torch]'`"
    assert capsys.readouterr() == ("", f"error: the runner needs torch 2.6 or newer, which is not installed: {how}\n")
