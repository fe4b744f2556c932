"""Goodput under failures: simulation of whole runs, checkpoint intervals, number of spares.

In: a `Run` (`run.py`), made from plans by `of_plan.py`; published rates from `failures.yaml`.
Out: an `Outcome` for each simulated run, figures over many of them, the best interval per tier.
Start reading: `run.py`, `simulate.py`.
"""
