"""`headway torchrun` without torch; tests/faults covers it with torch."""

import json
import sys
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.cli.verbs import torchrun
from headway.runner.contract import RunDirectory


def test_missing_torch_is_reported_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["torchrun", "--nproc-per-node", "2", "train.py"]) == 3
    how = "use an image that has it, or run `pip install 'headway[torch]'`"
    assert capsys.readouterr() == ("", f"error: the runner needs torch 2.6 or newer, which is not installed: {how}\n")


@pytest.mark.parametrize(
    ("node", "last", "shared", "expected"),
    [
        (0, 0, True, True),
        (1, 0, True, False),
        (1, 1, True, True),
        (0, 1, True, False),
        (0, None, True, True),
        (1, None, True, False),
        # Each node has a run directory of its own: that of another node than the first describes nothing.
        (0, 0, False, True),
        (1, 1, False, False),
    ],
)
def test_only_the_node_that_coordinated_last_prints_the_summary(
    node: int, last: int | None, shared: bool, expected: bool, tmp_path: Path
) -> None:
    published = RunDirectory(tmp_path, 1).coordinator
    published.parent.mkdir(parents=True)
    if last is not None:
        published.write_text(json.dumps({"node": last}))
    assert torchrun.has_the_report({"run": str(tmp_path), "attempt": 1, "node": node, "shared": shared}) is expected
