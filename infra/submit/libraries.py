"""What the runner needs of its extra, and what of it this machine lacks."""

import importlib.util

_EXTRA = "install headway with its extra `runner`"


def lacking_to_run() -> str | None:
    """What a person must do before anything can be run here; None where all is there."""
    missing = _missing("torch", "xxhash", "msgspec")
    return f"the runner needs {missing}; {_EXTRA}" if missing else None


def lacking_to_read() -> str | None:
    """The same of reading checkpoints."""
    missing = _missing("torch", "xxhash")
    return f"checkpoints need {missing} to be read; {_EXTRA}" if missing else None


def _missing(*packages: str) -> str:
    return " and ".join(package for package in packages if importlib.util.find_spec(package) is None)
