"""Runs a small data-parallel training in which rank 1 fails in a given way at one step: `job.py WHAT STEP SECONDS MARKS`.

It is an ordinary script: it contains no reference to headway. It appends each event with its time to the file MARKS.
"""

import ctypes
import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HIDDEN, BATCH = 384, 256


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(batch) - batch).square().mean()
    return loss


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


# --- what may take long -----------------------------------------------------------------------------------------------


def recompiles(seconds: float) -> None:
    """New shapes, each of which is compiled."""
    until = time.monotonic() + seconds
    for width in itertools.takewhile(lambda _: time.monotonic() < until, itertools.count(3)):
        compiled = torch.compile(lambda x: torch.relu(x @ x.T).sum(), dynamic=False)
        torch._dynamo.reset()
        compiled(torch.ones(width, width))


def collects_garbage(seconds: float) -> None:
    """One collection after another of a heap of lists that refer to each other."""
    until = time.monotonic() + seconds
    heap: list[list[object]] = [[] for _ in range(2_000_000)]
    for one, other in itertools.pairwise(heap):
        one.append(other)
    while time.monotonic() < until:
        gc.collect()


def evaluates(seconds: float) -> None:
    """Forward passes that no hook sees."""
    model, batch = nn.Linear(HIDDEN, HIDDEN), torch.ones(BATCH, HIDDEN)
    until = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until:
            loss_of(model, batch)


def reads_slowly(seconds: float) -> None:
    """A file whose storage does not answer: the writer at the other end of a pipe writes only after so long."""
    reading, writing = os.pipe()
    threading.Timer(seconds, os.write, (writing, b"x")).start()
    os.read(reading, 1)


def saves_slowly(seconds: float) -> None:
    """torch.save into a pipe that is not drained for so long."""
    reading, writing = os.pipe()
    threading.Timer(seconds, _drain, (reading,)).start()
    with os.fdopen(writing, "wb") as file:
        torch.save(torch.zeros(1_000_000), file)


def _drain(reading: int) -> None:
    with os.fdopen(reading, "rb") as file:
        file.read()


def sleeps(seconds: float) -> None:
    """Wait before a retry, as clients of busy servers do."""
    time.sleep(seconds)


def communicates_first(seconds: float) -> None:
    """A group that comes into being at its first use; rank 1 is late for it."""
    time.sleep(seconds)


# --- what never ends --------------------------------------------------------------------------------------------------


def is_stopped(_: float) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def holds_the_interpreter(_: float) -> None:
    """Native code that locks a lock twice, with the GIL held."""
    library = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def deadlocks(_: float) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def loops(_: float) -> None:
    while True:
        pass


def skips(_: float) -> None:
    """Skip the averaging of gradients with the others: see `train`."""


SLOW: dict[str, Callable[[float], None]] = {
    each.__name__: each
    for each in (recompiles, collects_garbage, evaluates, reads_slowly, saves_slowly, sleeps, communicates_first)
}
HANGS: dict[str, Callable[[float], None]] = {
    each.__name__: each for each in (is_stopped, holds_the_interpreter, deadlocks, loops, skips)
}


def train(what: str, at: int, seconds: float, marks: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(TensorDataset(torch.randn(BATCH * 10_000, 1).expand(-1, HIDDEN)), batch_size=BATCH)
    took_s, began_s = list[float](), time.monotonic()
    for step, (batch,) in enumerate(loader, 1):
        torch.autograd.backward(loss_of(model, batch))
        if step == at and rank == 1:
            _mark(marks, took_s)
            {**SLOW, **HANGS}[what](seconds)
        if step == at and what == "communicates_first":
            dist.all_reduce(torch.ones(1), group=dist.new_group())
        if step == at and what == "skips" and rank == 1:
            dist.broadcast(torch.ones(7), src=1)
        average(model)
        optimizer.step()
        optimizer.zero_grad()
        took_s.append(time.monotonic() - began_s)
        began_s = time.monotonic()
        if step == at + 20:
            break
    dist.destroy_process_group()


def _mark(marks: Path, took_s: list[float]) -> None:
    """`steps_s` is how long the steps took, but for the first, which sets everything up."""
    whole = marks.with_suffix(".tmp")
    whole.write_text(json.dumps({"at_s": time.monotonic(), "steps_s": [round(each, 3) for each in took_s[1:]]}))
    whole.replace(marks)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
