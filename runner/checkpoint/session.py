"""Checkpoints for anybody's training loop: `open`, `load`, `save` after each step, `close`.

The run's directory is the one that `headway run` makes, so `headway checkpoint` reads it. Under headway the run, its generation and its
tiers are those of the job; elsewhere opening a directory claims it, and whoever had it before cannot commit any more.
"""

import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from headway.runner.checkpoint.authority import Authority, NothingVerifiesError, of_directory, of_job
from headway.runner.checkpoint.chain import Base
from headway.runner.checkpoint.engine import Outcome, Saver
from headway.runner.checkpoint.format import RefusedError, UnfitError
from headway.runner.checkpoint.layout import State
from headway.runner.checkpoint.load import Loader
from headway.runner.checkpoint.ranks import PeerError, Ranks
from headway.runner.checkpoint.restore import open_base
from headway.runner.checkpoint.schedule import Schedule
from headway.runner.checkpoint.setup import connector, saver_of
from headway.runner.checkpoint.stateful import StateError, flatten, load_state_dict, state_dict, unflatten
from headway.runner.contract import Checkpoint, Tier
from headway.runner.train.rng import restore_rng, rng_state

__all__ = ["NothingVerifiesError", "Session", "open"]


class Session:
    """A run's checkpoints as one rank sees them. All ranks make it, and call its methods, alike."""

    def __init__(self, authority: Authority, checkpoint: Checkpoint, ranks: Ranks, *, rng: bool) -> None:
        self._authority, self._checkpoint, self._ranks, self._rng = authority, checkpoint, ranks, rng
        self._schedule = Schedule(checkpoint.tiers, time.monotonic())
        self._saver: Saver | None = None
        self._connect = connector(lambda: authority.place, checkpoint, ranks)

    def load(self, state: MutableMapping[str, Any], *, strict: bool = True) -> int:
        """Fills `state` from the newest checkpoint that verifies on every rank; returns its step, 0 if nothing was ever saved.

        Tensors are filled in place; what has load_state_dict() gets it; plain values are replaced in `state`. With `strict`, tensors that
        the checkpoint holds and the state does not are an error. Raises StateError where both do not fit, NothingVerifiesError when
        there are checkpoints and none verifies.
        """
        step = 0
        while (base := self._authority.base) is not None:
            try:
                self._load(base, state, strict=strict)
            except (RefusedError, PeerError) as error:
                self._authority.refuse(base, error)
            else:
                step = base.step
                break
        self._opened().prepare(self._to_save(state))
        return step

    def _load(self, base: Base, state: MutableMapping[str, Any], *, strict: bool) -> None:
        reader = open_base(self._authority.place, base, self._ranks, self._connect)
        values = state_dict(state)
        leaves = dict(flatten(values))
        tensors = {name: value for name, value in leaves.items() if isinstance(value, torch.Tensor)}
        loader = Loader(reader, tensors, self._ranks)
        try:
            with torch.no_grad():
                loader.load()
        except UnfitError as error:
            raise StateError(str(error)) from None
        if strict and (unused := loader.unused()):
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            raise StateError(
                f"step {base.step} holds `{unused[0]}`{more}, for which the state has no place; strict=False leaves it out"
            )
        same_world = reader.manifest.world_size == self._ranks.world_size
        objects: dict[str, Any] = {}
        self._ranks.together(lambda: objects.update(reader.objects(self._ranks.rank if same_world else 0)))
        state.update(load_state_dict(state, unflatten(values, tensors | objects["state"])))
        if same_world and self._rng and objects["rng"] is not None:
            restore_rng(objects["rng"], _device())

    def save(self, step: int, state: Mapping[str, Any], *, now: bool = False) -> bool:
        """To be called after each step: saves to the tiers that are due at `step`, or to all of them `now`. Returns whether it did.

        The state may be changed as soon as this returns; on a GPU, by optimizer steps. What became of a save is in `outcomes`. Raises
        ObjectError for a value that a checkpoint cannot hold, SupersededError when somebody else has claimed the run.
        """
        due = {tier.kind for tier in self._checkpoint.tiers} if now else self._due(step)
        if not due:
            return False
        self._opened().save(step, self._to_save(state), due)
        return True

    def _to_save(self, state: Mapping[str, Any]) -> State:
        leaves = dict(flatten(state_dict(state)))
        tensors = {name: value for name, value in leaves.items() if isinstance(value, torch.Tensor)}
        plain = {name: value for name, value in leaves.items() if name not in tensors}
        return State(tensors, {"state": plain, "rng": rng_state(_device()) if self._rng else None})

    def _opened(self) -> Saver:
        """Made after the load: only then the generation that saves is known."""
        if self._saver is None:
            self._saver = saver_of(self._authority.place, self._authority.chain, self._ranks, self._checkpoint, self._connect)
        return self._saver

    def _due(self, step: int) -> set[str]:
        now = time.monotonic()
        late = self._schedule.late(now)
        if late:  # by the first rank's clock, which costs one small collective a step
            late = tuple(map(bool, self._ranks.gather(bytes(late))[0]))
        return self._schedule.due(step, late, now)

    def outcomes(self) -> list[Outcome]:
        """What has become of saves since the last call. Raises SupersededError when somebody else has claimed the run."""
        ended = self._saver.outcomes() if self._saver is not None else []
        asked = {tier.kind for tier in self._checkpoint.tiers}
        for outcome in ended:
            self._authority.tell(outcome)
        return [outcome for outcome in ended if outcome.tier in asked]

    def wait(self) -> list[Outcome]:
        """Waits until every save has ended in each of its tiers, and says how. Raises OSError for one that failed, SupersededError."""
        if self._saver is None:
            return []
        self._saver.wait()
        ended = self.outcomes()
        for outcome in ended:
            if outcome.error is not None:
                raise OSError(f"step {outcome.step} is not in tier `{outcome.tier}`: {outcome.error}")
        return ended

    def close(self) -> None:
        """Lets what is under way end."""
        if self._saver is not None:
            self._saver.close()
            self._saver = None

    def __enter__(self) -> Self:
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
    """The checkpoints of a run; collective over torch.distributed's ranks where it is initialized.

    `directory`: the run's, made if it is not there. Under headway it may be left out, and is the job's, as are the tiers.
    `tiers`: `memory`, `disk`, `remote` -> how many steps lie between two saves; `{"disk": 100}` when left out. `remote`: bucket and
    prefix, `s3://bucket/prefix`. `keep`: checkpoints that stay in each tier. `rng`: whether the random generators of Python, NumPy and
    torch are part of each rank's state.
    """
    ranks = Ranks.of_default_group().apart()
    if directory is None:
        authority, checkpoint = of_job()
        return Session(authority, checkpoint, ranks, rng=rng)
    every = {"disk": 100} if tiers is None else tiers
    wanted = tuple(
        Tier(kind, every_steps=int(steps), keep=keep, url=remote if kind == "remote" else None) for kind, steps in every.items()
    )
    checkpoint = Checkpoint(tiers=wanted)
    return Session(of_directory(Path(directory), ranks, remote), checkpoint, ranks, rng=rng)


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
