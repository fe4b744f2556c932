"""Runs a rank of the builtin trainer under many layouts, one after the other: its losses, and those from other layouts' saves."""

import itertools
import json
import os
import resource
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from headway.runner.checkpoint.chain import Chain, newest_base
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import DirectorySource
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import (
    Batch,
    Checkpoint,
    Data,
    Execution,
    Mesh,
    Model,
    Optimizer,
    RunConfig,
    Tier,
)
from headway.runner.contract import Trainer as Kind
from headway.runner.train.main import Trainer
from tests.support.ranks.undisturbed import trainer
from tests.support.saves import save
from tests.support.worlds import join, leave

MODEL = Model(256, 2, 32, 4, 2, 48)
BATCH = Batch(4, 1, 16)
STEPS, SAVED_AT = 5, 3
CORPORA = ("short", "long")
TOKENS = {"document_mask": True, "verify": "job"}
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@dataclass(frozen=True)
class Layout:
    """A mesh, and how its ranks compute."""

    mesh: Mesh
    execution: Execution = field(default_factory=Execution)
    # Trained on a corpus of tokens whose documents do not attend to each other.
    has_documents: bool = False


def _pipelined(schedule: str, stages: int, **degrees: int) -> Layout:
    execution = Execution(sharding="optimizer", schedule=schedule, virtual_stages=stages)
    return Layout(Mesh(pp=2, **degrees), execution)


ALONE = "one rank"
SINGLE = {f"{axis} 2": Layout(Mesh(**{axis: 2})) for axis in AXES}
PAIRS = {f"{one} 2, {other} 2": Layout(Mesh(**{one: 2, other: 2})) for one, other in itertools.combinations(AXES, 2)}
# Cases that only two ranks of an axis show, and each other way to compute, once.
WAYS = {
    "DDP": Layout(Mesh(dp_shard=2), Execution(sharding="none")),
    "ZeRO-2": Layout(Mesh(dp_shard=2), Execution(sharding="gradients", prefetch=True, recompute="full")),
    "tp 2 without sequence parallelism": Layout(Mesh(tp=2), Execution(sequence_parallel=False, recompute="selective")),
    "ZBVZeroBubble": _pipelined("ZBVZeroBubble", 2),
    "Interleaved1F1B": _pipelined("Interleaved1F1B", 2),
}
MORE = {
    "GPipe": _pipelined("GPipe", 1),
    "LoopedBFS": _pipelined("LoopedBFS", 2),
    "InterleavedZeroBubble": _pipelined("InterleavedZeroBubble", 2),
    "DualPipeV": _pipelined("DualPipeV", 2),
    "ZBVZeroBubble, tp 2": _pipelined("ZBVZeroBubble", 2, tp=2),
    "Interleaved1F1B, cp 2": _pipelined("Interleaved1F1B", 2, cp=2),
    "DDP, cp 2": Layout(Mesh(dp_shard=2, cp=2), Execution(sharding="none")),
    "ZeRO-1": Layout(Mesh(dp_shard=4), Execution(sharding="optimizer")),
    "cp 4": Layout(Mesh(cp=4)),
    "compiled": Layout(Mesh(dp_shard=2), Execution(compile=True)),
    "recompute full, cp 2, tp 2": Layout(Mesh(cp=2, tp=2), Execution(recompute="full")),
    "recompute selective, pp 2, cp 2": Layout(Mesh(pp=2, cp=2), Execution(recompute="selective")),
}
# Their losses are only near those of fp32.
ROUNDED = {"bf16": Layout(Mesh(dp_shard=2), Execution(compute="bf16"))}
MORE_ROUNDED = {
    "bf16, pp 2, tp 2": Layout(Mesh(pp=2, tp=2), Execution(sharding="optimizer", compute="bf16")),
    "bf16, cp 2, sums in bf16": Layout(Mesh(dp_shard=2, cp=2), Execution(compute="bf16", reduce="bf16")),
    "bf16 parameters": Layout(Mesh(dp_replicate=2), Execution(parameters="bf16", compute="bf16", reduce="bf16")),
}
# Separate documents, in one process and over the axes that handle them differently.
ALONE_WITH_DOCUMENTS = "documents"
DOCUMENTS = {
    ALONE_WITH_DOCUMENTS: Layout(Mesh(), has_documents=True),
    "documents, cp 2": Layout(Mesh(cp=2), has_documents=True),
    "documents, pp 2, tp 2": Layout(Mesh(pp=2, tp=2), Execution(sharding="optimizer", recompute="full"), has_documents=True),
}
MORE_DOCUMENTS = {
    "documents, dp_shard 2": Layout(Mesh(dp_shard=2), Execution(recompute="selective"), has_documents=True),
    "documents, pp 2, cp 2": Layout(Mesh(pp=2, cp=2), Execution(sharding="optimizer"), has_documents=True),
    "documents, cp 4": Layout(Mesh(cp=4), has_documents=True),
    "documents, compiled": Layout(Mesh(dp_shard=2), Execution(compile=True), has_documents=True),
}
# The most dissimilar pairs cover every axis and the most different ways; all others run in `make soak`.
_FEW = {"dp_replicate 2, dp_shard 2", "pp 2, dp_shard 2", "pp 2, tp 2", "dp_shard 2, cp 2"}
_FEW |= {"ZeRO-2", "tp 2 without sequence parallelism", "ZBVZeroBubble", "bf16", ALONE_WITH_DOCUMENTS, "documents, cp 2"}
IS_ALL = "HEADWAY_EXAMPLES" in os.environ
_EXACT = {ALONE: Layout(Mesh()), **SINGLE, **WAYS, **PAIRS}
_ALL = _EXACT | MORE | ROUNDED | MORE_ROUNDED | DOCUMENTS | MORE_DOCUMENTS
_CHOSEN = _ALL if IS_ALL else {name: layout for name, layout in _ALL.items() if name == ALONE or name in _FEW}
# In the order in which they run.
LAYOUTS: Mapping[str, Layout] = dict(sorted(_CHOSEN.items(), key=lambda item: item[1].mesh.world_size))
SIZES = (1, 2, 4)


