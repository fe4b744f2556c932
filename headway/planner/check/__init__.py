"""Checks that need an estimate: a step against GPU memory, captures against host memory.

In: a job's plan and its cluster's. Out: an iterator of `Problem`.
headway/compile/job.py calls both after the rules of `headway.jobspec.check`.
"""
