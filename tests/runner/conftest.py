"""Shares one S3 server, with a bucket for each test, among the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.real.s3 import FOREIGN, S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for all tests; it starts with the first test that needs it."""
    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with an environment that directs every client (and process started by the test) to it."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """The URL of this test's bucket, `s3://...`."""
    return s3.bucket()
