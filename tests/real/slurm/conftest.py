"""The cluster that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from .cluster import SlurmCluster
from .configuration import Shape
from .programs import obstacle


@pytest.fixture(scope="session")
def slurm_here() -> None:
    """Skips where no cluster can be started, and says what to install."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm(slurm_here: None) -> Iterator[SlurmCluster]:
    """Two idle nodes, n1 and n2. A test that harms a node mends it before it ends."""
    with SlurmCluster(Shape(nodes=2)) as cluster:
        yield cluster
