"""Gives a planned job to a scheduler: as processes of this machine, or as a job of Slurm, here or on a login node.

In: a `JobPlan`, or the rendered script, and the folder of runs. Out: a run directory and its processes
(`LocalRun`), or a run whose job the scheduler has (`Submitted`).
Start reading: `local.py` for this machine. For schedulers `scheduler.py` (what each must do),
`submission.py` (one job per submission, whatever happens to the client), `site.py` (a cluster's
scheduler, shell and runs). Jobs of Kubernetes are submitted by the user, from the rendered files.
"""
