"""Makes ranks light, for tests that start many of them.

The first optimizer that is made, and a standby, import torch's compiler, nearly half of a rank's start: here they do not, for nothing
compiles. A step of the builtin trainer computes next to nothing, and sleeps instead (LIGHT_STEP_S seconds), so that what befalls a run
comes while it runs.
"""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

COMPILER = "torch._dynamo"
STEP_S = float(os.environ.get("LIGHT_STEP_S", "0.05"))


def without_compiler(module: Any) -> None:
    """Leave the functions as they are that the compiler is to leave alone."""

    def as_it_is(function: Callable[..., Any] | None = None, recursive: bool = True) -> Any:
        return (lambda given: given) if function is None else function

    module._disable_dynamo = as_it_is


def import_less(module: Any) -> None:
    module.ALWAYS = tuple(name for name in module.ALWAYS if name != COMPILER)


def pace(module: Any) -> None:
    """Sleep before each step's gradients."""
    original = module.Gradients.of

    def of(self: Any, *words: Any) -> Any:
        time.sleep(STEP_S)
        return original(self, *words)

    module.Gradients.of = of


# Python's own tools and those of other environments run below a test too.
with contextlib.suppress(ModuleNotFoundError):
    from headway.runner.boot.after_import import after_import

    after_import("torch._compile", without_compiler)
    after_import("headway.runner.agent.warm", import_less)
    after_import("headway.runner.train.gradients", pace)
