"""Determines from a script's source whether it may change its environment before importing torch; if so, torch is not preloaded.

A guess and no proof, cheap enough for every start: the script's top-level statements in order, and the modules in its folder that it
imports, up to the first import of torch. Code that cannot be read, or takes too long to analyse, may do anything.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOST_BYTES, MOST_FILES = 1 << 20, 100
# Libraries that import torch when they are imported.
_IMPORT_TORCH = frozenset(
    {
        "accelerate",
        "deepspeed",
        "lightning",
        "lightning_fabric",
        "peft",
        "pytorch_lightning",
        "torch",
        "torchmetrics",
        "torchvision",
    }
)
_READ = frozenset({"copy", "get", "items", "keys", "values"})
# What ranks meet by; neither torch nor numpy reads these when it is imported.
_HARMLESS = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TOKENIZERS_PARALLELISM"}
)


def may_set_environment(words: Sequence[str]) -> bool:
    """Of `SCRIPT ARGS...` or `-m MODULE ARGS...`."""
    if not words:
        return False
    try:
        if words[0] == "-m":
            folders = [Path.cwd(), *(Path(each or ".") for each in sys.path)]
            return _Look(folders).module(words[1], as_main=True) is True
        script = Path(words[0])
        return _Look([script.resolve().parent]).file(script) is True
    except (OSError, ValueError, SyntaxError, RecursionError, IndexError, _TooMuchError):
        return True


class _TooMuchError(Exception):
    """More source than is looked at."""


@dataclass
class _Look:
    """`folders` are searched for modules. A result is True for code that may change the environment before torch is imported, False for
    code that imports torch first, None for code that does neither."""

    folders: Sequence[Path]
    _seen: set[Path] = field(default_factory=set)
    _bytes: int = 0

    def module(self, name: str, *, as_main: bool = False) -> bool | None:
        """A module and the packages that it is in; nothing of one that is not found."""
        parts = name.split(".")
        for folder in self.folders:
            top = folder / parts[0]
            if top.is_dir() or top.with_suffix(".py").is_file():
                break
        else:
            if as_main:
                raise FileNotFoundError(name)
            return None
        for number in range(1, len(parts) + 1):
            place = folder.joinpath(*parts[:number])
            last = as_main and number == len(parts)
            for file in (place / "__init__.py", place.with_suffix(".py"), *([place / "__main__.py"] if last else [])):
                if file.is_file() and (found := self.file(file)) is not None:
                    return found
        return None

    def file(self, path: Path) -> bool | None:
        path = path.resolve()
        if path in self._seen:
            return None
        self._seen.add(path)
        source = path.read_bytes()
        self._bytes += len(source)
        if self._bytes > MOST_BYTES or len(self._seen) > MOST_FILES:
            raise _TooMuchError
        for statement in ast.parse(source).body:
            if _writes(statement):
                return True
            for name in _imported(statement, path, self.folders):
                if name.partition(".")[0] in _IMPORT_TORCH:
                    return False
                if (found := self.module(name)) is not None:
                    return found
        return None


def _imported(statement: ast.stmt, path: Path, folders: Sequence[Path]) -> Iterator[str]:
    """The modules that a top-level import names; `from package import name` may name one too."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        base = statement.module or ""
        if statement.level:
            package = path.parents[statement.level - 1]
            inside = next((folder.resolve() for folder in folders if package.is_relative_to(folder.resolve())), None)
            if inside is None:
                return
            base = ".".join([*package.relative_to(inside).parts, *([base] if base else [])])
        if base:
            yield base
        yield from (f"{base}.{alias.name}" if base else alias.name for alias in statement.names if alias.name != "*")


def _writes(statement: ast.stmt) -> bool:
    """Whether anything in a statement may change the environment; functions may be called before torch is imported."""
    # Nodes that are `environ`, and are only read.
    calm = set[int]()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id="putenv" | "unsetenv" | "load_dotenv") | ast.Attribute(attr="putenv" | "unsetenv" | "load_dotenv"):
                return True
            case ast.alias(name="environ" | "environb", asname=str()):
                return True
            case ast.Attribute(value=value, attr=attr) if _is_environ(value):
                calm |= {id(value)} if attr in _READ else set()
            case ast.Subscript(value=value, ctx=context, slice=key) if _is_environ(value):
                calm |= {id(value)} if isinstance(context, ast.Load) or _is_harmless(key) else set()
            case ast.Compare(comparators=[value]) | ast.keyword(arg=None | "env", value=value) if _is_environ(value):
                calm.add(id(value))
            case ast.Dict(keys=keys, values=values):
                calm |= {id(value) for key, value in zip(keys, values, strict=True) if key is None}
            case ast.Call(func=ast.Name(id="dict" | "len" | "print" | "sorted" | "list"), args=values):
                calm |= {id(value) for value in values}
            case ast.Call(func=ast.Attribute(value=value, attr="setdefault" | "pop"), args=[key, *_]) if _is_environ(value):
                calm |= {id(value)} if _is_harmless(key) else set()
    return any(_is_environ(node) and id(node) not in calm for node in ast.walk(statement))


def _is_environ(node: ast.AST) -> bool:
    """`os.environ`, or `environ` as it is imported from os."""
    return (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb")) or (
        isinstance(node, ast.Name) and node.id in ("environ", "environb")
    )


def _is_harmless(key: ast.expr) -> bool:
    return (
        isinstance(key, ast.Constant)
        and isinstance(key.value, str)
        and (key.value in _HARMLESS or key.value.startswith("WANDB_"))
    )
