"""Runs moto's server as S3: real HTTP, If-None-Match enforced atomically, in a separate process that ends with the block."""

import itertools
import os
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.real.slurm.machine import leashed

# Variables that obstore reads from the environment: object_store's AmazonS3ConfigKey (docs.rs/object_store, aws::AmazonS3ConfigKey).
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "reader-writer", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "us-east-1"}
# Variables of a personal environment that would misdirect clients.
FOREIGN = ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CONFIG_FILE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_LISTENING = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
_COLOUR = r"(?:\x1b\[\d+m)*"
_REQUEST = re.compile(rf'"{_COLOUR}([A-Z]+ \S+) HTTP/1\.1{_COLOUR}" (\d{{3}})')


class S3Server:
    """A server on a free port."""

    def __init__(self) -> None:
        self.endpoint = ""
        self._answered: list[str] = []
        self._heard = threading.Condition()
        self._numbers = itertools.count(1)

    def __enter__(self) -> "S3Server":
        command = leashed([sys.executable, str(Path(__file__).with_name("moto_server.py")), "--host", "127.0.0.1", "--port", "0"])
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        self.endpoint = self._wait_until_it_listens(self._process.stderr)
        self._listener = threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        self._listener.join(timeout=30)
        assert self._process.stderr is not None
        self._process.stderr.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a client finds the server and authenticates."""
        return {**_CREDENTIALS, "AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": "true", "NO_PROXY": "127.0.0.1"}

    def bucket(self) -> str:
        """A new bucket's URL, `s3://...`."""
        name = f"bucket-{next(self._numbers)}"
        self._put(name)
        return f"s3://{name}"

    def answered(self, bucket: str) -> list[str]:
        """The requests to the bucket since it was created, in order, with the answer's status: "GET /bucket-1/key 200"."""
        marker = f"marker-{next(self._numbers)}"
        # Requests are logged in order: once this one is logged, so are earlier ones.
        self._put(marker)
        with self._heard:
            self._heard.wait_for(lambda: f"PUT /{marker} 200" in self._answered)
            return [line for line in self._answered if _bucket_of(line) == bucket]

    def _put(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()

    def _wait_until_it_listens(self, lines: IO[str]) -> str:
        said = []
        for line in lines:
            said.append(line)
            if (match := _LISTENING.search(line)) is not None:
                return match[1]
        raise RuntimeError(f"moto's server ended with {self._process.wait()}: {''.join(said)}")

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            if (match := _REQUEST.search(line)) is not None:
                with self._heard:
                    self._answered.append(f"{match[1]} {match[2]}")
                    self._heard.notify_all()


def _bucket_of(answered: str) -> str:
    """The bucket of a request: `s3://...`."""
    path = answered.split()[1].partition("?")[0]
    return f"s3://{path.split('/')[1]}"
