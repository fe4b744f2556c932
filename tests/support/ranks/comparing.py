"""Runs ranks of a script whose replicas are compared: `python -m tests.support.ranks.comparing FOLDER STORIES`, one after the other."""

import atexit
import copy
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from headway.runner import worker as workers
from headway.runner.boot import compare, files, heartbeat, limitations, replicas
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.contract import Every, HeartbeatPage, RunDirectory
from headway.runner.corruption import CorruptionError
from headway.runner.worker import Worker
from tests.support.worlds import join, leave

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


_boots: "list[Boot]" = []


class Boot:
    """A rank before a script's first line, with a comparison after its steps."""

    def __init__(self, folder: Path, every: Every, collective_s: float = 600.0) -> None:
        directory = RunDirectory(folder / f"run-{RANK}", 0)
        directory.attempt_directory.mkdir(parents=True)
        (directory.root / "shared").mkdir()
        self.folder = folder
        ours, self._said = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._said.settimeout(0)
        page = HeartbeatPage(memoryview(mmap.mmap(-1, HeartbeatPage.bytes_for(WORLD))))
        self.worker = Worker(RANK, RANK, WORLD, 1, 0, str(directory.run_json), None, page, ours)
        workers._current[:] = [self.worker]
        counter = heartbeat.StepCounter(heartbeat.report_heartbeats(self.worker, "script"))
        self.comparison = compare.prepare(self.worker, every, collective_s)
        counter.then = self.comparison
        self._hook = register_optimizer_step_post_hook(counter)
        _boots[:] = [self]
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        self._hook.remove()
        workers._current.clear()
        limitations._seen.clear()
        replicas._modules.clear()

    def said(self, what: str) -> list[dict[str, Any]]:
        """All events of a kind, so far."""
        while True:
            try:
                self.events.append(json.loads(self._said.recv(1 << 16)))
            except BlockingIOError:
                return [event for event in self.events if event["what"] == what]

    def compared(self) -> list[int]:
        """The steps at which all were equal; the first rank reports them for all."""
        return [event["step"] for event in self.said("compared")]


def model(dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4)
    return nn.Sequential(*layers).to(dtype)


def batches(steps: int, dtype: torch.dtype = torch.float32) -> Iterator[tuple[int, torch.Tensor]]:
    """Each rank has its own data."""
    generator = torch.Generator().manual_seed(RANK + 1)
    for step in range(1, steps + 1):
        yield step, torch.randn(2, 8, generator=generator).to(dtype)


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int, after: Callable[[int], None] = lambda _: None) -> None:
    for step, batch in batches(steps):
        module(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step)


