"""Skips the fabric's tests on machines that cannot start one."""

import pytest

from .programs import obstacle


@pytest.fixture(scope="session")
def frr_here() -> None:
    """Skips where no fabric can be started, and names what to install."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
