"""Reports what instrumentation could not observe, once per kind; hook errors are logged and never reach the script."""

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headway.runner import worker as workers

MOST = 20  # of different things in one generation

P = ParamSpec("P")
T = TypeVar("T")
_seen: dict[str, None] = {}


def unseen(what: str) -> None:
    """Keeps something to be said by `say_unseen`."""
    if len(_seen) < MOST:
        _seen.setdefault(what)


def carefully(hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What `hook` returns; None when it failed, which is kept to be said and is nothing that the script may notice."""
    try:
        return hook(*args, **kwargs)
    except Exception as error:
        name = getattr(hook, "__qualname__", str(hook))
        print(f"headway: {name}: {type(error).__name__}: {error}", file=sys.stderr)
        unseen(f"a hook failed: {name}: {type(error).__name__}")
        return None


def say_unseen() -> None:
    """Tells the coordinator, for the report, what has been kept. The first rank speaks for all."""
    worker = workers.current()
    if worker is None or worker.rank != 0 or not _seen:
        return
    try:
        worker.say("note", kind="unseen", calls=list(_seen))
    except OSError as error:
        print(f"headway: not said: {', '.join(_seen)}: {error}", file=sys.stderr)
    _seen.clear()
