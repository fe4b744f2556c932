"""Tests the stores of a chain: directories, and S3 by moto's server; unsuitable stores are refused, unreachable ones reported."""

import os
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.runner.checkpoint.chain import Chain, Commit, SupersededError, lineage
from headway.runner.checkpoint.stores import PROBE, Store, StoreError, open_store, verify_store
from headway.runner.checkpoint.stores.object_store import ObjectStore
from headway.runner.checkpoint.stores.posix import PosixStore
from tests.real.s3 import S3Server
from tests.support.store_contract import StoreContract


class TestPosixStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return PosixStore(tmp_path)


class TestObjectStore(StoreContract):
    @pytest.fixture
    def store(self, bucket: str) -> Store:
        return ObjectStore(f"{bucket}/runs/run-1/chain")


# --- opening ----------------------------------------------------------------------------------------------------------


def test_a_url_selects_its_store(tmp_path: Path, bucket: str) -> None:
    opened = [open_store(str(tmp_path)), open_store(f"{bucket}/chain/")]
    assert [type(store) for store in opened] == [PosixStore, ObjectStore]
    assert [str(store) for store in opened] == [str(tmp_path), f"{bucket}/chain"]


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_buckets_of_other_clouds_open_too(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    assert str(open_store(f"{kind}://bucket/chain")) == f"{kind}://bucket/chain"


def test_an_unknown_kind_of_store_is_refused() -> None:
    message = "ftp://host/chain: a store of kind `ftp` cannot hold a chain; use a path, s3://, gs://, az:// or kubernetes://"
    with pytest.raises(StoreError) as refused:
        open_store("ftp://host/chain")
    assert str(refused.value) == message


def test_without_obstore_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError) as refused:
        open_store("s3://bucket/chain")
    assert str(refused.value) == "s3://bucket/chain needs obstore, which is not installed: pip install 'headway[remote]'"


def test_two_chains_in_one_bucket_are_isolated(bucket: str) -> None:
    one, other = ObjectStore(f"{bucket}/runs/a"), ObjectStore(f"{bucket}/runs/ab")
    assert (one.create("x", b"1"), other.create("x", b"2")) == (True, True)
    ObjectStore(f"{bucket}/runs/a/deeper").create("y", b"3")
    assert (one.names(), other.names(), one.read("x"), other.read("x")) == (["x"], ["x"], b"1", b"2")


# --- faulty and unavailable stores ------------------------------------------------------------------------------------


class Overwriting:
    """Like some S3 servers: If-None-Match is ignored, and the last write wins."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def __str__(self) -> str:
        return "s3://clone/chain"

    def create(self, name: str, data: bytes) -> bool:
        self.objects[name] = data
        return True

    def read(self, name: str) -> bytes | None:
        return self.objects.get(name)

    def names(self) -> list[str]:
        return list(self.objects)


def test_a_store_that_creates_a_name_twice_is_refused_by_name() -> None:
    with pytest.raises(StoreError, match=f"s3://clone/chain created the name `{PROBE}` twice"):
        verify_store(Overwriting())


def test_a_probe_is_not_a_record(tmp_path: Path) -> None:
    verify_store(PosixStore(tmp_path))
    chain = Chain(PosixStore(tmp_path), "run-1")
    chain.claim(None, 0, "coordinator")
    assert [record.seq for record in Chain(PosixStore(tmp_path), "run-1").read()] == [1]


def test_a_missing_bucket_raises_os_error(s3: S3Server) -> None:
    store = ObjectStore("s3://nobody-made-this/chain")
    for ask in (lambda: store.create("x", b""), store.names):
        with pytest.raises(OSError, match=r"s3://nobody-made-this/chain/"):
            ask()


def test_an_unavailable_server_raises_os_error_without_credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # Bound and not listening: every connection is refused.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        store = ObjectStore("s3://bucket/chain", max_retries=0)
        with pytest.raises(OSError, match=r"s3://bucket/chain/x: ") as refused:
            store.create("x", b"")
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)
    assert os.environ["AWS_ACCESS_KEY_ID"] not in str(refused.value)


# --- lost responses ---------------------------------------------------------------------------------------------------


class Lossy(socketserver.ThreadingTCPServer):
    """A proxy of a server. It withholds the response to requests whose first line contains one of `losing`."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self.behind = (host, int(port))
        self.losing: list[str] = []
        self.lost: list[str] = []
        super().__init__(("127.0.0.1", 0), Passing)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Passing(socketserver.StreamRequestHandler):
    """Pass on one request; the connection is closed after it."""

    server: Lossy

    def handle(self) -> None:
        first = self.rfile.readline()
        headers = list(iter(self.rfile.readline, b"\r\n"))
        length = next((int(h.split(b":")[1]) for h in headers if h.lower().startswith(b"content-length")), 0)
        asked = [first, b"Connection: close\r\n", *headers, b"\r\n", self.rfile.read(length)]
        with socket.create_connection(self.server.behind, 30) as behind:
            behind.sendall(b"".join(asked))
            answer = b"".join(iter(lambda: behind.recv(65536), b""))
        for losing in self.server.losing:
            if losing in first.decode():
                self.server.losing.remove(losing)
                self.server.lost.append(first.decode().rstrip())
                return
        self.wfile.write(answer)


