"""Time of an optimizer step, part by part.

In: a `Training` and fitted constants (`speed.yaml`, read by `speed.py`).
Out: a `StepTime`: seconds by part, FLOPs, bytes sent per mesh dimension.
Start reading: `step.py`, then `compute.py`, `collectives.py` and `pipeline.py`.
"""