@dataclass(frozen=True)
class Found:
    """Losses of all steps; the state's hashes at the end, and at the end of the same after a restart at SAVED_AT; the losses
    after SAVED_AT from the save of another layout, `source`; and CPU seconds of this rank."""

    losses: list[float]
    norms: list[float]
    ended: dict[str, str]
    restarted: dict[str, str]
    source: str
    elsewhere: list[float]
    samples: str
    cpu_s: float


def config(text: Path, layout: Layout) -> RunConfig:
    return RunConfig(
        slots=1,
        procs_per_slot=layout.mesh.world_size,
        mesh=layout.mesh,
        trainer=Kind("builtin", vars(layout.execution)),
        spec_hash="",
        steps=STEPS,
        model=MODEL,
        data=Data("tokens", TOKENS | {"corpora": [{"path": str(text.with_name(name))} for name in CORPORA]})
        if layout.has_documents
        else Data("files", {"paths": [str(text)]}),
        batch=BATCH,
        # Gradients are clipped in some steps and not in others.
        optimizer=Optimizer(lr=0.01, clip_norm=1.8, schedule="linear"),
        checkpoint=Checkpoint((Tier("shared", every_steps=100),)),
        run="run-1",
    )


@dataclass
class Training:
    """A trainer that has just started, and its progress."""

    trainer: Trainer
    losses: list[float]
    norms: list[float]

    @classmethod
    def begun(cls, root: Path, name: str) -> "Training":
        training = cls(trainer(config(root / "text", LAYOUTS[name]), _folder(root, name)), [], [])
        training.trainer._write_metrics = training._hear  # type: ignore[method-assign, assignment]
        return training

    def _hear(self, _: Any, agreed: Any) -> None:
        self.losses.append(agreed.loss)
        self.norms.append(agreed.norm)

    def to(self, step: int) -> None:
        while self.trainer.state.step < step:
            self.trainer._step()

    def hashes(self) -> dict[str, str]:
        return self.trainer.state.hashes(self.trainer.ranks)

    def save(self, root: Path, name: str) -> None:
        folder, ranks = _folder(root, name), self.trainer.ranks
        chain = _chain(root, name)
        if ranks.rank == 0:
            chain.claim(None, 0, "tester")
        ranks.gather(b"claimed")
        place = CheckpointLocation(folder / "checkpoints", "run-1", 1, 0, ranks.world_size, LAYOUTS[name].mesh)
        save(place, chain, ranks, SAVED_AT, self.trainer.state.to_save(ranks))

    def restore(self, root: Path, name: str) -> None:
        base = newest_base(_chain(root, name).read())
        assert base is not None
        source = DirectorySource(_folder(root, name) / "checkpoints" / base.checkpoint.directory)
        self.trainer.state.restore(Reader(source, "run-1", base), self.trainer.ranks)


def _folder(root: Path, name: str) -> Path:
    return root / name.replace(" ", "-").replace(",", "")


def _chain(root: Path, name: str) -> Chain:
    return Chain(PosixStore(_folder(root, name) / "shared/chain"), "run-1")


def source_of(name: str) -> str:
    """The layout whose save this one resumes from: the previous one, which differs; for other formats, one of the same format."""
    if LAYOUTS[name].execution.parameters != "fp32":
        return name
    alike = [each for each in LAYOUTS if LAYOUTS[each].has_documents == LAYOUTS[name].has_documents]
    names = [each for each in alike if each not in ROUNDED | MORE_ROUNDED]
    return names[max(0, names.index(name) - 1)] if name in names else ALONE


def work(root: Path, name: str, source: str) -> Found:
    """Train under a layout; then resume from its own save, and from that of `source`."""
    straight = Training.begun(root, name)
    straight.to(SAVED_AT)
    straight.save(root, name)
    straight.to(STEPS)
    ended = straight.hashes()
    restarted = Training.begun(root, name)
    restarted.restore(root, name)
    restarted.to(STEPS)
    found = restarted.hashes()
    restarted.restore(root, source)
    restarted.losses.clear()
    restarted.to(STEPS)
    cpu_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    samples = found["samples"]
    return Found(straight.losses, straight.norms, ended, found, source, restarted.losses, samples, cpu_s)


def in_world(root: Path, size: int) -> None:
    """Run all layouts of this many ranks in a process forked for it, so that torch is imported once."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            print(f"{size} ranks ended with {os.waitstatus_to_exitcode(status)}", flush=True)
            os._exit(1)
        return
    # The keeper saves nothing here, and each trainer would start one.
    os.environ |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "HEADWAY_KEEPER": "none"}
    try:
        join(size, f"world-{size}")
        torch.use_deterministic_algorithms(True)
        for name, layout in LAYOUTS.items():
            if layout.mesh.world_size == size:
                found = work(root, name, source_of(name))
                if os.environ["RANK"] == "0":
                    (_folder(root, name) / "found.json").write_text(json.dumps(vars(found)))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    leave()


def results(root: Path) -> dict[str, Found]:
    """The ranks' results under each layout."""
    return {name: Found(**json.loads((_folder(root, name) / "found.json").read_text())) for name in LAYOUTS}


def main() -> None:
    root = Path(sys.argv[1])
    for size in SIZES:
        if int(os.environ["RANK"]) < size:
            in_world(root, size)


if __name__ == "__main__":
    main()
