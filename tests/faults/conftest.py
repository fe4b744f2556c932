"""Provides the uninterrupted run that every fault is compared with."""

import shutil
from pathlib import Path

import pytest

from .runs import JOB, Run, headway, only_run


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run of the job."""
    runs = tmp_path_factory.mktemp("uninterrupted")
    done = headway("run", JOB, runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(runs)


@pytest.fixture
def finished(uninterrupted: Run, tmp_path: Path) -> Run:
    """A copy of the uninterrupted run, to be damaged and resumed."""
    shutil.copytree(uninterrupted.directory, tmp_path / "runs" / uninterrupted.directory.name)
    return Run(tmp_path / "runs" / uninterrupted.directory.name)
