"""Tests a node's keeper as a process: sealed captures survive their workers, in memory and on disk, and partial ones do not."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from headway.runner.checkpoint.format import parse_part
from headway.runner.checkpoint.keeper.capture import ALIGN
from headway.runner.checkpoint.keeper.link import KeeperError, KeeperLink, held_by, start_keeper
from headway.runner.checkpoint.keeper.protocol import Done, Failed, Freed, Sealed
from headway.runner.checkpoint.keeper.wire import MAX_LINE_BYTES, address
from headway.runner.checkpoint.sources import ObjectSource
from headway.runner.contract import CheckpointId
from tests.support.keepers import RUN, WAIT_S, Node, Rank, gone, layout, running, state, until, verify, worker

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    with running(one):
        yield one


def temporary(node: Node, step: int, generation: int = 1) -> Path:
    return node.checkpoints / f".tmp-{CheckpointId(step, generation).directory}"


def stored(node: Node, step: int, rank: int = 0, generation: int = 1) -> bytes:
    """The tensor that the rank owns, according to its part on disk."""
    directory = temporary(node, step, generation)
    part = parse_part((directory / f"part-{rank}.json").read_bytes(), CheckpointId(step, generation), rank)
    chunks = part.tensors["w"].chunks
    data = (directory / chunks[0].file).read_bytes()
    return b"".join(data[chunk.offset : chunk.offset + chunk.length] for chunk in chunks)


# --- captures in memory ---------------------------------------------------------------------------------------------------


def test_a_sealed_capture_is_held_and_fetched_whole(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        sealed = rank.save(5)["memory"]
        assert isinstance(sealed, Sealed)
        (holding,) = rank.link.held()
        assert (holding.rank, holding.step, holding.generation, holding.bytes) == (0, 5, 1, rank.layout.bytes)
        assert holding.part_xxh3_128 == sealed.part_xxh3_128
        part, view = rank.link.fetch(0, 5, 1)
        verify(part, view, CheckpointId(5, 1))


def test_a_fetched_capture_is_read_only(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        rank.save(5)
        _, view = rank.link.fetch(0, 5, 1)
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1


def test_a_capture_that_is_not_held_cannot_be_fetched(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        rank.save(5)
        for place in ((0, 6, 1), (0, 5, 2), (1, 5, 1)):
            with pytest.raises(KeeperError, match=r"no capture of rank \d in step-00000000\d.g00000\d is held here"):
                rank.link.fetch(*place)


def test_a_buffer_is_free_again_once_a_newer_capture_is_confirmed(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        rank.save(5)
        rank.save(6)
        assert [buffer.free for buffer in rank.buffers] == [False, False]
        rank.link.confirm(6)
        assert Freed(0) in rank.heard_until(lambda: Freed(0) in rank.heard)
        assert [buffer.free for buffer in rank.buffers] == [True, False]
        assert rank.held() == [(0, 6, 1)]


def test_all_memory_of_a_node_counts_against_one_limit(node: Node) -> None:
    with Rank(node, node.hello(local_ranks=2, host_memory_bytes=10 * ALIGN)):
        with KeeperLink(node.name, node.hello(1, 2, host_memory_bytes=10 * ALIGN)) as link, pytest.raises(KeeperError) as refused:
            link.reserve(layout().bytes, 2)
        numbers = f"needs {4 * ALIGN} bytes, but {8 * ALIGN} of host_memory_bytes {10 * ALIGN} are in use"
        assert str(refused.value) == f"2 buffers of {layout().bytes} bytes for rank 1: {numbers}"


# --- survival ---------------------------------------------------------------------------------------------------------------


def test_a_worker_killed_before_it_seals_leaves_nothing(node: Node) -> None:
    with worker(node, step=5) as process:
        process.kill()
    with Rank(node, node.hello(generation=2)) as rank:
        assert rank.held() == []
        assert [buffer.free for buffer in rank.buffers] == [True, True]


def test_a_worker_killed_after_sealing_resumes_from_its_capture(node: Node) -> None:
    with worker(node, step=5) as process:
        print(file=process.stdin, flush=True)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Sealed(step=5")
        process.kill()
    with KeeperLink(node.name, node.hello(generation=2)) as link:
        verify(*link.fetch(0, 5, 1), CheckpointId(5, 1))
    with Rank(node, node.hello(generation=2)) as rank:
        assert rank.held() == [(0, 5, 1)]
        rank.save(7)
        rank.link.confirm(7)
        until(lambda: rank.held() == [(0, 7, 2)])


def test_a_worker_killed_during_a_store_does_not_stop_the_keeper(node: Node) -> None:
    large = layout(own=64 << 20)
    with worker(node, step=5, own=large.owned_bytes) as process:
        print(file=process.stdin, flush=True)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Sealed(step=5")
        process.kill()
    until((temporary(node, 5) / "part-0.json").exists)
    assert stored(node, 5) == state(0, 5, large.bytes)[: large.owned_bytes]


def test_the_next_generation_of_a_rank_reuses_its_memory(node: Node) -> None:
    def identity() -> set[int]:
        maps = Path(f"/proc/{node.process.pid}/maps").read_text().splitlines()
        return {int(line.split()[4]) for line in maps if "headway-capture" in line}

    with Rank(node, node.hello()):
        before = identity()
    with Rank(node, node.hello(generation=2)):
        assert identity() == before
    assert len(before) == 2


def test_a_killed_keeper_is_detected_by_every_call(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        rank.save(5)
        node.kill()
        calls = (
            lambda: rank.link.event(WAIT_S),
            rank.link.held,
            lambda: rank.link.reserve(1, 1),
            lambda: rank.link.fetch(0, 5, 1),
            lambda: rank.link.confirm(5),
            lambda: rank.link.seal(1, 6, ("memory",), {}),
        )
        for call in calls:
            with pytest.raises(KeeperError, match="the keeper is gone"):
                call()


def test_a_restarted_keeper_is_found_under_its_name(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        rank.save(5)
        node.kill()
    node.start()
    with Rank(node, node.hello()) as rank:
        assert rank.held() == []
        rank.save(6)
        assert rank.held() == [(0, 6, 1)]


def test_a_link_reports_that_no_keeper_is_listening(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with pytest.raises(KeeperError, match=f"no keeper listens on {node.name}"):
        KeeperLink(node.name, node.hello(), patience_s=0)


def test_a_link_whose_first_message_fails_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeeperError("gone")

    node = Node(tmp_path)
    monkeypatch.setattr(KeeperLink, "_send", fails)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(address(node.name))
        listening.listen()
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(KeeperError, match="gone"):
            KeeperLink(node.name, node.hello())
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1, "the listening socket alone is missing"
    assert "keeper-link" not in {thread.name for thread in threading.enumerate()}


# --- storing on disk --------------------------------------------------------------------------------------------------------


def test_a_capture_is_stored_with_the_reported_hash(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        done = rank.save(5, "shared")["shared"]
        assert isinstance(done, Done)
        assert done.stored is not None
        assert (done.stored.file, done.stored.file_bytes) == ("data-0-0.bin", rank.layout.owned_bytes)
        assert stored(node, 5) == state(0, 5, rank.layout.bytes)[: rank.layout.owned_bytes]


def test_a_node_stores_nothing_until_all_its_ranks_have_sealed(node: Node) -> None:
    with Rank(node, node.hello(0, 2)) as first, Rank(node, node.hello(1, 2)) as second:
        first.save(5)
        first.seal(6, "shared")
        first.outcome(6)
        assert not temporary(node, 6).exists()
        second.seal(6, "shared")
        for rank in (first, second):
            assert isinstance(rank.outcome(6, "shared")["shared"], Done)
        assert sorted(path.name for path in temporary(node, 6).iterdir()) == ["data-0-0.bin", "part-0.json", "part-1.json"]
        assert stored(node, 6, rank=1) == state(1, 6, second.layout.bytes)[: second.layout.owned_bytes]


def test_a_rank_that_dies_before_sealing_fails_the_others(node: Node) -> None:
    with Rank(node, node.hello(1, 2)) as survivor:
        with worker(node, step=5, rank=0, local_ranks=2) as process:
            survivor.seal(5, "shared")
            survivor.outcome(5)
            process.kill()
        failed = Failed(5, "shared", "rank 0 left before it sealed step 5")
        assert survivor.outcome(5, "shared")["shared"] == failed
        assert survivor.save(6, "shared")["shared"] == Failed(6, "shared", "rank 0 left before it sealed step 6")
        assert not node.checkpoints.exists()


def test_a_full_disk_fails_only_that_checkpoint(node: Node) -> None:
    node.checkpoints.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(node.checkpoints)], capture_output=True, check=False
    )
    if mounting.returncode != 0:
        pytest.skip(f"mounting a small file system needs root: {mounting.stderr.decode().strip()}")
    try:
        with Rank(node, node.hello(), layout(own=40 * ALIGN)) as rank:
            assert isinstance(rank.save(5, "shared")["shared"], Done)
            failed = rank.save(6, "shared")["shared"]
            assert isinstance(failed, Failed)
            assert failed.reason.startswith("No space left on device")
            assert rank.held() == [(0, 5, 1), (0, 6, 1)]
            assert [path.name for path in node.checkpoints.iterdir()] == [temporary(node, 5).name]
            assert stored(node, 5) == state(0, 5, rank.layout.bytes)[: rank.layout.owned_bytes]
    finally:
        subprocess.run(["umount", str(node.checkpoints)], check=True)


def test_captures_are_uploaded_to_an_object_store(bucket: str, node: Node) -> None:
    with Rank(node, replace(node.hello(), storage={"remote": bucket})) as rank:
        done = rank.save(5, "remote")["remote"]
    assert isinstance(done, Done)
    assert done.stored is not None
    source = ObjectSource(bucket, RUN, CheckpointId(5, 1))
    assert xxhash.xxh3_128_hexdigest(source.read("part-0.json")) == done.stored.part_xxh3_128
    data = bytearray(done.stored.file_bytes)
    source.read_into(done.stored.file, 0, memoryview(data))
    assert data == state(0, 5, rank.layout.bytes)[: rank.layout.owned_bytes]


def test_a_hung_object_store_blocks_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        for name, value in s3_environment(f"http://127.0.0.1:{hanging.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        hello = replace(node.hello(), storage={"remote": "s3://bucket"})
        with running(node), Rank(node, hello, count=3) as rank:
            rank.seal(5, "remote")
            rank.link.confirm(5)
            connection, _ = hanging.accept()
            for step in range(6, 12):
                rank.seal(step, *(["remote"] if step == 6 else []))
                assert isinstance(rank.outcome(step)["memory"], Sealed)
                rank.link.confirm(step)
            assert rank.held() == [(0, 5, 1), (0, 11, 1)], "one is on its way, and one would be started from"
            assert rank.outcome(6, "remote")["remote"] == Failed(6, "remote", "superseded in memory by step 7 while it waited")
            connection.close()


def s3_environment(endpoint: str) -> dict[str, str]:
    credentials = {"AWS_ACCESS_KEY_ID": "reader-writer", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "us-east-1"}
    return {**credentials, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "NO_PROXY": "127.0.0.1"}


def test_a_tier_without_a_location_fails_by_name(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        found = rank.save(5, "remote", "shared")
        assert found["remote"] == Failed(5, "remote", "the location of tier `remote` was never set")
        assert isinstance(found["shared"], Done)


# --- permissions --------------------------------------------------------------------------------------------------------------


def raw(node: Node, *lines: bytes) -> bytes:
    """The keeper's answer to these bytes before it closes the connection."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(address(node.name))
        answer = b""
        try:
            for line in lines:
                connection.sendall(line)
            while data := connection.recv(4096):
                answer += data
        except (ConnectionResetError, BrokenPipeError):
            # It closed the connection with unread bytes.
            pass
        return answer


