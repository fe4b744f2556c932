"""Runs somebody's script, unchanged, as a worker: `python -m headway.runner.boot [-m] SCRIPT ARGS...`.

Before the script's first line it hosts the generation's rendezvous store on rank 0 and counts optimizer steps for the heartbeat; the
script finds torchrun's environment, its own argv and itself as `__main__`.
"""

import runpy
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.runner.worker import Worker, host_store


class StepCounter:
    """Counts the steps of the first optimizer that steps: one that steps beside it (a GAN's other half) is not a step of its own."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._first, self._steps = worker, 0, 0

    def __call__(self, optimizer: Any, *_: Any) -> None:
        self._first = self._first or id(optimizer)
        if id(optimizer) == self._first:
            self._steps += 1
            self._worker.completed(self._steps)


def run_script(argv: Sequence[str]) -> None:
    """Runs `SCRIPT ARGS...` or `-m MODULE ARGS...` the way `python` itself would."""
    if argv[0] == "-m":
        sys.argv = list(argv[1:])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(argv)
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    code = compile(Path(argv[0]).read_bytes(), argv[0], "exec")
    # A module object of its own, so that what the script defines can be pickled and a spawned child finds it by __file__.
    main_module = types.ModuleType("__main__")
    main_module.__file__ = argv[0]
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)


def main() -> None:
    worker = Worker.from_environment()
    worker.section("start")
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415  after the first heartbeat

    store = host_store(worker)
    register_optimizer_step_post_hook(StepCounter(worker))
    worker.section("script")
    if worker.rank == 0:
        worker.say("section", name="script")
    try:
        run_script(sys.argv[1:])
    except Exception as error:
        traceback.print_exc()
        worker.say("exception", text=f"{type(error).__name__}: {error}".splitlines()[0][:500])
        sys.exit(1)
    finally:
        del store


if __name__ == "__main__":
    main()
