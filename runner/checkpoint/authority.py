"""Determines which generation a custom training loop commits under: its job's, or one claimed when the directory is opened."""

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from headway.runner import worker as workers
from headway.runner.checkpoint.chain import (
    STALE_WAITS_S,
    Chain,
    Commit,
    MovedError,
    newest_base,
    newest_claim,
)
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.save_reports import SaveOutcome
from headway.runner.checkpoint.stores import open_store
from headway.runner.contract import STORED_TIERS, Base, Checkpoint, CheckpointId, Mesh, RunConfig, RunDirectory, from_json
from headway.runner.rundir import create_handle_of_loop


class NothingVerifiesError(Exception):
    """Checkpoints were committed, and none of them verifies: a person must decide before training continues."""


class UnreadError(OSError):
    """A checkpoint could not be read: a slow or missing mount, a disk error, or permissions.

    The checkpoint may be intact, so nothing is concluded: no other one is chosen and nothing is deleted. `errno`,
    `filename` and the host are those of the first rank that failed.
    """


class Authority:
    """One generation's right to commit, and the base that it starts from."""

    def __init__(self, place: CheckpointLocation, chain: Chain, base: Base | None) -> None:
        self.place, self.chain, self.base = place, chain, base

    def refuse(self, base: Base, error: Exception) -> None:
        """Refuse `base`, which some rank could not load, and choose another. Collective.

        Raises NothingVerifiesError when none is left, and UnreadError when any rank could not read what it needs.
        """
        raise NotImplementedError

    def loaded(self, step: int) -> None:
        """Report that this rank has the state of `step` (0: the initial state) to the run's journal."""

    def tell(self, outcome: SaveOutcome) -> None:
        """Report the result of a save to the run's journal."""

    def tell_retired(self, checkpoints: Sequence[CheckpointId]) -> None:
        """Report retired checkpoints to the run's journal."""


class OfJob(Authority):
    """The generation that a coordinator has claimed for all workers; when its base is refused, the coordinator claims another."""

    def __init__(
        self, place: CheckpointLocation, chain: Chain, base: Base | None, worker: "workers.Worker", ranks: Ranks
    ) -> None:
        super().__init__(place, chain, base)
        self._worker, self._ranks = worker, ranks

    def refuse(self, base: Base, error: Exception) -> None:
        """Refuse `base` only on the rank where it failed: a rank that learns of another's failure has no evidence
        against the checkpoint."""
        if isinstance(error, RefusedError):
            say_refused(self._worker, base, error)
        refuse_unread(self.place, base, error, self._ranks)
        raise NothingVerifiesError(f"{base.checkpoint.directory}: {error}") from error

    def loaded(self, step: int) -> None:
        self._worker.say("loaded", step=step)

    def tell(self, outcome: SaveOutcome) -> None:
        say_outcome(self._worker, outcome)

    def tell_retired(self, checkpoints: Sequence[CheckpointId]) -> None:
        say_retired(self._worker, checkpoints)


def say_refused(worker: "workers.Worker", base: Base, error: RefusedError) -> None:
    """Report a base that did not verify, and the tier that it was read from: the coordinator then claims another.

    A base that could not be read is reported as such: the attempt ends, and the next one can use the same base.
    """
    facts = {"step": base.step, "generation": base.generation, "tier": base.tier}
    what = "refused" if error.unread is None else "unread"
    worker.say(what, **facts, name=error.name, reason=error.reason)


def refuse_unread(place: CheckpointLocation, base: Base, error: Exception, ranks: Ranks) -> None:
    """Raise UnreadError on all ranks where any of them got one; collective."""
    facts: dict[str, Any] | None = None
    if isinstance(error, RefusedError) and error.unread is not None:
        where = place.root if base.tier == "shared" else f"{place.remote}/{place.run}"
        path = f"{where}/{base.checkpoint.directory}/{error.name}"
        facts = {"errno": error.unread, "why": f"{error.reason} on {socket.gethostname()}", "path": path}
    for raw in ranks.gather_any(json.dumps(facts).encode()):
        if (found := json.loads(raw)) is not None:
            raise UnreadError(found["errno"], found["why"], found["path"]) from error


def say_outcome(worker: "workers.Worker", outcome: SaveOutcome) -> None:
    """Report one save in one tier to the journal."""
    if outcome.error is not None:
        print(
            f"step {outcome.step} is not in tier `{outcome.tier}`, earlier ones are kept: {outcome.error}",
            file=sys.stderr,
            flush=True,
        )
    elif worker.rank == 0 and outcome.tier in STORED_TIERS:
        worker.say(
            "committed", step=outcome.step, tier=outcome.tier, bytes=outcome.bytes, files=outcome.files, save_s=outcome.seconds
        )


def say_retired(worker: "workers.Worker", checkpoints: Sequence[CheckpointId]) -> None:
    """Report the checkpoints that newer ones have superseded to the journal."""
    if checkpoints:
        worker.say("retired", checkpoints=[vars(checkpoint) for checkpoint in checkpoints])


