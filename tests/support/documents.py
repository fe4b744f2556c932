"""Parses the documents of a folder that tests check again and again once."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest

from headway.compile import sources
from headway.jobspec.load import load_bytes

_loaded = lru_cache(maxsize=1024)(load_bytes)


@contextmanager
def parsed_once() -> Iterator[None]:
    """Keep parsed documents: they depend only on their name and content, and nothing changes them afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "load_bytes", _loaded)
        yield
