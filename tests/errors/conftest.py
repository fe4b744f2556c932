"""Parses each file once for all cases of this folder, since every case looks for its cluster in all of its files."""

from functools import cache

import pytest

from headway.compile import sources
from headway.jobspec.load import load_bytes

_loaded = cache(load_bytes)


@pytest.fixture(autouse=True)
def _parse_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache parsed documents: they depend only on their name and content, and nothing changes them afterwards."""
    monkeypatch.setattr(sources, "load_bytes", _loaded)
