"""`headway torchrun` without torch; tests/faults covers it with torch."""

import sys

import pytest

from headway.cli.main import main


def test_missing_torch_is_reported_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["torchrun", "--nproc-per-node", "2", "train.py"]) == 3
    how = "use an image that has it, or run `pip install 'headway[torch]'`"
    assert capsys.readouterr() == ("", f"error: the runner needs torch 2.6 or newer, which is not installed: {how}\n")
