"""Handles a fault of torch's gloo: its threads occasionally abort an exiting process, under torchrun too.

Python before 3.14 ends a thread that requests the GIL while the interpreter exits; in a destructor of C++, this aborts the process
(pytorch/pytorch#38228, python/cpython#87135). Destroying groups first makes it rare. Ranks of `run_world` avoid it by
`leave()`; a script whose exit is under test is run again.
"""

import subprocess
from collections.abc import Callable

ABORTED = "terminate called without an active exception"
TRIES = 5


def without_abort(run: Callable[[int], "subprocess.CompletedProcess[str]"]) -> "subprocess.CompletedProcess[str]":
    """Return the result of `run`, given the number of the try; repeat it after an abort of gloo's, at most TRIES times."""
    for number in range(TRIES):
        done = run(number)
        if ABORTED not in done.stderr:
            break
    return done
