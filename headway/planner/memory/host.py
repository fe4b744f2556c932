"""Computes a node's host memory during training: rank processes, data loading, and checkpoints in flight."""

from msgspec import Struct

from headway.planner.memory.ledger import Item, checkpoint_bytes
from headway.planner.training import Training

# Resident bytes of a process that has imported torch and used CUDA once: 1,068 and 1,204 MiB (pytorch/pytorch#106511).
_PROCESS = 2272 << 20
# Of one that has imported torch and no more, as a data loader's worker has: the first part of the same measurement.
_WORKER = 1068 << 20
# torch's int64.
_TOKEN = 8
# A reserve for other software of the node: kernel, agents, clients of file systems.
_SYSTEM = 16 << 30


class HostLoad(Struct, frozen=True):
    """The host memory of a rank: `staged` copies of its part of a checkpoint (one while it is written behind training), copies of
    the parts of `peers` other ranks, and `workers` that load data and keep `prefetched` microbatches each. `page_cache` is bytes that a
    node needs for files that are read again and again."""

    staged: int = 1
    peers: int = 0
    workers: int = 2
    prefetched: int = 2
    page_cache: int = 0


USUAL_LOAD = HostLoad()


def host_memory(training: Training, load: HostLoad = USUAL_LOAD, ranks: int | None = None) -> tuple[Item, ...]:
    """Return what one node's `ranks` (its GPUs, when left out) need of its memory, by name, in bytes."""
    count = min(training.gpus, training.network.gpus_per_node) if ranks is None else ranks
    part = rank_checkpoint_bytes(training)
    batches = load.workers * load.prefetched * training.micro * (training.sequence + 1) * _TOKEN
    items = (
        Item("operating system and agents", _SYSTEM),
        Item("processes of the ranks", count * _PROCESS),
        Item("processes that load data", count * load.workers * _WORKER),
        Item("microbatches read ahead", count * batches),
        Item("checkpoints being written, page-locked", count * load.staged * part),
        Item("checkpoints of other nodes", count * load.peers * part),
        Item("page cache", load.page_cache),
    )
    return tuple(item for item in items if item.bytes)


def host_bytes_per_node(training: Training, load: HostLoad = USUAL_LOAD, ranks: int | None = None) -> int:
    """Return all of that."""
    return int(sum(item.bytes for item in host_memory(training, load, ranks)))


def rank_checkpoint_bytes(training: Training) -> float:
    """Return one rank's part of a checkpoint, which the ranks of one replica write together."""
    return checkpoint_bytes(training) / (training.gpus / training.degrees.dp_replicate)
