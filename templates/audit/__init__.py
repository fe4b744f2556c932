"""Rules that find what harms a training run in files of devices, hosts and jobs, without a cluster file.

In: readings by file name. Out: findings with a code (HW8xx), a setting and a remedy; the rules of one file are with its reader (`faults`).
Start reading: `rules.py` (`findings`), `machines.py`.
"""
