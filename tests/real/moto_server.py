"""Runs moto's server with conditional puts that are atomic, as S3's are: moto finds out whether a name is free, and then writes it, while
other requests are answered (moto/s3/responses.py, put_object)."""

import threading

from moto.s3.responses import S3Response
from moto.server import main

_LOCK = threading.Lock()
_put = S3Response.put_object


def _put_alone(self: S3Response) -> object:
    with _LOCK:
        return _put(self)


if __name__ == "__main__":
    S3Response.put_object = _put_alone  # type: ignore[method-assign,assignment]
    main()
