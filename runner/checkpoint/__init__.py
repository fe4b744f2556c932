"""Checkpoints: asynchronous saves, verified restores, and the chain that decides which ones count.

In: a `State` per rank (`layout.py`): tensors by global name, plain objects.
Out: directories or objects with hashed chunks, commits on the chain, tensors filled in place.
Start reading: `chain.py` (what counts), `engine.py`, `lane.py` and `commit.py` (save), `restore.py`, `read.py`
and `load.py` (restore), `session.py` (the interface for a custom training loop).
"""
