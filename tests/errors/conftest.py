"""What the cases of this folder share: each file is parsed once, since every case looks for its cluster in all files beside it."""

from functools import cache

import pytest

from headway.compile import sources
from headway.jobspec.load import load_bytes

_loaded = cache(load_bytes)


@pytest.fixture(autouse=True)
def _parse_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document depends on its name and its content alone, and nothing changes one that has been read."""
    monkeypatch.setattr(sources, "load_bytes", _loaded)
