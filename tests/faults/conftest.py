"""Provides the uninterrupted runs that faults are compared with, and a server for the remote tier."""

import shutil
from pathlib import Path

import pytest

# The fixtures of remote stores are those of tests/runner.
from tests.runner.conftest import bucket, s3, s3_server  # noqa: F401

from .runs import JOB, Run, headway, one_rank, only_run


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run of the job, on two ranks."""
    runs = tmp_path_factory.mktemp("uninterrupted")
    done = headway("run", JOB, runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(runs)


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run of the job on one rank, which keeps its two newest checkpoints."""
    folder = tmp_path_factory.mktemp("single")
    done = headway("run", one_rank(folder), runs=folder / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(folder / "runs")


@pytest.fixture
def finished(single: Run, tmp_path: Path) -> Run:
    """A copy of the run on one rank, to be damaged, extended and resumed."""
    shutil.copytree(single.directory, tmp_path / "runs" / single.directory.name)
    return Run(tmp_path / "runs" / single.directory.name)
