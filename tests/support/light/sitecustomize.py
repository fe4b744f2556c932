"""Makes ranks light, for tests that start many of them.

Without it a rank imports torch's compiler, torch.export, sympy, and operations on tensors without data, more than half of its start,
although nothing is compiled: here they are imported on first use. A step of the builtin trainer computes next to nothing, and sleeps
instead (LIGHT_STEP_S seconds), so that a fault occurs while the run trains.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import time
from types import ModuleType, SimpleNamespace

# Each Python below a test runs this file, and most of them import no typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

COMPILER = "torch._dynamo"
# DTensor asks it about sizes; it imports much of sympy.
SYMBOLS = "torch.fx.experimental.symbolic_shapes"
# Implements operations on tensors without data, where C++ does not.
SHAPES = "torch._meta_registrations"
STEP_S = float(os.environ.get("LIGHT_STEP_S", "0.05"))


def unchanged(function: Callable[..., Any] | None = None, *_words: Any, **_options: Any) -> Any:
    """Return the function that the compiler is to ignore, or its decorator."""
    return (lambda given: given) if function is None else function


def without_compiler(module: Any) -> None:
    module._disable_dynamo = unchanged


class Postponed(ModuleType):
    """A module that runs its file when a missing attribute is requested."""

    def __init__(self, spec: importlib.machinery.ModuleSpec, known: Mapping[str, Any]) -> None:
        super().__init__(spec.name)
        self.__dict__.update(known)
        self.has_run = False

    def __getattr__(self, name: str) -> Any:
        if self.has_run or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return later(name) if self.__name__ == SYMBOLS and name.islower() else getattr(self.run(), name)

    def run(self) -> Postponed:
        """Run the file, once, after that of its package."""
        package = sys.modules.get(self.__name__.rpartition(".")[0])
        if isinstance(package, Postponed):
            package.run()
        elif self.__name__ in NEED_SHAPES:
            sys.modules[SHAPES].run()
        if not self.has_run:
            self.has_run = True
            for name in LATER[self.__name__]:
                del self.__dict__[name]
            self.__spec__.loader.run(self)  # type: ignore[union-attr]  # that of `Light`
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


def same(one: Any, other: Any) -> Any:
    """Return whether sizes are equal; without symbols they decide it."""
    sizes = [one, other] if isinstance(one, int) else [*one, *other]
    return one == other if all(isinstance(size, int) for size in sizes) else later("sym_eq")(one, other)


def shapes_if_needed(module: Any) -> None:
    """Import SHAPES at the first operation that is not implemented without it."""
    original = module.FakeTensorMode.dispatch

    def dispatch(self: Any, *words: Any, **options: Any) -> Any:
        try:
            return original(self, *words, **options)
        except (NotImplementedError, module.UnsupportedOperatorException):
            shapes = sys.modules.get(SHAPES)
            if not isinstance(shapes, Postponed) or shapes.has_run:
                raise
            shapes.run()
            return original(self, *words, **options)

    module.FakeTensorMode.dispatch = dispatch


def import_less(module: Any) -> None:
    module.ALWAYS = tuple(name for name in module.ALWAYS if name != COMPILER)


def pace(module: Any) -> None:
    """Sleep before each step's gradients."""
    original = module.Gradients.of

    def of(self: Any, *words: Any) -> Any:
        time.sleep(STEP_S)
        return original(self, *words)

    module.Gradients.of = of


def create_later(module: Any) -> None:
    """Compile each method of a dataclass on its first call: most are never called, and torch and headway have five hundred dataclasses."""
    # Python 3.13 compiles all methods of a class at once.
    if (compiled := getattr(module, "_create_fn", None)) is None:
        return

    def create(name: str, *words: Any, **options: Any) -> Callable[..., Any]:
        found: list[Callable[..., Any]] = []

        def method(*args: Any, **named: Any) -> Any:
            if not found:
                found.append(compiled(name, *words, **options))
            return found[0](*args, **named)

        method.__name__ = name
        return method

    module._create_fn = create


# Each postponed module, with the attributes that can be used without running its file.
LATER: Mapping[str, Mapping[str, Any]] = {
    # A new process group clears the compiler's caches, which are empty.
    COMPILER: {
        "disable": unchanged,
        "graph_break": lambda: None,
        "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),
        # DistributedDataParallel asks for it.
        "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    },
    # torch.use_deterministic_algorithms sets one of its values.
    "torch._inductor": {},
    "torch._inductor.config": {},
    "torch.export": {},
    "sympy": {},
    SHAPES: {},
    SYMBOLS: {
        "GuardOnDataDependentSymNode": type("GuardOnDataDependentSymNode", (Exception,), {}),
        **{
            name: of_numbers(name, answer)
            for name, answer in {"_iterate_exprs": (), "has_free_unbacked_symbols": False, "is_nested_int": False}.items()
        },
        "sym_eq": same,
        **{name: of_truth(name) for name in ("expect_true", "guard_or_false", "guard_or_true", "statically_known_true")},
    },
}
AFTER: Mapping[str, Callable[[Any], None]] = {
    "dataclasses": create_later,
    "torch._compile": without_compiler,
    "torch._subclasses.fake_tensor": shapes_if_needed,
    "headway.runner.agent.warm": import_less,
    "headway.runner.train.gradients": pace,
}


# Importing these is circular unless SHAPES was imported before, as torch does.
NEED_SHAPES = frozenset({COMPILER, "torch._inductor", "torch.export"})
# Submodules that are imported without their package.
ALONE = frozenset({"torch._dynamo.config"})


class Light:
    """Finds the modules of LATER and AFTER, and is their loader."""

    def __init__(self, file: Any) -> None:
        self.file = file

    @classmethod
    def find_spec(cls, name: str, path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        package = sys.modules.get(name.rpartition(".")[0])
        if isinstance(package, Postponed) and not package.has_run and name not in LATER and name not in ALONE:
            package.run()
            if name in sys.modules:
                return importlib.machinery.ModuleSpec(name, cls(None))  # type: ignore[arg-type]  # importlib needs no base class
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in LATER or name in AFTER else None
        if spec is not None:
            spec.loader = cls(spec.loader)  # type: ignore[assignment]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return Postponed(spec, LATER[spec.name]) if spec.name in LATER else sys.modules.get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if self.file is not None and module.__name__ not in LATER:
            self.run(module)
            AFTER[module.__name__](module)

    def run(self, module: ModuleType) -> None:
        """Run the module's file."""
        self.file.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


sys.meta_path.insert(0, Light)
