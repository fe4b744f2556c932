"""Pipeline schedules: which rank runs which pass of which microbatch, and when.

In: the name of a schedule, its ranks, microbatches and chunks; the times of its stages.
Out: each rank's operations in order (`orders.py`) and their times (`timeline.py`).
Start reading: `orders.py`, `schedule.py`.
"""
