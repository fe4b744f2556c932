"""Tests uploads: the store has what was sent, or an error names the object and nothing private; a slow tier blocks no save."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.checkpoint.bucket import ObjectBucket
from headway.runner.checkpoint.keeper.capture import NodeCapture, Stored
from headway.runner.checkpoint.keeper.tiers import KeeperTier, Upload
from headway.runner.checkpoint.remote import RemoteRoot, RemoteStorage, write_manifest
from headway.runner.contract import CheckpointId
from tests.real.s3 import S3Server
from tests.support.captures import RUN, captured, content

MIB = 1 << 20
FOLDER = f"{RUN}/step-000000010.g000001"


# --- stored objects ---------------------------------------------------------------------------------------------------


def test_a_node_stores_one_data_object_and_a_part_per_rank(bucket: str, s3: S3Server) -> None:
    storage = RemoteStorage(bucket)
    with captured(10, [5000, 20], slot=3) as node:
        stored = storage.store(node)
    assert [(one.rank, one.file, one.file_bytes) for one in stored] == [(0, "data-3-0.bin", 12288), (1, "data-3-0.bin", 12288)]
    assert storage.sent_bytes == 12288
    names = [f"{FOLDER}/{name}" for name in ("data-3-0.bin", "part-0.json", "part-1.json")]
    assert sorted(ObjectBucket(bucket).names(RUN)) == names
    heads = [line for line in s3.answered(bucket) if line.startswith("HEAD ")]
    assert heads == [f"HEAD /{bucket.removeprefix('s3://')}/{name} 200" for name in names]


def test_a_large_capture_is_uploaded_in_parts_of_equal_size(bucket: str, s3: S3Server) -> None:
    lengths = [9 * MIB, 10 * MIB]
    with captured(10, lengths) as node:
        RemoteStorage(bucket).store(node)
    parts = [line for line in s3.answered(bucket) if "partNumber=" in line]
    assert len(parts) == 3  # 19 MiB in parts of 8
    assert ObjectBucket(bucket).get(f"{FOLDER}/data-0-0.bin") == content(0, lengths[0]) + content(1, lengths[1])


def test_a_node_that_owns_nothing_stores_an_empty_object(bucket: str) -> None:
    with captured(10, [0]) as node:
        stored = RemoteStorage(bucket).store(node)
    assert stored[0].file_bytes == 0
    assert ObjectBucket(bucket).get(f"{FOLDER}/data-0-0.bin") == b""


def test_a_root_lists_its_runs_checkpoints_and_deletes_one(bucket: str) -> None:
    for step in (10, 20):
        with captured(step, [100]) as node:
            RemoteStorage(bucket).store(node)
        write_manifest(bucket, RUN, CheckpointId(step, 1), b"{}")
    # A run whose name begins with the other's.
    ObjectBucket(bucket).put("run-12/step-000000010.g000001/manifest.json", b"{}")
    root = RemoteRoot(bucket, RUN)
    assert root.names() == ["step-000000010.g000001", "step-000000020.g000001"]
    root.delete("step-000000010.g000001")
    root.delete("step-000000010.g000001")
    assert root.names() == ["step-000000020.g000001"]
    assert len(ObjectBucket(bucket).names(RUN)) == 3
    assert RemoteRoot(f"{bucket}/", "run-12").names() == ["step-000000010.g000001"]


# --- stores that fail -------------------------------------------------------------------------------------------------

Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def store_that_answers(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, bytes], Answer]) -> Iterator[list[str]]:
    """An HTTP server as S3: `answer(method, body)` gives status, headers and body. Yields the received requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            received = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(f"{self.command} {self.path}")
            status, headers, body = answer(self.command, received)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def error_of(call: Callable[[], object]) -> str:
    """The text of the call's error, without the traceback, which would keep the call's objects alive."""
    try:
        call()
    except OSError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def head_with(size: int, etag: str) -> Callable[[str, bytes], Answer]:
    def answer(method: str, _: bytes) -> Answer:
        if method == "HEAD":
            return 200, {"Content-Length": str(size), "ETag": etag, "Last-Modified": "Sat, 21 Nov 2026 20:00:00 GMT"}, b""
        return 200, {"ETag": '"900150983cd24fb0d6963f7d28e17f72"'}, b""

    return answer


