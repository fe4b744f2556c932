"""Runs ranks of the builtin trainer whose gradients are silently wrong, in several runs: which ranks, in which steps and attempts."""

import json
import mmap
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headway.runner.boot.heartbeat import report_heartbeats
from headway.runner.contract import Corruption, Every, HeartbeatPage, Mesh, RunConfig, RunDirectory
from headway.runner.corruption import CorruptionError
from headway.runner.train.data import Window
from headway.runner.train.gradients import Gradients, NonFiniteError
from headway.runner.train.job import Job
from headway.runner.train.main import Trainer
from headway.runner.train.trace import Trace
from headway.runner.worker import Worker
from tests.support.ranks import nonfinite
from tests.support.worlds import join, leave

REPLAY = Corruption(replay=Every(steps=2))
NAN = float("nan")
# Step, attempt, rank -> factor for the gradients.
Fault = Callable[[int, int, int], float | None]


@dataclass
class Faulty(Gradients):
    """Multiply gradients by `fault`, invisibly in the loss; the loss is not a number if they are not."""

    fault: Fault = lambda step, attempt, rank: None
    tries: int = 0

    def of(self, *args: Any, **kwargs: Any) -> Any:
        self.tries = 0
        return super().of(*args, **kwargs)

    def _attempt(self, *args: Any, **kwargs: Any) -> Any:
        self.tries += 1
        return super()._attempt(*args, **kwargs)

    def _loss(self, micro: Window) -> torch.Tensor:
        loss = super()._loss(micro)
        factor = self.fault(self.state.step + 1, self.tries, self.worker.rank)
        if factor == factor and factor is not None:  # noqa: PLR0124  not NaN
            hooked: Any = loss
            hooked.register_hook(lambda gradient: gradient * factor)
            return loss
        return loss if factor is None else loss * factor


def only(step: int, attempt: int, rank: int) -> Fault:
    return lambda *at: 1.0001 if at == (step, attempt, rank) else None


def always(rank: int, since: int, factor: float = 1.0001) -> Fault:
    return lambda step, _, who: factor if who == rank and step >= since else None


@dataclass(frozen=True)
class Case:
    checks: Corruption | None = REPLAY
    fault: Fault = lambda step, attempt, rank: None
    norms: tuple[float, ...] = ()


CASES = {
    "unchecked": Case(None),
    "sound": Case(),
    "first": Case(fault=only(4, 1, 1)),
    "other": Case(fault=only(4, 2, 0)),
    "lasting": Case(fault=always(1, since=3)),
    "nan": Case(fault=always(1, since=3, factor=NAN)),
    "batch": Case(fault=lambda step, _, __: NAN if step == 3 else None),
    "spike": Case(Corruption(grad_norm_factor=3.0), norms=(1e-6,) * 16),
    "burst": Case(Corruption(grad_norm_factor=30.0), lambda *at: 1e6 if at == (4, 1, 1) else None, (10.0,) * 16),
    "once each": Case(fault=lambda *at: 1.0001 if at in ((4, 1, 1), (4, 4, 2)) else None),
    "due": Case(fault=lambda *at: NAN if at == (4, 1, 1) else None),
    "broken": Case(Corruption(grad_norm_factor=30.0), always(1, since=3, factor=1e6), (10.0,) * 16),
    "late": Case(Corruption(replay=Every(seconds=0.0))),
}


def config(text: Path, world_size: int, checks: Corruption | None) -> RunConfig:
    base = nonfinite.config(text)
    assert base.batch is not None
    batch = replace(base.batch, global_sequences=4 * world_size)
    return replace(base, procs_per_slot=world_size, mesh=Mesh(dp_shard=world_size), steps=6, batch=batch, corruption=checks)


def run(folder: Path, case: Case, world_size: int) -> None:
    """One run of six steps, whose results go to `rank-<i>.json`."""
    rank = int(os.environ["RANK"])
    (folder / "shared/chain").mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(folder, 0)
    directory.attempt_directory.mkdir(parents=True, exist_ok=True)
    said, events = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    page = HeartbeatPage(memoryview(mmap.mmap(-1, HeartbeatPage.bytes_for(world_size))))
    worker = Worker(rank, rank, world_size, 1, 0, str(directory.run_json), None, page, events)
    job = Job.of(config(folder.parent / "text", world_size, case.checks))
    trainer = Trainer(worker, job, report_heartbeats(worker, "start"))
    trainer.gradients = faulty = Faulty(worker, trainer.state, trainer.corpus, trainer.ranks, trainer.mesh, fault=case.fault)
    if trainer.state.soundness is not None:
        trainer.state.soundness.norms.extend(case.norms)
    trainer._stored_tiers = set  # type: ignore[method-assign]  # nothing is saved at the end
    traced: set[str] = set()
    original = Trace.add

    def add(trace: Trace, name: str, value: torch.Tensor) -> None:
        traced.add(name)
        original(trace, name, value)

    Trace.add = add  # type: ignore[method-assign,assignment]
    error = None
    try:
        trainer.run()
    except (CorruptionError, NonFiniteError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    told = [event for event in nonfinite.heard(said) if isinstance(event, dict) and event["what"] in ("note", "corrupted")]
    sound = trainer.state.soundness and trainer.state.soundness.step
    hashes = trainer.state.hashes(trainer.ranks)
    record = {
        "error": error,
        "step": trainer.state.step,
        "sound": sound,
        "hashes": hashes,
        "told": told,
        "tries": faulty.tries,
        "traced": sorted(traced),
    }
    Trace.add = original  # type: ignore[method-assign]
    (folder / f"rank-{rank}.json").write_text(json.dumps(record))


def main() -> None:
    folder, world_size, *names = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    join(world_size, "world")
    torch.use_deterministic_algorithms(True)
    for name in names:
        run(folder / name, CASES[name], world_size)
    leave()


if __name__ == "__main__":
    main()
