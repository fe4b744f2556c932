"""The planner: memory, step time, goodput, and the search for a layout.

In: a job's plan on a cluster's plan, turned into a `Training` by `from_plan.py`.
Out: an `Estimate`; values for the fields that a job leaves at `auto` (`decide.py`).
Start reading: `training.py`, `estimate.py`; docs/planner.md has the model and its accuracy.
"""
