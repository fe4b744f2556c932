"""The Slurms that a test runs under: what must be true of both is shown under one by `make test`, under the other by `make soak`."""

import pytest

INSTALLED, CURRENT = "slurm", "current_slurm"


def mostly(version: str) -> pytest.MarkDecorator:
    """Run the test under `version`; under the other one as a variant."""
    other = CURRENT if version == INSTALLED else INSTALLED
    return pytest.mark.parametrize("each_slurm", [version, pytest.param(other, marks=pytest.mark.variant)], indirect=True)
