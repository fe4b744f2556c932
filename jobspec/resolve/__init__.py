"""Specs that passed their checks, turned into plans; one concern per module.

In: a `Cluster` with its inventories, or a `TrainingJob` with a cluster's plan.
Out: frozen `ClusterPlan` and `JobPlan` (jobspec/plan.py), and run.json (`run.py`).
Start reading: `cluster.py`, `job.py`.
"""
