"""Puts the turns before each step of the builtin trainer, in the process that imports it."""

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

# The trainer itself is `__main__`.
_MODULE = "headway.runner.train.gradients"


class _Hook(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None  # noqa: S101
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_hook(module: Any) -> None:
            execute(module)
            _hook(module.Gradients)

        loader.exec_module = execute_and_hook
        return spec


def _hook(gradients: Any) -> None:
    from benchmarks.trainer.turns import Alternation

    compute, alternation = gradients.of, Alternation.of(os.environ)

    def in_turn(self: Any, *arguments: Any) -> Any:
        alternation.before_step()
        return compute(self, *arguments)

    gradients.of = in_turn


sys.meta_path.insert(0, _Hook())
