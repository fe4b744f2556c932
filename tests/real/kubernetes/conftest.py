"""Provides the cluster that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from .control_plane import ControlPlane
from .node import RealNodes
from .programs import control_plane_obstacle, node_obstacle


@pytest.fixture(scope="session")
def kubernetes_here() -> None:
    """Skips where no control plane can be started, and names what to install."""
    reason = control_plane_obstacle()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def control_plane(kubernetes_here: None) -> Iterator[ControlPlane]:
    """An API server with the controllers of Kubernetes and JobSet's."""
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="session")
def real_nodes_here() -> None:
    """Skips where no real node can be started, and names what to install."""
    reason = node_obstacle()
    if reason is not None:
        pytest.skip(reason)


# Its daemons compute as long as they run.
@pytest.fixture(scope="module")
def real_nodes(
    real_nodes_here: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealNodes]:
    """Two Ready nodes, n1 and n2, in the control plane. A test that switches a node off switches it on before it ends."""
    with RealNodes(control_plane, tmp_path_factory.mktemp("runs")) as nodes:
        yield nodes
