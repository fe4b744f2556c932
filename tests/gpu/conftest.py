"""Marks these tests, and skips them on a machine without a GPU."""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.slow)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip("needs a GPU that torch can use"))
