"""Claims the next generation, and decides from the chain, the spec's history and the nodes' memory what it starts from."""

import socket
from pathlib import Path

from headway.runner.checkpoint.chain import (
    Chain,
    ChainError,
    MovedError,
    Record,
    SupersededError,
    claims_without_commit,
    history_entries,
    lineage,
    newest_base,
    newest_claim,
    newest_held_base,
)
from headway.runner.contract import Base, Exit, RunConfig, RunDirectory
from headway.runner.coordinator.events import Claimed, ClaimRefused, MakeClaim
from headway.runner.history import carried_out, limit, refusal


def claim(chain: Chain, config: RunConfig, directory: RunDirectory, wanted: MakeClaim) -> Claimed | ClaimRefused:
    """Appends the claim. Raises OSError when the store cannot be used."""
    try:
        while True:
            records = chain.read()
            try:
                return _claim_after(records, chain, config, directory, wanted)
            except MovedError:
                # The generation before was still writing.
                continue
    except ChainError as error:
        return ClaimRefused(Exit.UNVERIFIED, str(error))
    except SupersededError as error:
        return ClaimRefused(Exit.SUPERSEDED, str(error))


def _claim_after(
    records: list[Record], chain: Chain, config: RunConfig, directory: RunDirectory, wanted: MakeClaim
) -> Claimed | ClaimRefused:
    history = config.history
    # A new run takes the line of steps that its spec ends up with from its beginning.
    done = history_entries(records) if newest_claim(records) else carried_out(history)
    standing = {committed.step for committed in lineage(records) if committed.tiers}
    if (why := refusal(history, done, standing)) is not None:
        return ClaimRefused(Exit.UNVERIFIED, why)
    back_to = limit(history, done)
    if back_to is not None and wanted.sound_step is not None and back_to > wanted.sound_step:
        why = f"`history` goes back to step {back_to}, but everything after step {wanted.sound_step} is from a corrupted run"
        return ClaimRefused(Exit.UNVERIFIED, why)
    base = _base(records, wanted, back_to)
    if base is None and back_to != 0 and (why := _why_not_from_scratch(records, directory.checkpoints, wanted.sound_step)):
        return ClaimRefused(Exit.UNVERIFIED, why)
    record = chain.claim(
        base,
        directory.attempt,
        f"coordinator on {socket.gethostname()}",
        history_entries=max(done, carried_out(history)),
        rolled_back=back_to is not None or wanted.sound_step is not None,
    )
    return Claimed(record.generation, base, claims_without_commit(chain.read()))


def _base(records: list[Record], wanted: MakeClaim, back_to: int | None) -> Base | None:
    """Return the base of the next generation: the newest checkpoint, committed or in the nodes' memory; where the history goes back,
    the committed checkpoint of exactly that step."""
    if back_to == 0:
        return None
    if back_to is not None:
        stored = newest_base(records, wanted.refused, back_to)
        return stored if stored is not None and stored.step == back_to else None
    stored = newest_base(records, wanted.refused, wanted.sound_step)
    sound = {at: manifest for at, manifest in wanted.held.items() if wanted.sound_step is None or at.step <= wanted.sound_step}
    held = newest_held_base(records, sound, wanted.refused)
    return max((base for base in (stored, held) if base is not None), key=lambda base: base.step, default=None)


def _why_not_from_scratch(records: list[Record], checkpoints: Path, sound_step: int | None) -> str:
    """Step 0 is only right for a run that has never saved, or never as long as it was sound."""
    if sound_step is not None:
        gone = any(committed.step <= sound_step for committed in lineage(records))
        left = f"no checkpoint of step {sound_step} or earlier is left, and all later ones are from a corrupted run"
        return left if gone else ""
    if lineage(records):
        return "checkpoints were committed, but no valid one passes verification"
    if not records and any(checkpoints.glob("step-*")):
        return f"{checkpoints} holds checkpoints but the chain is empty: this needs manual inspection"
    return ""
