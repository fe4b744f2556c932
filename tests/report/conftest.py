"""Creates a folder of runs for each test."""

from pathlib import Path

import pytest


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an empty folder of runs and set HEADWAY_RUNS to it."""
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("HEADWAY_RUNS", str(folder))
    return folder
