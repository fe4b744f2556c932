"""Stores a node's captures as objects of a remote store."""

import xxhash

from headway.runner.checkpoint.bucket import RETRIES, ObjectBucket
from headway.runner.checkpoint.format import MANIFEST, data_name, part_name, record_bytes
from headway.runner.checkpoint.keeper.capture import NodeCapture, Stored
from headway.runner.checkpoint.keeper.parts import stored_part
from headway.runner.contract import CheckpointId


class RemoteStorage:
    """The object store below `url`: a checkpoint's objects are `<url>/<run>/<checkpoint>/data-<slot>-0.bin`, `part-<rank>.json` and,
    last, `manifest.json`."""

    def __init__(self, url: str, retries: int = RETRIES) -> None:
        self._bucket = ObjectBucket(url, retries)
        # Tensor data only; includes what a failed upload had sent.
        self.sent_bytes = 0

    def store(self, node: NodeCapture) -> list[Stored]:
        """Upload one data object for all ranks of the node, then a part for each. Returns when the store has them all,
        with the right sizes.

        Raises OSError with the URL. Objects of a failed upload have no manifest and are deleted once a newer checkpoint
        is committed (retention.py).
        """
        folder, file = _folder(node.run, CheckpointId(node.step, node.generation)), data_name(node.slot, 0)
        regions = [capture.view[: capture.layout.owned_bytes] for capture in node.ranks]
        size, begin, stored = self._bucket.put_regions(f"{folder}/{file}", regions, self._count), 0, list[Stored]()
        for capture in node.ranks:
            raw = record_bytes(stored_part(capture, file, begin))
            self._bucket.put(f"{folder}/{part_name(capture.rank)}", raw)
            stored.append(Stored(capture.rank, xxhash.xxh3_128_hexdigest(raw), file, size))
            begin += capture.layout.owned_bytes
        return stored

    def _count(self, size: int) -> None:
        self.sent_bytes += size


def write_manifest(url: str, run: str, checkpoint: CheckpointId, raw: bytes, retries: int = RETRIES) -> None:
    """Write the manifest next to what all nodes have stored; the checkpoint may be committed then. Raises OSError."""
    ObjectBucket(url, retries).put(f"{_folder(run, checkpoint)}/{MANIFEST}", raw)


class RemoteRoot:
    """The checkpoints of `run` below `url`, to list and delete them. Every method raises OSError."""

    def __init__(self, url: str, run: str, retries: int = 2) -> None:
        """Use few retries: a later save deletes what cannot be deleted now."""
        self._bucket, self._run = ObjectBucket(url, retries), run

    def names(self) -> list[str]:
        return self._bucket.folders(self._run)

    def read(self, name: str, file: str) -> bytes:
        return self._bucket.get(f"{self._run}/{name}/{file}")

    def delete(self, name: str) -> None:
        """Delete the manifest first: a half-deleted checkpoint has none."""
        folder = f"{self._run}/{name}"
        names, manifest = self._bucket.names(folder), f"{folder}/{MANIFEST}"
        self._bucket.delete([found for found in names if found == manifest])
        self._bucket.delete([found for found in names if found != manifest])


def _folder(run: str, checkpoint: CheckpointId) -> str:
    return f"{run}/{checkpoint.directory}"
