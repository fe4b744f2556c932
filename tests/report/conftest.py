"""A folder of runs for each test."""

from pathlib import Path

import pytest


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of runs that HEADWAY_RUNS names."""
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("HEADWAY_RUNS", str(folder))
    return folder