def flip(tensor: torch.Tensor) -> None:
    """Flip one bit of the first element: the highest of its mantissa. The rounding of a later step may undo a low one, and one of the
    exponent may make infinities of all ranks' gradients."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    with torch.no_grad():
        local.reshape(-1)[:1].view(torch.int32).bitwise_xor_(1 << 22)


def ends(boot: Boot, run: Callable[[], None]) -> str:
    """The text of the CorruptionError that ends the run on every rank alike."""
    try:
        run()
    except CorruptionError as error:
        found = str(error)
    else:
        raise AssertionError(f"nothing was found; equal at {boot.compared()}, unseen: {list(limitations._seen)}")
    texts = {text.decode() for text in Ranks.of_default_group().gather_any(found.encode())}
    assert texts == {found}
    said = [(event["found"], event["sound_step"]) for event in boot.said("corrupted")]
    assert said == [(found, None)], "each rank reports it once"
    assert not limitations._seen
    return found


def suspects(boot: Boot) -> list[int] | None:
    said = boot.said("corrupted")
    return said[0]["ranks"] if said else None


# --- stories: findings ------------------------------------------------------------------------------------------------


def parameter(folder: Path) -> None:
    """One of three replicas has another parameter."""
    boot = Boot(folder, Every(steps=2))
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(ddp.parameters())
    found = ends(
        boot, lambda: train(ddp, optimizer, 9, lambda step: flip(ddp.module[0].weight) if (step, RANK) == (4, 1) else None)
    )
    assert found == (
        "rank 1 and ranks 0, 2 must hold the same parameters but differ at step 6; ranks 0, 2 agree; all were equal at step 4"
    )
    assert boot.compared() == ([1, 2, 4] if RANK == 0 else [])
    assert suspects(boot) == [1]
    for _ in range(2):
        try:
            optimizer.step()
        except CorruptionError:
            continue
        raise AssertionError("a script that goes on is ended again")


def moment(folder: Path) -> None:
    """One has another moment, which no step has brought into the parameters yet."""
    boot = Boot(folder, Every(steps=1))
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.0)
    last = ddp.module[3].bias

    def after(step: int) -> None:
        if (step, RANK) == (3, 2):
            optimizer.state[last]["exp_avg_sq"][1] += 1

    found = ends(boot, lambda: train(ddp, optimizer, 9, after))
    assert found.startswith("rank 2 and ranks 0, 1 must hold the same optimizer state exp_avg_sq but differ at step 4;")
    assert suspects(boot) == [2]


def pair(folder: Path) -> None:
    """Of two replicas neither can be proven wrong."""
    boot = Boot(folder, Every(steps=3))
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    found = ends(
        boot, lambda: train(ddp, optimizer, 9, lambda step: flip(ddp.module[0].bias) if (step, RANK) == (4, 0) else None)
    )
    assert found == (
        "ranks 0, 1 must hold the same parameters but differ at step 6; the wrong one cannot be identified; "
        "all were equal at step 3"
    )
    assert suspects(boot) == [0, 1]


def hsdp(folder: Path) -> None:
    """Shards of a 2 x 2 mesh have one replica each."""
    boot = Boot(folder, Every(steps=2))
    module = model()
    fully_shard(module, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    optimizer = torch.optim.AdamW(module.parameters())
    weight = next(module.parameters())
    found = ends(boot, lambda: train(module, optimizer, 9, lambda step: flip(weight) if (step, RANK) == (5, 3) else None))
    assert found.startswith("ranks 1, 3 must hold the same parameters")
    assert found.endswith("all were equal at step 4")
    assert suspects(boot) == [1, 3]


def gan(folder: Path) -> None:
    """Two modules with an optimizer each: in the step of the one that goes wrong the other only generates."""
    boot = Boot(folder, Every(steps=2))
    critic, generator = DistributedDataParallel(model()), DistributedDataParallel(nn.Linear(8, 8))
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (critic, generator)]

    def played() -> None:
        for step, batch in batches(9):
            for own, optimizer in enumerate(optimizers):
                with nullcontext() if own else torch.no_grad():
                    made = generator(batch)
                critic(made).square().mean().backward()
                optimizer.step()
                for each in optimizers:
                    each.zero_grad()
            if (step, RANK) == (3, 1):
                flip(critic.module[0].weight)

    assert ends(boot, played).startswith("rank 1 and ranks 0, 2 must hold the same parameters but differ at step 4;")
    assert suspects(boot) == [1]


def found_despite(folder: Path, others: Callable[[DistributedDataParallel], Callable[[torch.Tensor], Any]]) -> None:
    """Apply `others` to the module on each batch without gradients, between the backward pass and the steps of two optimizers."""
    boot = Boot(folder, Every(steps=2))
    ddp = DistributedDataParallel(model())
    other = others(ddp)
    first, *rest = ddp.parameters()
    optimizers = torch.optim.AdamW([first]), torch.optim.SGD(rest, lr=0.1, momentum=0.9)

    def trained() -> None:
        for step, batch in batches(9):
            with ddp.no_sync():
                ddp(batch).square().mean().backward()
            ddp(batch).square().mean().backward()
            with torch.no_grad():
                other(batch)
            for optimizer in optimizers:
                optimizer.step()
            ddp.zero_grad()
            if (step, RANK) == (3, 1):
                flip(ddp.module[0].weight)

    assert ends(boot, trained).startswith("rank 1 and ranks 0, 2 must hold the same parameters but differ at step 4;")


def evaluated(folder: Path) -> None:
    """The module itself is evaluated before each step."""
    found_despite(folder, lambda ddp: ddp)


def teacher(folder: Path) -> None:
    """Another module that is never stepped."""
    found_despite(folder, lambda _: DistributedDataParallel(model()))


def averaged(folder: Path) -> None:
    """A copy of the module, with averages of its parameters."""

    def others(ddp: DistributedDataParallel) -> Callable[[torch.Tensor], Any]:
        average = DistributedDataParallel(copy.deepcopy(ddp.module))

        def follow(batch: torch.Tensor) -> None:
            for kept, parameter in zip(average.parameters(), ddp.parameters(), strict=True):
                kept.lerp_(parameter, 0.1)
            average(batch)
            copy.deepcopy(average)(batch)

        return follow

    found_despite(folder, others)


def one_optimizer(folder: Path) -> None:
    """One optimizer of two modules, the second of which goes wrong and only occasionally generates."""
    boot = Boot(folder, Every(steps=1))
    first, second = DistributedDataParallel(model()), DistributedDataParallel(nn.Linear(4, 8))
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])

    def trained() -> None:
        for step, batch in batches(9):
            first(second(first(batch))).square().mean().backward()
            with torch.no_grad():
                second(batch[:, :4])
            optimizer.step()
            optimizer.zero_grad()
            if (step, RANK) == (3, 1):
                flip(second.module.weight)

    assert ends(boot, trained).startswith("rank 1 and ranks 0, 2 must hold the same parameters but differ at step 4;")


def saves(folder: Path) -> None:
    """Saves after the newest equal comparison are refused, and so are those on the way out."""
    boot = Boot(folder, Every(steps=4))
    save = files.saving(torch.save, 1, "f")
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(ddp.parameters())

    def after(step: int) -> None:
        save(ddp.module.state_dict(), folder / f"of-{RANK}" / f"step-{step}.pt")
        if (step, RANK) == (6, 1):
            flip(ddp.module[0].weight)

    (folder / f"of-{RANK}").mkdir()
    ends(boot, lambda: train(ddp, optimizer, 9, after))
    kept = [f"step-{step}.pt" for step in range(1, 5)]
    assert names(folder / f"of-{RANK}") == kept, "step 4 was compared before it was saved"
    save(ddp.module.state_dict(), folder / f"of-{RANK}" / "last-words.pt")
    atexit._run_exitfuncs()
    assert names(folder / f"of-{RANK}") == kept
    refused = {Path(note["path"]).stem: note["why"] for note in boot.said("note") if note["kind"] == "refused file"}
    why = "replicas were no longer equal at step 8, last at step 4 before it was saved"
    assert refused == dict.fromkeys(("step-7", "step-6", "step-5", "last-words"), why)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


# --- stories: permitted differences -----------------------------------------------------------------------------------


def sound(folder: Path) -> None:
    """Dropout, bf16, gradients of two batches, steps skipped as by a GradScaler, two optimizers, and evaluation between steps."""
    boot = Boot(folder, Every(steps=2))
    ddp = DistributedDataParallel(model(0.5, torch.bfloat16))
    torch.manual_seed(RANK)
    first, *others = ddp.parameters()
    optimizers = torch.optim.AdamW([first]), torch.optim.SGD(others, lr=0.1, momentum=0.9)
    for step, batch in batches(9, torch.bfloat16):
        with ddp.no_sync():
            ddp(batch).square().mean().backward()
        ddp(batch).square().mean().backward()
        for optimizer in optimizers if step % 3 else ():
            optimizer.step()
        ddp.zero_grad()
        with torch.no_grad():
            ddp(batch)
    assert boot.compared() == ([1, 2, 4, 6] if RANK == 0 else [])
    assert not limitations._seen


def sharded_optimizer(folder: Path) -> None:
    """ZeroRedundancyOptimizer: in the step of its inner optimizer ranks have different parameters."""
    boot = Boot(folder, Every(steps=1))
    ddp = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.1)
    train(ddp, optimizer, 3)
    assert boot.compared() == ([1, 2, 3] if RANK == 0 else [])
    assert not limitations._seen


def alone(folder: Path) -> None:
    """Steps under no_sync differ by rank, so at the next common step the ranks are no longer replicas."""
    boot = Boot(folder, Every(steps=1))
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step, batch in batches(4):
        with ddp.no_sync() if step == 3 else nullcontext():
            ddp(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert boot.compared() == ([1, 2] if RANK == 0 else [])
    assert list(limitations._seen) == [f"compare: {WORLD} ranks keep separate parameters: not compared"]


def other_alone(folder: Path) -> None:
    """Of two modules the one whose optimizer is not counted steps alone: that is detected too, and raises no alarm."""
    boot = Boot(folder, Every(steps=1))
    both = DistributedDataParallel(model()), DistributedDataParallel(model())
    optimizers = [torch.optim.SGD(ddp.parameters(), lr=0.1) for ddp in both]
    for step, batch in batches(4):
        for ddp, optimizer in zip(both, optimizers, strict=True):
            with ddp.no_sync() if ddp is both[1] and step == 3 else nullcontext():
                ddp(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            both[1](batch)
    assert boot.compared() == ([1, 2, 3] if RANK == 0 else [])
    assert list(limitations._seen) == [f"compare: {WORLD} ranks keep separate parameters: not compared"]


def hooked(folder: Path) -> None:
    """A communication hook leaves each rank its own gradients, so that its steps differ."""
    boot = Boot(folder, Every(steps=1))
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0)
    train(ddp, optimizer, 2)
    other = DistributedDataParallel(ddp.module)
    other.register_comm_hook(None, noop_hook)
    optimizer.param_groups[0]["lr"] = 0.1
    train(other, optimizer, 2)
    assert boot.compared() == ([1, 2] if RANK == 0 else [])
    assert list(limitations._seen) == [f"compare: {WORLD} ranks keep separate parameters: not compared"]


def never(folder: Path) -> None:
    """State that no two ranks ever shared is not a replica."""
    boot = Boot(folder, Every(steps=1))
    ddp = DistributedDataParallel(model())
    with torch.no_grad():
        next(ddp.parameters()).add_(RANK)
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), 3)
    assert not boot.compared()
    assert list(limitations._seen) == [f"compare: {WORLD} ranks keep separate parameters: not compared"]


def nothing(folder: Path) -> None:
    """Shards without a replica, and a model that is not wrapped."""
    boot = Boot(folder, Every(steps=1))
    module = model()
    fully_shard(module[0], mesh=init_device_mesh("cpu", (WORLD,)))
    train(module, torch.optim.AdamW(module.parameters()), 3)
    assert not boot.compared()
    assert list(limitations._seen) == ["compare: no two ranks hold the same parameters, so nothing is compared"]


def frozen(folder: Path) -> None:
    """Parameters that a module ignores, or that were frozen when it was wrapped, differ by rank."""
    boot = Boot(folder, Every(steps=1))
    module = model()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.weight"])  # type: ignore[no-untyped-call]
    module[0].bias.requires_grad_(False)
    ddp = DistributedDataParallel(module)
    module[0].bias.requires_grad_(True)
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), 3)
    assert boot.compared() == ([1, 2, 3] if RANK == 0 else [])


def seconds(folder: Path) -> None:
    """The first rank's clock decides for all: 1 s a step, and a comparison each 4 s."""
    now_s = [0.0]
    boot = Boot(folder, Every(seconds=4.0))
    boot.comparison._schedule = compare.ComparisonSchedule(Every(seconds=4.0), lambda: now_s[0])
    ddp = DistributedDataParallel(model())

    def after(_: int) -> None:
        now_s[0] += 1.0 if RANK == 0 else 70.0

    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), 17, after)
    assert boot.compared() == ([1, 2, 4, 8, 12, 16] if RANK == 0 else [])


