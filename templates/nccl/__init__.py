"""Reads NCCL's variables back from job files; the schedulers' templates write them.

In: the text of a script, a file of `NAME=VALUE` or a Kubernetes manifest. Out: a `Reading` (templates/reading.py).
Start reading: `read.py`, `manifest.py`.
"""
