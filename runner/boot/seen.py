"""Notes which variables a script has set when it first imports a library, so that later preloads can set them too."""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path

from headway.runner.agent.warm import LIBRARIES, OF_A_GENERATION, OF_A_RANK
from headway.runner.boot.after_import import before_import
from headway.runner.boot.limitations import suppress_errors
from headway.runner.imports import MODULES, Changes, changes_file

_OF_ITS_OWN = OF_A_GENERATION | OF_A_RANK


def record_changes(local_rank: int) -> None:
    """Record, from the script's first line on, which variables it has changed by its first import of each library."""
    if (modules := os.environ.get(MODULES)) is None:
        return
    began, noted, file = dict(os.environ), dict[str, Changes](), changes_file(Path(modules), local_rank)
    for library in LIBRARIES:
        before_import(library, functools.partial(suppress_errors, _note, library, began, noted, file))


def _note(library: str, began: Mapping[str, str], noted: dict[str, Changes], file: Path) -> None:
    names = sorted({*began, *os.environ} - _OF_ITS_OWN)
    if changes := {name: os.environ.get(name) for name in names if began.get(name) != os.environ.get(name)}:
        noted[library] = changes
        temporary = file.with_name(f".tmp-{file.name}.{os.getpid()}")
        temporary.write_text(json.dumps(noted))
        temporary.replace(file)
