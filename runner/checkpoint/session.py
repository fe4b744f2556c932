"""Checkpoints a custom training loop: `open`, `load`, `save` after each step, `close`.

The run's directory is the one that `headway run` creates, so `headway checkpoint` reads it. Under headway the run, its
generation and its tiers are those of the job; elsewhere opening a directory claims it, and its previous owner cannot
commit any more.
"""

import os
import time
from collections.abc import Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from headway.runner.checkpoint.authority import Authority, NothingVerifiesError, UnreadError, of_directory, of_job
from headway.runner.checkpoint.engine import Saver
from headway.runner.checkpoint.format import RefusedError, UnfitError
from headway.runner.checkpoint.layout import RankState
from headway.runner.checkpoint.load import Loader
from headway.runner.checkpoint.ranks import AbsentError, PeerError, Ranks
from headway.runner.checkpoint.restore import open_base
from headway.runner.checkpoint.rng import restore_rng, rng_state
from headway.runner.checkpoint.save_reports import SaveOutcome
from headway.runner.checkpoint.schedule import TierSchedule
from headway.runner.checkpoint.setup import connector, saver_of
from headway.runner.checkpoint.stateful import (
    StateError,
    changed_by_steps,
    leave_out,
    leaves_of,
    load_state_dict,
    moments,
    optimizers_in,
    start_optimizers,
    started,
    state_dict,
    unflatten,
)
from headway.runner.contract import Base, Checkpoint, Tier

__all__ = ["NothingVerifiesError", "Session", "UnreadError", "open"]

_TIERS = ("memory", "shared", "remote")


