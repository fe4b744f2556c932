"""Provides the cluster that the tests of this folder share."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.infra.bundle import make_bundle
from tests.real import sid

from .cluster import SlurmCluster
from .configuration import Shape
from .current import current_programs, obstacle


@pytest.fixture(scope="session")
def slurm_here() -> None:
    """Skips where no cluster can be started, and names what to install."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm(slurm_here: None) -> Iterator[SlurmCluster]:
    """Two idle nodes, n1 and n2. A test that damages a node repairs it before it ends."""
    with SlurmCluster(Shape(nodes=2)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def current_slurm() -> Iterator[SlurmCluster]:
    """The same two nodes under the Slurm of Debian sid, whatever is installed here; in parallel with `slurm`, if both are requested."""
    reason = sid.obstacle()
    if reason is not None:
        pytest.skip(reason)
    with SlurmCluster(Shape(nodes=2), current_programs()) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["slurm", "current_slurm"])
def each_slurm(request: pytest.FixtureRequest) -> SlurmCluster:
    """One after the other, for properties of both."""
    cluster: SlurmCluster = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For this Python only, which is the only one in its image."""
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}"
    return make_bundle(tmp_path_factory.mktemp("bundle"), None, print, [own])[0]
