"""Imports large libraries ahead of a script, without Python's side effects and under the environment that the script will set."""

import contextlib
import gc
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

# Names the file in which the first worker of a node lists what it has imported.
MODULES = "HEADWAY_MODULES"
Changes = dict[str, str | None]  # of the environment; null: taken out


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause Python's garbage collector during an import. It scans the imported objects again and again, which takes an eighth of an
    import of torch._dynamo and finds next to nothing; afterwards they count as old."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
        if was_on:
            gc.enable()


def changes_file(modules: Path, local_rank: int) -> Path:
    """Return the file, next to the list of modules, of the changes that a local rank had made to its environment before its first
    import of each library."""
    return modules.with_name(f"imports-{modules.stem.removeprefix('modules-')}-{local_rank}.json")


def recorded(modules: Path, local_rank: int) -> dict[str, Changes]:
    """By library, what this node's worker of that local rank had changed; or another node's, or that of the newest attempt before."""
    own, any_node = changes_file(modules, local_rank), f"imports-*-{local_rank}.json"
    before = sorted(own.parent.parent.glob(f"*/{any_node}"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in (own, *sorted(own.parent.glob(any_node)), *before):
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Changes] = json.loads(file.read_text())
            return found
    return {}


@contextlib.contextmanager
def under(changes: Mapping[str, str | None]) -> Iterator[None]:
    """The environment with these changes; without them again afterwards."""
    before = {name: os.environ.get(name) for name in changes}
    _change(changes)
    try:
        yield
    finally:
        _change(before)


def _change(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
