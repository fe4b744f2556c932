"""Prints the output of the checkpoint verbs: one JSON object per line on stdout, tagged by `what`."""

import json
from typing import Any

FINE, FOUND, USAGE = 0, 1, 2
"""Exit codes of a verb: all is well; something is refused or differs; an argument names nothing that exists."""


def say(what: str, **values: Any) -> None:
    """Print one line."""
    print(json.dumps({"what": what, **values}, default=str), flush=True)


def say_error(reason: str) -> None:
    say("error", reason=reason)
