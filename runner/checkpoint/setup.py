"""Builds a saver and its link to the node's keeper, as run.json or a custom training loop asks for them."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace

from headway.runner.checkpoint.chain import Chain
from headway.runner.checkpoint.commit import Committer
from headway.runner.checkpoint.engine import Saver
from headway.runner.checkpoint.keeper.link import KeeperLink, start_keeper
from headway.runner.checkpoint.keeper.protocol import Hello
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.remote import RemoteRoot, write_manifest
from headway.runner.checkpoint.retention import DirectoryRoot, Retention, RetentionRoot, retire
from headway.runner.contract import STORED_TIERS, Checkpoint, CheckpointId

# The name that the node's keeper listens on.
KEEPER = "HEADWAY_KEEPER"
# The address file of the keeper that holds copies of this node's captures.
PARTNER = "HEADWAY_PARTNER"


def connector(place: Callable[[], CheckpointLocation], checkpoint: Checkpoint, ranks: Ranks) -> Callable[[], KeeperLink]:
    """Return a function that connects this rank to its node's keeper: the supervisor's, or one that the node's first
    rank starts; collective.

    `place` is called at each connection, since a generation may be claimed in between.
    """
    name = os.environ.get(KEEPER) or _own_keeper(ranks, place().procs_per_slot)

    def connect() -> KeeperLink:
        at = place()
        storage = {
            tier.kind: str(at.root) if tier.kind == "shared" else str(tier.url)
            for tier in checkpoint.tiers
            if tier.kind in STORED_TIERS
        }
        hello = Hello(
            run=at.run,
            slot=ranks.rank // at.procs_per_slot,
            rank=ranks.rank,
            local_ranks=at.procs_per_slot,
            generation=at.generation,
            storage=storage,
            partner=os.environ.get(PARTNER),
            host_memory_bytes=checkpoint.host_memory_bytes,
        )
        return KeeperLink(name, hello)

    return connect


def _own_keeper(ranks: Ranks, local_ranks: int) -> str:
    """Start a keeper for a loop without a supervisor, on the first rank of each node; it ends with the last of its ranks."""
    name = ""
    if ranks.rank % local_ranks == 0:
        name = start_keeper()
    names = ranks.gather_any(name.encode())
    return names[ranks.rank - ranks.rank % local_ranks].decode()


def _nothing_known() -> int | None:
    return None


def saver_of(
    place: CheckpointLocation,
    chain: Chain,
    ranks: Ranks,
    checkpoint: Checkpoint,
    connect: Callable[[], KeeperLink],
    sound_step: Callable[[], int | None] = _nothing_known,
) -> Saver:
    """Return the saver of one generation; collective. `sound_step` returns the last step that is known to be sound;
    another thread calls it."""
    committer = first_rank(place, chain, checkpoint, sound_step) if ranks.rank == 0 else Committer(place, chain)
    return Saver(committer, ranks, checkpoint, connect)


def first_rank(
    place: CheckpointLocation, chain: Chain, checkpoint: Checkpoint, sound_step: Callable[[], int | None] = _nothing_known
) -> Committer:
    """Return the first rank's committer, for each tier."""
    roots: dict[str, RetentionRoot] = {}
    upload = None
    if checkpoint.has("shared"):
        roots["shared"] = DirectoryRoot(place.root)
    if (url := checkpoint.remote) is not None:
        roots["remote"] = RemoteRoot(url, place.run)
        upload = uploader(url, place.run)
    return Committer(place, chain, retirement(place, chain, checkpoint, roots, sound_step), upload)


def uploader(url: str, run: str) -> Callable[[CheckpointId, bytes], None]:
    """Return a function that writes manifests next to the keepers' uploads."""
    return lambda checkpoint, raw: write_manifest(url, run, checkpoint, raw)


def retirement(
    place: CheckpointLocation,
    chain: Chain,
    checkpoint: Checkpoint,
    roots: dict[str, RetentionRoot],
    sound_step: Callable[[], int | None] = _nothing_known,
) -> Callable[[str], tuple[CheckpointId, ...]]:
    """Return a function that retires and deletes after a commit to a tier. Failures are reported and otherwise harmless."""
    retention = Retention({tier.kind: tier.keep for tier in checkpoint.tiers if tier.kind in roots}, checkpoint.horizon_steps)

    def go(tier: str) -> tuple[CheckpointId, ...]:
        known = replace(retention, sound_step=sound_step())
        done = retire(chain, {tier: roots[tier]}, known, place.generation, place.attempt)
        for failure in done.failures:
            print(failure, file=sys.stderr, flush=True)
        return done.checkpoints.get(tier, ())

    return go