@pytest.fixture
def lossy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lossy]:
    with Lossy(s3.endpoint) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield server
        server.shutdown()
        serving.join(30)


@pytest.mark.parametrize("max_retries", [0, 3])
def test_a_put_with_a_lost_response_counts_once(max_retries: int, bucket: str, lossy: Lossy) -> None:
    """Whether obstore gives up, or retries and is refused."""
    store = ObjectStore(f"{bucket}/chain", max_retries=max_retries)
    chain = Chain(store, "run-1")
    puts = [f"PUT {bucket.removeprefix('s3:/')}/chain/{seq:09d}.json" for seq in (1, 2)]
    lossy.losing += puts
    written = [chain.claim(None, 0, "coordinator")]
    written += [chain.append(Commit(10, "a"), 1, 0, "rank 0")]
    assert [line.removesuffix(" HTTP/1.1") for line in lossy.lost] == puts
    assert Chain(store, "run-1").read() == written
    assert sorted(store.names()) == ["000000001.json", "000000002.json"]


def test_a_put_with_a_lost_response_fails_if_another_writer_was_first(bucket: str, lossy: Lossy) -> None:
    store = ObjectStore(f"{bucket}/chain", max_retries=0)
    slow, quick = Chain(store, "run-1"), Chain(store, "run-1")
    slow.read()
    quick.claim(None, 0, "quick")
    lossy.losing += ["PUT"]
    with pytest.raises(SupersededError, match="quick claimed generation 1 first"):
        slow.claim(None, 0, "slow")
    assert len(lossy.lost) == 1
    assert [record.holder for record in quick.read()] == ["quick"]


def test_a_missing_directory_raises_os_error(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "absent")
    for ask in (lambda: store.create("x", b""), store.names):
        with pytest.raises(FileNotFoundError):
            ask()


def test_records_of_a_long_chain_are_read_concurrently(bucket: str, s3: S3Server) -> None:
    """Every record is requested once."""
    store = ObjectStore(f"{bucket}/chain")
    chain = Chain(store, "run-1")
    chain.claim(None, 0, "coordinator")
    for step in range(1, 60):
        chain.append(Commit(step, f"{step}"), 1, 0, "rank 0")
    before = len(s3.answered(bucket))
    assert len(lineage(Chain(store, "run-1").read())) == 59
    asked = [line.split()[1].rpartition("/")[2] for line in s3.answered(bucket)[before:] if line.endswith(" 200")]
    found = [name for name in asked if name.endswith(".json")]
    assert sorted(found) == [f"{seq:09d}.json" for seq in range(1, 61)]


def test_an_append_reads_nothing_again_and_puts_once(bucket: str, s3: S3Server) -> None:
    chain = Chain(ObjectStore(f"{bucket}/chain"), "run-1")
    chain.claim(None, 0, "coordinator")
    before = len(s3.answered(bucket))
    chain.append(Commit(10, "a"), 1, 0, "rank 0")
    name = bucket.removeprefix("s3:/") + "/chain/000000002.json"
    assert [line for line in s3.answered(bucket)[before:] if line.endswith(" 200")] == [f"PUT {name} 200"]