class Session:
    """A run's checkpoints on one rank. All ranks must create it, and call its methods, in the same order."""

    def __init__(self, authority: Authority, checkpoint: Checkpoint, ranks: Ranks, *, rng: bool) -> None:
        self._authority, self._checkpoint, self._ranks, self._rng = authority, checkpoint, ranks, rng
        self._schedule = TierSchedule(checkpoint.tiers, time.monotonic())
        self._saver: Saver | None = None
        # Of the newest `load`.
        self._unread: UnreadError | None = None
        # Results of saves, not yet returned.
        self._ended: list[SaveOutcome] = []
        self._connect = connector(lambda: authority.place, checkpoint, ranks)

    def load(self, state: MutableMapping[str, Any], *, strict: bool = True) -> int:
        """Fill `state` from the newest checkpoint that verifies on every rank; return its step, 0 if nothing was ever
        saved.

        Tensors are filled in place; objects with load_state_dict() load their part; plain values are replaced in
        `state`. With `strict`, tensors that the checkpoint holds and the state does not are an error.

        Raises StateError where both do not fit, NothingVerifiesError when there are checkpoints and none verifies,
        UnreadError when the newest cannot be read. After UnreadError nothing is saved until a `load` succeeds: a save
        would replace the unread checkpoint.
        """
        step, self._unread = 0, None
        while (base := self._authority.base) is not None:
            try:
                self._load(base, state, strict=strict)
            except AbsentError:
                raise
            except (RefusedError, PeerError) as error:
                try:
                    self._authority.refuse(base, error)
                except UnreadError as unread:
                    self._unread = unread
                    raise
            else:
                step = base.step
                break
        self._authority.loaded(step)
        with started(state):
            self._opened().prepare(self._to_save(state))
        return step

    def _load(self, base: Base, state: MutableMapping[str, Any], *, strict: bool) -> None:
        reader = open_base(self._authority.place, base, self._ranks, self._connect)
        start_optimizers(state)
        values = state_dict(state)
        tensors = {name: value for name, value in leaves_of(values).items() if isinstance(value, torch.Tensor)}
        optimizers = dict(optimizers_in(state, values))
        optional = {name for path, own in optimizers.items() for names in moments(path, own).values() for name in names}
        loader = Loader(reader, tensors, self._ranks, optional)
        same_world = reader.manifest.world_size == self._ranks.world_size
        objects: dict[str, Any] = {}
        found: dict[str, Any] = {}

        def fit() -> None:
            objects.update(reader.objects(self._ranks.rank if same_world else 0))
            try:
                if strict:
                    _all_used(base, loader.unused())
                for path, own in optimizers.items():
                    leave_out(path, own, loader.missing, objects["state"])
                found.update(unflatten(values, tensors | objects["state"]))
            except StateError as error:
                # Raised on all ranks: otherwise some would wait for one that has left.
                raise UnfitError(str(error)) from None

        try:
            with torch.no_grad():
                loader.load()
            self._ranks.together(fit)
        except UnfitError as error:
            raise StateError(str(error)) from None
        state.update(load_state_dict(state, found))
        if same_world and self._rng and objects["rng"] is not None:
            restore_rng(objects["rng"], _device())

    def save(self, step: int, state: Mapping[str, Any], *, now: bool = False) -> bool:
        """Save to the tiers that are due at `step`, or to all of them `now`. Call it after each step. Returns whether
        it saved.

        The state may be changed as soon as this returns; on a GPU, by work on the current stream, and by steps of
        torch's optimizers on any (see `wait_copied`). `outcomes` has the result. Raises ObjectError for a value that a
        checkpoint cannot hold, SupersededError when another process has claimed the run, AbsentError by name for ranks
        that do not save this step.
        """
        if self._unread is not None:
            raise self._unread
        if self._saver is not None and not self._saver.superseded:
            self._hear(self._saver)
        due = {tier.kind for tier in self._checkpoint.tiers} if now else self._due(step)
        if not due:
            return False
        saver = self._opened()
        try:
            saver.refuse_capture()
            found = self._to_save(state)
        except Exception as error:
            saver.abandon(step, due, str(error) or type(error).__name__)
            raise
        saver.save(step, found, due)
        return True

    def wait_copied(self) -> None:
        """Wait until the last `save` has copied the state.

        Required only if the state is written by other means than steps of torch's optimizers and the current stream's
        work, such as another stream or a CUDA graph.
        """
        if self._saver is not None:
            self._saver.wait_copied()

    def _to_save(self, state: Mapping[str, Any]) -> RankState:
        leaves = leaves_of(state_dict(state))
        tensors = {name: value for name, value in leaves.items() if isinstance(value, torch.Tensor)}
        plain = {name: value for name, value in leaves.items() if name not in tensors}
        stepped = changed_by_steps(state, tensors) if torch.cuda.is_available() else frozenset[str]()
        return RankState(tensors, {"state": plain, "rng": rng_state(_device()) if self._rng else None}, stepped)

    def _opened(self) -> Saver:
        """Return the saver, created after the load: the generation that saves is unknown before."""
        if self._saver is None:
            self._saver = saver_of(self._authority.place, self._authority.chain, self._ranks, self._checkpoint, self._connect)
        return self._saver

    def _due(self, step: int) -> set[str]:
        now = time.monotonic()
        late = self._schedule.late(now)
        # By the first rank's clock, which costs one small collective a step.
        if late:
            late = tuple(map(bool, self._ranks.gather(bytes(late))[0]))
        return self._schedule.due(step, late, now)

    def outcomes(self) -> list[SaveOutcome]:
        """Return the results of saves since the last call. Raises SupersededError when another process has claimed the run."""
        if self._saver is not None:
            self._hear(self._saver)
        asked = {tier.kind for tier in self._checkpoint.tiers}
        ended, self._ended = self._ended, []
        return [outcome for outcome in ended if outcome.tier in asked]

    def _hear(self, saver: Saver) -> None:
        """Keep results for `outcomes`, and report them at once: the run's journal does not wait for a loop that never asks."""
        for outcome in saver.outcomes():
            self._authority.tell(outcome)
            self._ended.append(outcome)
        self._authority.tell_retired(saver.retired())

    def wait(self) -> list[SaveOutcome]:
        """Wait until every save has ended in each of its tiers, and return the results.

        Raises OSError for one that failed, if no later one is in its tier (an upload gives way to a newer one),
        SupersededError.
        """
        if self._saver is None:
            return []
        self._saver.wait()
        ended = self.outcomes()
        newest = {outcome.tier: outcome.step for outcome in sorted(ended, key=lambda each: each.step) if outcome.error is None}
        for outcome in ended:
            if outcome.error is not None and outcome.step > newest.get(outcome.tier, -1):
                raise OSError(f"step {outcome.step} is not in tier `{outcome.tier}`: {outcome.error}")
        return ended

    def close(self) -> None:
        """Finish the saves in progress and close."""
        if self._saver is not None:
            self._saver.close()
            if not self._saver.superseded:
                self._hear(self._saver)
            self._saver = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.wait()
        self.close()


