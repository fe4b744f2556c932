"""Tests copies of captures in a partner node's memory: they outlive their node, and an unauthenticated peer cannot affect them."""

import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.runner.checkpoint.keeper.capture import ALIGN
from headway.runner.checkpoint.keeper.channel import CHALLENGE_BYTES, Channel, KeeperChannelError
from headway.runner.checkpoint.keeper.link import KeeperError, KeeperLink
from headway.runner.checkpoint.keeper.listener import STRANGERS
from headway.runner.checkpoint.keeper.memory import KeeperMemory
from headway.runner.checkpoint.keeper.peer import Partner, PeerNetwork
from headway.runner.checkpoint.keeper.protocol import Done, Failed
from headway.runner.checkpoint.keeper.transfer import Name, TransferError
from headway.runner.contract import CheckpointId, partner_of
from tests.support.captures import RUN, captured, content
from tests.support.keepers import WAIT_S, Node, Rank, layout, running, until, verify

SECRET = b"k" * 32


# --- partners -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 300))
def test_each_slot_has_a_partner_in_another_domain_where_possible(slots: int, segment: int) -> None:
    partners = [partner_of(slot, slots, segment) for slot in range(slots)]
    if slots == 1:
        assert partners == [None]
        return
    assert sorted(partner for partner in partners if partner is not None) == list(range(slots))
    assert all(partner != slot for slot, partner in enumerate(partners))
    own_domain = sum(slot // segment == (partner or 0) // segment for slot, partner in enumerate(partners))
    # At most as many slots of a domain have a partner elsewhere as there are slots elsewhere (Hall).
    largest = min(segment, slots)
    assert own_domain == max(0, largest - (slots - largest))


# --- two nodes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Two keepers that are each other's partners."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET.hex() + "\n")
    pair = tuple(
        Node(tmp_path, index, (f"--secret-file={secret}", f"--address-file={tmp_path / f'{index}.json'}")) for index in (0, 1)
    )
    with running(*pair):
        until(lambda: all(node.address_file.exists() for node in pair))
        yield pair[0], pair[1]


def held(node: Node) -> list[tuple[int, int, int]]:
    """Rank, step and generation of everything that a node's keeper has."""
    with KeeperLink(node.name, replace(node.hello(rank=1000), generation=1000)) as link:
        return sorted((one.rank, one.step, one.generation) for one in link.held())


def restart(node: Node) -> None:
    """Replace the keeper by an empty one at another address."""
    node.kill()
    node.address_file.unlink()
    node.start()
    until(node.address_file.exists)


def partner(node: Node, secret: bytes = SECRET) -> Partner:
    """The node's keeper as another node sees it."""
    return Partner(node.address_file, PeerNetwork(secret))


@pytest.mark.slow
def test_captures_of_a_lost_node_are_restored_from_its_partner(nodes: tuple[Node, Node]) -> None:
    lost, other = nodes
    with Rank(lost, lost.hello()) as rank:
        for step in (5, 6):
            assert rank.save(step, "peer")["peer"] == Done(step, "peer", None)
            rank.link.confirm(step)
    restart(lost)
    with Rank(lost, lost.hello(generation=2)) as rank:
        assert rank.held() == []
        for step in (5, 6):
            verify(*rank.link.fetch(0, step, 1), CheckpointId(step, 1))
        with pytest.raises(KeeperError, match=r"no capture of rank 0 in step-000000007.g000001 is held there"):
            rank.link.fetch(0, 7, 1)
    assert held(other) == [(0, 5, 1), (0, 6, 1)]


@pytest.mark.slow
def test_both_nodes_hold_both_ranks_and_the_two_newest_copies(nodes: tuple[Node, Node]) -> None:
    with ExitStack() as stack:
        ranks = [stack.enter_context(Rank(node, node.hello(rank=index))) for index, node in enumerate(nodes)]
        for step in (5, 6, 7):
            for rank in ranks:
                rank.seal(step, "peer")
            for rank in ranks:
                assert rank.outcome(step, "peer")["peer"] == Done(step, "peer", None)
                rank.link.confirm(step)
        until(lambda: ranks[0].held() == [(0, 7, 1), (1, 6, 1), (1, 7, 1)])
        until(lambda: ranks[1].held() == [(0, 6, 1), (0, 7, 1), (1, 7, 1)])


@pytest.mark.slow
def test_a_partner_that_is_unavailable_fails_only_the_copy(nodes: tuple[Node, Node]) -> None:
    node, other = nodes
    with Rank(node, node.hello()) as rank:
        other.kill()
        found = rank.save(5, "peer", "shared")
        assert isinstance(found["shared"], Done)
        failed = found["peer"]
        assert isinstance(failed, Failed)
        assert failed.reason.startswith(f"the partner of {other.address_file} cannot be reached: ")
        restart(other)
        assert rank.save(6, "peer")["peer"] == Done(6, "peer", None)


@pytest.mark.slow
def test_a_copy_counts_against_the_memory_of_the_node_that_holds_it(nodes: tuple[Node, Node]) -> None:
    node, other = nodes
    size = layout().bytes
    with Rank(other, other.hello(rank=1, host_memory_bytes=10 * ALIGN)), Rank(node, node.hello()) as rank:
        failed = rank.save(5, "peer")["peer"]
    numbers = f"needs {4 * ALIGN} bytes, but {8 * ALIGN} of host_memory_bytes {10 * ALIGN} are in use"
    assert (size, failed) == (3 * ALIGN + 100, Failed(5, "peer", f"the partner refused: a copy of rank 0: {numbers}"))


# --- received bytes equal sealed bytes ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_copy_is_returned_unchanged(nodes: tuple[Node, Node]) -> None:
    lengths, memory = [0, 5, 9 << 20], KeeperMemory()
    with captured(3, lengths) as node:
        partner(nodes[0]).store(node)
    for rank, length in enumerate(lengths):
        region, size, _ = partner(nodes[0]).fetch(Name(RUN, rank, CheckpointId(3, 1)), memory)
        assert bytes(region.view[:length]) == content(rank, length)
        assert size >= length
        memory.give_back(region)
    assert memory.taken_bytes == 0


@pytest.mark.slow
def test_a_byte_changed_after_sealing_is_refused_by_name(nodes: tuple[Node, Node]) -> None:
    with captured(3, [100, 100]) as node:
        node.ranks[1].view[7] ^= 1
        with pytest.raises(
            TransferError, match=r"refused: tensor `w.1` at \[0\]\+\[100\]: the bytes differ from those that were sealed"
        ):
            partner(nodes[0]).store(node)
    assert held(nodes[0]) == [(0, 3, 1)]


@dataclass
class Wiretap:
    """A proxy between a keeper and its partner, which reads everything and can change one byte on the way."""

    partner_file: Path
    address_file: Path
    flip: int | None = None
    heard: bytearray = field(default_factory=bytearray)

    def __enter__(self) -> "Wiretap":
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._carry)
        self.address_file.write_text(json.dumps({"host": "127.0.0.1", "port": self._listening.getsockname()[1]}))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(WAIT_S)
        self._listening.close()

    def _carry(self) -> None:
        dialer, _ = self._listening.accept()
        with dialer, connection_to(self.partner_file) as listener:
            back = threading.Thread(target=forward, args=(listener, dialer))
            back.start()
            forward(dialer, listener, self._tap)
            back.join(WAIT_S)

    def _tap(self, data: bytes) -> bytes:
        begin = len(self.heard)
        self.heard += data
        changed = bytearray(data)
        if self.flip is not None and begin <= self.flip < begin + len(data):
            changed[self.flip - begin] ^= 1
        return bytes(changed)


