"""GPU and host memory of a training step.

In: a `Training` and the habits of its framework (`memory.yaml`, read by `profiles.py`).
Out: a `MemoryUse` with named tensors at the fullest instant, and hints that free memory.
Start reading: `ledger.py`, `block.py`.
"""
