"""Imports of large libraries, without what Python does beside them."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Python's collector of cycles looks at what is imported again and again, which takes an eighth of an import of torch._dynamo and
    finds next to nothing. What was made meanwhile counts as old afterwards."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
        if was_on:
            gc.enable()
