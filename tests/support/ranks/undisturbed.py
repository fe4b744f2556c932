"""Runs a rank of the builtin trainer to the last step of a run.json, without saves and faults, and writes the hashes of its state."""

import json
import mmap
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import torch

from headway.runner.boot.heartbeat import report_heartbeats
from headway.runner.contract import Checkpoint, HeartbeatPage, RunConfig, RunDirectory, Tier, from_json
from headway.runner.train.job import Job
from headway.runner.train.main import Trainer
from headway.runner.worker import Worker
from tests.support.worlds import join, leave


def trainer(config: RunConfig, folder: Path) -> Trainer:
    """Return this rank's trainer, which has done no step; it writes nothing below `folder` but empty folders."""
    rank, size = int(os.environ["RANK"]), config.mesh.world_size
    directory = RunDirectory(folder, 0)
    directory.chain.mkdir(parents=True, exist_ok=True)
    directory.attempt_directory.mkdir(parents=True, exist_ok=True)
    _, events = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    events.setblocking(False)
    page = HeartbeatPage(memoryview(mmap.mmap(-1, HeartbeatPage.bytes_for(size))))
    worker = Worker(rank, rank, size, 1, 0, str(directory.run_json), None, page, events)
    worker.say = lambda *_, **__: None  # type: ignore[method-assign]
    made = Trainer(worker, Job.of(config), report_heartbeats(worker, "start"))
    made._write_metrics = lambda *_: None  # type: ignore[method-assign]
    return made


def main() -> None:
    run_json, folder = map(Path, sys.argv[1:])
    # No save is due, and none is made at the end: the keeper would have to be started.
    os.environ["HEADWAY_KEEPER"] = "none"
    never = Checkpoint((Tier("shared", every_steps=1 << 30),))
    config = replace(from_json(RunConfig, run_json.read_text()), checkpoint=never, corruption=None)
    join(config.mesh.world_size, "undisturbed")
    torch.use_deterministic_algorithms(True)
    trained = trainer(config, folder)
    while trained.state.step < trained._last_step():
        trained._step()
    hashes = trained.state.hashes(trained.ranks)
    if trained.worker.rank == 0:
        (folder / "hashes.json").write_text(json.dumps(hashes))
    leave()


if __name__ == "__main__":
    main()
