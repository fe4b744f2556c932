"""Makes ranks light, for tests that start many of them.

Without it the first optimizer, DTensor and a standby import torch's compiler and sympy, nearly half of a rank's start, although nothing
is compiled: here both are imported on first use. A step of the builtin trainer computes next to nothing, and sleeps
instead (LIGHT_STEP_S seconds), so that a fault occurs while the run trains.
"""

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
# DTensor asks it about sizes; it imports sympy.
SYMBOLS = "torch.fx.experimental.symbolic_shapes"
STEP_S = float(os.environ.get("LIGHT_STEP_S", "0.05"))


def unchanged(function: Callable[..., Any] | None = None, *_words: Any, **_options: Any) -> Any:
    """Return the function that the compiler is to ignore, or its decorator."""
    return (lambda given: given) if function is None else function


def without_compiler(module: Any) -> None:
    module._disable_dynamo = unchanged


class Postponed(ModuleType):
    """A module that runs its file when a missing attribute is requested."""

    def __init__(self, name: str, file: Path, known: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(name)
        folder = [str(file.parent)] if file.stem == "__init__" else None
        self.__spec__ = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folder)
        self.__file__ = str(file)
        if folder is not None:
            self.__path__ = folder
        self.__dict__.update(known)
        self._runs = False

    def __getattr__(self, name: str) -> Any:
        if self._runs or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.run(), name)

    def run(self) -> "Postponed":
        """Run the file, once."""
        if not self._runs:
            self._runs = True
            self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]  # the specification is that of a file
        return self


def later(name: str) -> Callable[..., Any]:
    """Return the function of SYMBOLS, whose file runs when it is called."""

    def called(*words: Any, **options: Any) -> Any:
        return vars(sys.modules[SYMBOLS].run())[name](*words, **options)

    return called


def of_truth(name: str) -> Callable[[Any], Any]:
    """Return the function of SYMBOLS for a condition on sizes, which numbers decide without symbols."""
    return lambda condition: condition if isinstance(condition, bool) else later(name)(condition)


def of_numbers(name: str, answer: object) -> Callable[[Any], Any]:
    """Return the function of SYMBOLS for the symbols of a value; a number or a tensor with known sizes has none."""

    def asked(value: Any) -> Any:
        sizes = [value] if isinstance(value, int) else getattr(value, "shape", [None])
        return answer if all(isinstance(size, int) for size in sizes) else later(name)(value)

    return asked


def postpone(torch: Any) -> None:
    """Omit the compiler and sympy until something of them is used."""
    folder = Path(torch.__file__).parent
    # A new process group clears the compiler's caches, which are empty.
    unused = {"disable": unchanged, "graph_break": lambda: None, "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None)}
    torch._dynamo = sys.modules.setdefault(COMPILER, Postponed(COMPILER, folder / "_dynamo/__init__.py", unused))
    sizes: dict[str, Any] = {
        "GuardOnDataDependentSymNode": type("GuardOnDataDependentSymNode", (Exception,), {}),
        **{name: later(name) for name in ("_iterate_nodes", "compute_unbacked_bindings", "free_unbacked_symbols")},
        **{
            name: of_numbers(name, answer)
            for name, answer in {"_iterate_exprs": (), "has_free_unbacked_symbols": False, "is_nested_int": False}.items()
        },
        **{name: of_truth(name) for name in ("expect_true", "guard_or_false", "guard_or_true", "statically_known_true")},
    }
    sys.modules.setdefault(SYMBOLS, Postponed(SYMBOLS, folder / "fx/experimental/symbolic_shapes.py", sizes))


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

    after_import("torch", postpone)
    after_import("torch._compile", without_compiler)
    after_import("headway.runner.agent.warm", import_less)
    after_import("headway.runner.train.gradients", pace)
