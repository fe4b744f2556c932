"""What a script can learn of itself, for those beside this one; written into its working folder, where it is compared."""

import glob
import json
import os
import signal
import threading
from pathlib import Path


# docs/script.md, "What a script can notice": variables that are there, and values that differ.
BESIDE = (
    "HEADWAY_",
    "WANDB_RUN_ID",
    "WANDB_RESUME",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
)
DIFFERENT = ("MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS")


def rank() -> int:
    return int(os.environ["RANK"])


def write(**facts: object) -> None:
    """Puts facts into a file of this rank's."""
    Path(f"facts-{rank()}.json").write_text(json.dumps(facts, indent=1, sort_keys=True, default=str))


def listings(folder: str) -> dict[str, object]:
    """The folder's names by every call that lists."""
    walked = sorted(
        os.path.relpath(os.path.join(top, name), folder) for top, folders, files in os.walk(folder) for name in folders + files
    )
    here = os.getcwd()
    os.chdir(folder)
    try:
        globbed = {pattern: sorted(glob.glob(pattern)) for pattern in ("*", ".*", "*.pt", "**")}
        hidden = sorted(glob.glob("**", recursive=True, include_hidden=True))
    finally:
        os.chdir(here)
    with os.scandir(folder) as entries:
        scanned = sorted((entry.name, entry.is_file(), entry.is_symlink()) for entry in entries)
    descriptor = os.open(folder, os.O_RDONLY)
    by_descriptor = sorted(os.listdir(descriptor))
    walked_by_descriptor = sorted(name for _, folders, files, _ in os.fwalk(folder) for name in folders + files)
    os.close(descriptor)
    return {
        "listdir": sorted(os.listdir(folder)),
        "listdir of bytes": sorted(map(os.fsdecode, os.listdir(os.fsencode(folder)))),
        "listdir of a descriptor": by_descriptor,
        "scandir": scanned,
        "walk": walked,
        "fwalk": walked_by_descriptor,
        "glob": globbed,
        "glob of hidden ones": hidden,
        "iterdir": sorted(path.name for path in Path(folder).iterdir()),
        "Path.glob": sorted(path.name for path in Path(folder).glob("*")),
        "rglob": sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")),
        "ls": sorted(os.popen(f"ls -A {folder}").read().split()),
        "find": sorted(os.popen(f"cd {folder} && find .").read().split()),
    }


def handlers() -> dict[str, str]:
    """How every signal is handled."""
    return {number.name: _handler(number) for number in sorted(signal.valid_signals()) if isinstance(number, signal.Signals)}


def _handler(number: signal.Signals) -> str:
    handler = signal.getsignal(number)
    return handler.name if isinstance(handler, signal.Handlers) else getattr(handler, "__qualname__", str(handler))


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate())


def variables() -> dict[str, str]:
    """The environment, but for what is documented to differ."""
    changing = (*DIFFERENT, "MASTER_PORT")  # chosen anew at each start, by torchrun too
    known = {name: value for name, value in os.environ.items() if not name.startswith(BESIDE) and name != "_"}
    return known | dict.fromkeys(changing, "...")
