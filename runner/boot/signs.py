"""Sends heartbeats for an unmodified training loop: its steps, and sections guessed from the calls that every loop makes.

Only the thread that steps the optimizer counts (the main thread, until one does): what goes on beside it says nothing about it.
Of calls within calls the outermost names the section, so that a save stays a save while its ranks meet.
"""

import contextlib
import functools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headway.runner.boot.flight import answer_requests
from headway.runner.boot.unseen import carefully, unseen
from headway.runner.rundir import RunDirectory
from headway.runner.worker import Worker


class Signs:
    """What the thread that counts does now: the guessed section on top of the one that the loop is in otherwise."""

    def __init__(self, worker: Worker, section: str) -> None:
        self.worker, self._base = worker, section
        self._thread, self._depth, self._waits = threading.get_ident(), 0, 0
        self._waits_since_ns = 0
        self.trying = 0  # steps that are none

    def counts(self) -> bool:
        """Whether the thread that calls is the one that counts."""
        return threading.get_ident() == self._thread

    def base(self, section: str) -> None:
        """The loop is in `section` from here on, whenever nothing else is guessed."""
        if self.counts() and section != self._base:
            self._base = section
            if self._depth == 0:
                self.worker.section(section)

    def stepped(self, step: int) -> None:
        """The calling thread has completed `step`."""
        self._thread = threading.get_ident()
        self.worker.completed(step)
        self.base("compute")

    def begin(self, section: str) -> bool:
        """Enters a call; False where the thread does not count, and then `end` must not be called."""
        if threading.get_ident() != self._thread:
            return False
        self._depth += 1
        if self._depth == 1:
            self.worker.section(section)
        else:
            self.worker.pulse()
        return True

    def end(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.worker.section(self._base)
        else:
            self.worker.pulse()

    def pulse(self) -> None:
        if self.counts():
            self.worker.pulse()

    def wait_begins(self) -> None:
        """The thread that counts begins to wait for other ranks."""
        self._waits += 1
        if self._waits == 1:
            self._waits_since_ns = time.monotonic_ns()

    def wait_ends(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self.worker.waited(time.monotonic_ns() - self._waits_since_ns)


_current: list[Signs] = []


def current() -> Signs | None:
    """The signs of this process; None where it is no worker, or a child of one."""
    return _current[0] if _current else None


def show_signs(worker: Worker, section: str) -> Signs:
    """From here on what the hooks see goes to the worker's page. `section` is what the loop does where nothing is guessed."""
    _current[:] = [Signs(worker, section)]
    os.register_at_fork(after_in_child=_current.clear)  # a loader's process is not the rank
    return _current[0]


@contextlib.contextmanager
def in_section(section: str) -> Iterator[None]:
    """What a hook runs below this is `section`."""
    signs = current()
    if signs is None or not signs.begin(section):
        yield
        return
    try:
        yield
    finally:
        signs.end()


def within(section: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, seen as `section`."""

    @functools.wraps(original)
    def seen(*args: Any, **kwargs: Any) -> Any:
        signs = current()
        if signs is None or not signs.begin(section):
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            signs.end()

    return seen


# --- the calls --------------------------------------------------------------------------------------------------------


class StepCounter:
    """Counts the steps of the first optimizer that steps: one that steps beside it (a GAN's other half) is not a step of its own.

    An optimizer that was restored may know how many steps it has made (Adam's `step`); then the count goes on from there.
    """

    def __init__(self, signs: Signs) -> None:
        self._signs, self._first, self._steps = signs, 0, 0
        self.then: Callable[[Any, bool], None] | None = None  # after each optimizer's step, and whether that counts

    def __call__(self, optimizer: Any, *_: Any) -> None:
        if self._signs.trying:
            return
        if not self._first:
            self._first = id(optimizer)
            self._steps = (carefully(steps_made, optimizer) or 1) - 1
            carefully(write_modules, self._signs.worker)
        if id(optimizer) == self._first:
            self._steps += 1
            self._signs.stepped(self._steps)
        if self.then is not None:
            self.then(optimizer, id(optimizer) == self._first)


def steps_made(optimizer: Any) -> int | None:
    """What the state of the optimizer's first parameter says; None where its kind does not count."""
    state: Any = next(iter(optimizer.state.values()), {})
    made = state.get("step") if isinstance(state, dict) else None
    return None if made is None else int(made)


def see_loader(module: Any) -> None:
    """torch.utils.data.dataloader: a batch is being fetched."""
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = within("data", iterator.__next__)


def see_backward(module: Any) -> None:
    """torch.autograd: signs of life at both ends of a backward pass; Tensor.backward calls the same function.

    Under DistributedDataParallel it waits for others in C++, so there the whole pass counts as a wait: see `see_ddp`.
    """
    original = module.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        signs = current()
        if signs is None or not signs.counts():
            return original(*args, **kwargs)
        signs.worker.pulse()
        if not _hidden_waits:
            try:
                return original(*args, **kwargs)
            finally:
                signs.worker.pulse()
        signs.wait_begins()
        try:
            return original(*args, **kwargs)
        finally:
            signs.wait_ends()

    module.backward = backward


_hidden_waits: list[str] = []
# The process groups of DDP modules, each with its module.
ddp_groups: list[tuple["weakref.ref[Any]", Any]] = []


def keep_group_of(module: Any) -> None:
    """Holds the group of a DDP module for longer than the module lives. Otherwise the module's reducer is the last holder: it destroys the
    group while it holds the GIL, and joins gloo's threads, which need the GIL to drop a tensor. Plain torchrun deadlocks there, too (torch
    2.13). A group that Python releases, as here, is destroyed without the GIL."""
    ddp_groups[:] = [(each, group) for each, group in ddp_groups if each() is not None]
    ddp_groups.append((weakref.ref(module), getattr(module, "process_group", None)))


def see_ddp(module: Any) -> None:
    """torch.nn.parallel.distributed: from the first such module on, backward passes wait in C++."""
    original = module.DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        keep_group_of(self)
        if not _hidden_waits:
            _hidden_waits.append("DistributedDataParallel")
            unseen("DistributedDataParallel synchronizes inside the backward pass: a rank's own time excludes backward passes")

    module.DistributedDataParallel.__init__ = init


def see_distributed(module: Any) -> None:
    """torch.distributed.distributed_c10d: process groups and collectives."""
    see_groups(module)
    see_collectives(module)


def see_groups(module: Any) -> None:
    """From the first default process group on, its flight recorder can be asked for a dump.

    Not sooner: the thread that answers is one that a script without process groups would not have under torchrun.
    """
    original, answering = module.init_process_group, list[bool]()

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        signs = current()
        if signs is not None and not answering:
            answering.append(True)
            carefully(answer_requests, signs.worker.rank)
        return made

    module.init_process_group = init
    package = sys.modules.get("torch.distributed")
    if getattr(package, "init_process_group", None) is original:  # it was imported before the hooks
        package.init_process_group = init  # type: ignore[union-attr]


def see_collectives(module: Any) -> None:
    """Whoever waits for a collective calls Work.wait, its synchronous functions too."""
    original = module.Work.wait

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        signs = current()
        if signs is None or not signs.begin("collective"):
            return original(self, *args, **kwargs)
        signs.wait_begins()
        try:
            return original(self, *args, **kwargs)
        finally:
            signs.wait_ends()
            signs.end()

    module.Work.wait = wait


def see_compile(module: Any) -> None:
    """torch._dynamo.callback: a compilation begins and ends."""
    begun: list[bool] = []

    def begin(_: Any) -> None:
        signs = current()
        begun.append(signs is not None and signs.begin("compile"))

    def end(_: Any) -> None:
        signs = current()
        if begun and begun.pop() and signs is not None:
            signs.end()

    module.callback_handler.register_start_callback(begin)
    module.callback_handler.register_end_callback(end)


def see_dynamo(module: Any) -> None:
    """torch._dynamo: of a compiled step or backward pass the hooks are not traced, which fails at paths and clocks."""
    from torch import autograd  # noqa: PLC0415  it is there by then

    StepCounter.__call__ = module.disable(StepCounter.__call__)  # type: ignore[method-assign]
    autograd.backward = module.disable(autograd.backward)


def see_evaluation(module: Any) -> None:
    """torch.nn.modules.module: after `eval()` of a module the loop evaluates, until the next optimizer step.

    A guess, and only a longer patience follows from it. Before the first step it says nothing: a frozen teacher is set up so.
    """
    original = module.Module.eval

    @functools.wraps(original)
    def evaluate(self: Any) -> Any:
        if module.torch.compiler.is_compiling():  # a full graph may hold eval(), and no break
            return original(self)
        signs = current()
        if signs is not None and signs.worker.step:
            signs.base("evaluation")
        return original(self)

    module.Module.eval = evaluate


def write_modules(worker: Worker) -> None:
    """What this process has imported by its first step, for whoever warms up the next one."""
    if worker.local_rank != 0:
        return
    slot = os.environ.get("GROUP_RANK", "0")
    default = RunDirectory.of(Path(worker.run_json), worker.attempt).attempt_directory / f"modules-{slot}.json"
    path = Path(os.environ.get("HEADWAY_MODULES", default))
    names = [name for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None) is not None]
    temporary = path.with_name(f".tmp-{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(names))
    temporary.replace(path)
