"""Starts a planned job on this machine.

In: a `JobPlan` and the folder of runs. Out: a run directory and its processes (`LocalRun`).
Start reading: `local.py`. Jobs of Slurm and Kubernetes are submitted by the user, from the rendered
files.
"""