def of_job(otherwise: Checkpoint, ranks: Ranks) -> tuple[Authority, Checkpoint]:
    """Return the authority of the job that this process is a worker of, and its tiers: `otherwise` if the job has none.

    Raises RuntimeError outside of a job, and where the job's nodes have no shared storage.
    """
    worker = workers.current()
    if worker is None:
        raise RuntimeError("this process is not a worker of headway: pass the directory of the checkpoints")
    if os.environ.get("HEADWAY_SHARED_STORE") == "0":
        raise RuntimeError(
            "the nodes of this run share no storage, so a checkpoint's files would be spread over them: set "
            "HEADWAY_RUNS to a folder that all nodes see, or pass the directory of the checkpoints"
        )
    config = from_json(RunConfig, Path(worker.run_json).read_text())
    directory = RunDirectory.of(Path(worker.run_json), worker.attempt)
    checkpoint = config.checkpoint if config.checkpoint.tiers else otherwise
    place = place_of(worker, config, directory, checkpoint)
    return OfJob(place, Chain(open_store(str(directory.chain)), place.run), worker.base, worker, ranks), checkpoint


def place_of(worker: "workers.Worker", config: RunConfig, directory: RunDirectory, checkpoint: Checkpoint) -> CheckpointLocation:
    """Return the place that a worker's generation of a job saves to."""
    assert config.run is not None  # noqa: S101  set when the run directory was made
    return CheckpointLocation(
        root=directory.checkpoints,
        run=config.run,
        generation=worker.generation,
        attempt=worker.attempt,
        procs_per_slot=config.procs_per_slot,
        mesh=config.mesh,
        remote=checkpoint.remote,
    )


# --- a directory without a coordinator --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Claimed:
    """The first rank's claim, as all ranks know it."""

    generation: int
    base: Base | None


class OfDirectory(Authority):
    """A directory's newest generation, claimed by its first rank; collective."""

    def __init__(self, place: CheckpointLocation, chain: Chain, ranks: Ranks) -> None:
        super().__init__(place, chain, None)
        self._ranks, self._refused = ranks, frozenset[tuple[CheckpointId, str]]()
        self._claim()

    def refuse(self, base: Base, error: Exception) -> None:
        refuse_unread(self.place, base, error, self._ranks)
        if self._ranks.rank == 0:
            print(f"{base.checkpoint.directory} in tier `{base.tier}` is not used: {error}", file=sys.stderr, flush=True)
        self._refused |= {(base.checkpoint, base.tier)}
        self._claim()

    def _claim(self) -> None:
        """Claim the next generation from the newest checkpoint that is not refused. Raises NothingVerifiesError if none
        is left."""
        found: list[_Claimed] = []
        self._ranks.together(lambda: found.append(self._claim_first()), only=0)
        raw = json.dumps([found[0].generation, vars(found[0].base) if found[0].base else None]).encode() if found else b""
        generation, base = json.loads(self._ranks.gather_any(raw)[0])
        self.base = Base(**base) if base else None
        self.place = replace(self.place, generation=generation)

    def _claim_first(self) -> _Claimed:
        while True:
            records = self.chain.read()
            base = newest_base(records, self._refused)
            if base is None and any(isinstance(record.entry, Commit) for record in records):
                raise NothingVerifiesError(f"{self.place.root}: checkpoints were committed, but no valid one passes verification")
            if not records and any(self.place.root.glob("step-*")):
                adopt = "run `headway checkpoint adopt` to see what can be done"
                raise NothingVerifiesError(f"{self.place.root} holds checkpoints but the chain is empty; {adopt}")
            claim = newest_claim(records)
            try:
                record = self.chain.claim(base, claim.attempt + 1 if claim else 0, f"{socket.gethostname()} pid {os.getpid()}")
            except MovedError:
                # The previous owner was still committing.
                continue
            return _Claimed(record.generation, base)


def ranks_here(ranks: Ranks) -> int:
    """Return how many ranks this node has, without a launcher's variables; collective."""
    hosts = ranks.gather_any(socket.gethostname().encode())
    return hosts.count(hosts[ranks.rank])


def _same_run(handle: Path, ranks: Ranks) -> str:
    """Return the run's name, as all ranks read it. Raises UnreadError where a rank cannot read it or reads another: it
    does not see the shared file system."""
    found, number, why = b"", 0, ""
    for wait_s in (*STALE_WAITS_S, None):
        try:
            found, number, why = handle.read_bytes(), 0, ""
            break
        except OSError as error:
            # A client that has looked before may not see it yet (nfs(5), lookupcache).
            number, why = error.errno or errno.EIO, f"{error.strerror} on {socket.gethostname()}"
        if wait_s is not None:
            time.sleep(wait_s)
    said = json.dumps([xxhash.xxh3_128_hexdigest(found), number, why]).encode()
    seen = [json.loads(raw) for raw in ranks.gather_any(said)]
    for digest, other, reason in seen:
        if other:
            raise UnreadError(other, reason, str(handle))
        if digest != seen[0][0]:
            raise UnreadError(
                errno.ESTALE, "not the same file on all nodes: check that the file system is mounted on each", str(handle)
            )
    run: str = json.loads(found)["run"]
    return run


def of_directory(root: Path, ranks: Ranks, remote: str | None) -> Authority:
    """Claim the run in `root`, which is created if it does not exist; collective."""
    directory = RunDirectory(root.resolve(), 0)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or ranks_here(ranks)

    def make() -> None:
        for folder in (directory.chain, directory.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        create_handle_of_loop(directory, ranks.world_size)

    ranks.together(make, only=0)
    run = _same_run(directory.handle, ranks)
    place = CheckpointLocation(directory.checkpoints, run, 0, 0, local, Mesh(dp_shard=ranks.world_size), remote)
    return OfDirectory(place, Chain(open_store(str(directory.chain)), run), ranks)
