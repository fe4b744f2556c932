"""Selects the Slurms that a test runs under: `make test` shows a common property under one, `make soak` under the other."""

import pytest

INSTALLED, CURRENT = "slurm", "current_slurm"


def mostly(version: str) -> pytest.MarkDecorator:
    """Run the test under `version`; under the other one as a variant."""
    other = CURRENT if version == INSTALLED else INSTALLED
    return pytest.mark.parametrize("each_slurm", [version, pytest.param(other, marks=pytest.mark.variant)], indirect=True)
