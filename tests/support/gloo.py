"""A fault of torch's gloo that tests must bear: its threads abort a process that ends now and then, under torchrun too.

Python before 3.14 ends a thread that wants the GIL while the interpreter ends; where that is in a destructor of C++, the process aborts
(pytorch/pytorch#38228, python/cpython#87135). A group that is destroyed before makes it rare. Ranks of `run_world` end without it, by
`leave()`; a script whose end is what a test shows is run again.
"""

import subprocess
from collections.abc import Callable

ABORTED = "terminate called without an active exception"
TRIES = 5


def without_abort(run: Callable[[int], "subprocess.CompletedProcess[str]"]) -> "subprocess.CompletedProcess[str]":
    """Return what `run`, given the number of the try, ends with; it is called again after an abort of gloo's, at most TRIES times."""
    for number in range(TRIES):
        done = run(number)
        if ABORTED not in done.stderr:
            break
    return done
