"""Gives a planned job to a scheduler: as processes of this machine, as a job of Slurm, here or on a login node, or as a JobSet.

In: a `JobPlan`, or the rendered script, and the folder of runs. Out: a run directory and its processes
(`LocalRun`), or a run whose job the scheduler has (`Submitted`).
Start reading: `local.py` for this machine. For schedulers `scheduler.py` (what each must do),
`submission.py` (one job per submission, whatever happens to the client), `jobsets.py` (the same on
Kubernetes), `site.py` (a cluster's scheduler and runs).
"""
