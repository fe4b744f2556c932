"""Parses each file once for all cases of this folder, since every case looks for its cluster in all of its files."""

from collections.abc import Iterator

import pytest

from tests.support.documents import parsed_once


@pytest.fixture(autouse=True, scope="module")
def _parse_once() -> Iterator[None]:
    with parsed_once():
        yield