def forward(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes] = lambda data: data) -> None:
    """Forward until one side closes, then close the other side too."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(change(data))
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def connection_to(address_file: Path) -> Iterator[socket.socket]:
    address = json.loads(address_file.read_text())
    with socket.create_connection((address["host"], address["port"]), WAIT_S) as connection:
        yield connection


def copy_through(wiretap: Wiretap) -> None:
    with captured(3, [100]) as node, wiretap:
        Partner(wiretap.address_file, PeerNetwork(SECRET)).store(node)


@pytest.mark.slow
def test_every_changed_byte_in_transit_is_detected(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    """Flip a byte of the challenge, a length, a MAC, a record, the part and the data: nothing is kept, and the sender is notified."""
    silent = Wiretap(nodes[0].address_file, tmp_path / "tap.json")
    copy_through(silent)
    assert held(nodes[0]) == [(0, 3, 1)]
    restart(nodes[0])
    length = len(silent.heard)
    for flip in [0, CHALLENGE_BYTES - 1, *range(CHALLENGE_BYTES, length, length // 40), length - 1]:
        with pytest.raises(TransferError):
            copy_through(Wiretap(nodes[0].address_file, tmp_path / "tap.json", flip))
        assert held(nodes[0]) == []
    copy_through(Wiretap(nodes[0].address_file, tmp_path / "tap.json"))
    assert held(nodes[0]) == [(0, 3, 1)]


# --- unauthenticated peers --------------------------------------------------------------------------------------------------


def works(node: Node) -> bool:
    """Whether the keeper still accepts a copy from a keeper of its run and has received nothing else."""
    with captured(4, [100]) as capture:
        partner(node).store(capture)
    return held(node) == [(0, 4, 1)]


@pytest.mark.slow
def test_a_peer_with_another_secret_neither_copies_nor_fetches(nodes: tuple[Node, Node]) -> None:
    node = nodes[0]
    with captured(3, [100]) as capture, pytest.raises(TransferError):
        partner(node, b"x" * 32).store(capture)
    assert works(node)
    with pytest.raises(TransferError):
        partner(node, b"x" * 32).fetch(Name(RUN, 0, CheckpointId(4, 1)), KeeperMemory())
    assert node.log.read_text().count("refused a connection: a frame does not carry this run's mac") == 2


@pytest.mark.slow
def test_a_replayed_message_is_refused(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    tap = Wiretap(nodes[0].address_file, tmp_path / "tap.json")
    copy_through(tap)
    restart(nodes[0])
    answer = bytearray()
    with connection_to(nodes[0].address_file) as connection, suppress(ConnectionResetError):
        connection.sendall(tap.heard)
        while data := connection.recv(4096):
            answer += data
    assert len(answer) <= CHALLENGE_BYTES, "no more than its own challenge"
    assert works(nodes[0])


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * (1 << 20)], ids=["nothing", "http", "a megabyte"])
def test_noise_is_refused(nodes: tuple[Node, Node], said: bytes) -> None:
    # The keeper may have closed at any moment: shutdown() then answers ENOTCONN, which is not a ConnectionError.
    with connection_to(nodes[0].address_file) as connection, suppress(OSError):
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            continue
    assert works(nodes[0])
    assert "refused a connection: " in nodes[0].log.read_text()


@pytest.mark.slow
def test_silent_connections_block_no_other_peer(nodes: tuple[Node, Node]) -> None:
    with ExitStack() as stack:
        for _ in range(2 * STRANGERS):
            stack.enter_context(connection_to(nodes[0].address_file))
        assert works(nodes[0])


def test_no_byte_of_a_capture_is_sent_to_an_unauthenticated_peer(tmp_path: Path) -> None:
    """It accepts, and sends what a partner would send, without the secret."""
    heard = bytearray()

    def pretend(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            impostor = Channel(connection, secrets.token_bytes(32), "listener")
            impostor.handshake()
            impostor.send({"what": "go"})
            while data := connection.recv(1 << 16):
                heard.extend(data)

    with socket.create_server(("127.0.0.1", 0)) as listening, captured(3, [1000]) as node:
        (tmp_path / "0.json").write_text(json.dumps({"host": "127.0.0.1", "port": listening.getsockname()[1]}))
        thread = threading.Thread(target=pretend, args=(listening,))
        thread.start()
        with pytest.raises(TransferError, match="a frame does not carry this run's mac"):
            Partner(tmp_path / "0.json", PeerNetwork(SECRET)).store(node)
        thread.join(WAIT_S)
        hashes = [hashed for capture in node.ranks for hashed in capture.hashes]
    assert b'"what": "copy"' in heard
    assert not any(hashed.encode() in heard for hashed in hashes)
    assert content(0, 1000)[:16] not in heard


# --- one connection -----------------------------------------------------------------------------------------------------------


@contextmanager
def channels(dialer_secret: bytes = SECRET) -> Iterator[tuple[Channel, Channel]]:
    """A dialer and a listener that have exchanged challenges."""
    one, two = socket.socketpair()
    with one, two:
        dialer, listener = Channel(one, dialer_secret, "dialer"), Channel(two, SECRET, "listener")
        thread = threading.Thread(target=dialer.handshake)
        thread.start()
        listener.handshake()
        thread.join()
        yield dialer, listener


def test_records_and_bytes_arrive_unchanged() -> None:
    with channels() as (dialer, listener):
        dialer.send({"what": "é", "number": 1})
        dialer.send_bytes(b"abc")
        listener.send({})
        out = bytearray(3)
        assert listener.receive() == {"what": "é", "number": 1}
        listener.receive_into(memoryview(out))
        assert (bytes(out), dialer.receive()) == (b"abc", {})


def test_a_reflected_frame_is_refused() -> None:
    with channels() as (dialer, listener):
        listener.send({"what": "go"})
        echo = bytearray(32 + 4096)
        dialer._fill(memoryview(echo))
        dialer._send_all(bytes(echo))
        with pytest.raises(KeeperChannelError, match="mac"):
            listener.receive()


def test_a_repeated_frame_is_refused() -> None:
    with channels() as (dialer, listener):
        dialer.send({})
        dialer._sent = 0
        dialer.send({})
        assert listener.receive() == {}
        with pytest.raises(KeeperChannelError, match="mac"):
            listener.receive()


def test_a_missing_frame_is_detected() -> None:
    with channels() as (dialer, listener):
        dialer._sent = 1
        dialer.send({})
        with pytest.raises(KeeperChannelError, match="mac"):
            listener.receive()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_packets_have_the_dscp_of_the_plan(family: socket.AddressFamily) -> None:
    """The upper six bits of the byte are the DSCP (RFC 2474, section 3)."""
    option = (socket.IPPROTO_IP, socket.IP_TOS) if family == socket.AF_INET else (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
    with socket.create_server(("localhost" if family == socket.AF_INET else "::1", 0), family=family) as listening:
        PeerNetwork(SECRET, dscp=26).mark(listening)
        with socket.create_connection(listening.getsockname()[:2]) as dialed:
            accepted, _ = listening.accept()
            with accepted:
                PeerNetwork(SECRET).mark(dialed)
                assert (accepted.getsockopt(*option), dialed.getsockopt(*option)) == (26 << 2, 0)
