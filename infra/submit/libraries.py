"""Reports which libraries of the runner this machine is missing."""

import importlib.util

_NO_TORCH = "torch 2.6 or newer, which is not installed: use an image that has it, or run `pip install 'headway[torch]'`"


def lacking_to_run() -> str | None:
    """Return what a person must install before a run can start here; None if nothing is missing."""
    return None if _has_torch() else f"the runner needs {_NO_TORCH}"


def lacking_to_read() -> str | None:
    """Return the same for reading checkpoints."""
    return None if _has_torch() else f"reading checkpoints needs {_NO_TORCH}"


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None
