"""Starts keepers as processes for their tests, with one rank's state to seal, store and read back."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headway.runner.checkpoint.format import Box, Part, chunk_hash, chunk_seed
from headway.runner.checkpoint.keeper.capture import ALIGN, BufferLayout, BufferPiece, Held
from headway.runner.checkpoint.keeper.link import KeeperLink, SharedBuffer
from headway.runner.checkpoint.keeper.protocol import Done, Event, Failed, Hello, Sealed
from headway.runner.contract import CheckpointId

RUN = "run-1"
WAIT_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition has not come true within {WAIT_S:.0f} s"
        time.sleep(0.01)


# --- a keeper -----------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A keeper as its supervisor starts it. `directory` is the directory that all nodes of a test see."""

    directory: Path
    index: int = 0
    options: tuple[str, ...] = ()
    name: str = field(default_factory=lambda: f"headway-test-{secrets.token_hex(16)}")

    def start(self) -> None:
        """Start it, and return once it listens."""
        ours, theirs = socket.socketpair()
        argv = [
            sys.executable,
            "-m",
            "headway.runner.checkpoint.keeper",
            f"--socket={self.name}",
            f"--parent-fd={theirs.fileno()}",
        ]
        self.log.touch()
        with self.log.open("ab") as log:
            # With a lower priority it might not answer within its deadlines while other tests use every processor.
            environment = {"HEADWAY_KEEPER_NICE": "0", **os.environ}
            self.process = subprocess.Popen([*argv, *self.options], pass_fds=[theirs.fileno()], stderr=log, env=environment)
        theirs.close()
        self.parent = ours
        ours.settimeout(WAIT_S)
        assert ours.recv(16) == b"ready\n", self.log.read_text()

    def stop(self) -> None:
        """End it as if its supervisor had gone."""
        self.parent.close()
        self.process.wait(WAIT_S)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.stop()

    @property
    def log(self) -> Path:
        return self.directory / f"keeper-{self.index}.log"

    @property
    def address_file(self) -> Path:
        return self.directory / f"{self.index}.json"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def hello(self, rank: int = 0, local_ranks: int = 1, generation: int = 1, host_memory_bytes: int | None = None) -> Hello:
        """A rank on this node, whose partner is the other of two nodes."""
        partner = str(self.directory / f"{1 - self.index}.json")
        storage = {"shared": str(self.checkpoints)}
        return Hello(RUN, self.index, rank, local_ranks, generation, storage, partner, host_memory_bytes)


@contextmanager
def running(*nodes: Node) -> Iterator[None]:
    """Run the keepers, and end the remaining ones afterwards."""
    started: list[Node] = []
    try:
        for node in nodes:
            node.start()
            started.append(node)
        yield
    finally:
        for node in started:
            node.kill()


# --- a rank and its state -------------------------------------------------------------------------------------------------


def layout(own: int = 3 * ALIGN, shared: int = 100) -> BufferLayout:
    """`own` bytes of `w` in two pieces, and `shared` bytes of `b` that another rank writes."""
    half = own // 2
    pieces = (
        BufferPiece("w", Box((0,), (half,)), 0, half, owned=True),
        BufferPiece("w", Box((half,), (own - half,)), half, own - half, owned=True),
        BufferPiece("b", Box((0,), (shared,)), own, shared, owned=False),
    )
    held = {name: Held("uint8", (length,), Box((0,), (length,))) for name, length in (("w", own), ("b", shared))}
    return BufferLayout(held, pieces, own, own + shared)


def state(rank: int, step: int, size: int) -> bytes:
    """`size` bytes that are unique to the rank and step."""
    return (b"%08d.%08d." % (rank, step) * (size // 18 + 1))[:size]


@dataclass
class Rank:
    """A worker of a node, in this process."""

    node: Node
    hello: Hello
    layout: BufferLayout = field(default_factory=layout)
    count: int = 2

    def __enter__(self) -> "Rank":
        self.link = KeeperLink(self.node.name, self.hello)
        self.buffers = self.link.reserve(self.layout.bytes, self.count)
        self.link.describe(self.layout)
        self.heard: list[Event] = []
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def free(self) -> SharedBuffer:
        until(lambda: any(buffer.free for buffer in self.buffers))
        return next(buffer for buffer in self.buffers if buffer.free)

    def copy(self, step: int) -> SharedBuffer:
        """Put the state of `step` into a free buffer, not sealed yet."""
        buffer = self.free()
        buffer.view[:] = state(self.hello.rank, step, self.layout.bytes)
        return buffer

    def seal(self, step: int, *tiers: str) -> None:
        self.link.seal(self.copy(step).index, step, ("memory", *tiers), {"step": step})

    def save(self, step: int, *tiers: str) -> dict[str, Sealed | Done | Failed]:
        """Seal, and wait for the outcome in every tier."""
        self.seal(step, *tiers)
        return self.outcome(step, *tiers)

    def outcome(self, step: int, *tiers: str) -> dict[str, Sealed | Done | Failed]:
        """The outcomes by tier."""
        found: dict[str, Sealed | Done | Failed] = {}
        for event in self.heard_until(lambda: set(found) == {"memory", *tiers}):
            if isinstance(event, Sealed) and event.step == step:
                found["memory"] = event
            elif isinstance(event, (Done, Failed)) and event.step == step:
                found[event.tier] = event
        return found

    def heard_until(self, enough: Callable[[], bool]) -> Iterator[Event]:
        yield from self.heard
        while not enough():
            event = self.link.event(WAIT_S)
            assert event is not None, f"nothing more was heard within {WAIT_S:.0f} s"
            self.heard.append(event)
            yield event

    def held(self) -> list[tuple[int, int, int]]:
        """Rank, step and generation of everything that the keeper holds."""
        return sorted((one.rank, one.step, one.generation) for one in self.link.held())


def verify(part: Part, view: memoryview, checkpoint: CheckpointId) -> None:
    """Check that the capture has the bytes of `state`, and that every chunk has its hash."""
    assert view == state(part.rank, checkpoint.step, len(view))
    for name, entry in part.tensors.items():
        for chunk in entry.chunks:
            data = view[chunk.offset : chunk.offset + chunk.length]
            assert chunk_hash(data, chunk_seed(RUN, checkpoint, name, chunk.box)) == chunk.xxh3_128
    assert part.objects == {"step": checkpoint.step}


def gone(pid: int) -> bool:
    """Whether there is no such process, or only a zombie that waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# --- a killed worker -------------------------------------------------------------------------------------------------------

WORKER = """
import sys
from pathlib import Path
from tests.support.keepers import Node, Rank, layout
node = Node(Path(sys.argv[1]), name=sys.argv[2])
rank, local_ranks, generation, step, own = map(int, sys.argv[3:])
with Rank(node, node.hello(rank, local_ranks, generation), layout(own)) as worker:
    buffer = worker.copy(step)
    print("copied", flush=True)
    sys.stdin.readline()
    worker.link.seal(buffer.index, step, ("memory", "shared"), {"step": step})
    print(worker.outcome(step)["memory"], flush=True)
    sys.stdin.readline()
"""


@contextmanager
def worker(
    node: Node, step: int, rank: int = 0, local_ranks: int = 1, generation: int = 1, own: int = 3 * ALIGN
) -> Iterator["subprocess.Popen[str]"]:
    """A process that copies the state of `step`, and proceeds with each line of input: seal, then end."""
    numbers = [str(number) for number in (rank, local_ranks, generation, step, own)]
    argv = [sys.executable, "-c", WORKER, str(node.directory), node.name, *numbers]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "copied\n"
        try:
            yield process
        finally:
            process.kill()
