"""Builds a node's captures as its keeper would hold them: known bytes in separate buffers."""

import mmap
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import xxhash

from headway.runner.checkpoint.format import Box, Manifest, record_bytes
from headway.runner.checkpoint.keeper.capture import ALIGN, BufferLayout, BufferPiece, Capture, Held, NodeCapture, Stored
from headway.runner.checkpoint.keeper.parts import hash_pieces
from headway.runner.contract import Base, CheckpointId

RUN = "run-1"


def content(rank: int, length: int) -> bytes:
    """The content of the rank's own piece."""
    return random.Random(rank).randbytes(length)


@contextmanager
def captured(step: int, lengths: list[int], generation: int = 1, slot: int = 0) -> Iterator[NodeCapture]:
    """Ranks that own `lengths[rank]` bytes of `w.<rank>` each, and hold a copy of 16 bytes that another rank writes."""
    buffers = [mmap.mmap(-1, _aligned(length) + ALIGN) for length in lengths]
    checkpoint = CheckpointId(step, generation)
    captures = [_capture(rank, length, checkpoint, memoryview(buffers[rank])) for rank, length in enumerate(lengths)]
    try:
        yield NodeCapture(RUN, slot, step, generation, tuple(captures))
    finally:
        for capture in captures:
            capture.view.release()


def manifest(node: NodeCapture, stored: list[Stored]) -> tuple[bytes, Base]:
    """The manifest of a checkpoint of this node alone, and its commit on the chain."""
    parts = {str(one.rank): one.part_xxh3_128 for one in stored}
    files = {one.file: one.file_bytes for one in stored}
    raw = record_bytes(
        Manifest(RUN, node.step, node.generation, len(stored), {"dp_shard": len(stored)}, parts, files, "written", {})
    )
    return raw, Base(node.step, node.generation, xxhash.xxh3_128_hexdigest(raw))


def _capture(rank: int, length: int, checkpoint: CheckpointId, view: memoryview) -> Capture:
    own, shared = Box((0,), (length,)), Box((0,), (16,))
    owned_bytes = _aligned(length)
    view[:length] = content(rank, length)
    tensors = {f"w.{rank}": Held("uint8", (length,), own), "shared": Held("uint8", (16,), shared)}
    pieces = (BufferPiece(f"w.{rank}", own, 0, length, owned=True), BufferPiece("shared", shared, owned_bytes, 16, owned=False))
    layout = BufferLayout(tensors, pieces, owned_bytes, len(view))
    with ThreadPoolExecutor(1) as threads:
        return Capture(rank, layout, view, hash_pieces(RUN, checkpoint, layout, view, threads), {"step": checkpoint.step})


def _aligned(length: int) -> int:
    return -(-length // ALIGN) * ALIGN
