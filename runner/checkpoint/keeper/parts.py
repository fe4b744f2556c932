"""Turns a sealed capture into the part that describes it: in memory all pieces, in storage those that the rank owns."""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from headway.runner.checkpoint.format import Chunk, Part, TensorEntry, chunk_hash, chunk_seed
from headway.runner.checkpoint.keeper.capture import ALIGN, BufferLayout, BufferPiece, Capture
from headway.runner.contract import CheckpointId


class LayoutError(ValueError):
    """A layout whose pieces are not within their bounds."""


def memory_name(rank: int) -> str:
    """Return the file that chunks of a part in memory name: the rank's buffer."""
    return f"memory-{rank}"


def verify_layout(layout: BufferLayout) -> None:
    """Raise LayoutError for a piece outside of the buffer, an owned one outside of the owned bytes, or one of an
    unknown tensor."""
    if not 0 <= layout.owned_bytes <= layout.bytes or layout.owned_bytes % ALIGN:
        raise LayoutError(f"{layout.owned_bytes} owned bytes of {layout.bytes}, expected a multiple of {ALIGN} within")
    for piece in layout.pieces:
        end = layout.owned_bytes if piece.owned else layout.bytes
        if piece.offset < 0 or piece.length < 0 or piece.offset + piece.length > end:
            raise LayoutError(f"a piece of `{piece.name}` at {piece.offset}+{piece.length} ends after {end}")
        if piece.name not in layout.tensors:
            raise LayoutError(f"a piece of `{piece.name}`, which is not a tensor of the layout")


def hash_pieces(run: str, checkpoint: CheckpointId, layout: BufferLayout, view: memoryview, threads: Executor) -> tuple[str, ...]:
    """Return the hash of each piece in `view`, in order. xxhash releases the GIL, so threads help."""

    def hash_one(piece: BufferPiece) -> str:
        data = view[piece.offset : piece.offset + piece.length]
        return chunk_hash(data, chunk_seed(run, checkpoint, piece.name, piece.box))

    return tuple(threads.map(hash_one, layout.pieces))


def memory_part(capture: Capture) -> Part:
    """Return all pieces, at their offsets in the buffer."""
    return _part(capture, memory_name(capture.rank), 0, lambda _: True)


def stored_part(capture: Capture, file: str, begin: int) -> Part:
    """Return the owned pieces, in a data file that holds the capture's owned bytes from `begin` on."""
    return _part(capture, file, begin, lambda piece: piece.owned)


def _part(capture: Capture, file: str, begin: int, included: Callable[[BufferPiece], bool]) -> Part:
    chunks: dict[str, list[Chunk]] = {name: [] for name in capture.layout.tensors}
    for piece, hashed in zip(capture.layout.pieces, capture.hashes, strict=True):
        if included(piece):
            chunks[piece.name].append(Chunk(file, begin + piece.offset, piece.length, piece.box, hashed))
    return Part(capture.rank, dict(_entries(capture.layout, chunks)), capture.objects)


def _entries(layout: BufferLayout, chunks: dict[str, list[Chunk]]) -> Iterable[tuple[str, TensorEntry]]:
    for name, held in layout.tensors.items():
        yield name, TensorEntry(held.dtype, held.shape, held.box, tuple(chunks[name]))
