"""Sends heartbeats for an unmodified training loop: its steps, and sections guessed from the calls that every loop makes.

Only the thread that steps the optimizer counts (the main thread, until one does): other threads prove nothing about it.
Of nested calls the outermost names the section, so that a save stays a save while its ranks communicate.
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
from headway.runner.boot.limitations import note_limitation, suppress_errors
from headway.runner.contract import RunDirectory
from headway.runner.worker import Worker


class HeartbeatReporter:
    """The current activity of the counted thread: the guessed section on top of the loop's default one."""

    def __init__(self, worker: Worker, section: str) -> None:
        self.worker, self._base = worker, section
        self._thread, self._depth, self._waits = threading.get_ident(), 0, 0
        self._waits_since_ns = 0
        # Steps that do not count.
        self.trying = 0

    def counts(self) -> bool:
        """Return whether the calling thread is the counted one."""
        return threading.get_ident() == self._thread

    def base(self, section: str) -> None:
        """Set the section that holds whenever nothing else is guessed."""
        if self.counts() and section != self._base:
            self._base = section
            if self._depth == 0:
                self.worker.section(section)

    def stepped(self, step: int) -> None:
        """Record that the calling thread has completed `step`."""
        self._thread = threading.get_ident()
        self.worker.completed(step)
        self.base("compute")

    def begin(self, section: str) -> bool:
        """Enter a call. Returns False if the thread does not count; then `end` must not be called."""
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
        """Record that the counted thread begins to wait for other ranks."""
        self._waits += 1
        if self._waits == 1:
            self._waits_since_ns = time.monotonic_ns()

    def wait_ends(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self.worker.waited(time.monotonic_ns() - self._waits_since_ns)


_current: list[HeartbeatReporter] = []


def current() -> HeartbeatReporter | None:
    """Return the heartbeats of this process; None if it is not a worker, or a child of one."""
    return _current[0] if _current else None


def report_heartbeats(worker: Worker, section: str) -> HeartbeatReporter:
    """Write what the hooks see to the worker's page from here on. `section` is the loop's section where nothing is guessed."""
    _current[:] = [HeartbeatReporter(worker, section)]
    # A data loader's process is not the rank.
    os.register_at_fork(after_in_child=_current.clear)
    return _current[0]


@contextlib.contextmanager
def in_section(section: str) -> Iterator[None]:
    """Mark the hook's calls inside as `section`."""
    signs = current()
    if signs is None or not signs.begin(section):
        yield
        return
    try:
        yield
    finally:
        signs.end()


def within(section: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `original`, marked as `section`."""

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
    """Counts the steps of the first optimizer that steps: another one (the other half of a GAN) does not add steps.

    A restored optimizer may contain its number of steps (Adam's `step`); the count continues from there.
    """

    def __init__(self, signs: HeartbeatReporter) -> None:
        self._signs, self._first, self._steps = signs, 0, 0
        # Called after each optimizer's step, with whether that step counts.
        self.then: Callable[[Any, bool], None] | None = None

    def __call__(self, optimizer: Any, *_: Any) -> None:
        if self._signs.trying:
            return
        if not self._first:
            self._first = id(optimizer)
            self._steps = (suppress_errors(steps_made, optimizer) or 1) - 1
            suppress_errors(write_modules, self._signs.worker)
        if id(optimizer) == self._first:
            self._steps += 1
            self._signs.stepped(self._steps)
        if self.then is not None:
            self.then(optimizer, id(optimizer) == self._first)


def steps_made(optimizer: Any) -> int | None:
    """Return the step count in the state of the optimizer's first parameter; None if this type does not count, or if it cannot be read
    now."""
    state: Any = next(iter(optimizer.state.values()), {})
    made = state.get("step") if isinstance(state, dict) else None
    torch: Any = sys.modules.get("torch")
    if made is None or torch is None or not isinstance(made, torch.Tensor):
        return None if made is None else int(made)
    # No mode of the script (a counter of operations, say) sees that the number is read.
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        # To read one on a GPU would end the capture of a CUDA graph.
        return None if made.is_cuda and torch.cuda.is_current_stream_capturing() else int(made)


def see_loader(module: Any) -> None:
    """Hook torch.utils.data.dataloader: a batch is being fetched."""
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = within("data", iterator.__next__)


def see_backward(module: Any) -> None:
    """Hook torch.autograd: heartbeats at both ends of a backward pass; Tensor.backward calls the same function.

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
    """Hold the group of a DDP module for longer than the module lives.

    Otherwise the module's reducer is the last holder: it destroys the group while it holds the GIL, and joins gloo's
    threads, which need the GIL to drop a tensor. Plain torchrun deadlocks there, too (torch 2.13). A group that Python
    releases, as here, is destroyed without the GIL.
    """
    ddp_groups[:] = [(each, group) for each, group in ddp_groups if each() is not None]
    ddp_groups.append((weakref.ref(module), getattr(module, "process_group", None)))


def see_ddp(module: Any) -> None:
    """Hook torch.nn.parallel.distributed: from the first such module on, backward passes wait in C++."""
    original = module.DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        keep_group_of(self)
        if not _hidden_waits:
            _hidden_waits.append("DistributedDataParallel")
            note_limitation(
                "DistributedDataParallel synchronizes inside the backward pass: a rank's own time excludes backward passes"
            )

    module.DistributedDataParallel.__init__ = init


def see_distributed(module: Any) -> None:
    """Hook torch.distributed.distributed_c10d: process groups and collectives."""
    see_groups(module)
    see_collectives(module)


def see_groups(module: Any) -> None:
    """Make the flight recorder available for dumps from the first default process group on.

    Not sooner: a script without process groups would not have the answering thread under torchrun.
    """
    original, answering = module.init_process_group, list[bool]()

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        signs = current()
        if signs is not None and not answering:
            answering.append(True)
            suppress_errors(answer_requests, signs.worker.rank)
        return made

    module.init_process_group = init
    package = sys.modules.get("torch.distributed")
    # It was imported before the hooks.
    if getattr(package, "init_process_group", None) is original:
        package.init_process_group = init  # type: ignore[union-attr]


def see_collectives(module: Any) -> None:
    """Hook Work.wait, which every wait for a collective calls, also in synchronous functions."""
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
    """Hook torch._dynamo.callback: a compilation begins and ends."""
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
    """Hook torch._dynamo: the hooks are excluded from tracing a compiled step or backward pass, which would fail at
    paths and clocks."""
    from torch import autograd  # noqa: PLC0415  it is imported by then

    StepCounter.__call__ = module.disable(StepCounter.__call__)  # type: ignore[method-assign]
    autograd.backward = module.disable(autograd.backward)


def see_evaluation(module: Any) -> None:
    """Hook torch.nn.modules.module: after `eval()` of a module the loop evaluates, until the next optimizer step.

    This is a guess, and only gives more patience. Before the first step it means nothing: a frozen teacher is set up
    so.
    """
    original = module.Module.eval

    @functools.wraps(original)
    def evaluate(self: Any) -> Any:
        # A full graph may hold eval(), and no break.
        if module.torch.compiler.is_compiling():
            return original(self)
        signs = current()
        if signs is not None and signs.worker.step:
            signs.base("evaluation")
        return original(self)

    module.Module.eval = evaluate


def write_modules(worker: Worker) -> None:
    """Record what this process has imported by its first step, for the next generation's standbys."""
    if worker.local_rank != 0:
        return
    slot = os.environ.get("GROUP_RANK", "0")
    default = RunDirectory.of(Path(worker.run_json), worker.attempt).attempt_directory / f"modules-{slot}.json"
    path = Path(os.environ.get("HEADWAY_MODULES", default))
    names = [name for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None) is not None]
    temporary = path.with_name(f".tmp-{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(names))
    temporary.replace(path)
