"""Turns torchrun's arguments into the command that identifies a run."""

import argparse
import hashlib
import importlib.machinery
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from headway.runner.launches import LaunchCommand

# Of a script; a longer file is a program, and identified by size and time.
MOST_BYTES = 64 << 20
# Variables that differ between two starts of one command: a scheduler's, a launcher's and a shell's.
_PASSING = re.compile(
    r"(SLURM|PMI|PMIX|OMPI|PALS|FLUX|PBS|LSB|PET|HEADWAY|TORCHELASTIC|SSH|XDG|KUBERNETES|TMUX|VSCODE)_?.*"
    r"|.*(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS).*"
    r"|(NODE_|GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|CUDA_VISIBLE_DEVICES|HOST|HOSTNAME|TMPDIR"
    r"|PWD|OLDPWD|SHLVL|TERM|DISPLAY|COLUMNS|LINES|_"
)


def command_of(arguments: argparse.Namespace, procs: int, environment: Mapping[str, str], *, alone: bool) -> LaunchCommand:
    """Return the command of these arguments, with `procs` processes a node. `alone`: it runs on one node."""
    if arguments.module and not arguments.run_path:
        kind, file = "module", module_file(arguments.training_script)
    elif arguments.no_python and not arguments.run_path:
        kind, file = "program", _program(arguments.training_script)
    else:
        kind, file = "script", Path(arguments.training_script)
    words = (arguments.training_script, *arguments.training_script_args)
    content = None if file is None else _content(file)
    named = b"\0".join([*(os.fsencode(word) for word in words), b"" if content is None or kind == "program" else content])
    return LaunchCommand(
        kind=kind,
        words=words,
        folder=str(Path.cwd()),
        procs=procs,
        code=None if content is None else hashlib.sha256(content).hexdigest(),
        task=_task(environment, alone=alone),
        variables=_named_in(named, environment),
    )


def _task(environment: Mapping[str, str], *, alone: bool) -> str:
    """Return the task's number: array tasks and parallel `srun` tasks are different commands though they were typed once."""
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_PROCID") if alone else ("SLURM_ARRAY_TASK_ID",)
    return " ".join(f"{name}={environment[name]}" for name in names if name in environment)


def _named_in(text: bytes, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `text` mentions, which may be a sweep's parameters; hashed, to keep them private."""
    named = {os.fsdecode(word) for word in re.findall(rb"\w+", text)} & environment.keys()
    return {
        name: hashlib.sha256(os.fsencode(environment[name])).hexdigest()[:16]
        for name in sorted(named)
        if not _PASSING.fullmatch(name)
    }


def module_file(module: str) -> Path | None:
    """Return the file that `python -m module` runs, found without importing anything; None if only an import would show it."""
    search: list[str] | None = [str(Path.cwd()), *sys.path]
    try:
        for place in range(module.count(".") + 1):
            name = ".".join(module.split(".")[: place + 1])
            if (found := importlib.machinery.PathFinder.find_spec(name, search)) is None:
                return None
            search = None if found.submodule_search_locations is None else list(found.submodule_search_locations)
        if search is not None:
            found = importlib.machinery.PathFinder.find_spec(f"{module}.__main__", search)
    except Exception:
        # A third-party finder may raise anything.
        return None
    return None if found is None or found.origin is None else Path(found.origin)


def _program(name: str) -> Path | None:
    found = shutil.which(name)
    return None if found is None else Path(found)


def _content(file: Path) -> bytes | None:
    try:
        facts = file.stat()
        if facts.st_size > MOST_BYTES:
            return f"{facts.st_size} bytes of {facts.st_mtime_ns}".encode()
        return file.read_bytes()
    except OSError:
        return None
