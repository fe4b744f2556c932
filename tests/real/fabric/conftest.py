"""Whether a fabric can be started here."""

import pytest

from .programs import obstacle


@pytest.fixture(scope="session")
def frr_here() -> None:
    """Skips where no fabric can be started, and says what to install."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