def open(  # noqa: A001  read as checkpoint.open
    directory: str | Path | None = None,
    *,
    tiers: Mapping[str, int | float] | None = None,
    remote: str | None = None,
    keep: int = 3,
    rng: bool = True,
) -> Session:
    """Return the checkpoints of a run; collective over torch.distributed's ranks where it is initialized.

    `directory`: the run's, created if it does not exist. Under headway it may be omitted, and is the job's, as are the
    tiers where the job has any (under `headway torchrun` it has none). `tiers`: `memory`, `shared`, `remote` -> number of
    steps between two saves; `{"shared": 100}` when omitted. `remote`: bucket and prefix, `s3://bucket/prefix`. `keep`:
    checkpoints that stay in each tier. `rng`: whether the random generators of Python, NumPy and torch are part of each
    rank's state.

    Raises ValueError for an impossible tier, RuntimeError where torchrun has started several ranks and
    torch.distributed is not initialized yet.
    """
    _all_ranks_known()
    ranks = Ranks.of_default_group().apart(_patience())
    every = {"shared": 100} if tiers is None else tiers
    _check_tiers(every, remote, keep)
    wanted = tuple(
        Tier(kind, every_steps=int(steps), keep=keep, url=remote if kind == "remote" else None) for kind, steps in every.items()
    )
    checkpoint = Checkpoint(tiers=wanted)
    if directory is None:
        authority, checkpoint = of_job(checkpoint, ranks)
        return Session(authority, checkpoint, ranks, rng=rng)
    return Session(of_directory(Path(directory), ranks, remote), checkpoint, ranks, rng=rng)


def _patience() -> timedelta:
    """Return how long ranks wait for each other at a load or a save."""
    return timedelta(seconds=float(os.environ.get("HEADWAY_SAVE_PATIENCE_S", default_pg_timeout.total_seconds())))


def _all_ranks_known() -> None:
    """Raise RuntimeError unless all ranks are known: single ranks would claim the directory from each other, and wait
    forever for the rest of their node."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and not dist.is_initialized():
        raise RuntimeError(
            f"this is one of {started} ranks: call torch.distributed.init_process_group() before checkpoint.open()"
        )


def _check_tiers(every: Mapping[str, int | float], remote: str | None, keep: int) -> None:
    for kind, steps in every.items():
        if kind not in _TIERS:
            raise ValueError(f"tiers: {kind!r} is not a tier of a custom training loop: expected {', '.join(_TIERS)}")
        if steps < 1 or steps != int(steps):
            raise ValueError(f"tiers: {kind!r} has the interval {steps}: expected a whole number of steps, at least 1")
    if "remote" in every and remote is None:
        raise ValueError("tiers: 'remote' needs a bucket: remote=\"s3://bucket/prefix\"")
    if keep < 1:
        raise ValueError(f"keep is {keep}: at least 1 checkpoint must be kept in each tier")


def _all_used(base: Base, unused: list[str]) -> None:
    """Raise StateError for tensors of the checkpoint that match nothing in the state."""
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise StateError(
            f"step {base.step} holds `{unused[0]}`{more}, which the state has no place for; pass strict=False to ignore it"
        )


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
