"""Prints the output of the checkpoint verbs: one JSON object per line on stdout, tagged by `what`."""

import json
from typing import Any

FINE, FOUND, USAGE = 0, 1, 2
"""How a verb ends: all is well; something is refused or differs; its words name nothing that is there."""


def say(what: str, **values: Any) -> None:
    """One line for whoever reads."""
    print(json.dumps({"what": what, **values}, default=str), flush=True)


def say_error(reason: str) -> None:
    say("error", reason=reason)
