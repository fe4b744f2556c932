"""Provides the engine that the tests of this folder share, and the hosts of tests/real/ssh."""

import pytest

from tests.real.ssh.conftest import ssh_here, ssh_hosts

from .engine import PulumiEngine, engine, obstacle

__all__ = ["pulumi_engine", "ssh_here", "ssh_hosts"]


@pytest.fixture(scope="session")
def pulumi_engine(tmp_path_factory: pytest.TempPathFactory) -> PulumiEngine:
    """Pulumi's engine. Skips where there is none, and names what to install."""
    pytest.importorskip("pulumi", reason="install headway with its extra `infra`")
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    return engine(tmp_path_factory.mktemp("pulumi"))
