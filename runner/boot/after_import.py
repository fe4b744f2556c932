"""Calls a function right after a module is imported (at once if it already was), or right before."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from headway.runner.boot.limitations import suppress_errors

_waiting: dict[str, Callable[[ModuleType], None]] = {}
_before: dict[str, Callable[[], object]] = {}


def after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call `change(module)` once `name` is imported. Its errors are reported and do not stop the import."""
    if (module := sys.modules.get(name)) is not None:
        suppress_errors(change, module)
        return
    _waiting[name] = change
    _find()


def before_import(name: str, call: Callable[[], object]) -> None:
    """Call `call()` when `name` is about to be imported; never if it already was."""
    if name not in sys.modules:
        _before[name] = call
        _find()


def _find() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Delegates to the other finders, and makes the loader call back."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if (call := _before.pop(name, None)) is not None:
            call()
        if name not in _waiting:
            return None
        change = _waiting.pop(name)
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _call_back(spec.loader, change)
                return spec
        return None


def _call_back(loader: importlib.abc.Loader, change: Callable[[ModuleType], None]) -> None:
    """Replace the method of one loader; each module has a separate loader."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        suppress_errors(change, module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