HELLO = b'Hello 0 {"run": "run-1", "slot": 0, "rank": 9, "local_ranks": 9, "generation": 1, "storage": {}}\n'
EMPTY = b'{"tensors": {}, "pieces": [], "owned_bytes": 0, "bytes": 0}'
BAD = {
    "garbage": (b"GET / HTTP/1.1\r\n\r\n", "not a message"),
    "not text": (b"\xff\xfe\x00 0 {}\n", "not a message"),
    "no kind": (b"Shell 0 {}\n", "not a message"),
    "no record": (b"List 0 []\n", "not a List"),
    "other fields": (b'List 0 {"all": true}\n', "not a List"),
    "deep": (b"List 0 " + b"[" * 200_000 + b"\n", "not a List"),
    "endless": (b"x" * (MAX_LINE_BYTES + (1 << 20)), f"a line of more than {MAX_LINE_BYTES} bytes"),
    "an answer": (b'Listed 1 {"holdings": []}\n', "Listed is not expected here"),
    "a seal of nobody": (b'Seal 0 {"buffer": 0, "step": 1, "tiers": [], "objects": {}}\n', "Seal is not expected here"),
    "a seal without a layout": (HELLO + b'Seal 0 {"buffer": 0, "step": 1, "tiers": [], "objects": {}}\n', "Seal is not expected"),
    "a second hello": (HELLO + HELLO, "Hello is not expected here"),
    "a buffer of nobody": (
        HELLO + b'Describe 0 {"layout": ' + EMPTY + b'}\nSeal 0 {"buffer": 3, "step": 1, "tiers": [], "objects": {}}\n',
        "buffer 3 of rank 9 was not handed out",
    ),
    "an odd layout": (
        HELLO + b'Describe 0 {"layout": ' + EMPTY.replace(b'"owned_bytes": 0', b'"owned_bytes": 7') + b"}\n",
        "7 owned",
    ),
    "another run": (HELLO.replace(b"run-1", b"run-2"), "generation 1 of run 'run-2' is not generation 1 of run 'run-1'"),
}


