"""Reports what instrumentation could not observe, once per kind; hook errors are logged and never reach the script."""

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headway.runner import worker as workers

# Different messages in one generation.
MOST = 20

P = ParamSpec("P")
T = TypeVar("T")
_seen: dict[str, None] = {}


def note_limitation(what: str) -> None:
    """Keep a message for `report_limitations`."""
    if len(_seen) < MOST:
        _seen.setdefault(what)


def suppress_errors(hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return the result of `hook`; None when it failed. The error is kept for the report and hidden from the script."""
    try:
        return hook(*args, **kwargs)
    except Exception as error:
        name = getattr(hook, "__qualname__", str(hook))
        print(f"headway: {name}: {type(error).__name__}: {error}", file=sys.stderr)
        note_limitation(f"a hook failed: {name}: {type(error).__name__}")
        return None


def report_limitations() -> None:
    """Send the kept messages to the coordinator, for the report. Only the first rank does."""
    worker = workers.current()
    if worker is None or worker.rank != 0 or not _seen:
        return
    try:
        worker.say("note", kind="unseen", calls=list(_seen))
    except OSError as error:
        print(f"headway: not said: {', '.join(_seen)}: {error}", file=sys.stderr)
    _seen.clear()