def made_again(folder: Path) -> None:
    """The process group is destroyed and recreated, in another order of ranks."""
    boot = Boot(folder, Every(steps=1))
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(ddp, optimizer, 2)
    dist.destroy_process_group()
    optimizer.step()
    store = f"file://{os.environ['STORE']}/again"
    dist.init_process_group("gloo", init_method=store, rank=WORLD - 1 - RANK, world_size=WORLD)
    other = DistributedDataParallel(ddp.module)
    train(other, optimizer, 2)
    assert [event["step"] for event in boot.said("compared")] == {0: [1, 2], WORLD - 1: [4, 5]}.get(RANK, [])
    if RANK == 0:
        flip(ddp.module[0].weight)
    found = ends_by(lambda: train(other, optimizer, 2))
    assert found.startswith("rank 0 and ranks 1, 2 must hold the same parameters but differ at step 6")


def ends_by(run: Callable[[], None]) -> str:
    try:
        run()
    except CorruptionError as error:
        return str(error)
    raise AssertionError("nothing was found")


def waits_in_vain(folder: Path) -> None:
    """A rank that makes no steps is awaited once, and only for a bounded time."""
    boot = Boot(folder, Every(steps=1), collective_s=1.0)
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _, batch in batches(4):
        ddp(batch).square().mean().backward()
        if RANK == 0:
            optimizer.step()
    dist.barrier()
    assert not boot.compared()
    (given_up,) = limitations._seen or [""]
    assert given_up.startswith("compare: replicas are not compared after step 1: the ranks did not meet" if RANK == 0 else "")