@pytest.mark.parametrize(("sent", "reason"), BAD.values(), ids=BAD)
def test_an_invalid_request_ends_only_its_connection(node: Node, sent: bytes, reason: str) -> None:
    with Rank(node, node.hello()) as rank:
        rank.save(5)
        assert raw(node, sent) == b""
        until(lambda: reason in node.log.read_text())
        assert rank.held() == [(0, 5, 1)]
        rank.save(6, "shared")


def test_a_worker_of_an_older_generation_is_refused(node: Node) -> None:
    with Rank(node, node.hello(generation=2)) as rank, KeeperLink(node.name, node.hello(generation=1)) as zombie:
        with pytest.raises(KeeperError, match="the keeper is gone"):
            zombie.reserve(1, 1)
        rank.save(5)


def test_a_superseded_worker_changes_nothing(node: Node) -> None:
    with Rank(node, node.hello()) as zombie, Rank(node, node.hello(generation=2)) as rank:
        rank.save(5)
        with pytest.raises(KeeperError, match="the keeper is gone"):
            zombie.link.event(WAIT_S)
        with pytest.raises(KeeperError, match="the keeper is gone"):
            zombie.link.confirm(9)
        assert rank.held() == [(0, 5, 2)]


def test_incomplete_saves_use_no_buffer_of_the_next_generation(node: Node) -> None:
    with Rank(node, node.hello(0, 2)) as zombie:
        zombie.seal(5, "shared")
        zombie.outcome(5)
        with Rank(node, node.hello(0, 1, generation=2)) as rank:
            rank.save(6)
            rank.link.confirm(6)
            until(lambda: [buffer.free for buffer in rank.buffers] == [True, False])
            assert rank.held() == [(0, 6, 2)]


