"""Runs an unmodified script as a worker: `python START headway.runner.boot [-m] SCRIPT ARGS...` (runner/start.py).

Before the script's first line it sets the hooks and verifies the last saves; the script finds torchrun's environment,
its own argv and itself as `__main__`. It ends as Python ends it: its exceptions propagate to the interpreter.
"""

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import importlib.machinery
import os
import pkgutil
import runpy
import signal
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headway.runner.boot import heartbeat
from headway.runner.boot.after_import import after_import
from headway.runner.boot.hooks import prepare
from headway.runner.boot.limitations import report_limitations, suppress_errors
from headway.runner.boot.seen import record_changes
from headway.runner.boot.shares import verify_first
from headway.runner.contract import RunConfig, from_json
from headway.runner.imports import MODULES, recorded, uncollected, under
from headway.runner.worker import Worker

# Exit code of `python` for a script that cannot be opened (Modules/main.c).
CANNOT_OPEN = 2
_shown: list[TracebackType | None] = []


def run_script(words: Sequence[str]) -> None:
    """Run `SCRIPT ARGS...` or `-m MODULE ARGS...` like `python` itself (Modules/main.c). The script's exceptions propagate."""
    main_module = types.ModuleType("__main__")
    names = main_module.__dict__
    names["__loader__"] = importlib.machinery.BuiltinImporter
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    names["__builtins__"] = builtins
    sys.modules["__main__"] = main_module
    sys.argv = list(words[1:] if words[0] == "-m" else words)
    if words[0] == "-m":
        sys.argv[0] = "-m"
        if not getattr(sys.flags, "safe_path", False):
            with contextlib.suppress(FileNotFoundError):
                sys.path.insert(0, os.getcwd())  # noqa: PTH109  a string, as in python
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # what python calls
    elif pkgutil.get_importer(words[0]) is not None:
        # A directory or an archive with a __main__.py.
        sys.path.insert(0, os.path.abspath(words[0]))  # noqa: PTH100  links stay links
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
    else:
        _run_file(words[0], names)


def _run_file(given: str, names: dict[str, Any]) -> None:
    name = _absolute(given)
    compiled = name.endswith(".pyc")
    loaders = importlib.machinery.SourcelessFileLoader, importlib.machinery.SourceFileLoader
    loader = loaders[0 if compiled else 1]("__main__", name)
    try:
        source = Path(name).read_bytes()
    except OSError as error:
        print(f"{sys.executable}: can't open file {name!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        raise SystemExit(CANNOT_OPEN) from None
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(Path(given).resolve().parent))
    names |= {"__file__": name, "__cached__": None, "__loader__": loader}
    code = loader.get_code("__main__") if compiled else None
    exec(code or compile(source, name, "exec", dont_inherit=True), names)
    forget_file()


def _absolute(given: str) -> str:
    """Return the path as Python makes it absolute (Python/fileutils.c, _Py_abspath): joined to the working directory,
    links and `..` unchanged."""
    try:
        return given if given.startswith("/") else f"{os.getcwd()}/{given}"  # noqa: PTH109  a string
    except OSError:
        return given


def forget_file() -> None:
    """Remove the script's `__file__`, which does not exist when its exit hooks run (Python/pythonrun.c)."""
    main_module = sys.modules.get("__main__")
    if isinstance(getattr(main_module, "__file__", None), str) and main_module.__spec__ is None:  # type: ignore[union-attr]
        for name in ("__file__", "__cached__"):
            vars(main_module).pop(name, None)


def own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the script's own frames on; None if there are none, as for a script that cannot be compiled."""
    ours = run_script.__code__, _run_file.__code__
    below, shown = trace, trace
    while below is not None:
        if below.tb_frame.f_code in ours:
            shown = below.tb_next
        below = below.tb_next
    return shown


