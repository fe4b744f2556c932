"""Run by -m: a package with a module of its own beside it."""

import os
import sys

from . import beside

print(
    __name__,
    __package__,
    __spec__.name if __spec__ else None,
    sys.path[0] == os.getcwd(),
    [os.path.basename(word) for word in sys.argv],
    beside.VALUE,
    flush=True,
)
print("local rank", os.environ["LOCAL_RANK"], "argument", sys.argv[1:], flush=True)
