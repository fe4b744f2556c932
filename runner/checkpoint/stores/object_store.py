"""Implements the store on object stores: S3 and compatible ones, Google Cloud Storage, Azure Blob Storage.

A name is taken by a conditional put: If-None-Match on S3 and Azure, x-goog-if-generation-match: 0 on Google's, which
obstore's mode `create` sends (docs.rs/object_store, PutMode::Create). Endpoint and credentials come from the
environment (AWS_*, GOOGLE_*, AZURE_*).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from headway.runner.checkpoint.bucket import plain_http, public, readable_errors
from headway.runner.checkpoint.stores import StoreError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

# The coordinator blocks while a request is retried, and its agents wait for it.
_RETRY_S = 20
_CLIENT: "ClientConfig" = {"connect_timeout": "5s", "timeout": "10s"}


class ObjectStore:
    """Names are objects below `url`. Raises StoreError when the URL is invalid or obstore is not installed."""

    def __init__(self, url: str, max_retries: int = 3) -> None:
        try:
            import obstore  # noqa: PLC0415  only runs that keep their chain in an object store have it
            from obstore.store import from_url  # noqa: PLC0415
        except ImportError:
            raise StoreError(f"{url} needs obstore, which is not installed: pip install 'headway[remote]'") from None
        self._url, self._obstore = url.rstrip("/"), obstore
        retry: RetryConfig = {"max_retries": max_retries, "retry_timeout": timedelta(seconds=_RETRY_S)}
        client = {**_CLIENT, "allow_http": True} if plain_http() else _CLIENT
        try:
            with readable_errors(self._url):
                self._store = from_url(self._url, client_options=client, retry_config=retry)
        except OSError as error:
            raise StoreError(f"{public(url)}: {error.strerror}") from None

    def __str__(self) -> str:
        return self._url

    def create(self, name: str, data: bytes) -> bool:
        with self._errors(name):
            try:
                self._obstore.put(self._store, name, data, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def read(self, name: str) -> bytes | None:
        with self._errors(name):
            try:
                return bytes(self._obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        with self._errors(""):
            return [found["path"] for found in self._obstore.list_with_delimiter(self._store)["objects"]]

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        where = f"{self._url}/{name}"
        try:
            with readable_errors(where):
                yield
        except OSError as error:
            raise OSError(f"{where}: {error.strerror}") from None