def show_own_frames() -> None:
    """Limit the traceback of the exception that ends the script to the script's frames, for Python's hook and the script's."""
    hook: Callable[..., object] | None = getattr(sys, "excepthook", None)
    if hook is None:
        return

    @functools.wraps(hook)
    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        # The caller may still read it.
        _shown.append(trace)
        sys.last_traceback = error.__traceback__ = own_frames(trace)
        try:
            hook(kind, error, error.__traceback__)
        finally:
            forget_file()

    sys.excepthook = show


def code_of(error: BaseException | None) -> int:
    """Return the exit code of a process that `error` ends; a signal's number is negative."""
    if isinstance(error, SystemExit):
        return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else int(error is not None)


class Ending:
    """Reports that the script has ended.

    Only Python's own shutdown is left, in which a process group's destructor may wait forever (pytorch/pytorch#56297);
    then the supervisor ends the process, with the exit code reported here.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.code: int | None = None

    def __call__(self) -> None:
        if self.code is not None and not self._worker.forked():
            suppress_errors(self._worker.say, "leaving", code=self.code)
            suppress_errors(keep_groups_of_ddp)


def keep_groups_of_ddp() -> None:
    """Keep the groups of `signs.keep_group_of` until the process ends: the interpreter's shutdown drops modules in no order."""
    import ctypes  # noqa: PLC0415  rarely needed

    for _, group in heartbeat.ddp_groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def watch_torch(worker: Worker, counter: heartbeat.StepCounter, _: types.ModuleType) -> None:
    """Count steps once torch is imported, and compare replicas after them if the run asks for that."""
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415  it has just been imported

    register_optimizer_step_post_hook(counter)
    suppress_errors(compare_replicas, worker, counter)


def compare_replicas(worker: Worker, counter: heartbeat.StepCounter) -> None:
    """Compare replicas after the counted steps, if the run asks for that."""
    config = from_json(RunConfig, Path(worker.run_json).read_text())
    if config.corruption is not None and config.corruption.compare is not None:
        from headway.runner.boot.compare import prepare as prepare_comparison  # noqa: PLC0415  imports torch

        counter.then = prepare_comparison(worker, config.corruption.compare, config.timeout_s("collective"))


def verify_saved(worker: Worker) -> None:
    """Verify what the run has saved. This imports torch, under the variables that the script set in its previous start."""
    # Nothing is saved yet.
    if (worker.generation, worker.attempt) == (1, 0):
        return
    modules = os.environ.get(MODULES)
    changes = {} if modules is None else recorded(Path(modules), worker.local_rank).get("torch", {})
    with under(changes), uncollected():
        importlib.import_module("torch.distributed")
    config = from_json(RunConfig, Path(worker.run_json).read_text())
    verify_first(worker, None, config.timeout_s("verify"))


def main() -> None:
    worker = Worker.from_environment()
    worker.section("start")
    ending = Ending(worker)
    # Registered first, so it is called last.
    atexit.register(ending)
    words = sys.argv[1:]
    module = sys.orig_argv.index("headway.runner.boot")
    del sys.orig_argv[module - 1 : module + 1]
    prepare()
    counter = heartbeat.StepCounter(heartbeat.report_heartbeats(worker, "script"))
    after_import("torch", functools.partial(watch_torch, worker, counter))
    verify_saved(worker)
    worker.section("script")
    if worker.rank == 0:
        worker.say("section", name="script")
    record_changes(worker.local_rank)
    # A full collection during a step or save need not scan torch's 200,000 objects each time. One of them took 160 ms
    # during a dcp.save, on two busy cores. Only the objects imported so far are frozen; the script's are collected as
    # usual.
    gc.freeze()
    left: BaseException | None = None
    try:
        run_script(words)
    except BaseException as error:
        left = error
        if not isinstance(error, SystemExit) or isinstance(error.code, str):
            worker.raised(error)
        show_own_frames()
        raise
    finally:
        gc.unfreeze()
        ending.code = code_of(left)
        left = None
        if not worker.forked():
            report_limitations()