def fails(folder: Path) -> None:
    """A rank whose check fails notifies the others, and the script continues."""
    boot = Boot(folder, Every(steps=1))
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(ddp, optimizer, 1)
    usual = replicas._held
    if RANK == 1:
        replicas._held = fail  # type: ignore[assignment]
    train(ddp, optimizer, 3)
    replicas._held = usual
    assert boot.compared() == ([1] if RANK == 0 else [])
    assert "compare: replicas are not compared after step 2: rank 1 could not compute checksums" in limitations._seen


def fail(*_: Any) -> Any:
    raise MemoryError("no room for a copy")


def in_backward(folder: Path) -> None:
    """Optimizers that step within the backward pass do so in a different order on each rank."""
    boot = Boot(folder, Every(steps=1))
    ddp = DistributedDataParallel(model())
    for each in ddp.parameters():
        optimizer = torch.optim.SGD([each], lr=0.1)
        each.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())  # type: ignore[no-untyped-call]
    for _, batch in batches(2):
        ddp(batch).square().mean().backward()
    assert not boot.compared()
    why = "an optimizer steps inside the backward pass or in a CUDA graph"
    assert list(limitations._seen) == [f"compare: replicas are not compared after step 1: {why}"]


def main(folder: Path, *stories: str) -> None:
    join(WORLD, "comparing")
    for story in stories:
        (folder / story).mkdir(exist_ok=True)
        globals()[story](folder / story)
        _boots.pop().close()
        print(f"{story}: done", flush=True)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