def test_a_process_that_only_fetches_does_not_replace_the_ranks_worker(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        rank.save(5)
        with KeeperLink(node.name, node.hello()) as visitor:
            visitor.fetch(0, 5, 1)
        assert isinstance(rank.save(6, "shared")["shared"], Done)


def test_a_reconnecting_worker_replaces_its_first_connection(node: Node) -> None:
    with Rank(node, node.hello()) as first, Rank(node, node.hello()) as second:
        with pytest.raises(KeeperError, match="the keeper is gone"):
            first.link.event(WAIT_S)
        assert isinstance(second.save(6, "shared")["shared"], Done)


@pytest.mark.skipif(os.getuid() != 0, reason="another user's connection needs root to be made")
def test_another_users_process_is_refused(node: Node) -> None:
    # SO_PEERCRED reports the effective user (unix(7)).
    os.seteuid(65534)
    try:
        assert raw(node, b"List 0 {}\n") == b""
    finally:
        os.seteuid(0)
    until(lambda: "refused a connection of user 65534" in node.log.read_text())


@pytest.mark.skipif(os.getuid() != 0, reason="another user's socket needs root to be made")
def test_a_socket_name_of_another_user_is_not_connected_to(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with socket.socket(socket.AF_UNIX) as squatter:
        os.seteuid(65534)
        try:
            squatter.bind(address(node.name))
            squatter.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(KeeperError, match="belongs to user 65534, but this process to 0"):
            KeeperLink(node.name, node.hello())


# --- lifetime -------------------------------------------------------------------------------------------------------------------


def test_a_keeper_ends_exactly_when_its_parent_ends(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        rank.save(5)
    for number in (signal.SIGTERM, signal.SIGINT):
        node.process.send_signal(number)
    with Rank(node, node.hello(generation=2)) as rank:
        assert rank.held() == [(0, 5, 1)]
    node.stop()
    assert node.process.returncode == 0


def test_an_agent_queries_the_held_captures(node: Node) -> None:
    with Rank(node, node.hello()) as rank:
        rank.save(5)
        assert asyncio.run(held_by(node.name)) == list(rank.link.held())


# --- without a supervisor -----------------------------------------------------------------------------------------------------------


def keepers_named(name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name in path.read_text().split("\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if not gone(pid)]


def nice(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[16])


def test_a_keeper_has_a_lower_priority_than_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Node(tmp_path, name=start_keeper())
    monkeypatch.setenv("HEADWAY_KEEPER_NICE", "3")
    with running(changed := Node(tmp_path, 1)), Rank(usual, usual.hello()):
        (pid,) = keepers_named(usual.name)
        # Relative to the niceness of these tests.
        assert (nice(pid), nice(changed.process.pid)) == (19, min(19, nice(os.getpid()) + 3))


def test_a_custom_loops_keeper_ends_with_its_last_worker(tmp_path: Path) -> None:
    node = Node(tmp_path, name=start_keeper())
    with Rank(node, node.hello(0, 2)):
        with Rank(node, node.hello(1, 2)):
            pass
        assert len(keepers_named(node.name)) == 1
    until(lambda: keepers_named(node.name) == [])


def test_a_keeper_stores_sealed_captures_before_it_ends(tmp_path: Path) -> None:
    node, large = Node(tmp_path, name=start_keeper()), layout(own=64 << 20)
    with Rank(node, node.hello(), large) as rank:
        rank.seal(5, "shared")
        rank.outcome(5)
    until(lambda: keepers_named(node.name) == [])
    assert stored(node, 5) == state(0, 5, large.bytes)[: large.owned_bytes]


def test_a_client_that_only_fetched_does_not_end_the_keeper(tmp_path: Path) -> None:
    node = Node(tmp_path, name=start_keeper())
    with KeeperLink(node.name, node.hello()) as visitor, pytest.raises(KeeperError):
        visitor.fetch(0, 5, 1)
    with Rank(node, node.hello()) as rank:
        rank.save(5)


def test_an_unused_keeper_ends_with_the_process_that_started_it() -> None:
    code = "from headway.runner.checkpoint.keeper.link import start_keeper\nprint(start_keeper(), flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        name = starter.stdout.readline().strip()
        assert len(keepers_named(name)) == 1
        starter.kill()
    until(lambda: keepers_named(name) == [])
