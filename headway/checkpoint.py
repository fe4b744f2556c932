"""Checkpoints any training loop, and loads only verified bytes:

    from headway import checkpoint
    run = checkpoint.open("runs/mine", tiers={"shared": 100})
    start = run.load(state)           # 0, or the step of the newest checkpoint that verifies
    for step in range(start, steps):
        train(...)
        run.save(step + 1, state)     # when a tier is due: copies; the rest runs in parallel with training
    run.close()

`state` is a dict of modules, optimizers, whatever has state_dict(), tensors and plain values. Details: docs/checkpoints.md.
"""

from headway.runner.checkpoint.chain import SupersededError
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.interop.dcp import StorageReader, StorageWriter
from headway.runner.checkpoint.objects import ObjectError
from headway.runner.checkpoint.ranks import AbsentError
from headway.runner.checkpoint.rng import RandomState
from headway.runner.checkpoint.save_reports import SaveOutcome
from headway.runner.checkpoint.session import (
    NothingVerifiesError,
    Session,
    UnreadError,
    open,  # noqa: A004  read as checkpoint.open
)
from headway.runner.checkpoint.stateful import StateError
from headway.runner.train.loader import PerRank, Samples, Seeded
from headway.runner.train.state import Consumed

__all__ = [
    "AbsentError",
    "Consumed",
    "NothingVerifiesError",
    "ObjectError",
    "PerRank",
    "RandomState",
    "RefusedError",
    "Samples",
    "SaveOutcome",
    "Seeded",
    "Session",
    "StateError",
    "StorageReader",
    "StorageWriter",
    "SupersededError",
    "UnreadError",
    "open",
]
