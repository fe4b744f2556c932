"""Time of a transformer block with experts: routing, dispatch, expert matrix products, combine.

In: one microbatch of a `Training`, constants from `experts.yaml` (read by `speed.py`).
Out: a cost in seconds for each pass through the block.
Start reading: `block.py`, `exchange.py`.
"""
