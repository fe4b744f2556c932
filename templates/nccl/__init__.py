"""The environment of all ranks as `nccl.env`, each variable with its reason and source.

In: a `JobPlan`. Out: text that a shell can source.
Start reading: `render.py`; `read.py` and `manifest.py` read variables back from job files.
"""