def test_an_object_whose_size_differs_from_the_upload_is_refused(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    smaller = store_that_answers(monkeypatch, head_with(2, '"900150983cd24fb0d6963f7d28e17f72"'))
    with smaller, pytest.raises(OSError, match="2 bytes are there, but 3 were sent: 's3://b/p/x'"):
        ObjectBucket("s3://b/p").put("x", b"abc")


def test_an_object_overwritten_by_another_process_is_refused(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_that_answers(monkeypatch, head_with(3, '"version-7"')) as asked:
        # An ETag that is not a checksum proves nothing.
        ObjectBucket("s3://b").put("x", b"abc")
        assert asked == ["PUT /b/x", "HEAD /b/x"]
    other = store_that_answers(monkeypatch, head_with(3, f'"{"0" * 32}"'))
    with other, pytest.raises(OSError, match="the upload returned"):
        ObjectBucket("s3://b").put("x", b"abc")


def test_a_briefly_overloaded_store_is_retried(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([503, 500])
    whole = head_with(3, '"900150983cd24fb0d6963f7d28e17f72"')

    def answer(method: str, body: bytes) -> Answer:
        status = next(tries, None)
        return whole(method, body) if status is None else (status, {}, b"<Error><Code>SlowDown</Code></Error>")

    with store_that_answers(monkeypatch, answer) as asked:
        ObjectBucket("s3://b").put("x", b"abc")
    assert asked == ["PUT /b/x"] * 3 + ["HEAD /b/x"]


def test_an_outage_during_an_upload_fails_and_aborts_it(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"

    def answer(method: str, _: bytes) -> Answer:
        return (200, {}, begun) if method == "POST" else (503, {}, b"<Error><Code>SlowDown</Code></Error>")

    with store_that_answers(monkeypatch, answer) as asked, captured(10, [9 * MIB, 20 * MIB]) as node:
        reason = error_of(lambda: RemoteStorage("s3://b", retries=0).store(node))
    assert reason == f"[Errno 5] the store answered 503 Service Unavailable (SlowDown): 's3://b/{FOLDER}/data-0-0.bin'"
    assert asked[0] == f"POST /b/{FOLDER}/data-0-0.bin?uploads="
    assert f"DELETE /b/{FOLDER}/data-0-0.bin?uploadId=u" in asked
    assert not any(line.startswith("POST ") for line in asked[1:])  # nothing was made visible


def test_a_partially_deleted_checkpoint_has_no_manifest(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{FOLDER}/{name}" for name in ("data-0-0.bin", "manifest.json", "part-0.json")]
    entry = "<Contents><Key>{}</Key><LastModified>2026-11-21T20:00:00Z</LastModified><Size>1</Size></Contents>"
    listing = f"<ListBucketResult>{''.join(map(entry.format, keys))}</ListBucketResult>".encode()
    first: Answer = (200, {}, b"<DeleteResult><Deleted><Key>k</Key></Deleted></DeleteResult>")
    deleted: list[bytes] = []

    def answer(method: str, body: bytes) -> Answer:
        if method == "GET":
            return 200, {}, listing
        deleted.append(body)
        return first if len(deleted) == 1 else (403, {}, b"<Error><Code>AccessDenied</Code></Error>")

    with store_that_answers(monkeypatch, answer), pytest.raises(PermissionError, match="AccessDenied"):
        RemoteRoot("s3://b", RUN).delete("step-000000010.g000001")
    assert [[key for key in keys if key.encode() in body] for body in deleted] == [keys[1:2], [keys[0], keys[2]]]


def test_a_refused_request_raises_permission_error_without_its_signature(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # S3 echoes the request (docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html).
    body = (
        b"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIAPRIVATE</AWSAccessKeyId><CanonicalRequest>PRIVATE</Error>"
    )
    with store_that_answers(monkeypatch, lambda *_: (403, {}, body)), pytest.raises(PermissionError) as refused:
        ObjectBucket("s3://user:PRIVATE@b/p?sig=PRIVATE").put("x", b"abc")
    assert str(refused.value) == "[Errno 13] the store answered 403 Forbidden (SignatureDoesNotMatch): 's3://b/p/x'"


@pytest.mark.parametrize(
    ("url", "endpoint", "reason"),
    [
        ("s3://b/p", "http://127.0.0.1:1", "HTTP error: error sending request: Connection refused: 's3://b/p/x'"),
        ("ftp://u:PRIVATE@b/p", "", "Generic URL error: Unable to recognise URL \"ftp://b/p\": 'ftp://b/p'"),
        ("no-url", "", "relative URL without a base: 'no-url'"),
    ],
    ids=["no listener", "unknown scheme", "a path"],
)
def test_a_missing_store_is_named(s3: S3Server, monkeypatch: pytest.MonkeyPatch, url: str, endpoint: str, reason: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert error_of(lambda: ObjectBucket(url, retries=0).put("x", b"")) == f"[Errno 5] {reason}"


def test_an_endpoint_without_tls_needs_no_option(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    ObjectBucket(bucket).put("x", b"abc")
    assert ObjectBucket(bucket).get("x") == b"abc"


def test_without_obstore_the_error_names_the_package_and_imports_work() -> None:
    script = (
        "import sys; sys.modules['obstore'] = None\n"
        "from headway.runner.checkpoint import remote, retention, sources\n"
        "try: remote.RemoteStorage('s3://b/p')\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, env={**os.environ}
    )
    assert done.stdout == "[Errno 65] obstore is not installed: pip install 'headway[remote]': 's3://b/p'\n"


# --- a tier that is slower than the saves -----------------------------------------------------------------------------


class SlowStorage:
    """Takes one capture at a time and keeps it until it may continue."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._changed = threading.Condition()
        self._finished = 0

    def store(self, node: NodeCapture) -> list[Stored]:
        with self._changed:
            self.taken.append(node.step)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._finished >= len(self.taken))
        return []

    def wait_until_taken(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.taken) == count, timeout=60)

    def finish(self) -> None:
        with self._changed:
            self._finished += 1
            self._changed.notify_all()


@settings(max_examples=40, deadline=None)  # each leaves a waiting thread
@given(st.lists(st.sampled_from(["save", "save", "finish"]), max_size=30))
def test_a_slow_tier_holds_one_capture_and_uploads_the_newest_next(events: list[str]) -> None:
    storage, ended, changed = SlowStorage(), dict[int, str](), threading.Condition()

    def end(_: str, job: Upload, outcome: list[Stored] | str) -> None:
        with changed:
            assert job.node.step not in ended
            ended[job.node.step] = outcome if isinstance(outcome, str) else "stored"
            changed.notify_all()

    tier = KeeperTier("remote", end, newest_only=True)
    step, finished, taken, waiting, superseded = 0, 0, list[int](), list[int](), dict[int, str]()
    for event in [*events, "finish", "finish"]:
        if event == "save":
            step += 1
            superseded |= dict.fromkeys(waiting, f"superseded by step {step}")
            waiting = [step]
            tier.put(
                Upload(NodeCapture(RUN, 0, step, 1, ()), lambda: storage, (), lambda *_: None)
            )  # returns while the store is busy
            with changed:
                assert {old: why for old, why in ended.items() if why != "stored"} == superseded
        elif finished < len(taken):
            finished += 1
            storage.finish()
        if waiting and finished == len(taken):
            taken, waiting = [*taken, *waiting], []
            storage.wait_until_taken(len(taken))
    with changed:
        assert changed.wait_for(lambda: len(ended) == step, timeout=60)
    assert storage.taken == taken
    assert ended == superseded | dict.fromkeys(taken, "stored")
