"""Runs somebody's script, unchanged, as a worker: `python -m headway.runner.boot [-m] SCRIPT ARGS...`.

Before the script's first line it hosts the generation's rendezvous store on rank 0, sets the hooks, and verifies what was saved last;
the script finds torchrun's environment, its own argv and itself as `__main__`.
"""

import atexit
import functools
import gc
import os
import runpy
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from headway.runner.boot import signs
from headway.runner.boot.hooks import prepare
from headway.runner.boot.shares import verify_first
from headway.runner.boot.unseen import carefully, say_unseen, watch_for_steps
from headway.runner.contract import RunConfig, from_json
from headway.runner.imports import uncollected
from headway.runner.worker import Worker, host_store, leave_store

_PASSED_OVER = (__file__, runpy.__file__, "<frozen runpy>")


def run_script(argv: Sequence[str]) -> None:
    """Runs `SCRIPT ARGS...` or `-m MODULE ARGS...` the way `python` itself would."""
    if argv[0] == "-m":
        sys.argv = list(argv[1:])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(argv)
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    name = os.path.abspath(argv[0])  # noqa: PTH100  as python has it, whose links stay links
    code = compile(Path(name).read_bytes(), name, "exec")
    # A module object of its own, so that what the script defines can be pickled and a spawned child finds it by __file__.
    main_module = types.ModuleType("__main__")
    main_module.__file__ = name
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)


def keep_process_groups() -> None:
    """Keeps destroyed process groups alive: gloo's destructor joins its threads with the GIL held, and they may need it to drop a
    tensor (pytorch/pytorch#56297), so that a script that has finished would hang for ever (seen here with torch 2.13 in 3 of 7 runs).
    """
    from torch import distributed  # noqa: PLC0415
    from torch.distributed import distributed_c10d  # noqa: PLC0415

    original, kept = distributed_c10d.destroy_process_group, list[Any]()

    @functools.wraps(original)
    def destroy(group: Any = None) -> None:
        kept.extend(distributed_c10d._world.pg_map)
        original(group)

    distributed.destroy_process_group = distributed_c10d.destroy_process_group = destroy


def compare_replicas(worker: Worker, counter: signs.StepCounter) -> None:
    """Has what replicas hold alike compared behind the steps that are counted, where the run asks for that."""
    config = from_json(RunConfig, Path(worker.run_json).read_text())
    if config.corruption is not None and config.corruption.compare is not None:
        from headway.runner.boot.compare import prepare as prepare_comparison  # noqa: PLC0415  imports torch

        counter.then = prepare_comparison(worker, config.corruption.compare, config.timeouts["collective"].floor_s)


def leave(code: int) -> NoReturn:
    """Ends the process as the interpreter would, but for the destructors of process groups that the script did not destroy."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(reason: object) -> int:
    """What `sys.exit(reason)` ends with; a text goes to stderr."""
    if reason is None or isinstance(reason, int):
        return reason or 0
    print(reason, file=sys.stderr)
    return 1


def own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's own frames on."""
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in _PASSED_OVER:
        trace = trace.tb_next
    return trace


def main() -> None:
    worker = Worker.from_environment()
    worker.section("start")
    with uncollected():
        prepare()
        from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415  after the first heartbeat

    store = host_store(worker)  # serves the other ranks for as long as this process lives
    counter = signs.StepCounter(signs.show_signs(worker, "script"))
    register_optimizer_step_post_hook(counter)
    carefully(compare_replicas, worker, counter)
    keep_process_groups()
    verify_first(worker, store)
    worker.section("script")
    if worker.rank == 0:
        worker.say("section", name="script")
        watch_for_steps()
    # What is imported by now stays: a full collection, which would fall into some step or save, need not look at torch's 200,000 objects
    # each time. One of them took 160 ms beside a dcp.save, on two busy cores; what the script makes is collected as ever.
    gc.freeze()
    code = run(worker)
    if worker.forked():
        leave(code)
    say_unseen()
    if code == 0:
        leave_store(worker, store)
    leave(code)


def run(worker: Worker) -> int:
    """Runs the script; says what it raised and returns its exit code."""
    try:
        run_script(sys.argv[1:])
    except SystemExit as left:
        if isinstance(left.code, str):
            worker.raised(left)
        return exit_code(left.code)
    except BaseException as error:
        traceback.print_exception(type(error), error, own_frames(error.__traceback__))
        worker.raised(error)
        return 1
    return 0
