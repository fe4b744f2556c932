"""Runs a rank of the builtin trainer whose loss on rank 1 is not a number in step 3: never, once and twice, in three runs."""

import json
import mmap
import os
import socket
import sys
from pathlib import Path

import torch

from headway.runner.boot.heartbeat import report_heartbeats
from headway.runner.contract import Batch, Checkpoint, Data, HeartbeatPage, Mesh, Model, Optimizer, RunConfig, RunDirectory, Tier
from headway.runner.contract import Trainer as Kind
from headway.runner.train.data import Window
from headway.runner.train.gradients import Gradients, NonFiniteError
from headway.runner.train.job import Job
from headway.runner.train.main import Trainer
from headway.runner.train.trace import Trace
from headway.runner.worker import Worker
from tests.support.worlds import join, leave

STEP = 3


class Faulty(Gradients):
    """The loss of rank 1's last micro batch of STEP is not a number `times` times: with its gradients, or `alone`."""

    times = 0
    alone = False

    def _computed(self, job: Job, shift: int, trace: Trace | None) -> tuple[float, float]:
        loss, norm = super()._computed(job, shift, trace)
        if self.alone and self._fails():
            return float("nan"), norm
        return loss, norm

    def _loss(self, micro: Window) -> torch.Tensor:
        loss = super()._loss(micro)
        return loss * float("nan") if not self.alone and self._fails() else loss

    def _fails(self) -> bool:
        fails = self.worker.rank == 1 and self.state.step == STEP - 1 and self.times > 0
        self.times -= fails
        return fails


def config(text: Path) -> RunConfig:
    return RunConfig(
        slots=1,
        procs_per_slot=2,
        mesh=Mesh(dp_shard=2),
        trainer=Kind("builtin"),
        spec_hash="",
        steps=5,
        model=Model(256, 1, 16, 2, 1, 32, dropout=0.1),
        data=Data("files", {"paths": [str(text)]}),
        batch=Batch(4, 2, 16),
        optimizer=Optimizer(lr=0.01),
        checkpoint=Checkpoint((Tier("shared", every_steps=100),)),
        run="run-1",
    )


def run(folder: Path, times: int) -> None:
    """One run of five steps, whose results go to `rank-<i>.json`."""
    rank = int(os.environ["RANK"])
    (folder / "shared/chain").mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(folder, 0)
    directory.attempt_directory.mkdir(parents=True, exist_ok=True)
    said, events = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    page = HeartbeatPage(memoryview(mmap.mmap(-1, HeartbeatPage.bytes_for(2))))
    worker = Worker(rank, rank, 2, 1, 0, str(directory.run_json), None, page, events)
    trainer = Trainer(worker, Job.of(config(folder.parent / "text")), report_heartbeats(worker, "start"))
    trainer.gradients = faulty = Faulty(worker, trainer.state, trainer.corpus, trainer.ranks, trainer.mesh)
    # No other rank sees the results of a single one.
    faulty.times, faulty.alone = times, times == 1
    trainer._stored_tiers = set  # type: ignore[method-assign]  # nothing is saved at the end
    error = None
    try:
        trainer.run()
    except NonFiniteError as raised:
        error = str(raised)
        worker.raised(raised)
    record = {"error": error, "step": trainer.state.step, "hashes": trainer.state.hashes(trainer.ranks), "said": heard(said)}
    (folder / f"rank-{rank}.json").write_text(json.dumps(record))


def heard(said: socket.socket) -> list[object]:
    """All events that the worker has sent."""
    said.settimeout(0)
    found = []
    while True:
        try:
            found.append(json.loads(said.recv(1 << 16)))
        except BlockingIOError:
            return found


def main() -> None:
    join(2, "world")
    torch.use_deterministic_algorithms(True)
    for times in (0, 1, 2):
        run(Path(sys.argv[1]) / str(times), times)
    leave()


if __name__ == "__main__":
    main()
