"""Saves without a keeper's process: the same layout, copy, hashes, files and commit, one after the other in this process."""

import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headway.runner.checkpoint.chain import Chain
from headway.runner.checkpoint.commit import Committer, Written
from headway.runner.checkpoint.keeper.capture import Capture, NodeCapture, Stored
from headway.runner.checkpoint.keeper.disk import DiskStorage
from headway.runner.checkpoint.keeper.parts import hash_pieces
from headway.runner.checkpoint.layout import Planner, RankState
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.objects import encode
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.retention import DirectoryRoot
from headway.runner.checkpoint.setup import retirement
from headway.runner.checkpoint.staging import Staging
from headway.runner.checkpoint.tensors import local_tensor
from headway.runner.contract import Checkpoint, CheckpointId, Tier


@dataclass(frozen=True)
class Saved:
    """The data of all ranks in bytes and, on the first rank, the retired checkpoints."""

    bytes: int
    retired: tuple[CheckpointId, ...]


def captured(place: CheckpointLocation, ranks: Ranks, step: int, state: RankState, whole: bool = False) -> Capture:
    """The capture that a keeper would hold of this rank's state."""
    layout = Planner(ranks).plan(state.tensors, whole).layout
    view = memoryview(mmap.mmap(-1, layout.bytes))
    staging = Staging()
    staging.use(layout, {0: view})
    staging.copy(0, {name: local_tensor(tensor) for name, tensor in state.tensors.items()})
    with ThreadPoolExecutor(1) as threads:
        hashes = hash_pieces(place.run, place.checkpoint(step), layout, view, threads)
    return Capture(ranks.rank, layout, view, hashes, {name: encode(value, name) for name, value in state.objects.items()})


def save(place: CheckpointLocation, chain: Chain, ranks: Ranks, step: int, state: RankState, keep: int = 3) -> Saved:
    """Write and commit the state of all ranks, each as a separate node. Raises on all ranks if one fails."""
    stored: list[Stored] = []
    checkpoint = Checkpoint((Tier("shared", every_steps=1, keep=keep),))
    committer = Committer(place, chain, retirement(place, chain, checkpoint, {"shared": DirectoryRoot(place.root)}))
    retired: list[CheckpointId] = []

    def write() -> None:
        capture = captured(place, ranks, step, state)
        node = NodeCapture(place.run, ranks.rank, step, place.generation, (capture,))
        stored.extend(DiskStorage(place.root).store(node))

    ranks.together(write)
    packed = ranks.gather(bytes.fromhex(stored[0].part_xxh3_128) + stored[0].file_bytes.to_bytes(8, "big"))
    everyone = [Written(raw[:16].hex(), int.from_bytes(raw[16:], "big")) for raw in packed]
    ranks.together(lambda: committer.commit(step, "shared", everyone), only=0)
    ranks.together(lambda: retired.extend(committer.clean("shared")), only=0)
    return Saved(committer.bytes_of(everyone), tuple(retired))
