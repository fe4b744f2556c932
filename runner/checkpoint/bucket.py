"""Accesses the objects below a URL (s3://, gs://, az://) as named bytes, over obstore, with readable errors.

obstore finds the endpoint and credentials in the environment (AWS_ENDPOINT_URL, AWS_ALLOW_HTTP, AWS_TIMEOUT, ...;
docs.rs/object_store, aws::AmazonS3ConfigKey) and retries a failed request itself, with growing waits, for three minutes
at most.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore import PutResult
    from obstore.store import ClientConfig, RetryConfig

RETRIES = 10
_RETRY_TIME = timedelta(minutes=3)
# An upload has 10,000 parts at most, of 5 MiB at least but for the last
# (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html), and 8 in flight here. A request has 30 s, its body
# included (obstore, ClientConfig.timeout).
_PARTS = 10_000
_PART_BYTES = 8 << 20
_UPLOADS = 8
READ_BYTES = 16 << 20

_STATUS = re.compile(r"status code: (\d{3}(?: [A-Z][A-Za-z]+)*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_SYSTEM = re.compile(r'Os \{[^{}]*message: "([^"]*)"')
_PRIVATE = re.compile(r"(?<=//)[^/\s@]*@|\?[^\s\"']*")
_MD5 = re.compile(r'"?[0-9a-f]{32}(-\d+)?"?')


class ObjectBucket:
    """The objects below one URL. Names are paths relative to it.

    Everything raises OSError, with the URL of the object and never a credential: FileNotFoundError, or PermissionError
    where the store reports it. A store's own error text is not passed on: it may hold the signed request (S3's
    SignatureDoesNotMatch does).
    """

    def __init__(self, url: str, retries: int = RETRIES) -> None:
        self.url = public(url)
        with self._failing(""):
            try:
                from obstore.store import from_url  # noqa: PLC0415  an extra: only a remote tier needs it
            except ImportError:
                raise OSError(errno.ENOPKG, "obstore is not installed: pip install 'headway[remote]'") from None
            retry: RetryConfig = {"max_retries": retries, "retry_timeout": _RETRY_TIME}
            # None: the options of the environment, which ours would replace.
            client: ClientConfig | None = {"allow_http": True} if plain_http() and "AWS_ALLOW_HTTP" not in os.environ else None
            self._store = from_url(url, client_options=client, retry_config=retry)

    def put(self, name: str, data: bytes) -> None:
        """Write the object whole; return when the store has it."""
        with self._failing(name):
            self._verify(name, len(data), self._store.put(name, data, chunk_size=_PART_BYTES, max_concurrency=_UPLOADS))

    def put_regions(self, name: str, regions: Sequence[memoryview], sent: Callable[[int], None]) -> int:
        """Write the regions, one after the other, as one object, without a copy; return its size in bytes.

        `sent` is called with the size of each piece that the client has taken. A failed upload is aborted; the client
        releases the regions a moment later. An upload whose process dies leaves parts that no reader sees, for the
        bucket's lifecycle rule to remove.
        """
        size = sum(map(len, regions))
        part = max(_PART_BYTES, -(-size // _PARTS))
        pieces = _pieces(regions, part, sent)
        with self._failing(name):
            self._verify(name, size, self._store.put(name, pieces, chunk_size=part, max_concurrency=_UPLOADS))
        return size

    def get(self, name: str) -> bytes:
        """Return the whole object."""
        with self._failing(name):
            return self._store.get(name).bytes().to_bytes()

    def read_at(self, name: str, offset: int, out: memoryview) -> int:
        """Read the object's bytes from `offset` on into `out`, in one request; return how many: at most READ_BYTES,
        less at its end."""
        with self._failing(name):
            found = self._store.get_range(name, start=offset, length=min(READ_BYTES, len(out)))
        out[: len(found)] = memoryview(found)
        return len(found)

    def names(self, folder: str) -> list[str]:
        """Return all objects in `folder` and below."""
        with self._failing(folder):
            return [found["path"] for found in self._store.list(folder).collect()]

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in `folder`."""
        with self._failing(folder):
            return [found.rpartition("/")[2] for found in self._store.list_with_delimiter(folder)["common_prefixes"]]

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects; a missing one is not an error."""
        if not names:
            return
        with self._failing(names[0]):
            try:
                self._store.delete(names)
            except FileNotFoundError:
                # GCS and Azure report it, S3 does not (obstore.delete).
                return

    def _verify(self, name: str, size: int, put: "PutResult") -> None:
        """Verify that the object is what was sent, and has not been written since.

        S3 refuses a request whose bytes are not those that it was signed with (x-amz-content-sha256). An ETag
        identifies the content (docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html) and is an MD5 or not, so two
        are compared, and none is computed.
        """
        found = self._store.head(name)
        if found["size"] != size:
            raise OSError(errno.EIO, f"{found['size']} bytes are there, but {size} were sent")
        sent, there = put["e_tag"] or "", found["e_tag"] or ""
        if _MD5.fullmatch(sent) and _MD5.fullmatch(there) and sent.strip('"') != there.strip('"'):
            raise OSError(errno.EIO, f"ETag {there} is there, but the upload returned {sent}")

    def _failing(self, name: str) -> AbstractContextManager[None]:
        return readable_errors(f"{self.url}/{name}".rstrip("/"))


@contextmanager
def readable_errors(url: str) -> Iterator[None]:
    """Turn obstore's errors into an OSError that names `url` and holds no credential."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _failure(error, url) from None
    except Exception as error:
        if not type(error).__module__.startswith("obstore"):
            raise
        raise _failure(error, url) from None


def public(url: str) -> str:
    """Return the URL without possible credentials: the user's part and the query."""
    return _PRIVATE.sub("", url).rstrip("/")


def plain_http() -> bool:
    """Return whether the server is plain HTTP, as a private one may be: a URL with http counts as AWS_ALLOW_HTTP."""
    return os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")


def _pieces(regions: Iterable[memoryview], length: int, sent: Callable[[int], None]) -> Iterator[memoryview]:
    for region in regions:
        for begin in range(0, len(region), length):
            piece = region[begin : begin + length]
            yield piece
            sent(len(piece))


def _failure(error: Exception, url: str) -> OSError:
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, url)
    number = {"PermissionDeniedError": errno.EACCES, "UnauthenticatedError": errno.EACCES, "FileNotFoundError": errno.ENOENT}
    return OSError(number.get(type(error).__name__, errno.EIO), _reason(str(error)), url)


def _reason(text: str) -> str:
    """Return obstore's error text without bodies, headers and queries."""
    if (status := _STATUS.search(text)) is not None:
        code = _CODE.search(text)
        return f"the store answered {status[1]}" + (f" ({code[1]})" if code else "")
    first = _PRIVATE.sub("", text.partition("\n")[0]).rpartition(" - ")[2]
    if (system := _SYSTEM.search(text)) is not None:
        return f"{first}: {system[1]}"
    if "BadScheme" in text:
        return f"{first}: http:// is refused unless AWS_ALLOW_HTTP=true is set"
    return f"{first}: no answer in time" if "TimedOut" in text else first
