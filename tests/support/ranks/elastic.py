"""Runs a rank that trains one small decoder under several layouts, saves under each, and resumes each save under every layout."""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from headway import checkpoint
from tests.support.worlds import join, leave

VOCABULARY, WIDTH, HIDDEN, LAYERS = 37, 20, 36, 4  # no layout shards all of them evenly
BATCH, SEQUENCE, DROPOUT = 8, 6, 0.1
SAVED_AT, MORE = 3, 4


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.dropout(self.down(functional.gelu(self.up(self.norm(x)))))
        return out


class Decoder(nn.Module):
    """tokens -> logits; a stage of a pipeline has some of the layers, under their names in the whole."""

    def __init__(self, stage: int = 0, stages: int = 1) -> None:
        super().__init__()
        own = range(LAYERS * stage // stages, LAYERS * (stage + 1) // stages)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if stage == 0 else None
        self.layers = nn.ModuleDict({str(layer): Block() for layer in own})
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False) if stage == stages - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.output is None else self.output(x)


@dataclass
class Job:
    """One rank of a layout: its model, its share of each batch, and its way from tokens to a loss and gradients."""

    model: nn.Module
    share: tuple[int, int]
    gradients: Callable[["Job", Tensor], Tensor]

    def __post_init__(self) -> None:
        # Ranks that compute the same draw the same.
        torch.manual_seed(100 + self.share[0])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, foreach=False)

    def state(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer}

    def steps(self, first: int, count: int) -> list[float]:
        """Train, and return the losses over the whole batch."""
        return [self._step(number) for number in range(first, first + count)]

    def _step(self, number: int) -> float:
        tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(number))
        rank, size = self.share
        loss = self.gradients(self, tokens[rank * BATCH // size : (rank + 1) * BATCH // size])
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(loss)
        return float(loss) / dist.get_world_size()

    def fingerprint(self) -> dict[str, str]:
        """A hash of every parameter and moment, whole; collective."""
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        own = {name: parameter.detach() for parameter, name in names.items()}
        for parameter, slot in self.optimizer.state.items():
            own |= {f"{names[parameter]}.{key}": value for key, value in slot.items()}
        hashes = {name: _hash(value.full_tensor() if isinstance(value, DTensor) else value) for name, value in own.items()}
        everyone: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, hashes)
        return {name: digest for known in everyone for name, digest in known.items()}


def _hash(tensor: Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


# --- layouts ----------------------------------------------------------------------------------------------------------


def data_parallel(job: Job, tokens: Tensor) -> Tensor:
    """Also tensor parallel: each rank computes a loss."""
    loss = functional.cross_entropy(job.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    torch.autograd.backward(loss)
    return loss.detach()


def pipelined(job: Job, tokens: Tensor) -> Tensor:
    """Two stages: activations go forward, their gradient comes back. The loss is the last stage's, on both."""
    hidden = torch.zeros(BATCH, SEQUENCE, WIDTH)
    if dist.get_rank() == 0:
        out = job.model(tokens[:, :-1])
        dist.send(out.detach(), 1)
        dist.recv(hidden, 1)
        torch.autograd.backward(out, hidden)
        loss = torch.zeros(())
    else:
        dist.recv(hidden, 0)
        hidden.requires_grad_()
        loss = functional.cross_entropy(job.model(hidden).flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        assert hidden.grad is not None
        dist.send(hidden.grad, 0)
    dist.broadcast(loss.detach(), 1)
    return loss.detach()


def _mesh(*shape: int) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[-len(shape) :])


def _sharded(model: Decoder, mesh: DeviceMesh) -> nn.Module:
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _tensor_parallel(model: Decoder, mesh: DeviceMesh) -> Decoder:
    for layer in model.layers.values():
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def sharded() -> Job:
    return Job(_sharded(Decoder(), _mesh(dist.get_world_size())), (dist.get_rank(), dist.get_world_size()), data_parallel)


def hybrid() -> Job:
    return Job(_sharded(Decoder(), _mesh(2, 2)), (dist.get_rank(), 4), data_parallel)


def sharded_and_tensor_parallel() -> Job:
    mesh = _mesh(2, 2)
    model = _sharded(_tensor_parallel(Decoder(), mesh["inner"]), mesh["outer"])
    return Job(model, (mesh["outer"].get_local_rank(), 2), data_parallel)


def tensor_parallel() -> Job:
    return Job(_tensor_parallel(Decoder(), _mesh(2)), (0, 1), data_parallel)


def pipeline() -> Job:
    return Job(Decoder(dist.get_rank(), 2), (0, 1), pipelined)


def alone() -> Job:
    return Job(Decoder(), (0, 1), data_parallel)


EVERY: Mapping[str, tuple[int, Callable[[], Job]]] = {
    "FSDP2 x4": (4, sharded),
    "HSDP 2x2": (4, hybrid),
    "FSDP2 x2, TP x2": (4, sharded_and_tensor_parallel),
    "FSDP2 x2": (2, sharded),
    "TP x2": (2, tensor_parallel),
    "PP x2": (2, pipeline),
    "one rank": (1, alone),
}
# The least similar in `make test`; all of them in `make soak`.
_FEW = ("HSDP 2x2", "FSDP2 x2, TP x2", "PP x2", "one rank")
LAYOUTS = EVERY if "HEADWAY_EXAMPLES" in os.environ else {name: EVERY[name] for name in EVERY if name in _FEW}
SIZES = (4, 2, 1)


def made(layout: str, seed: int) -> Job:
    torch.manual_seed(seed)
    return LAYOUTS[layout][1]()


# --- a rank's work ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A job's state when it saved, the losses of the steps after that, and its state then."""

    saved: dict[str, str]
    losses: list[float]
    ended: dict[str, str]


@dataclass(frozen=True)
class Resumed:
    """The step that was loaded and the state then, and the losses of the steps after that without dropout."""

    step: int
    loaded: dict[str, str]
    losses: list[float]


def save(root: Path, layout: str) -> Run:
    """Train, save under the layout, and continue training."""
    job = made(layout, seed=0)
    job.steps(0, SAVED_AT)
    with checkpoint.open(_directory(root, layout), tiers={"shared": 1}) as run:
        run.save(SAVED_AT, job.state())
    saved = job.fingerprint()
    return Run(saved, job.steps(SAVED_AT, MORE), job.fingerprint())


def loaded(root: Path, layout: str, source: str) -> tuple[Job, int]:
    """A job that begins with other values, after it has loaded the save of `source`."""
    job = made(layout, seed=1)
    with checkpoint.open(_directory(root, source), tiers={"shared": 1}) as run:
        step = run.load(dict(job.state()))
    return job, step


def resume(root: Path, layout: str, source: str) -> Resumed:
    job, step = loaded(root, layout, source)
    found = job.fingerprint()
    job.model.eval()
    return Resumed(step, found, job.steps(step, MORE))


def resume_exactly(root: Path, layout: str) -> Run:
    """Under the same layout, dropout included: the random generators are restored too."""
    job, step = loaded(root, layout, layout)
    return Run(job.fingerprint(), job.steps(step, MORE), job.fingerprint())


def _directory(root: Path, layout: str) -> Path:
    return root / layout.replace(" ", "-").replace(",", "")


def save_all(root: Path, layouts: Sequence[str]) -> dict[str, object]:
    return {layout: asdict(save(root, layout)) for layout in layouts}


def resume_all(root: Path, layouts: Sequence[str]) -> dict[str, object]:
    """Each layout's result from the checkpoint of every layout."""
    return {layout: {source: asdict(resume(root, layout, source)) for source in LAYOUTS} for layout in layouts}


def resume_all_exactly(root: Path, layouts: Sequence[str]) -> dict[str, object]:
    return {layout: asdict(resume_exactly(root, layout)) for layout in layouts}


WORK = {"runs": save_all, "resumed": resume_all, "exactly": resume_all_exactly}


def in_world(root: Path, size: int, name: str) -> None:
    """Do the work of this name for all layouts of this many ranks.

    It runs in a process forked for it, so that torch is imported once: with another process group, DTensor would use cached groups
    of the previous one (torch 2.13).
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"{name} of {size} ranks ended with {os.waitstatus_to_exitcode(status)}")
        return
    os.environ |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    try:
        join(size, f"{name}-{size}")
        found = WORK[name](root, [layout for layout, (ranks, _) in LAYOUTS.items() if ranks == size])
        if dist.get_rank() == 0:
            (root / f"{name}-{size}.json").write_text(json.dumps(found))
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    leave()


def results(root: Path) -> dict[str, dict[str, Any]]:
    """The ranks' results, by the work's name and the layout."""
    return {
        name: {layout: each for size in SIZES for layout, each in json.loads((root / f"{name}-{size}.json").read_text()).items()}
        for name in WORK
    }


def main() -> None:
    root = Path(sys.argv[1])
    for name in WORK:
        for size in SIZES:
            if int(os.environ["RANK"]) < size:
                in_world(root, size, name)


if __name__ == "__main__":
    main()
