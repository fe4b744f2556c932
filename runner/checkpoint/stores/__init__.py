"""Stores that can hold a chain: anything that creates a name exactly once.

In: a URL (a path, s3://, gs://, az://, kubernetes://). Out: a `Store`.
Start reading: the protocol `Store` below, then `posix.py`.
"""

import secrets
from pathlib import Path
from typing import Protocol

PROBE = "probe"


class StoreError(Exception):
    """The store cannot hold a chain: its kind is unknown, or it does not create names exclusively."""


class Store(Protocol):
    """Names that are created once and never change. Names contain no slash. `str(store)` is the store's location.

    Every method raises OSError when the store cannot be used. After such an error it is unknown whether a name was
    created.
    """

    def create(self, name: str, data: bytes) -> bool:
        """Create `name` with `data`, atomically and durably. Returns False if the name is taken; that name is durable too."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of `name`; None if it does not exist."""
        ...

    def names(self) -> list[str]:
        """Return all names, in any order. A store may list recently created names late."""
        ...


def open_store(url: str) -> Store:
    """Return the store at `url`: a directory's path, s3://, gs:// or az:// with bucket and prefix, or
    kubernetes://NAMESPACE/NAME.

    Raises StoreError for an unknown kind of store, or when its client is not installed.
    """
    kind, separator, rest = url.partition("://")
    if not separator:
        from headway.runner.checkpoint.stores.posix import PosixStore  # noqa: PLC0415

        return PosixStore(Path(url))
    if kind in ("s3", "gs", "az"):
        from headway.runner.checkpoint.stores.object_store import ObjectStore  # noqa: PLC0415

        return ObjectStore(url)
    if kind == "kubernetes":
        from headway.runner.checkpoint.stores.kubernetes import KubernetesStore  # noqa: PLC0415

        namespace, _, name = rest.partition("/")
        return KubernetesStore(namespace, name)
    raise StoreError(f"{url}: a store of kind `{kind}` cannot hold a chain; use a path, s3://, gs://, az:// or kubernetes://")


def verify_store(store: Store) -> None:
    """Raise StoreError when the store lets one name be created twice: some S3-compatible servers ignore If-None-Match.

    Leaves the name `probe` in the store. It may exist already: the check is that creating it again is refused.
    """
    store.create(PROBE, b"This name was made to see that it cannot be made twice.\n")
    if store.create(PROBE, secrets.token_bytes(16)):
        raise StoreError(
            f"{store} created the name `{PROBE}` twice, so two generations could own one run; use a store that "
            f"creates a name only once (POSIX link(), If-None-Match of S3, generation match of GCS, objects of Kubernetes)"
        )
